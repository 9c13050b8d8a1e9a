# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Scores between memory and CSV files: one row per case and organ, an empty field where there is no score."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bundle.errors import InputError
from bundle.files import whole_file
from bundle.untrusted import shown

__all__ = ["METRICS", "SCORE_COLUMNS", "Row", "read_score_file", "rows_of", "scores_of", "write_score_file"]


METRICS = ("dice", "surface_distance", "hausdorff", "hausdorff95", "surface_dice")

SHARES = ("dice", "surface_dice")  # those that are at most 1; the others are distances

STATUSES = ("scored", "missed", "invented", "absent", "unlabelled")

SCORE_COLUMNS = ("cohort", "case", "organ", "status", *METRICS)  # of an evaluation

Row = dict[str, Any]  # one organ of one case; a score that does not apply is None


# --- In memory -------------------------------------------------------------------------------------------------------
def scores_of(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] = SCORE_COLUMNS) -> pd.DataFrame:
    """Rows as a table: the ``columns`` first, scores as floats, NaN where there is none.

    Example:
        >>> rows = [{"case": "a", "dice": 0.5}, {"case": "b", "dice": None}]
        >>> scores_of(rows, ["case", "dice"])["dice"].tolist()
        [0.5, nan]
    """
    table = pd.DataFrame(list(rows))
    table = table.reindex(columns=[*columns, *(name for name in table.columns if name not in columns)])
    return table.astype({name: float if name in METRICS else object for name in table.columns})


def rows_of(scores: pd.DataFrame) -> list[Row]:
    """A table as rows again, with None where there is no score."""
    return scores.astype(object).where(scores.notna(), None).to_dict("records")


# --- On disk ---------------------------------------------------------------------------------------------------------
def write_score_file(path: str | Path, scores: pd.DataFrame) -> None:
    """Write a CSV from which `read_score_file` reads the very same floats."""
    with whole_file(path) as unfinished:
        scores.to_csv(unfinished, index=False, lineterminator="\r\n", encoding="utf-8")


def read_score_file(path: str | Path, columns: Sequence[str] = SCORE_COLUMNS) -> pd.DataFrame:
    """The table that `write_score_file` wrote; everything but scores is text.

    The lines are read one by one, because pandas fills up a line that was cut off without a word.

    Args:
        path: the file.
        columns: those it must have; others are read too.

    Raises:
        InputError: when there is no such file, or it is not such a table.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            head = next(reader, [])
            missing = [name for name in columns if name not in head]
            if missing:
                raise InputError(f"{path}: expected a table of scores, but it has no column {', '.join(missing)}")
            if len(set(head)) < len(head):
                raise InputError(f"{path}: expected a table of scores, but it has a column twice")
            rows = [parse_line(head, line, f"{path}, line {reader.line_num}") for line in reader if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: expected a table of scores, but it cannot be read ({error})") from None
    return scores_of(rows, head)


def parse_line(head: Sequence[str], fields: Sequence[str], where: str) -> Row:
    if len(fields) < len(head):
        raise InputError(f"{where}: expected {len(head)} fields, found fewer; was it cut off?")
    if len(fields) > len(head):
        raise InputError(f"{where}: expected {len(head)} fields, found {len(fields)}")
    row: Row = dict(zip(head, fields, strict=True))
    for name in (name for name in head if name in METRICS):
        row[name] = parse_score(name, row[name], where)
    if "status" in row and row["status"] not in STATUSES:
        raise InputError(f"{where}: expected a status out of {', '.join(STATUSES)}, found {shown(row['status'])}")
    return row


def parse_score(name: str, text: str, where: str) -> float | None:
    """A score as a field has it; nothing stands for none."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise InputError(f"{where}: expected a number or nothing as a score ({error})") from None
    if not 0 <= value <= (1 if name in SHARES else sys.float_info.max):
        raise InputError(f"{where}: expected a {name} from 0 on{', up to 1' if name in SHARES else ''}, found {text}")
    return value
