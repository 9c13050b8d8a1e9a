# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What figures share: axes, legends, colors. matplotlib is loaded by the functions that draw, not by importing this."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = [
    "AXES_PER_ROW",
    "COLORS",
    "GOLD",
    "GRAY",
    "GRID",
    "INK",
    "PALE",
    "add_legend",
    "even_columns",
    "grid_of_axes",
    "legend_line",
    "plain_axes",
    "plain_log_axis",
    "records_of",
]


# Okabe and Ito's colors, which color-blind people can tell apart too.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f", "#b8a800", "#1d2733")

INK, GRAY, PALE, GRID = "#1d2733", "#5b6775", "#8c96a3", "#e6eaf0"  # those of the style sheet

GOLD = "#b7950b"  # q, in all figures

AXES_PER_ROW = 5  # of a figure with one axis per organ


# --- Axes ------------------------------------------------------------------------------------------------------------
def grid_of_axes(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """A figure of ``count`` axes, row by row; ``width`` and ``height`` of each in inches.

    Example:
        >>> figure, axes = grid_of_axes(5, columns=3, width=2.0, height=1.5)
        >>> len(axes), figure.get_size_inches().tolist()
        (5, [6.0, 3.0])
    """
    from matplotlib.figure import Figure  # draws with Agg unless a window is asked for

    lines = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    return figure, [figure.add_subplot(lines, columns, place + 1) for place in range(count)]


def plain_axes(axis: Axes, grid: str = "both") -> None:
    """No frame but the axes themselves, and a pale grid behind the data along ``grid``: x, y or both."""
    axis.grid(axis=grid, color=GRID)  # type: ignore[arg-type]
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def plain_log_axis(axis: Axis) -> None:
    """Numbers such as 0.5 and 20 on a logarithmic axis, instead of powers; between the powers where there is room."""
    from matplotlib.ticker import LogFormatter

    axis.set_major_formatter(LogFormatter())
    axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))


# --- Legends ---------------------------------------------------------------------------------------------------------
def legend_line(color: Any, label: str, **style: Any) -> Line2D:
    """A line that is shown in a legend only."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, label=label, **style)


def add_legend(figure: Figure, handles: Sequence[Artist], columns: int = 7, size: float = 9) -> None:
    """One legend below all axes, with at most so many ``columns``.

    Example:
        >>> figure, _ = grid_of_axes(1, columns=1, width=2.0, height=1.5)
        >>> add_legend(figure, [legend_line(GOLD, "q"), legend_line(GRAY, "pann")])
        >>> [text.get_text() for text in figure.legends[0].get_texts()]
        ['q', 'pann']
    """
    ncols = even_columns(max(len(handles), 1), columns)
    figure.legend(handles=list(handles), loc="outside lower center", ncols=ncols, frameon=False, fontsize=size)


def even_columns(count: int, most: int) -> int:
    """Columns of a legend whose lines are about equally long."""
    return -(-count // -(-count // most))


# --- Records ---------------------------------------------------------------------------------------------------------
def records_of(history: Sequence[Mapping[str, Any]], stage: str, kind: str = "step") -> list[Mapping[str, Any]]:
    """The records of one stage and kind in a training's history.

    Example:
        >>> history = [{"stage": "warmup", "kind": "step", "loss": 1.0}, {"stage": "train", "kind": "refresh"}]
        >>> records_of(history, "warmup")
        [{'stage': 'warmup', 'kind': 'step', 'loss': 1.0}]
    """
    return [record for record in history if record["kind"] == kind and record["stage"] == stage]
