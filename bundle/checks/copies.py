# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""One scan in two places, or one patient in two folds: scores on held-out data would be too good."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from bundle.checks.results import CaseCheck
from bundle.checks.rules import Finding
from bundle.cohorts.datalists import Case
from bundle.cohorts.selection import is_full, patient_of
from bundle.organs import WHOLE_VOCABULARY, Vocabulary

__all__ = ["find_copies"]


ALWAYS_TRAINS = "always trains"


def find_copies(
    cases: Sequence[Case], checks: Sequence[CaseCheck], vocabulary: Vocabulary = WHOLE_VOCABULARY
) -> Iterator[tuple[CaseCheck, Finding]]:
    """Every copy of a scan that came before, and every patient in two sections or folds, with the case it is about.

    Args:
        cases: all of them.
        checks: what is known about each.
        vocabulary: the organs of the run: cases with all of them annotated may be held out.

    >>> scan = {"cohort": "btcv", "labelled": ["liver"], "fold": None}
    >>> cases = [{**scan, "patient": "a", "section": "training"}, {**scan, "patient": "b", "section": "test"}]
    >>> checks = [CaseCheck("btcv", name, "", f"{name}.nii.gz", content="1f") for name in "ab"]  # equal: one scan
    >>> [(check.image, found.kind, found.error) for check, found in find_copies(cases, checks, Vocabulary("liver"))]
    [('b.nii.gz', 'copy', True)]
    """
    first: dict[str, tuple[Case, CaseCheck]] = {}
    for case, check in zip(cases, checks, strict=True):
        if not check.content:
            continue
        if check.content not in first:
            first[check.content] = (case, check)
            continue
        other, before = first[check.content]
        leak = use_of(case, vocabulary) != use_of(other, vocabulary)
        harm = "training would see what it is tested on" if leak else "it would count twice"
        yield check, Finding("copy", leak, f"{check.image}: is the same scan as {before.image}; {harm}: remove one")
    yield from patients_in_two_places(cases, checks, vocabulary)


def use_of(case: Case, vocabulary: Vocabulary) -> tuple[str, Any]:
    """Where a case is used: its section, and for cases that may be held out (the full ones) the fold."""
    if case["section"] != "training" or not is_full(case, vocabulary):
        return case["section"], ALWAYS_TRAINS
    # folds that are not written down are dealt out by patient, so that two patients may part
    return "training", patient_of(case) if case["fold"] is None else case["fold"]


def patients_in_two_places(
    cases: Sequence[Case], checks: Sequence[CaseCheck], vocabulary: Vocabulary
) -> Iterator[tuple[CaseCheck, Finding]]:
    """Cases of one patient of which some may be held out while training sees the others."""
    first: dict[str, tuple[Case, CaseCheck]] = {}
    for case, check in zip(cases, checks, strict=True):
        if use_of(case, vocabulary) == ("training", ALWAYS_TRAINS):
            continue  # it is left out of training where a fold holds the patient out
        other, before = first.setdefault(patient_of(case), (case, check))
        if use_of(case, vocabulary) != use_of(other, vocabulary):
            message = (
                f"{check.image}: is of patient {case['patient']}, as {before.image} is, but in another section or "
                "fold; put both in one"
            )
            yield check, Finding("patient", True, message)
