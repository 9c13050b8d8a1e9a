# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Statistics of a comparison: methods scored on the same test cases, paired by case.

The case is the unit. Organs and replicates of a case are averaged first: they are not independent of each other, and
counted one by one they would make every p value too small.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import wilcoxon

from bundle.errors import InputError
from bundle.evaluation.scores import METRICS, Row
from bundle.files import whole_file

__all__ = [
    "COLUMNS",
    "Difference",
    "bootstrap_interval",
    "case_means",
    "cell",
    "compare_methods",
    "correct_holm",
    "organ_values",
    "paired_test",
    "read_table",
    "write_table",
]


COLUMNS = ("network", "selection", "method", "replicate", "cohort", "case", "organ", "status", *METRICS)

HIGHER_IS_BETTER = ("dice", "surface_dice")

RESAMPLES = 10_000

DIGITS = 12  # differences below are the rounding of our own means, and would break ties

CaseKey = tuple[str, str]  # cohort, case


# --- The tidy table --------------------------------------------------------------------------------------------------
def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One line per network, selection, method, replicate, case and organ; a missing value is an empty field."""
    with whole_file(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def read_table(path: str | Path) -> list[Row]:
    """The rows `write_table` wrote.

    Raises:
        InputError: when there is no such file, or it is not such a table.
    """
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise InputError(f"{path}: expected a table of scores, but it has no column {', '.join(missing)}")
            return [read_row(row, path, reader.line_num) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: expected a table of scores, but it cannot be read ({error})") from None


def read_row(row: Mapping[str, str | None], path: str | Path, line: int) -> Row:
    texts = {name: row[name] for name in COLUMNS}
    if None in texts.values():
        raise InputError(f"{path}, line {line}: expected {len(COLUMNS)} fields, found fewer; was it cut off?")
    try:
        return {name: (float(text) if text else None) if name in METRICS else text for name, text in texts.items()}
    except ValueError as error:
        raise InputError(f"{path}, line {line}: expected a number or nothing as a score ({error})") from None


def cell(rows: Sequence[Row], network: str, selection: str) -> list[Row]:
    """The rows of one cell of the comparison: a network trained on a selection of cohorts."""
    return [row for row in rows if row["network"] == network and row["selection"] == selection]


# --- One number per case ---------------------------------------------------------------------------------------------
def averaged(rows: Iterable[Row], metric: str, key: Callable[[Row], Any]) -> dict[Any, float]:
    """Mean of the known values of the rows with the same key, in the order of first appearance."""
    groups: dict[Any, list[float]] = defaultdict(list)
    for row in rows:
        if row[metric] is not None:
            groups[key(row)].append(row[metric])
    return {name: float(np.mean(values)) for name, values in groups.items()}


def case_means(rows: Sequence[Row], method: str, metric: str = "dice") -> dict[CaseKey, float]:
    """Score of each case: the mean over its organs, averaged over the replicates that segmented it.

    Args:
        rows: of one cell (see `cell`).
        method: which method.
        metric: which score; organs without one are left out.
    """
    mine = (row for row in rows if row["method"] == method)
    single = averaged(mine, metric, lambda row: (row["cohort"], row["case"], row["replicate"]))
    groups: dict[CaseKey, list[float]] = defaultdict(list)
    for (cohort, case, _), value in single.items():
        groups[cohort, case].append(value)
    return {key: float(np.mean(values)) for key, values in groups.items()}


def organ_values(rows: Sequence[Row], method: str, organ: str, metric: str = "dice") -> dict[CaseKey, float]:
    """Score of one organ in each case that has one, averaged over replicates; ``rows`` of one cell."""
    mine = (row for row in rows if row["method"] == method and row["organ"] == organ)
    return averaged(mine, metric, lambda row: (row["cohort"], row["case"]))


# --- Tests -----------------------------------------------------------------------------------------------------------
def paired_test(differences: ArrayLike) -> float:
    """Two-sided p of Wilcoxon's signed-rank test that paired differences are symmetric about 0."""
    values = np.round(np.asarray(differences, float), DIGITS)
    if not values.any():
        return 1.0  # no difference at all: scipy has no p for it
    return float(wilcoxon(values).pvalue)


def correct_holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p values of one family that may each be held against the level, in the order given."""
    p = np.asarray(p_values, float)
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(stepped, 1)
    return [float(value) for value in corrected]


def bootstrap_interval(
    values: ArrayLike, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the mean, from cases drawn with replacement."""
    known = np.asarray(values, float)
    draws = np.random.default_rng(seed).integers(0, len(known), (resamples, len(known)))
    means: NDArray[np.float64] = known[draws].mean(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Difference:
    """The reference minus another method, over the cases both have.

    Args:
        method: the other method.
        mean: mean difference.
        low: lower end of its 95 % confidence interval.
        high: upper end.
        p: of Wilcoxon's signed-rank test.
        p_holm: corrected for the number of methods.
        better: cases in which the reference is better; a tie is not.
        cases: cases compared.
    """

    method: str
    mean: float
    low: float
    high: float
    p: float
    p_holm: float
    better: int
    cases: int


def compare_methods(
    rows: Sequence[Row], reference: str, methods: Sequence[str], metric: str = "dice", seed: int = 0
) -> list[Difference]:
    """The reference against each of the other methods; these are one family for Holm's correction.

    Args:
        rows: of one cell (see `cell`).
        reference: the method that is compared.
        methods: those it is compared with.
        metric: which score.
        seed: of the bootstrap.

    Raises:
        InputError: when two methods have no case in common.
    """
    own = case_means(rows, reference, metric)
    pairs = [paired_differences(own, case_means(rows, method, metric), reference, method) for method in methods]
    p_values = [paired_test(values) for values in pairs]
    sign = 1 if metric in HIGHER_IS_BETTER else -1
    return [
        Difference(
            method, float(values.mean()), *bootstrap_interval(values, seed=seed), p, corrected,
            better=int((sign * values > 0).sum()), cases=len(values),
        )
        for method, values, p, corrected in zip(methods, pairs, p_values, correct_holm(p_values), strict=True)
    ]  # fmt: skip


def paired_differences(
    own: Mapping[CaseKey, float], other: Mapping[CaseKey, float], reference: str, method: str
) -> NDArray[np.float64]:
    common = [key for key in own if key in other]
    if not common:
        raise InputError(
            f"scores: expected {reference} and {method} to be scored on the same cases, but none is in both "
            f"({len(own)} and {len(other)} cases)"
        )
    return np.round([own[key] - other[key] for key in common], DIGITS)
