# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Statistics of a comparison: methods scored on the same test cases, paired by case.

The case is the unit. Organs and replicates of a case are averaged first: they are not independent of each other, and
counted one by one they would make every p value too small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap, wilcoxon

from bundle.errors import InputError
from bundle.evaluation.score_files import SCORE_COLUMNS, read_score_file, scores_of, write_score_file

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


COLUMNS = ("network", "selection", "method", "replicate", *SCORE_COLUMNS)

CASE = ("cohort", "case")  # together they name one case

HIGHER_IS_BETTER = ("dice", "surface_dice")

RESAMPLES = 10_000

DIGITS = 12  # differences below are the rounding of our own means, and would break ties


# --- The tidy table --------------------------------------------------------------------------------------------------
def write_table(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """One line per network, selection, method, replicate, case and organ; a missing value is an empty field.

    Raises:
        ValueError: when a row has a column that the table has not.
    """
    scores = scores_of(rows, COLUMNS)
    odd = [str(name) for name in scores.columns if name not in COLUMNS]
    if odd:
        raise ValueError(f"expected the columns {', '.join(COLUMNS)}, found {', '.join(odd)}")
    write_score_file(path, scores)


def read_table(path: str | Path) -> pd.DataFrame:
    """The table `write_table` wrote: texts, and scores with NaN where there is none.

    Raises:
        InputError: when there is no such file, or it is not such a table.
    """
    return read_score_file(path, COLUMNS)


def cell(scores: pd.DataFrame, network: str, selection: str) -> pd.DataFrame:
    """The rows of one cell of the comparison: a network trained on a selection of cohorts.

    Example:
        >>> scores = pd.DataFrame({
        ...     "network": ["unet", "unet", "deeplab"], "selection": ["all", "livers", "all"], "dice": [0.5, 0.75, 1.0],
        ... })
        >>> cell(scores, "unet", "all")["dice"].tolist()
        [0.5]
    """
    return scores[(scores["network"] == network) & (scores["selection"] == selection)]


# --- One number per case ---------------------------------------------------------------------------------------------
def case_means(scores: pd.DataFrame, method: str, metric: str = "dice") -> pd.Series:
    """Score of each case: the mean over its organs, averaged over the replicates that segmented it.

    Args:
        scores: of one cell (see `cell`).
        method: which method.
        metric: which score; organs without one are left out.

    Returns:
        A score for each cohort and case, in the order of first appearance.

    Example:
        >>> scores = pd.DataFrame({
        ...     "method": "pann", "replicate": ["seed0", "seed0", "seed1"], "cohort": "test", "case": "a",
        ...     "organ": ["liver", "spleen", "liver"], "dice": [0.75, 0.25, 1.0],
        ... })
        >>> case_means(scores, "pann").to_dict()
        {('test', 'a'): 0.75}
    """
    mine = scores[scores["method"] == method]
    return group_means(group_means(mine, [*CASE, "replicate"], metric).reset_index(), CASE, metric)


def organ_values(scores: pd.DataFrame, method: str, organ: str, metric: str = "dice") -> pd.Series:
    """Score of one organ in each case that has one, averaged over replicates.

    Args:
        scores: of one cell (see `cell`).
        method: which method.
        organ: its name.
        metric: which score.

    Example:
        >>> scores = pd.DataFrame({
        ...     "method": "pann", "cohort": "test", "case": ["a", "a", "b"], "organ": ["liver", "liver", "spleen"],
        ...     "dice": [0.5, 1.0, 0.25],
        ... })
        >>> organ_values(scores, "pann", "liver").to_dict()
        {('test', 'a'): 0.75}
    """
    return group_means(scores[(scores["method"] == method) & (scores["organ"] == organ)], CASE, metric)


def group_means(scores: pd.DataFrame, keys: Sequence[str], metric: str) -> pd.Series:
    """Mean of the known values of the rows with the same keys, in the order of first appearance."""
    return scores.dropna(subset=[metric]).groupby(list(keys), sort=False)[metric].mean()


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
    """Percentile interval of the mean, from cases drawn with replacement.

    Args:
        values: one for each case.
        level: of confidence.
        resamples: how many times the cases are drawn.
        seed: of the draws.

    Example:
        >>> bootstrap_interval([0.25, 0.25, 0.25])
        (0.25, 0.25)
    """
    known = np.asarray(values, float)
    if len(known) == 1:
        return float(known[0]), float(known[0])  # scipy wants two cases; one has no interval but itself
    draws = np.random.default_rng(seed)
    found = bootstrap(
        (known,), np.mean, n_resamples=resamples, confidence_level=level, method="percentile", rng=draws
    ).confidence_interval
    return float(found.low), float(found.high)


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
    scores: pd.DataFrame, reference: str, methods: Sequence[str], metric: str = "dice", seed: int = 0
) -> list[Difference]:
    """The reference against each of the other methods; these are one family for Holm's correction.

    Args:
        scores: of one cell (see `cell`).
        reference: the method that is compared.
        methods: those it is compared with.
        metric: which score.
        seed: of the bootstrap.

    Raises:
        InputError: when two methods have no case in common.

    Example:
        >>> scores = pd.DataFrame({
        ...     "method": ["pann"] * 2 + ["full"] * 2, "replicate": "seed0", "cohort": "test", "case": ["a", "b"] * 2,
        ...     "organ": "liver", "dice": [0.75, 0.75, 0.5, 0.25],
        ... })
        >>> (difference,) = compare_methods(scores, "pann", ["full"])
        >>> difference.mean, difference.low, difference.high, difference.better
        (0.375, 0.25, 0.5, 2)
    """
    own = case_means(scores, reference, metric)
    pairs = [paired_differences(own, case_means(scores, method, metric), reference, method) for method in methods]
    p_values = [paired_test(values) for values in pairs]
    sign = 1 if metric in HIGHER_IS_BETTER else -1
    return [
        Difference(
            method, float(values.mean()), *bootstrap_interval(values, seed=seed), p, corrected,
            better=int((sign * values > 0).sum()), cases=len(values),
        )
        for method, values, p, corrected in zip(methods, pairs, p_values, correct_holm(p_values), strict=True)
    ]  # fmt: skip


def paired_differences(own: pd.Series, other: pd.Series, reference: str, method: str) -> NDArray[np.float64]:
    """Own minus other score of the cases that both have, in the order of the own ones."""
    common = own[own.index.isin(other.index)].index
    if not len(common):
        raise InputError(
            f"scores: expected {reference} and {method} to be scored on the same cases, but none is in both "
            f"({len(own)} and {len(other)} cases)"
        )
    return np.round((own[common] - other[common]).to_numpy(), DIGITS)
