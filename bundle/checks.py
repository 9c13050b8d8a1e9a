# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Is this data what it says it is? Every case is read once, and looked at before a minute of training is wasted on it.

An error means that training on the case would do harm, a warning that a person should look at it. A case whose oddity
is real lists its kind under `"accept"` in the dataset.json (`"accept": ["mirrored"]` for situs inversus). What can be
odd is in `findings`.
"""

from __future__ import annotations

import copy
import glob
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.findings import (
    HISTOGRAM,
    NO_HU,
    Counts,
    Finding,
    odd_grid,
    odd_header,
    odd_values,
    odd_volumes,
    off_the_organs,
    wrong_sides,
)
from bundle.label_maps import count_by_slice, sum_volumes, whole_file
from bundle.organs import IGNORED, UNKNOWN, Vocabulary
from bundle.parallel import run_all
from bundle.scans import Scan, grid_difference, read_label_map, read_scan, same_grid

__all__ = ["CaseCheck", "check_cases", "examine_cases", "find_copies", "undeclared"]

VERSION = 1  # of the checks: remembered results of another version are not used
SLABS = 64  # parts a label map is counted in: numpy widens each to 8 bytes a voxel
TELLING = 1000  # voxels with enough different values tell scans apart

Case = dict[str, Any]
Array = NDArray[Any]
Picture = Callable[[Scan, NDArray[np.uint8] | None, Counts | None, Vocabulary], bytes]


@dataclass
class CaseCheck:
    """What is known about a case after it was read; numbers are missing where it could not be.

    Args:
        cohort, case, section: names.
        image: its file or folder.
        shape: voxels.
        spacing: mm.
        field_of_view: mm along right, anterior, superior.
        hu: lowest and highest value.
        volumes: ml of the organs that are marked.
        cut: organs at the border of the scan, whose volume is a lower bound.
        content: tells whether two images are the same scan, whatever their format, axes and name.
        findings: what is to be said about it.
        thumbnail: a PNG to look at, if one was asked for.
    """

    cohort: str
    case: str
    section: str
    image: str
    shape: list[int] = field(default_factory=list)
    spacing: list[float] = field(default_factory=list)
    field_of_view: list[float] = field(default_factory=list)
    hu: list[float] = field(default_factory=list)
    volumes: dict[str, float] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    content: str = ""
    findings: list[Finding] = field(default_factory=list)
    thumbnail: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.cohort}/{self.case}"

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.error]

    @property
    def warnings(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.error]


# --- All cases -------------------------------------------------------------------------------------------------------
def check_cases(
    cases: Sequence[Case],
    organs: Sequence[str] | None = None,
    remembered: str | Path | None = None,
    progress: bool = True,
) -> None:
    """Refuse data that training would be harmed by.

    Args:
        cases: from `bundle.cohorts`.
        organs: names of the vocabulary.
        remembered: a file that keeps results, so that unchanged cases are not read again.
        progress: show a bar.

    Raises:
        InputError: with the first error, in the order of the cases, and the number of others.
    """
    checks = examine_cases(cases, organs, remembered=remembered, progress=progress)
    errors = [finding.message for check in checks for finding in check.errors]
    if errors:
        others = len(errors) - 1
        more = (
            f" ({others} more error{'s' if others > 1 else ''}: `python -m scripts check` lists all)" if others else ""
        )
        raise InputError(errors[0] + more)


def examine_cases(
    cases: Sequence[Case],
    organs: Sequence[str] | None = None,
    picture: Picture | None = None,
    remembered: str | Path | None = None,
    workers: int | None = None,
    progress: bool = True,
) -> list[CaseCheck]:
    """Look at every case, then at all of them together for copies of one scan.

    Args:
        cases: from `bundle.cohorts`.
        organs: names of the vocabulary.
        picture: makes the thumbnail; see `bundle.check_reports`.
        remembered: a file that keeps results (without thumbnails) of unchanged cases.
        workers: processes; all cores if not given.
        progress: show a bar.
    """
    memory = read_memory(remembered)
    keys = [case_key(case, organs) for case in cases]
    todo = [case for case, key in zip(cases, keys, strict=True) if key not in memory]
    examine = partial(examine_case, organs=organs, picture=picture)
    fresh: list[CaseCheck] = []
    try:
        fresh.extend(run_all(examine, todo, "checking cases", workers, progress))
    finally:  # what is known when it is interrupted need not be looked at again
        known = [key for key in keys if key not in memory]
        memory |= dict(zip(known, fresh, strict=False))
        write_memory(remembered, memory)
    checks = [copy.deepcopy(memory[key]) for key in keys]
    for check, finding in find_copies(cases, checks, organs):
        check.findings.append(finding)
    for case, check in zip(cases, checks, strict=True):
        check.findings = [finding for finding in check.findings if finding.kind not in case.get("accept", ())]
    return checks


def case_key(case: Case, organs: Sequence[str] | None) -> str:
    """Changes when the case's files, its label set or the checks do."""
    facts: list[Any] = [VERSION, organs, {key: str(value) for key, value in sorted(case.items()) if key != "fold"}]
    for path in (Path(case[key]) for key in ("image", "label") if key in case):
        # a header may have its voxels in a file beside it
        files = sorted(path.rglob("*") if path.is_dir() else path.parent.glob(f"{glob.escape(path.stem)}.*"))
        facts += [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def read_memory(path: str | Path | None) -> dict[str, CaseCheck]:
    if path is None or not Path(path).is_file():
        return {}
    try:
        stored = json.loads(Path(path).read_text())
        return {
            key: CaseCheck(**{**entry, "findings": [Finding(**one) for one in entry["findings"]]})
            for key, entry in stored.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # of another version, or damaged: look again


def write_memory(path: str | Path | None, checks: Mapping[str, CaseCheck]) -> None:
    if path is not None:
        with whole_file(path) as unfinished:
            unfinished.write_text(json.dumps({key: as_json(check) for key, check in checks.items()}))


def as_json(check: CaseCheck) -> dict[str, Any]:
    return {key: value for key, value in asdict(check).items() if key != "thumbnail"}


# --- Copies of one scan ----------------------------------------------------------------------------------------------
def find_copies(
    cases: Sequence[Case], checks: Sequence[CaseCheck], organs: Sequence[str] | None = None
) -> Iterator[tuple[CaseCheck, Finding]]:
    """One scan in two places, or one patient in two folds: scores on held-out data would be too good."""
    first: dict[str, tuple[Case, CaseCheck]] = {}
    for case, check in zip(cases, checks, strict=True):
        if not check.content:
            continue
        if check.content not in first:
            first[check.content] = (case, check)
            continue
        other, before = first[check.content]
        leak = use_of(case, organs) != use_of(other, organs)
        harm = "training would see what it is tested on" if leak else "it would count twice"
        yield check, Finding("copy", leak, f"{check.image}: is the same scan as {before.image}; {harm}: remove one")
    yield from patients_in_two_places(cases, checks, organs)


ALWAYS_TRAINS = "always trains"


def use_of(case: Case, organs: Sequence[str] | None) -> tuple[str, Any]:
    """Where a case is used: its section, and for cases that may be held out (the full ones) the fold."""
    if case["section"] != "training" or set(case["labelled"]) != set(Vocabulary(organs).names):
        return case["section"], ALWAYS_TRAINS
    # folds that are not written down are dealt out by patient, so that two patients may part
    return "training", (case["cohort"], case["patient"]) if case["fold"] is None else case["fold"]


def patients_in_two_places(
    cases: Sequence[Case], checks: Sequence[CaseCheck], organs: Sequence[str] | None
) -> Iterator[tuple[CaseCheck, Finding]]:
    first: dict[tuple[str, str], tuple[Case, CaseCheck]] = {}
    for case, check in zip(cases, checks, strict=True):
        if use_of(case, organs) == ("training", ALWAYS_TRAINS):
            continue  # it is left out of training where a fold holds the patient out
        other, before = first.setdefault((case["cohort"], case["patient"]), (case, check))
        if use_of(case, organs) != use_of(other, organs):
            message = (
                f"{check.image}: is of patient {case['patient']}, as {before.image} is, but in another section or "
                "fold; put both in one"
            )
            yield check, Finding("patient", True, message)


# --- One case --------------------------------------------------------------------------------------------------------
def examine_case(case: Case, organs: Sequence[str] | None = None, picture: Picture | None = None) -> CaseCheck:
    """Read a case and look at it."""
    check = CaseCheck(case["cohort"], case["case"], case["section"], case["image"])
    try:
        examine(case, check, Vocabulary(organs), picture)
    except InputError as error:
        check.findings.append(Finding("unreadable", True, str(error)))
    return check


def examine(case: Case, check: CaseCheck, vocabulary: Vocabulary, picture: Picture | None) -> None:
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
    for key in ("image", "label"):
        if key in case and not Path(case[key]).exists():
            raise InputError(
                f"{case[key]}: no such file, but the dataset.json of cohort {case['cohort']} lists it as {key}; "
                "correct the path there"
            )


def examine_image(image: Scan, check: CaseCheck) -> None:
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
    return channels_of(label.voxels, case)


def examine_labels(
    case: Case, check: CaseCheck, image: Scan, labels: NDArray[np.uint8], counts: Counts, vocabulary: Vocabulary
) -> None:
    volumes = sum_volumes(counts, image.affine, vocabulary)
    check.volumes = {name: round(organ.ml, 2) for name, organ in volumes.organs.items() if organ.voxels}
    check.cut = [name for name, organ in volumes.organs.items() if organ.voxels and organ.touches_border]
    check.findings += odd_volumes(case, volumes)
    if not any(finding.kind in NO_HU for finding in check.findings):  # else its values say nothing about places
        check.findings += wrong_sides(image, counts, case, vocabulary)
        check.findings += off_the_organs(image, labels, case, vocabulary)


def count_values(voxels: Array) -> tuple[NDArray[np.int64], float, float]:
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
    """The same for one scan in any format and orientation; empty where there is too little to tell scans apart."""
    if histogram.sum() < TELLING or np.count_nonzero(histogram) < 20:
        return ""
    return hashlib.sha256(histogram.tobytes()).hexdigest()[:32]


def channels_of(label: Array, case: Case) -> NDArray[np.uint8]:
    """The values of a label file as channels; raises an InputError for a value that nobody declared."""
    values: dict[int, int] = case["values"]
    most = int(label.max())
    if most > max(*values, 255):  # before tables of that size are made
        undeclared(case, [most])
    table = np.zeros(max(*values, most) + 1, np.uint8)
    for value, channel in values.items():
        table[value] = 0 if channel in (UNKNOWN, IGNORED) else channel
    flat = label.ravel(order="F" if label.flags.f_contiguous else "C")  # no copy
    found = np.flatnonzero(sum(np.bincount(part, minlength=len(table)) for part in np.array_split(flat, SLABS)))
    extra = [int(value) for value in found if value not in values]
    if extra:
        undeclared(case, extra)
    if label.dtype == np.uint8 and all(table[value] == value for value in found):
        return label
    # flat, in the order of memory: several times faster
    channels = table[flat]
    return channels.reshape(label.shape, order="F" if label.flags.f_contiguous else "C")


def undeclared(case: Case, values: Sequence[int]) -> NoReturn:
    found = ", ".join(map(str, values[:5]))
    raise InputError(
        f'{case["label"]}: holds the value {found}, which "labels" in the dataset.json of cohort {case["cohort"]} does '
        'not declare; add it there with the name of what it marks ("ignore" if nobody knows)'
    )


def axes_of(scan: Scan) -> str:
    return "".join(nib.aff2axcodes(scan.affine))


def in_ras(scan: Scan) -> Scan:
    """The same scan with its axes to the right, front and head; a view."""
    turn = nib.io_orientation(scan.affine)
    voxels = nib.orientations.apply_orientation(scan.voxels, turn)
    return Scan(voxels, scan.affine @ nib.orientations.inv_ornt_aff(turn, scan.voxels.shape), scan.path)


def check_grid(image: Scan, label: Scan) -> None:
    """Raises an InputError where the label map is not on the image's grid."""
    if axes_of(image) != axes_of(label) and same_grid(in_ras(image), in_ras(label)):
        raise InputError(
            f"{label.path}: its axes run {axes_of(label)}, those of its image {image.path} run {axes_of(image)}; store "
            "both alike, for instance with nibabel.as_closest_canonical"
        )
    if image.voxels.shape != label.voxels.shape:
        raise InputError(
            f"{label.path}: its shape {label.voxels.shape} is not that of its image {image.path} {image.voxels.shape}; "
            "resample the label map to the image's grid"
        )
    if not same_grid(image, label):
        raise InputError(
            f"{label.path}: its affine differs from that of its image {image.path} by up to "
            f"{grid_difference(image, label):.3g} mm; copy the image's affine if the voxels agree, else resample the "
            "label map"
        )
