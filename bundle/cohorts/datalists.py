# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The dataset.json format: datalists read into cases, and written.

A cohort is a folder with an ordinary `dataset.json` (Decathlon or nnU-Net style). What its label values mean is decided
in `bundle.cohorts.labels`; which of its cases train or test, in `bundle.cohorts.selection`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bundle.cohorts.folders import RESERVED, cohort_files, cohort_name, find_cohorts
from bundle.cohorts.labels import check_spelling, declared_organs, map_values, names_by_value
from bundle.errors import InputError
from bundle.files import write_json
from bundle.organs import WHOLE_VOCABULARY, Vocabulary, find_organ
from bundle.scans.finding import ENDINGS, scan_name
from bundle.untrusted import alike_on_disk, check_name, check_path, is_whole, read_json, shown

__all__ = [
    "KINDS",
    "SECTIONS",
    "UNREADABLE",
    "Case",
    "Entry",
    "case_file",
    "cohort_files",
    "find_cohorts",
    "load_cases",
    "read_cohort",
    "write_datalist",
]


class Case(TypedDict):
    """One image with what is known about it: a plain dict, as MONAI's transforms and JSON take it.

    Args:
        image: path of the file, or of the folder of a DICOM series.
        label: path of the label map; a case without annotation has none.
        case: its name, unique in its cohort.
        cohort: name of its cohort, which is that of the folder.
        labelled: its label set: the organs that were annotated in it.
        values: {value in the label map: channel, UNKNOWN or IGNORED}; `LabelValues.of` reads it. Without them the label
            map has the vocabulary's own values (cases that another program gives).
        fold: its fold, or None.
        patient: cases of one patient are in one fold.
        section: one of `SECTIONS`.
        accept: kinds of findings (`KINDS`) that a person has examined and found right.
    """

    image: str
    label: NotRequired[str]
    case: str
    cohort: str
    labelled: list[str]
    values: NotRequired[dict[int, int]]
    fold: int | None
    patient: str
    section: str
    accept: list[str]


Entry = dict[str, Any]  # a case as a dataset.json lists it: image, label and what else of `ENTRY_KEYS` it has

ENTRY_KEYS = {"image", "label", "labelled", "case", "patient", "fold", "accept"}

SECTIONS = ("training", "validation", "test")

UNREADABLE = "unreadable"  # the kind of a finding that nobody can accept: such a case cannot be trained on

# What else `bundle.checks` may find, as "accept" of an entry names it. A part of the format, hence here.
KINDS = {
    "orientation", "spacing", "field", "rescaled", "offset", "values", "windowed", "empty", "missing",
    "volume", "mirrored", "swapped", "flipped", "misplaced", "copy", "patient",
}  # fmt: skip


# --- Reading a datalist ----------------------------------------------------------------------------------------------
def read_datalist(path: Path) -> dict[str, Any]:
    """The JSON object of a dataset.json; it has `labels`."""
    if not os.path.lexists(path):
        raise InputError(f"{path}: no such file; a cohort is a folder with a dataset.json")
    datalist = read_json(path)
    if not isinstance(datalist, dict) or not isinstance(datalist.get("labels"), dict):
        raise InputError(
            f'{path}: expected a JSON object with "labels" such as {{"0": "background", "1": "spleen"}}, found none'
        )
    return datalist


def listed_entries(datalist: Mapping[str, Any], section: str, path: Path) -> list[Entry]:
    """The entries of a section; a bare path stands for an image without a label map."""
    if "file_ending" not in datalist and not any(name in datalist for name in SECTIONS):
        raise InputError(
            f'{path}: expected a list of cases under "training" or "test", found only {shown(list(datalist))}'
        )
    listed = datalist.get(section)
    if listed is None and "file_ending" in datalist:
        listed = entries_by_name(path, section, datalist["file_ending"])
    if listed is not None and not isinstance(listed, list):
        raise InputError(f'{path}: expected a list of cases under "{section}", found {shown(listed)}')
    entries = [{"image": entry} if isinstance(entry, str) else entry for entry in listed or []]
    for entry in entries:
        check_entry(entry, section, path)
    return entries


def entries_by_name(path: Path, section: str, ending: Any) -> list[Entry]:
    """nnU-Net v2 lists no cases and keeps to file names: imagesTr/CASE_0000 and labelsTr/CASE."""
    if ending not in ENDINGS:
        raise InputError(f'{path}: expected "file_ending" to be one of {", ".join(ENDINGS)}, found {shown(ending)}')
    part = {"training": "Tr", "test": "Ts"}.get(section)
    if part is None:
        return []
    entries = []
    for image in sorted((path.parent / f"images{part}").glob(f"*_0000{ending}")):
        label = path.parent / f"labels{part}" / (image.name.removesuffix(f"_0000{ending}") + ending)
        entries.append(
            {
                "image": os.path.relpath(image, path.parent),
                **({"label": os.path.relpath(label, path.parent)} if label.is_file() else {}),
            }
        )
    return entries


def check_entry(entry: Any, section: str, path: Path) -> None:
    """Refuse what is no entry, has a path that is none, or a key that is probably misspelled."""
    if not isinstance(entry, dict) or "image" not in entry:
        raise InputError(
            f'{path}: expected entries such as {{"image": …, "label": …}} in "{section}", found {shown(entry)}'
        )
    check_path(entry["image"], f'{path}: "image" in "{section}"')
    if entry.get("label") is not None:
        check_path(entry["label"], f'{path}: "label" of {entry["image"]}')
    for key in set(entry) - ENTRY_KEYS:
        close = difflib.get_close_matches(key, ENTRY_KEYS - set(entry), n=1, cutoff=0.75)
        if close:
            raise InputError(f'{path}: {entry["image"]} has {shown(key)}; did you mean "{close[0]}"?')


def case_label_set(entry: Entry, declared: list[str], path: Path) -> list[str]:
    """The cohort's label set, unless the case says `labelled`; empty for a case without a label file."""
    if "labelled" not in entry:
        return [] if entry.get("label") is None else declared
    said, where = entry["labelled"], f'{path}: "labelled" of {entry["image"]}'
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise InputError(f'{where}: expected a list of organ names such as ["liver"], found {shown(said)}')
    chosen = []
    for name in said:
        organ = find_organ(name)
        if organ is None:
            known = ", ".join(WHOLE_VOCABULARY.names)
            raise InputError(f"{where} names {shown(name)}, which is not in the vocabulary; use names from: {known}")
        if organ.name not in declared:
            raise InputError(
                f'{where} names {shown(name)}, but "labels" gives no value to it, so it cannot be annotated; '
                f"organs declared: {', '.join(declared) or 'none'}"
            )
        chosen.append(organ.name)
    if chosen and entry.get("label") is None:
        raise InputError(f"{where} names {', '.join(chosen)}, but the case has no label; add its label map")
    return chosen


def case_fold(entry: Entry, path: Path) -> int | None:
    """The fold that an entry gives, if it does."""
    fold = entry.get("fold")
    if isinstance(fold, str) and fold.isascii() and fold.isdecimal() and len(fold) < 10:
        fold = int(fold)
    if fold is None or (is_whole(fold) and fold >= 0):
        return fold
    raise InputError(f'{path}: "fold" of {entry["image"]}: expected a number such as 0, found {shown(fold)}')


def accepted_kinds(entry: Entry, path: Path) -> list[str]:
    """The kinds of findings that an entry accepts."""
    said, where = entry.get("accept", []), f'{path}: "accept" of {entry["image"]}'
    if isinstance(said, list) and UNREADABLE in said:
        raise InputError(
            f'{where}: "{UNREADABLE}" cannot be accepted, since nothing can be learned from such a case; correct its '
            "files, or remove it from the dataset.json"
        )
    if not isinstance(said, list) or not all(isinstance(kind, str) and kind in KINDS for kind in said):
        raise InputError(
            f'{where}: expected a list of findings such as ["mirrored"], found {shown(said)}; '
            f"known are {', '.join(sorted(KINDS))}"
        )
    return said


# --- Names -----------------------------------------------------------------------------------------------------------
def case_name(entry: Entry, path: Path) -> str:
    """The name an entry gives itself, else that of its image without the `_0000` of nnU-Net's first channel."""
    name = entry.get("case")
    if name is None:
        name = scan_name(entry["image"]).removesuffix("_0000")
    where = f'{path}: the name ("case") of {entry["image"]}'
    return check_name(name, where, 'give the entry another "case"', RESERVED)


def patient_name(entry: Entry, path: Path) -> str:
    """The patient whom an entry names, else one of its own."""
    patient = entry.get("patient")
    if patient is None:
        return case_name(entry, path)
    return check_name(patient, f'{path}: "patient" of {entry["image"]}', "give another name", RESERVED)


def case_file(folder: Path, case: Mapping[str, Any], ending: str) -> Path:
    """The file that belongs to a case in a folder of such files: COHORT/CASE and the ending, never outside the folder.

    >>> case_file(Path("truth"), {"cohort": "livers", "case": "a"}, ".nii.gz").as_posix()
    'truth/livers/a.nii.gz'
    """
    cohort, name = (check_name(case[key], f"{key} of a case") for key in ("cohort", "case"))
    return folder / cohort / f"{name}{ending}"


# --- Cohorts ---------------------------------------------------------------------------------------------------------
def read_cohort(path: str | Path, vocabulary: Vocabulary = WHOLE_VOCABULARY, section: str = "training") -> list[Case]:
    """The cases of one dataset.json.

    Args:
        path: the dataset.json.
        vocabulary: the organs of the run.
        section: `training`, `test` or `validation`.

    Raises:
        InputError: naming the file and what to do.

    >>> from tempfile import TemporaryDirectory
    >>> entries = {"training": [{"image": "a.nii.gz", "label": "a_label.nii.gz"}]}
    >>> with TemporaryDirectory() as folder:
    ...     write_datalist(Path(folder, "dataset.json"), {}, {0: "background", 1: "liver"}, entries)
    ...     (case,) = read_cohort(Path(folder, "dataset.json"), Vocabulary("spleen,liver"))
    >>> case["case"], case["labelled"], case["values"]  # where no liver is marked a spleen may be: unknown, 255
    ('a', ['liver'], {0: 255, 1: 2})
    """
    path = Path(path)
    datalist = read_datalist(path)
    names = names_by_value(datalist["labels"], path)
    check_spelling(names, path)
    declared, cohort = declared_organs(names), cohort_name(path)
    cases = []
    for entry in listed_entries(datalist, section, path):
        annotated = case_label_set(entry, declared, path)
        labelled = [name for name in vocabulary.names if name in annotated]
        case: Case = {
            "image": str(path.parent / entry["image"]),
            "case": case_name(entry, path),
            "cohort": cohort,
            "labelled": labelled,
            "values": map_values(names, labelled, vocabulary, path),
            "fold": case_fold(entry, path),
            "section": section,
            "accept": accepted_kinds(entry, path),
            "patient": patient_name(entry, path),
        }
        if entry.get("label") is not None:
            case["label"] = str(path.parent / entry["label"])
        cases.append(case)
    return cases


def load_cases(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
    section: str = "training",
) -> list[Case]:
    """The cases of all cohorts.

    Args:
        dataset_dir: folder of the cohorts.
        cohorts: names of cohorts (folders, or paths of dataset.json files); None takes all there are.
        vocabulary: the organs of the run.
        section: section of the datalists.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for cohort in ("livers", "spleens"):
    ...         path, entries = Path(folder, cohort, "dataset.json"), {"test": [{"image": "a.nii.gz"}]}
    ...         write_datalist(path, {}, {0: "background"}, entries)
    ...     [(case["cohort"], case["case"]) for case in load_cases(folder, "livers", section="test")]
    [('livers', 'a')]
    """
    cases = [case for path in find_cohorts(dataset_dir, cohorts) for case in read_cohort(path, vocabulary, section)]
    seen: dict[tuple[str, ...], Case] = {}
    for case in cases:
        other = seen.setdefault(alike_on_disk([case["cohort"], case["case"]]), case)
        if other is not case:
            differ = "" if other["case"] == case["case"] else ", which some file systems take for one name"
            raise InputError(
                f"{case['image']}: case {case['case']} of cohort {case['cohort']} is also {other['image']} "
                f"(case {other['case']} of cohort {other['cohort']}{differ}); rename one of them"
            )
    return cases


# --- Writing a datalist ----------------------------------------------------------------------------------------------
def write_datalist(
    path: Path, about: Mapping[str, Any], labels: Mapping[int, str], entries: Mapping[str, Sequence[Entry]]
) -> None:
    """Write a dataset.json.

    Args:
        path: the dataset.json.
        about: the dataset's name and what else there is to say about it.
        labels: what each value of the label maps means.
        entries: the cases of `training` and `test`, and of `validation` if there are any.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path, entries = Path(folder, "dataset.json"), {"training": [{"image": "a.nii.gz"}]}
    ...     write_datalist(path, {"name": "Livers"}, {0: "background", 1: "liver"}, entries)
    ...     datalist = read_json(path)
    >>> datalist["labels"], datalist["numTraining"], datalist["test"]
    ({'0': 'background', '1': 'liver'}, 1, [])
    """
    datalist = {
        **about,
        "modality": {"0": "CT"},
        "labels": {str(value): name for value, name in labels.items()},
        "numTraining": len(entries.get("training", ())),
        "numTest": len(entries.get("test", ())),
        "training": list(entries.get("training", ())),
        "test": list(entries.get("test", ())),
    }
    if entries.get("validation"):
        datalist["validation"] = list(entries["validation"])
    write_json(path, datalist)
