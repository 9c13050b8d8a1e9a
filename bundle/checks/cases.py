# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Is this data what it says it is? Every case is read once and examined, before training time is wasted on it.

An error means that training on the case would do harm, a warning that a person should review it. A case whose oddity
is real lists its kind under `"accept"` in the dataset.json (`"accept": ["mirrored"]` for situs inversus); what cannot
be read cannot be accepted. What can be odd is in `rules`, `anatomy` and `copies`.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.checks.anatomy import off_the_organs, wrong_sides
from bundle.checks.copies import find_copies
from bundle.checks.results import CaseCheck, read_memory, write_memory
from bundle.checks.rules import HISTOGRAM, NO_HU, Finding, odd_grid, odd_header, odd_values, odd_volumes
from bundle.cohorts.datalists import SECTIONS, UNREADABLE, Case, load_cases
from bundle.cohorts.labels import LabelValues
from bundle.errors import InputError
from bundle.files import fingerprint_files
from bundle.organs import WHOLE_VOCABULARY, Vocabulary
from bundle.processes import run_all
from bundle.scans.finding import ITK_READERS, ending_of
from bundle.scans.grids import check_grid
from bundle.scans.itk_files import find_data
from bundle.scans.reading import Scan, read_label_map, read_scan
from bundle.scans.volumes import SliceCounts, count_by_slice, sum_volumes

__all__ = ["check_cases", "check_cohorts", "examine_case", "examine_cases"]


VERSION = 1  # of the checks: remembered results of another version are not used

ENOUGH = (1000, 20)  # voxels, and different values among them, that identify a scan

Painter = Callable[[Scan, NDArray[np.uint8] | None, SliceCounts | None, Vocabulary], bytes]


# --- All cases -------------------------------------------------------------------------------------------------------
def check_cases(
    cases: Sequence[Case],
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    remembered: str | Path | None = None,
    progress: bool = True,
) -> None:
    """Refuse data that training would be harmed by.

    Args:
        cases: from `bundle.cohorts`.
        vocabulary: the organs of the run.
        remembered: a file that keeps results, so that unchanged cases are not read again.
        progress: show a bar.

    Raises:
        InputError: with the first error, in the order of the cases, and the number of others.

    >>> case = {"image": "gone.nii.gz", "case": "a", "cohort": "livers", "section": "training", "labelled": []}
    >>> check_cases([case], progress=False)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bundle.errors.InputError: gone.nii.gz: no such file, but the dataset.json of cohort livers lists it as image; ...
    """
    checks = examine_cases(cases, vocabulary, remembered=remembered, progress=progress)
    errors = [finding.message for check in checks for finding in check.errors]
    if errors:
        others = len(errors) - 1
        more = (
            f" ({others} more error{'s' if others > 1 else ''}: `python -m scripts check` lists all)" if others else ""
        )
        raise InputError(errors[0] + more)


def check_cohorts(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    remembered: str | Path | None = None,
) -> None:
    """`check_cases` for all cases of cohorts, those for testing too: a scan in both would be a leak.

    >>> import json
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     datalist = {"labels": {"1": "liver"}, "training": [], "test": ["gone.nii.gz"]}
    ...     _ = Path(folder, "dataset.json").write_text(json.dumps(datalist))
    ...     check_cohorts(folder)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bundle.errors.InputError: ...gone.nii.gz: no such file, but the dataset.json of cohort ... lists it as image; ...
    """
    cases = [case for section in SECTIONS for case in load_cases(dataset_dir, cohorts, vocabulary, section)]
    check_cases(cases, vocabulary, remembered)


def examine_cases(
    cases: Sequence[Case],
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    picture: Painter | None = None,
    remembered: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> list[CaseCheck]:
    """Examine every case, then all of them together for copies of one scan.

    Args:
        cases: from `bundle.cohorts`.
        vocabulary: the organs of the run.
        picture: makes the thumbnail; see `bundle.reports.check`.
        remembered: a file that keeps results (without thumbnails) of unchanged cases.
        workers: processes; all cores if not given.
        progress: show a bar.

    >>> case = {"image": "gone.nii.gz", "case": "a", "cohort": "livers", "section": "training", "labelled": []}
    >>> accepted = {**case, "case": "b", "accept": ["unreadable"]}  # which a dataset.json cannot say
    >>> checks = examine_cases([case, accepted], workers=1, progress=False)
    >>> [(check.case, [finding.kind for finding in check.findings]) for check in checks]
    [('a', ['unreadable']), ('b', ['unreadable'])]
    """
    memory = read_memory(remembered)
    keys = [case_key(case, vocabulary) for case in cases]
    for case, key in zip(cases, keys, strict=True):
        if key in memory and not is_about(memory[key], case):
            del memory[key]
    todo = [case for case, key in zip(cases, keys, strict=True) if key not in memory]
    examine = partial(examine_case, vocabulary=vocabulary, picture=picture)
    fresh: list[CaseCheck] = []
    try:
        fresh.extend(run_all(examine, todo, "checking cases", workers, progress))
    finally:  # what is known when it is interrupted need not be read again
        known = [key for key in keys if key not in memory]
        memory |= dict(zip(known, fresh, strict=False))
        write_memory(remembered, memory)
    checks = [copy.deepcopy(memory[key]) for key in keys]
    for check, finding in find_copies(cases, checks, vocabulary):
        check.findings.append(finding)
    for case, check in zip(cases, checks, strict=True):
        accepted = set(case.get("accept", ())) - {UNREADABLE}
        check.findings = [finding for finding in check.findings if finding.kind not in accepted]
    return checks


def is_about(check: CaseCheck, case: Case) -> bool:
    """Whether a remembered result is that of the case."""
    said = (check.cohort, check.case, check.section, check.image)
    return said == (case["cohort"], case["case"], case["section"], case["image"])


def case_key(case: Case, vocabulary: Vocabulary) -> str:
    """Changes when the case's files, its label set or the checks do."""
    entry = {key: str(value) for key, value in sorted(case.items()) if key != "fold"}
    files: list[Path] = []
    for path in (Path(case["image"]), *([Path(case["label"])] if "label" in case else [])):
        found = sorted(path.rglob("*")) if os.path.isdir(path) else [path]
        if ending_of(path) in ITK_READERS:
            with contextlib.suppress(InputError):  # it is told when the case is read
                found.append(find_data(path).path)  # a header may have its voxels in a file beside it
        files += [file for file in found if os.path.isfile(file)]
    return fingerprint_files(files, VERSION, vocabulary.names, entry, length=64)


# --- One case --------------------------------------------------------------------------------------------------------
def examine_case(case: Case, vocabulary: Vocabulary = WHOLE_VOCABULARY, picture: Painter | None = None) -> CaseCheck:
    """Read a case and examine it; what cannot be read is a finding too.

    >>> from tempfile import TemporaryDirectory
    >>> from bundle.scans.writing import write_nifti
    >>> case = {"case": "a", "cohort": "livers", "section": "training", "labelled": ["liver"], "values": {0: 255, 1: 6}}
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "label.nii.gz")  # stands for the image as well
    ...     write_nifti(path, np.array([[[0, 1, 7]]], np.int16), np.diag([99.0, 99.0, 99.0, 1.0]))
    ...     check = examine_case({**case, "image": str(path), "label": str(path)})
    >>> "holds the value 7, which" in check.errors[-1].message  # the cohort declares 0 and 1 only
    True
    """
    check = CaseCheck(case["cohort"], case["case"], case["section"], case["image"])
    try:
        examine(case, check, vocabulary, picture)
    except InputError as error:
        check.findings.append(Finding(UNREADABLE, True, str(error)))
    return check


def examine(case: Case, check: CaseCheck, vocabulary: Vocabulary, picture: Painter | None) -> None:
    """Read the files of a case, and write into ``check`` what they show."""
    check_files(case)
    image = read_scan(case["image"])
    examine_image(image, check)
    labels, counts = None, None
    try:
        if "label" in case:
            labels = read_labels(case, image)
            counts = count_by_slice(labels, vocabulary.out_channels)
            examine_labels(case, check, image, labels, counts, vocabulary)
    finally:  # of a case with a bad label map the image at least is shown
        if picture is not None:
            check.thumbnail = picture(image, labels, counts, vocabulary)


def check_files(case: Case) -> None:
    """Refuse a case whose files are not there."""
    for key in ("image", "label"):
        if key in case and not os.path.exists(case[key]):
            if os.path.isdir(folder := os.path.dirname(case[key])) and not os.access(folder, os.X_OK):
                raise InputError(f"{folder}: cannot be looked into (permission is denied); allow reading it")
            raise InputError(
                f"{case[key]}: no such file, but the dataset.json of cohort {case['cohort']} lists it as {key}; "
                "correct the path there"
            )


def examine_image(image: Scan, check: CaseCheck) -> None:
    """Grid and values of the image."""
    check.shape = list(image.voxels.shape)
    check.spacing = [round(float(step), 4) for step in np.linalg.norm(image.affine[:3, :3], axis=0)]
    extent = np.abs(image.affine[:3, :3]) @ np.array(check.shape)
    check.field_of_view = [round(float(length), 1) for length in extent]
    histogram, low, high = count_values(image.voxels)
    check.hu = [low, high]
    check.content = content_of(histogram[1:-1])
    soft, dense = (float(part.sum()) / image.voxels.size for part in (histogram[1:-1], histogram[-1:]))
    check.findings += [
        *odd_header(image),
        *odd_grid(check.image, check.spacing, check.field_of_view),
        *odd_values(check.image, low, high, soft, dense),
    ]


def read_labels(case: Case, image: Scan) -> NDArray[np.uint8]:
    """The label map in channels of the vocabulary, on the image's grid; what is unknown or ignored is 0."""
    label = read_label_map(case["label"])
    check_grid(image, label)
    return LabelValues.of(case).channels(label.voxels)


def examine_labels(
    case: Case, check: CaseCheck, image: Scan, labels: NDArray[np.uint8], counts: SliceCounts, vocabulary: Vocabulary
) -> None:
    """Sizes and places of the organs."""
    volumes = sum_volumes(counts, image.affine, vocabulary)
    check.volumes = {name: round(organ.ml, 2) for name, organ in volumes.organs.items() if organ.voxels}
    check.cut = [name for name, organ in volumes.organs.items() if organ.voxels and organ.touches_border]
    check.findings += odd_volumes(case, volumes)
    if not any(finding.kind in NO_HU for finding in check.findings):  # else its values say nothing about places
        check.findings += wrong_sides(image, counts, case, vocabulary)
        check.findings += off_the_organs(image, labels, case, vocabulary)


def count_values(voxels: NDArray[Any]) -> tuple[NDArray[np.int64], float, float]:
    """How often each HU of `HISTOGRAM`, less and more occur, and the lowest and highest value; a slice at a time."""
    low, high = HISTOGRAM[0], HISTOGRAM[1]
    counts = np.zeros(high - low + 2, np.int64)
    least, most = np.inf, -np.inf
    for index in range(voxels.shape[2]):
        plane = voxels[:, :, index]
        least, most = min(least, plane.min()), max(most, plane.max())
        if plane.dtype.kind == "f":
            plane = np.rint(plane)
        inside = np.clip(plane, low - 1, high).astype(np.int16) - np.int16(low - 1)
        counts += np.bincount(inside.reshape(-1), minlength=len(counts))
    return counts, float(least), float(most)


def content_of(histogram: NDArray[np.int64]) -> str:
    """The same for one scan in any format and orientation; empty where there is too little to identify it."""
    if histogram.sum() < ENOUGH[0] or np.count_nonzero(histogram) < ENOUGH[1]:
        return ""
    return hashlib.sha256(histogram.tobytes()).hexdigest()[:32]
