# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Cohorts: `dataset.json` datalists read into cases whose label values are mapped to the vocabulary.

Every rule about what a value of a label file means lives here; nothing downstream knows a cohort's own values.
A case is a plain dict, as MONAI's transforms want it:

    image, label   paths; a case without annotation has no label
    case, cohort   names
    labelled       its label set: the organs that were annotated in it
    values         {value in the file: value in the loaded label map}; see `UNKNOWN` and `BACKGROUND`
    fold           its fold, or None
    patient        whom it is of: cases of one patient are in one fold
    section        `training`, `test` or `validation`
    accept         kinds of findings (`bundle.checks`) that a person has looked at and found right
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bundle.cohorts.labels import check_spelling, declared_organs, map_values, names_by_value
from bundle.errors import InputError
from bundle.organs import WHOLE_VOCABULARY, Vocabulary, find_organ

__all__ = ["KINDS", "Case", "case_name", "cohort_files", "find_cohorts", "load_cases", "read_cohort"]


Case = dict[str, Any]

ENTRY_KEYS = {"image", "label", "labelled", "case", "patient", "fold", "accept"}

SECTIONS = ("training", "validation", "test")


# --- Reading a datalist ----------------------------------------------------------------------------------------------
def read_datalist(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file; a cohort is a folder with a dataset.json")
    try:
        datalist = json.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid JSON in UTF-8 ({error}); mend it or save it again") from None
    if not isinstance(datalist, dict) or not isinstance(datalist.get("labels"), dict):
        raise InputError(
            f'{path}: expected a JSON object with "labels" such as {{"0": "background", "1": "spleen"}}, found none'
        )
    return datalist


def listed_cases(datalist: Mapping[str, Any], section: str, path: Path) -> list[Case]:
    """The entries of a section. nnU-Net v2 lists none and keeps to file names: imagesTr/CASE_0000 and labelsTr/CASE."""
    if "file_ending" not in datalist and not any(name in datalist for name in SECTIONS):
        raise InputError(
            f'{path}: expected a list of cases under "training" or "test", found only {", ".join(datalist)}'
        )
    entries = datalist.get(section)
    part = {"training": "Tr", "test": "Ts"}.get(section)
    if entries is None and "file_ending" in datalist and part:
        ending = str(datalist["file_ending"])
        images = sorted((path.parent / f"images{part}").glob(f"*_0000{ending}"))
        entries = []
        for image in images:
            label = path.parent / f"labels{part}" / (image.name.removesuffix(f"_0000{ending}") + ending)
            entries.append({"image": str(image), **({"label": str(label)} if label.is_file() else {})})
    cases = [{"image": entry} if isinstance(entry, str) else entry for entry in entries or []]
    for case in cases:
        if not isinstance(case, dict) or not isinstance(case.get("image"), str):
            raise InputError(
                f'{path}: expected entries such as {{"image": …, "label": …}} in "{section}", found {case}'
            )
        for key in set(case) - ENTRY_KEYS:
            close = difflib.get_close_matches(key, ENTRY_KEYS - set(case), n=1, cutoff=0.75)
            if close:
                raise InputError(f'{path}: {case["image"]} has "{key}"; did you mean "{close[0]}"?')
    return cases


def case_label_set(entry: Case, declared: list[str], path: Path) -> list[str]:
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


def case_fold(entry: Case, path: Path) -> int | None:
    fold = entry.get("fold")
    if fold is None or (isinstance(fold, int) and fold >= 0):
        return fold
    if isinstance(fold, str) and fold.isdigit():
        return int(fold)
    raise InputError(f'{path}: "fold" of {entry["image"]}: expected a number such as 0, found {fold}')


def accepted_kinds(entry: Case, path: Path) -> list[str]:
    said = entry.get("accept", [])
    if not isinstance(said, list) or not set(said) <= KINDS:
        raise InputError(
            f'{path}: "accept" of {entry["image"]}: expected a list of findings such as ["mirrored"], found {said}; '
            f"known are {', '.join(sorted(KINDS))}"
        )
    return said


def case_name(image: str) -> str:
    name = Path(image).name
    for ending in (".nii.gz", ".nii", ".mha", ".mhd", ".nrrd"):
        name = name.removesuffix(ending)
    return name.removesuffix("_0000")


def read_cohort(path: str | Path, vocabulary: Vocabulary = WHOLE_VOCABULARY, section: str = "training") -> list[Case]:
    """The cases of one dataset.json.

    Args:
        path: the dataset.json.
        vocabulary: the organs of the run.
        section: `training`, `test` or `validation`.

    Raises:
        InputError: naming the file and what to do.
    """
    path = Path(path)
    datalist = read_datalist(path)
    names = names_by_value(datalist["labels"], path)
    check_spelling(names, path)
    declared = declared_organs(names)
    cases = []
    for entry in listed_cases(datalist, section, path):
        annotated = case_label_set(entry, declared, path)
        labelled = [name for name in vocabulary.names if name in annotated]
        case: Case = {
            "image": str(path.parent / entry["image"]),
            "case": str(entry.get("case") or case_name(entry["image"])),
            "cohort": path.parent.name,
            "labelled": labelled,
            "values": map_values(names, labelled, vocabulary, path),
            "fold": case_fold(entry, path),
            "section": section,
            "accept": accepted_kinds(entry, path),
            "patient": str(entry.get("patient") or entry.get("case") or case_name(entry["image"])),
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
        # a cohort is called as its folder is, which a bare dataset.json does not tell
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


KINDS = {
    "unreadable", "orientation", "spacing", "field", "rescaled", "offset", "values", "windowed", "empty", "missing",
    "volume", "mirrored", "swapped", "flipped", "misplaced", "copy", "patient",
}  # fmt: skip
