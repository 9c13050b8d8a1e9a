# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Organ proportions of cohorts before training: q, what each partial cohort shows beside it, and where to doubt q."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bundle.cohorts.datalists import Case
from bundle.cohorts.selection import full_cases, largest_vocabulary
from bundle.errors import InputError
from bundle.files import write_json
from bundle.organs import Vocabulary
from bundle.training.measuring import Footing, MeasuredCase, measure_cases
from bundle.training.prior import Prior, apart, doubt_shares, prior_of_cases

__all__ = ["Cohort", "Given", "Survey", "survey_cohorts"]


VIEW_FACTOR = 1.5  # fields of view that differ by more make q doubtful


# --- Cohorts ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Given:
    """The proportion of an organ that a cohort's annotators marked.

    Args:
        mean: over the cases in which it is annotated.
        spread: standard deviation over them.
        cases: how many they are.
        ratio: mean ÷ q; None where q is 0.
    """

    mean: float
    spread: float
    cases: int
    ratio: float | None


@dataclass(frozen=True)
class Cohort:
    """The full cases, or the partially labelled ones of a cohort; the field of view is the median of each number.

    Args:
        name: of the cohort.
        cases: how many.
        extent_mm: field of view from right to left, back to front, foot to head.
        volume_l: field of view in liters.
        given: of each annotated organ.
    """

    name: str
    cases: int
    extent_mm: tuple[float, ...]
    volume_l: float
    given: dict[str, Given]


def spread_of(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def describe_cohort(name: str, members: Sequence[MeasuredCase], q: Mapping[str, float]) -> Cohort:
    given = {}
    for organ in q:
        shares = [case.proportions[organ] for case in members if organ in case.proportions]
        if shares and organ != "background":
            mean = float(np.mean(shares))
            given[organ] = Given(mean, spread_of(shares), len(shares), mean / q[organ] if q[organ] else None)
    extent = np.median([case.extent_mm for case in members], axis=0)
    return Cohort(name, len(members), tuple(extent.tolist()), float(np.median([c.volume_l for c in members])), given)


@dataclass(frozen=True)
class Survey:
    """Organ proportions of all cohorts.

    Args:
        prior: q, as training would estimate it from these full cases.
        full: the full cases.
        partial: the partially labelled cohorts.
        cut: in how many full cases each organ reaches a side of the scan.
        cases: all cases.
        warnings: sentences on where q is doubtful.
    """

    prior: Prior
    full: Cohort
    partial: list[Cohort]
    cut: dict[str, int]
    cases: list[MeasuredCase]
    warnings: list[str]

    def save(self, folder: str | Path) -> None:
        """Write `prior.json`, which `Prior.load` reads, and `cohorts.json` with all else."""
        self.prior.save(Path(folder) / "prior.json")
        record = {key: value for key, value in asdict(self).items() if key != "prior"}
        write_json(Path(folder) / "cohorts.json", record)


def survey_cohorts(cases: Sequence[Case], vocabulary: Vocabulary, footing: Footing) -> Survey:
    """q of the full cases, and what each partially labelled cohort shows beside it.

    Raises:
        InputError: when no case is full, or a file cannot be used.
    """
    if not full_cases(cases, vocabulary):
        names = largest_vocabulary(cases)
        raise InputError(
            "no case has all organs of the vocabulary annotated, so that q cannot be estimated; "
            + (f'the largest vocabulary that has one is --organs "{names}"' if names else "add a fully labelled cohort")
        )
    measured = measure_cases(cases, vocabulary, footing)
    full = [case for case in measured if case.full]
    rows = [[case.proportions[name] for name in vocabulary.channel_names] for case in full]
    voxels = sum(case.voxels for case in full)
    prior = prior_of_cases(vocabulary, np.array(rows), [case.case for case in full], footing.patches, voxels)
    q = dict(zip(prior.names, prior.proportions, strict=True))
    cohorts = dict.fromkeys(case.cohort for case in measured if not case.full)
    whole = describe_cohort("full cases", full, q)
    partial = [describe_cohort(name, [c for c in measured if c.cohort == name and not c.full], q) for name in cohorts]
    cut = {name: sum(name in case.cut for case in full) for name in vocabulary.names}
    return Survey(prior, whole, partial, cut, measured, find_doubts(prior, whole, partial, cut))


# --- Where q is doubtful ---------------------------------------------------------------------------------------------
def find_doubts(prior: Prior, full: Cohort, partial: Sequence[Cohort], cut: Mapping[str, int]) -> list[str]:
    """Sentences on what makes q doubtful: fields of view, proportions, organs that are cut off or missing."""
    doubts = [sentence for cohort in partial if (sentence := doubt_view(cohort, full))]
    for cohort in partial:
        doubts += doubt_shares(prior, cohort.name, {organ: given.mean for organ, given in cohort.given.items()})
    often = [f"{name} ({count})" for name, count in cut.items() if 2 * count > full.cases]
    if often:
        doubts.append(
            f"cut off by a side of the scan in more than half of the {full.cases} full cases: {', '.join(often)}; "
            "their q is that of the visible part and would differ in scans that show more of the body, so lower "
            "prior_weight if your cohorts do"
        )
    missing = [name for name, q in zip(prior.names, prior.proportions, strict=True) if q == 0]
    if missing:
        doubts.append(
            f"q is 0, since no full case shows it: {', '.join(missing)}; add a full case that does, or leave it out of "
            "--organs"
        )
    return doubts


def doubt_view(cohort: Cohort, full: Cohort) -> str | None:
    height, usual = cohort.extent_mm[2], full.extent_mm[2]
    if not apart(height, usual, VIEW_FACTOR) and not apart(cohort.volume_l, full.volume_l, VIEW_FACTOR):
        return None
    return (
        f"cohort {cohort.name}: its scans show {height:.0f} mm from foot to head and {cohort.volume_l:.1f} l (medians),"
        f" the full cases {usual:.0f} mm and {full.volume_l:.1f} l, so that organs take other shares of them; crop the "
        "larger ones, lower prior_weight, or leave the cohort out"
    )
