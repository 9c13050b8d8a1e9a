# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Which cases train, validate and test: supervisions, folds, sections."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bundle.cohorts.datalists import Case, load_cases
from bundle.errors import InputError
from bundle.organs import WHOLE_VOCABULARY, Vocabulary
from bundle.untrusted import alike_on_disk, shown

__all__ = [
    "SUPERVISIONS",
    "check_label_sets",
    "deal_folds",
    "evaluation_cases",
    "fold_cases",
    "full_cases",
    "is_full",
    "largest_vocabulary",
    "partial_cases",
    "patient_of",
    "training_cases",
    "validation_cases",
]


logger = logging.getLogger(__name__)

SUPERVISIONS = ("full", "semi", "partial", "marginal", "ignore", "pann")


def is_full(case: Mapping[str, Any], vocabulary: Vocabulary = WHOLE_VOCABULARY) -> bool:
    """Whether every organ of the vocabulary is annotated."""
    return set(case["labelled"]) == set(vocabulary.names)


def check_label_sets(cases: Iterable[Mapping[str, Any]]) -> None:
    """Refuse to train on cases of which nobody says what was annotated.

    Args:
        cases: those of the config that runs; a caller may have put its own in their place.

    Raises:
        InputError: naming the first image without a label set.

    >>> check_label_sets([{"image": "ct.nii.gz", "label": "l.nii.gz", "labelled": ["liver"]}])
    >>> check_label_sets([{"image": "ct.nii.gz", "label": "l.nii.gz"}])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bundle.errors.InputError: train::dataset::data: ct.nii.gz has no "labelled": the caller handed on images and ...
    """
    for case in cases:
        if not isinstance(case, Mapping) or not isinstance(case.get("labelled"), list | tuple):
            image = case.get("image", "a case") if isinstance(case, Mapping) else shown(case)
            raise InputError(
                f'train::dataset::data: {image} has no "labelled": the caller handed on images and label maps without '
                "saying which organs were annotated, as MONAI Label's stock app does, and organs that nobody drew "
                "would be learned as background; serve the bundle with `make serve` (the app in label/), or give each "
                'case "labelled", a list of organs'
            )


def full_cases(cases: Iterable[Case], vocabulary: Vocabulary = WHOLE_VOCABULARY) -> list[Case]:
    """The cases in which every organ of the vocabulary is annotated."""
    return [case for case in cases if is_full(case, vocabulary)]


def largest_vocabulary(cases: Iterable[Case]) -> list[str]:
    """The largest label set of a case: with these as `organs`, a case is full. Of equals the one most cases have."""
    sets: Counter[tuple[str, ...]] = Counter(tuple(case["labelled"]) for case in cases)
    names, _ = max(sets.items(), key=lambda entry: (len(entry[0]), entry[1]), default=((), 0))
    return list(names)


def partial_cases(cases: Iterable[Case], vocabulary: Vocabulary = WHOLE_VOCABULARY) -> list[Case]:
    """The cases in which an organ of the vocabulary is not annotated."""
    return [case for case in cases if not is_full(case, vocabulary)]


def deal_folds(patients: Sequence[str], folds: int = 5, seed: int = 0) -> list[int]:
    """A fold for each case: those of a patient are in one fold, and the patients are spread evenly over the folds.

    Args:
        patients: the patient of each case.
        folds: how many.
        seed: the same one gives the same folds.

    Raises:
        InputError: when there are fewer patients than folds.

    >>> folds = deal_folds(["anna", "ben", "anna", "carl"], folds=3)
    >>> folds[0] == folds[2], sorted(set(folds))
    (True, [0, 1, 2])
    """
    from monai.data.utils import partition_dataset  # here: commands that deal no folds start seconds sooner

    people = sorted(set(patients))
    if not 2 <= folds <= len(people):
        raise InputError(f"folds: expected a number from 2 to the {len(people)} patients there are, found {folds}")
    parts = partition_dataset(people, num_partitions=folds, shuffle=True, seed=seed)
    fold_of = {patient: number for number, part in enumerate(parts) for patient in part}
    return [fold_of[patient] for patient in patients]


def patient_of(case: Case) -> str:
    """The patient of a case, unique among all cohorts."""
    return f"{case['cohort']}/{case['patient']}"


def held_out(cases: Sequence[Case], fold: int | None, folds: int = 5) -> list[bool]:
    """For each fully labelled case whether it belongs to ``fold``. Cases without a fold are dealt out, seeded."""
    patients = [patient_of(case) for case in cases]
    if fold is None or len(set(patients)) < 2:
        return [False] * len(cases)
    dealt = deal_folds(patients, min(folds, len(set(patients))))
    numbers = [other if case["fold"] is None else case["fold"] for case, other in zip(cases, dealt, strict=True)]
    if fold not in numbers:
        known = ", ".join(str(number) for number in sorted(set(numbers)))
        raise InputError(f"fold: expected one of {known}, or null to hold nothing out, found {fold}")
    return [number == fold for number in numbers]


def unannotated(case: Case) -> Case:
    """The case as if nobody had annotated it."""
    bare = case.copy()
    bare.pop("label", None)
    bare["labelled"] = []
    return bare


def training_cases(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    supervision: str = "pann",
    fold: int | None = None,
    warmup_checkpoint: str | None = None,
) -> list[Case]:
    """The cases a supervision trains on: fully labelled ones outside the fold, and partially labelled ones.

    `full` drops the partially labelled cases, `semi` keeps them but forgets their labels. No image is opened here:
    `bundle.checks` does that.

    Args:
        dataset_dir: a folder with one folder per cohort.
        cohorts: names; None takes all of them.
        vocabulary: the organs.
        supervision: one of `SUPERVISIONS`.
        fold: what is held out; None holds nothing out.
        warmup_checkpoint: weights that replace stage 1. With them no case need be fully labelled.

    Raises:
        InputError: when a case cannot be used, or when none is fully labelled and one has to be.

    >>> from tempfile import TemporaryDirectory
    >>> from bundle.cohorts.datalists import write_datalist
    >>> entries, organs = {"training": [{"image": "a.nii.gz", "label": "l.nii.gz"}]}, Vocabulary("liver,spleen")
    >>> with TemporaryDirectory() as folder:
    ...     for cohort, labels in {"both": {1: "liver", 2: "spleen"}, "livers": {1: "liver"}}.items():
    ...         write_datalist(Path(folder, cohort, "dataset.json"), {}, labels, entries)
    ...     for supervision in ("full", "semi", "pann"):
    ...         [case["labelled"] for case in training_cases(folder, None, organs, supervision)]
    [['liver', 'spleen']]
    [['liver', 'spleen'], []]
    [['liver', 'spleen'], ['liver']]
    """
    if supervision not in SUPERVISIONS:
        raise InputError(f'supervision: expected one of {", ".join(SUPERVISIONS)}, found "{supervision}"')
    cases = load_cases(dataset_dir, cohorts, vocabulary)
    full, partial = full_cases(cases, vocabulary), partial_cases(cases, vocabulary)
    if not full and (warmup_checkpoint is None or supervision == "full"):
        raise InputError(no_full_case(dataset_dir, cases, supervision))
    out = held_out(full, fold)
    kept = [case for case, held in zip(full, out, strict=True) if not held]
    if full and not kept:
        raise InputError(f"{dataset_dir}: fold {fold} holds out every fully labelled case; choose another fold")
    tested = {patient_of(case) for case, held in zip(full, out, strict=True) if held}
    validation = load_cases(dataset_dir, cohorts, vocabulary, "validation")
    tested |= {patient_of(case) for case in full_cases(validation, vocabulary)}
    # other scans of the held-out patients, less annotated, are left out too; full ones in two places the check refuses
    partial = [case for case in partial if patient_of(case) not in tested]
    if not kept and not partial:
        raise InputError(f'{dataset_dir}: no case to train on; list cases under "training" of a dataset.json')
    log_label_sets(cases)
    if supervision == "full":
        return kept
    if not partial:
        logger.warning("supervision %s: no case is partially labelled, so stage 2 trains as `full` does", supervision)
    return kept + ([unannotated(case) for case in partial] if supervision == "semi" else partial)


def no_full_case(dataset_dir: str | Path, cases: Sequence[Case], supervision: str) -> str:
    """The sentence for cohorts without a fully labelled case."""
    sets = sorted({f"{case['cohort']}: {', '.join(case['labelled']) or 'nothing'}" for case in cases})
    names = largest_vocabulary(cases)
    shorter = f', or take the largest vocabulary that one case has: --organs "{names}"' if names else ""
    who = "supervision full" if supervision == "full" else "stage 1"
    instead = "" if supervision == "full" else ", or give weights that replace stage 1 (--warmup_checkpoint)"
    return (
        f"{dataset_dir}: no case has all organs of the vocabulary annotated, and {who} needs at least one "
        f"(annotated are {'; '.join(sets)}); add a fully labelled cohort{instead}{shorter}"
    )


def log_label_sets(cases: Sequence[Case]) -> None:
    """Log how the cohorts were understood: a wrong name is easier to see here than in the scores."""
    cohorts: dict[str, list[Case]] = {}
    for case in cases:
        cohorts.setdefault(case["cohort"], []).append(case)
    for cohort, members in cohorts.items():
        sets = Counter(", ".join(case["labelled"]) or "nothing" for case in members)
        text = "; ".join(f"{count} × {organs}" for organs, count in sets.items())
        logger.info("cohort %s: cases annotated with %s", cohort, text)


def evaluation_cases(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    section: str = "test",
    fold: int | None = None,
) -> list[Case]:
    """The labelled cases of a section.

    The section `fold` stands for the cases that training with this ``fold`` has held out: see `validation_cases`.

    Raises:
        InputError: when there is none, or when two of them would be saved under one name.

    >>> from tempfile import TemporaryDirectory
    >>> from bundle.cohorts.datalists import write_datalist
    >>> entries = [{"image": "a.nii.gz", "label": "a_label.nii.gz"}, {"image": "b.nii.gz"}]
    >>> with TemporaryDirectory() as folder:
    ...     write_datalist(Path(folder, "dataset.json"), {}, {1: "liver"}, {"test": entries})
    ...     [case["case"] for case in evaluation_cases(folder, section="test")]  # b has no label map to score against
    ['a']
    """
    if section == "fold":
        cases = validation_cases(dataset_dir, cohorts, vocabulary, fold)
    else:
        cases = [case for case in load_cases(dataset_dir, cohorts, vocabulary, section) if "label" in case]
    if not cases and section == "fold":
        raise InputError(f"{dataset_dir}: fold {fold} holds out no fully labelled case; choose --fold, or --section")
    if not cases:
        raise InputError(f'{dataset_dir}: no labelled case in the section "{section}" of any cohort; choose --section')
    names: dict[tuple[str, ...], Case] = {}
    for case in cases:
        if names.setdefault(alike_on_disk([case["case"]]), case) is not case:
            raise InputError(
                f"{dataset_dir}: two cases are called {case['case']}; evaluate their cohorts one by one: --cohorts"
            )
    return cases


def validation_cases(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    fold: int | None = None,
) -> list[Case]:
    """The fully labelled cases of the fold, and those of the section `validation`.

    >>> from tempfile import TemporaryDirectory
    >>> from bundle.cohorts.datalists import write_datalist
    >>> entries = [{"image": f"{n}.nii.gz", "label": f"l{n}.nii.gz", "fold": n % 2} for n in range(4)]
    >>> sections = {"training": entries, "validation": [{"image": "v.nii.gz", "label": "lv.nii.gz"}]}
    >>> with TemporaryDirectory() as folder:
    ...     write_datalist(Path(folder, "dataset.json"), {}, {1: "liver"}, sections)
    ...     [case["case"] for case in validation_cases(folder, None, Vocabulary("liver"), fold=1)]
    ['1', '3', 'v']
    """
    section = load_cases(dataset_dir, cohorts, vocabulary, "validation")
    left = partial_cases(section, vocabulary)
    if left:
        logger.info(
            "section validation: %d of %d cases are left out, since not all organs are annotated in them",
            len(left),
            len(section),
        )
    return fold_cases(dataset_dir, cohorts, vocabulary, fold) + full_cases(section, vocabulary)


def fold_cases(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    fold: int | None = None,
) -> list[Case]:
    """The fully labelled cases of the fold, alone."""
    full = full_cases(load_cases(dataset_dir, cohorts, vocabulary), vocabulary)
    return [case for case, out in zip(full, held_out(full, fold), strict=True) if out]
