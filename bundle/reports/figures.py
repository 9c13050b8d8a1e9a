# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["grid_of_axes", "steps"]

matplotlib.use("Agg")


# --- Curves ----------------------------------------------------------------------------------------------------------
def grid_of_axes(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    lines = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    axes = [figure.add_subplot(lines, columns, place + 1) for place in range(count)]
    return figure, axes


def steps(history: Sequence[Mapping[str, Any]], stage: str, kind: str = "step") -> list[Mapping[str, Any]]:
    return [record for record in history if record["kind"] == kind and record["stage"] == stage]
