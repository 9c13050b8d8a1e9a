# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The dataset.json format: datalists read into cases, and written.

A cohort is a folder with an ordinary `dataset.json` (Decathlon or nnU-Net style). What its label values mean is decided
in `bundle.cohorts.labels`; which of its cases train or test, in `bundle.cohorts.selection`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bundle.cohorts.labels import check_spelling, declared_organs, map_values, names_by_value
from bundle.errors import InputError
from bundle.files import write_json
from bundle.organs import WHOLE_VOCABULARY, Vocabulary, find_organ
from bundle.scans.finding import scan_name

__all__ = [
    "KINDS",
    "SECTIONS",
    "Case",
    "Entry",
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
            map has the vocabulary's own values.
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

# What `bundle.checks` may find, as "accept" of an entry names it. A part of the format, hence here.
KINDS = {
    "unreadable", "orientation", "spacing", "field", "rescaled", "offset", "values", "windowed", "empty", "missing",
    "volume", "mirrored", "swapped", "flipped", "misplaced", "copy", "patient",
}  # fmt: skip


# --- Reading a datalist ----------------------------------------------------------------------------------------------
def read_datalist(path: Path) -> dict[str, Any]:
    """The JSON object of a dataset.json; it has `labels`."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; a cohort is a folder with a dataset.json")
    try:
        datalist = json.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid JSON in UTF-8 ({error}); correct it or save it again") from None
    if not isinstance(datalist, dict) or not isinstance(datalist.get("labels"), dict):
        raise InputError(
            f'{path}: expected a JSON object with "labels" such as {{"0": "background", "1": "spleen"}}, found none'
        )
    return datalist


def listed_entries(datalist: Mapping[str, Any], section: str, path: Path) -> list[Entry]:
    """The entries of a section; a bare path stands for an image without a label map."""
    if "file_ending" not in datalist and not any(name in datalist for name in SECTIONS):
        raise InputError(
            f'{path}: expected a list of cases under "training" or "test", found only {", ".join(datalist)}'
        )
    listed = datalist.get(section)
    if listed is None and "file_ending" in datalist:
        listed = entries_by_name(path.parent, section, str(datalist["file_ending"]))
    entries = [{"image": entry} if isinstance(entry, str) else entry for entry in listed or []]
    for entry in entries:
        check_entry(entry, section, path)
    return entries


def entries_by_name(folder: Path, section: str, ending: str) -> list[Entry]:
    """nnU-Net v2 lists no cases and keeps to file names: imagesTr/CASE_0000 and labelsTr/CASE."""
    part = {"training": "Tr", "test": "Ts"}.get(section)
    if part is None:
        return []
    entries = []
    for image in sorted((folder / f"images{part}").glob(f"*_0000{ending}")):
        label = folder / f"labels{part}" / (image.name.removesuffix(f"_0000{ending}") + ending)
        entries.append({"image": str(image), **({"label": str(label)} if label.is_file() else {})})
    return entries


def check_entry(entry: Any, section: str, path: Path) -> None:
    """Refuse what is no entry, or has a key that is probably misspelled."""
    if not isinstance(entry, dict) or not isinstance(entry.get("image"), str):
        raise InputError(f'{path}: expected entries such as {{"image": …, "label": …}} in "{section}", found {entry}')
    for key in set(entry) - ENTRY_KEYS:
        close = difflib.get_close_matches(key, ENTRY_KEYS - set(entry), n=1, cutoff=0.75)
        if close:
            raise InputError(f'{path}: {entry["image"]} has "{key}"; did you mean "{close[0]}"?')


def case_label_set(entry: Entry, declared: list[str], path: Path) -> list[str]:
    """The cohort's label set, unless the case says `labelled`; empty for a case without a label file."""
    if "labelled" not in entry:
        return declared if entry.get("label") else []
    said, where = entry["labelled"], f'{path}: "labelled" of {entry["image"]}'
    if not isinstance(said, list) or not all(isinstance(name, str) for name in said):
        raise InputError(f'{where}: expected a list of organ names such as ["liver"], found {said}')
    if said and not entry.get("label"):
        raise InputError(f"{where} names {', '.join(said)}, but the case has no label; add its label map")
    chosen = []
    for name in said:
        organ = find_organ(name)
        if organ is None:
            known = ", ".join(WHOLE_VOCABULARY.names)
            raise InputError(f'{where} names "{name}", which is not in the vocabulary; use names from: {known}')
        if organ.name not in declared:
            raise InputError(
                f'{where} names "{name}", but "labels" gives no value to it, so it cannot be annotated; '
                f"organs declared: {', '.join(declared) or 'none'}"
            )
        chosen.append(organ.name)
    return chosen


def case_fold(entry: Entry, path: Path) -> int | None:
    """The fold that an entry gives, if it does."""
    fold = entry.get("fold")
    if fold is None or (isinstance(fold, int) and fold >= 0):
        return fold
    if isinstance(fold, str) and fold.isdigit():
        return int(fold)
    raise InputError(f'{path}: "fold" of {entry["image"]}: expected a number such as 0, found {fold}')


def accepted_kinds(entry: Entry, path: Path) -> list[str]:
    """The kinds of findings that an entry accepts."""
    said = entry.get("accept", [])
    if not isinstance(said, list) or not set(said) <= KINDS:
        raise InputError(
            f'{path}: "accept" of {entry["image"]}: expected a list of findings such as ["mirrored"], found {said}; '
            f"known are {', '.join(sorted(KINDS))}"
        )
    return said


def case_name(entry: Entry) -> str:
    """The name an entry gives itself, else that of its image without the `_0000` of nnU-Net's first channel."""
    return str(entry.get("case") or scan_name(entry["image"]).removesuffix("_0000"))


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
    declared = declared_organs(names)
    cases = []
    for entry in listed_entries(datalist, section, path):
        annotated = case_label_set(entry, declared, path)
        labelled = [name for name in vocabulary.names if name in annotated]
        case: Case = {
            "image": str(path.parent / entry["image"]),
            "case": case_name(entry),
            "cohort": path.parent.name,
            "labelled": labelled,
            "values": map_values(names, labelled, vocabulary, path),
            "fold": case_fold(entry, path),
            "section": section,
            "accept": accepted_kinds(entry, path),
            "patient": str(entry.get("patient") or case_name(entry)),
        }
        if entry.get("label"):
            case["label"] = str(path.parent / entry["label"])
        cases.append(case)
    return cases


def find_cohorts(dataset_dir: str | Path, cohorts: str | Sequence[str] | None = None) -> list[Path]:
    """The dataset.json of each cohort: those named, or all found in ``dataset_dir`` and its folders."""
    root = Path(dataset_dir)
    if cohorts is None:
        found = sorted({*root.glob("dataset.json"), *root.glob("*/dataset.json")})
        if not found:
            raise InputError(
                f"{root}: no dataset.json found there or one folder below; give the folder of your cohorts as "
                "--dataset_dir"
            )
        return found
    if not isinstance(cohorts, list | tuple):
        cohorts = str(cohorts).split(",")
    paths = [root / str(cohort).strip() for cohort in cohorts]
    files = [path if path.suffix == ".json" else path / "dataset.json" for path in paths]
    for file in files:
        if not file.is_file():
            known = ", ".join(sorted(path.parent.name for path in root.glob("*/dataset.json"))) or "none"
            raise InputError(f"{file}: no such cohort; those in {root} are: {known}")
    return files


def cohort_files(datasets: Sequence[str | Path]) -> list[Path]:
    """The dataset.json files that a command line names: files, folders of cohorts, or folders that hold several."""
    if not datasets:
        raise InputError("expected at least one dataset.json, or a folder of cohorts, found none")
    files = []
    for dataset in (Path(str(dataset)) for dataset in datasets):
        if not dataset.exists():
            raise InputError(f"{dataset}: no such file or folder; give a dataset.json or a folder of cohorts")
        if dataset.is_file() and dataset.suffix != ".json":
            raise InputError(
                f"{dataset}: expected a dataset.json or a folder of cohorts, found another file; give those"
            )
        found = [dataset] if dataset.is_file() else find_cohorts(dataset)
        # a cohort has the name of its folder, which is not in the path of a bare dataset.json
        files += [file if file.parent.name else file.resolve() for file in found]
    return list({file.resolve(): file for file in files}.values())


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
    seen: dict[tuple[str, str], str] = {}
    for case in cases:
        key = (case["cohort"], case["case"])
        if key in seen:
            raise InputError(
                f"{case['image']}: case {case['case']} of cohort {case['cohort']} is also {seen[key]}; "
                "rename one of them"
            )
        seen[key] = case["image"]
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
        entries: the cases of `training` and `test`.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path, entries = Path(folder, "dataset.json"), {"training": [{"image": "a.nii.gz"}]}
    ...     write_datalist(path, {"name": "Livers"}, {0: "background", 1: "liver"}, entries)
    ...     datalist = json.loads(path.read_text())
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
    write_json(path, datalist)
