# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""From a download to a cohort: images and label maps in NIfTI, and the dataset.json that names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import numpy as np

from bundle.cohorts.adapters.base import Adapter, Annotation, LeftOutError, RawCase
from bundle.cohorts.datalists import Entry, write_datalist
from bundle.cohorts.selection import deal_folds
from bundle.errors import InputError
from bundle.organs import ORGANS, find_organ
from bundle.processes import run_all
from bundle.scans.finding import NIFTI
from bundle.scans.reading import Scan, read_scan
from bundle.scans.writing import write_nifti

__all__ = ["Prepared", "choose_evenly", "drop_labels", "prepare_cohort"]

USUAL_FOLDS = 5


@dataclass
class Prepared:
    """What became of a download.

    Args:
        path: the dataset.json.
        entries: its cases, by section.
        notes: what a person should know about single cases.
        failures: why cases could not be taken.
    """

    path: Path
    entries: dict[str, list[Entry]]
    notes: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def prepare_cohort(
    adapter: Adapter,
    source: Path,
    output: Path,
    cases: int | None = None,
    folds: int | None = None,
    dropped: int = 0,
    fraction: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    progress: bool = True,
) -> Prepared:
    """Turn the official download of a dataset into a cohort.

    Args:
        adapter: of the dataset.
        source: folder of the download, which is left as it is.
        output: folder of the cohort.
        cases: how many labelled training cases to take, evenly spread over their names; None takes all.
        folds: folds to deal out; None makes five for datasets with every organ annotated (fewer for fewer patients),
            and none for others.
        dropped: organs whose labels are forgotten in a share ``fraction`` of the training cases (the paper's PaNN*).
        fraction: see ``dropped``.
        seed: of the folds and of what is dropped.
        workers: processes; all cores if not given.
        progress: show a bar.

    Raises:
        InputError: when nothing can be made of it. Single bad cases are left out and reported in the result.
    """
    if dropped or fraction:
        check_dropping(adapter, dropped, fraction)
    found = adapter.find_cases(source)
    training = [case for case in found if case.section == "training" and case.labels]
    chosen = choose_evenly(training, cases, str(source))
    wanted = [*chosen, *(case for case in found if case.section != "training")]
    make = partial(prepare_case, adapter, output)
    prepared = Prepared(output / "dataset.json", {"training": [], "test": []})
    results = run_all(make, wanted, adapter.name, workers, progress)
    for case, (entry, notes, failure) in zip(wanted, results, strict=True):
        prepared.notes += notes
        if failure:
            prepared.failures.append(failure)
        elif entry is not None:
            prepared.entries[case.section].append(entry)
    if not prepared.entries["training"]:
        reason = (*prepared.failures, *prepared.notes)[0]
        raise InputError(f"{source}: no training case could be prepared; {reason}")
    if dropped or fraction:
        drop_labels(prepared.entries["training"], annotated_organs(adapter), dropped, fraction, seed)
    deal_to(prepared.entries["training"], adapter, folds, seed)
    about = {"name": adapter.title, "reference": adapter.url, "licence": adapter.license}
    write_datalist(prepared.path, about, adapter.labels, prepared.entries)
    return prepared


def prepare_case(adapter: Adapter, output: Path, case: RawCase) -> tuple[Entry | None, list[str], str]:
    """The case's entry in the dataset.json, notes, and why it cannot be used; runs in a process of its own."""
    read_image = cache(lambda: read_scan(case.image))
    try:
        image = referred(case.path, output) or write_image(read_image(), output, case.name)
        entry: Entry = {"case": case.name, "image": image}
        annotation = adapter.annotate(case, read_image) if case.labels else None
        labelled: Sequence[str] | None = case.labelled
        if annotation is not None:
            entry["label"] = write_labels(annotation, output, case.name)
            labelled = annotation.labelled if annotation.labelled is not None else labelled
        elif case.labels:
            entry["label"] = referred(case.labels[0], output)
        if case.patient:
            entry["patient"] = case.patient
        if labelled is not None:
            entry["labelled"] = list(labelled)
        return entry, [f"{case.name}: {note}" for note in annotation.notes] if annotation else [], ""
    except LeftOutError as reason:
        return None, [f"{case.name}: {reason}, left out"], ""
    except InputError as error:
        return None, [], str(error)


def referred(path: Path, output: Path) -> str | None:
    """The path from the cohort's folder to a NIfTI file of the download; None for what must be converted."""
    if not path.name.endswith(NIFTI):
        return None
    if not path.is_file():
        raise InputError(f"{path}: no such file; unpack the download again")
    return os.path.relpath(path.resolve(), output.resolve())


def write_image(scan: Scan, output: Path, name: str) -> str:
    write_nifti(output / "images" / f"{name}.nii.gz", scan.voxels, scan.affine)
    return f"images/{name}.nii.gz"


def write_labels(annotation: Annotation, output: Path, name: str) -> str:
    write_nifti(output / "labels" / f"{name}.nii.gz", annotation.labels.astype(np.uint8), annotation.affine)
    return f"labels/{name}.nii.gz"


# --- Choosing --------------------------------------------------------------------------------------------------------
def choose_evenly(cases: Sequence[RawCase], count: int | None, source: str) -> list[RawCase]:
    """``count`` cases, evenly spread over their order: the same ones every time."""
    if count is None:
        return list(cases)
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= len(cases):
        raise InputError(f"cases: expected 1 to {len(cases)}, the labelled cases in {source}, found {count}")
    return [cases[place] for place in np.linspace(0, len(cases) - 1, count).round().astype(int)]


def annotated_organs(adapter: Adapter) -> list[str]:
    named = {organ.name for name in adapter.labels.values() if (organ := find_organ(name)) is not None}
    return [organ.name for organ in ORGANS if organ.name in named]


def check_dropping(adapter: Adapter, dropped: int, fraction: float) -> None:
    organs = annotated_organs(adapter)
    if not 0 < dropped < len(organs) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise InputError(
            f"drop_labels, fraction: expected 1 to {len(organs) - 1} of the {len(organs)} organs of {adapter.name} and "
            f"a share of the cases above 0 and up to 1, found {dropped} and {fraction}; the paper has 8 and 0.2"
        )


def drop_labels(entries: list[Entry], organs: Sequence[str], dropped: int, fraction: float, seed: int) -> None:
    """The paper's PaNN*: in a share of the cases only a few random organs stay annotated, other ones in each case."""
    count = round(fraction * len(entries))
    if count == 0:
        raise InputError(f"fraction: {fraction:g} of {len(entries)} cases is none; choose a larger one")
    rng = np.random.default_rng(seed)
    for place in sorted(rng.permutation(len(entries))[:count]):
        before = entries[place].get("labelled", organs)
        kept = set(rng.permutation(organs)[: len(organs) - dropped].tolist())
        entries[place]["labelled"] = [name for name in before if name in kept]


def deal_to(entries: list[Entry], adapter: Adapter, folds: int | None, seed: int) -> None:
    """Folds for the cases that have the whole label set; what was left out of others makes them partial."""
    full = [entry for entry in entries if "labelled" not in entry]
    patients = [entry.get("patient") or entry["case"] for entry in full]
    if folds is None:
        usual = min(USUAL_FOLDS, len(set(patients))) if len(annotated_organs(adapter)) == len(ORGANS) else 0
        folds = usual if usual > 1 else 0
    if folds:
        for entry, fold in zip(full, deal_folds(patients, folds, seed), strict=True):
            entry["fold"] = fold
