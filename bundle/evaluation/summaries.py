# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Scores of many cases in short: means per organ, how often each status occurred, and the files of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bundle.errors import InputError
from bundle.evaluation.score_files import (
    METRICS,
    SCORE_COLUMNS,
    Row,
    read_score_file,
    rows_of,
    scores_of,
    write_score_file,
)
from bundle.evaluation.tables import Table, number
from bundle.files import write_json
from bundle.organs import Vocabulary
from bundle.untrusted import is_number, read_json

__all__ = ["format_table", "read_scores", "summarize", "summary_table", "write_scores"]


# --- Means -----------------------------------------------------------------------------------------------------------
def summarize(rows: Sequence[Row], vocabulary: Vocabulary, tolerance: float = 2.0) -> dict[str, Any]:
    """Means per organ over cases, and of those over organs; how often each status occurred.

    Args:
        rows: one for each case and organ, as `score_case` makes them, with the cohort and the case.
        vocabulary: the organs.
        tolerance: of the surface Dice in mm; it is part of the summary.

    Example:
        >>> row = {"cohort": "test", "organ": "liver", "status": "scored"}
        >>> rows = [{**row, "case": "a", "dice": 0.5}, {**row, "case": "b", "dice": 1.0}]
        >>> summary = summarize(rows, Vocabulary("liver"))
        >>> summary["organs"]["liver"]["dice"], summary["organs"]["liver"]["hausdorff"], summary["cases"]
        (0.75, None, 2)
    """
    scores = scores_of(rows)
    organs = {name: scores[scores["organ"] == name] for name in vocabulary.names}
    means = {name: {metric: mean_of_known(mine[metric]) for metric in METRICS} for name, mine in organs.items()}
    return {
        "cases": len(scores[["cohort", "case"]].drop_duplicates()),
        "surface_dice_tolerance_mm": tolerance,
        "mean": {metric: mean_of_known([mean[metric] for mean in means.values()]) for metric in METRICS},
        "status": count_statuses(scores),
        "organs": {name: {**means[name], **count_statuses(mine)} for name, mine in organs.items()},
    }


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """The mean of the known values; NumPy's, since pandas rounds its sums in another way and scores.json is exact."""
    known = pd.Series(values, dtype=float).dropna().to_numpy()
    return float(np.mean(known)) if len(known) else None


def count_statuses(scores: pd.DataFrame) -> dict[str, int]:
    """How often each status occurs, in the order of first appearance."""
    return {str(status): int(count) for status, count in scores["status"].value_counts(sort=False).items()}


# --- Text and files --------------------------------------------------------------------------------------------------
def summary_table(summary: Mapping[str, Any]) -> Table:
    """All metrics of each organ, and their means in the last row."""
    head = ["organ", "Dice", "ASD mm", "HD mm", "HD95 mm", f"SD {summary['surface_dice_tolerance_mm']:g} mm"]
    lines = [*summary["organs"].items(), ("mean over organs", summary["mean"])]
    return Table(head, [[name, *(number(row[metric]) for metric in METRICS)] for name, row in lines], total=True)


def format_table(summary: Mapping[str, Any]) -> str:
    """The summary as text for a terminal."""
    return summary_table(summary).text()


def write_scores(folder: str | Path, rows: Sequence[Row], summary: Mapping[str, Any]) -> None:
    """`scores.csv`, whose columns are those of the rows, and `scores.json`.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> row = {"cohort": "test", "case": "a", "organ": "liver", "status": "missed", "dice": 0.0, "hausdorff": None}
        >>> with TemporaryDirectory() as folder:
        ...     write_scores(folder, [row], {"cases": 1})
        ...     Path(folder, "scores.csv").read_text().splitlines()[1]  # what is not known is an empty field
        'test,a,liver,missed,0.0,'
    """
    write_score_file(Path(folder) / "scores.csv", scores_of(rows, list(rows[0]) if rows else SCORE_COLUMNS))
    write_json(Path(folder) / "scores.json", summary)


def read_scores(directory: str | Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows and summary as `write_scores` wrote them.

    Raises:
        InputError: when one of the two files is damaged, or the summary is not that of the rows.
    """
    rows, path = rows_of(read_score_file(Path(directory) / "scores.csv")), Path(directory) / "scores.json"
    summary = read_json(path)
    if not is_summary(summary, rows):
        raise InputError(f"{path}: expected the means of scores.csv beside it, found something else; evaluate again")
    return rows, summary


def is_summary(found: Any, rows: Sequence[Row]) -> bool:
    """Whether a record holds what `summarize` makes of rows, whatever else there is in it."""
    try:
        tolerance = found["surface_dice_tolerance_mm"]
        expected = summarize(rows, Vocabulary(list(found["organs"])), tolerance) if is_number(tolerance) else None
    except (TypeError, KeyError, InputError):
        return False
    return expected is not None and all(name in found and alike(value, found[name]) for name, value in expected.items())


def alike(one: Any, other: Any) -> bool:
    """Whether two records agree, but for the rounding of their numbers."""
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(alike(value, other[name]) for name, value in one.items())
    if is_number(one) and is_number(other):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)
