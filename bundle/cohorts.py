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
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bundle.checks import check_cases
from bundle.errors import InputError
from bundle.findings import KINDS
from bundle.organs import (
    AMBIGUOUS,
    BACKGROUND,
    IGNORED,
    ORGANS,
    UNKNOWN,
    Vocabulary,
    find_organ,
    normalize,
    similar_organ,
)

__all__ = [
    "SUPERVISIONS",
    "cohort_files",
    "deal_folds",
    "evaluation_cases",
    "find_cohorts",
    "full_cases",
    "is_full",
    "largest_vocabulary",
    "load_cases",
    "partial_cases",
    "read_cohort",
    "training_cases",
    "validation_cases",
]

Case = dict[str, Any]
Meaning = str | int  # an organ's name, or BACKGROUND, UNKNOWN or IGNORED

logger = logging.getLogger(__name__)

ENTRY_KEYS = {"image", "label", "labelled", "case", "patient", "fold", "accept"}
SECTIONS = ("training", "validation", "test")
SUPERVISIONS = ("full", "semi", "partial", "marginal", "ignore", "pann")
LESION_WORDS = {
    "cancer", "tumor", "tumors", "tumour", "tumours", "cyst", "cysts", "lesion", "lesions", "mass", "masses",
    "metastasis", "metastases", "nodule", "nodules",
}  # fmt: skip
FILLERS = {"primary", "primaries", "of", "the", "malignant", "benign"}
ADJECTIVES = {
    "renal": "kidney",
    "hepatic": "liver",
    "pancreatic": "pancreas",
    "splenic": "spleen",
    "gastric": "stomach",
}
IGNORE_NAMES = {"ignore", "ignored", "unknown", "unlabeled", "unlabelled"}


# --- What the values of a cohort mean --------------------------------------------------------------------------------
def names_by_value(labels: Mapping[str, Any], path: Path) -> dict[int, list[str]]:
    """`labels` of a dataset.json in either common form: {"1": "spleen"} (Decathlon) or {"spleen": 1} (nnU-Net v2).

    nnU-Net's regions ({"kidney": [1, 2, 3]}) give a value several names.
    """
    names: dict[int, list[str]] = {}
    try:
        if all(str(key).strip().lstrip("-").isdigit() for key in labels):
            for value, name in labels.items():
                names.setdefault(int(value), []).append(str(name))
        else:
            for name, values in labels.items():
                for value in values if isinstance(values, list) else [values]:
                    names.setdefault(int(value), []).append(str(name))
    except (TypeError, ValueError):
        raise InputError(
            f'{path}: expected "labels" such as {{"1": "spleen"}} or {{"spleen": 1}}, found {dict(labels)}'
        ) from None
    if min(names, default=0) < 0:
        raise InputError(f'{path}: expected values of at least 0 in "labels", found {min(names)}')
    return names


def is_lesion(name: str) -> bool:
    return bool(LESION_WORDS & set(normalize(name).split()))


def site_of(lesion: str) -> str:
    """What a lesion lies in, as its name says; empty for a bare "tumor"."""
    words = [word for word in normalize(lesion).split() if word not in LESION_WORDS | FILLERS]
    return " ".join(ADJECTIVES.get(word, word) for word in words)


def meaning_of(name: str) -> Meaning:
    """What a structure's name means: an organ's name, or BACKGROUND, UNKNOWN or IGNORED."""
    organ = find_organ(name)
    if organ is not None:
        return organ.name
    if normalize(name) in IGNORE_NAMES:
        return IGNORED
    return UNKNOWN if normalize(name) in AMBIGUOUS else BACKGROUND


def meanings(names: Mapping[int, Sequence[str]], path: Path) -> dict[int, Meaning]:
    """What every declared value means. Of several names of a value (nnU-Net's regions) the most telling one counts."""
    structures = {value: [name for name in all_names if not is_lesion(name)] for value, all_names in names.items()}
    told = {meaning_of(name) for value in structures if value != 0 for name in structures[value]}
    sites = told - {BACKGROUND, IGNORED}  # where a bare "tumor" may lie
    result: dict[int, Meaning] = {}
    for value, all_names in names.items():
        found = [meaning_of(name) for name in structures[value]]
        if not found or (set(found) == {BACKGROUND} and len(found) < len(all_names)):
            found = [meaning_of_lesion(name, sites, path) for name in all_names if is_lesion(name)]
        organs = [meaning for meaning in found if isinstance(meaning, str)]
        result[value] = organs[0] if organs else max(int(meaning) for meaning in found)
    return result


def meaning_of_lesion(name: str, sites: set[Meaning], path: Path) -> Meaning:
    """A lesion is part of what it lies in: what its name says, else the only structure of the cohort that matters."""
    site = site_of(name)
    if site:
        return meaning_of(site)
    if len(sites) == 1:
        return next(iter(sites))
    choices = ", ".join(sorted(str(site) for site in sites if isinstance(site, str))) or "none"
    raise InputError(
        f'{path}: label "{name}" is a lesion, but what it lies in is not clear (organs declared: {choices}); name it '
        'after that in "labels", for instance "liver tumor" or "lung tumor"'
    )


def check_spelling(names: Mapping[int, Sequence[str]], path: Path) -> None:
    """A structure outside the vocabulary is background: a misspelt organ would be learned as that."""
    for name in {normalize(name) for value, some in names.items() if value for name in some}:
        if meaning_of(name) == BACKGROUND and not is_lesion(name):
            close = similar_organ(name)
            if close:
                raise InputError(
                    f'{path}: "{name}" in "labels" is no organ of the vocabulary; did you mean "{close}"? '
                    "If it is another structure, give it a name that cannot be confused with that"
                )


def map_values(
    names: Mapping[int, Sequence[str]], labelled: Sequence[str], vocabulary: Vocabulary, path: Path
) -> dict[int, int]:
    """{value in the file: value in the loaded label map} for a case whose label set is ``labelled``.

    An annotated organ gets its channel. An organ that is not in the label set is unknown, even where the file has it.
    Zero is background only where every organ is annotated: elsewhere it means "none of the label set". A declared
    structure outside the vocabulary is known to be background.
    """
    values: dict[int, int] = {0: BACKGROUND if set(labelled) == set(vocabulary.names) else UNKNOWN}
    for value, meaning in meanings(names, path).items():
        if value == 0:
            continue
        if not isinstance(meaning, str):
            values[value] = meaning
        elif meaning not in vocabulary:
            values[value] = BACKGROUND
        else:
            values[value] = int(vocabulary.channel(meaning) or 0) if meaning in labelled else UNKNOWN
    return values


def declared_organs(names: Mapping[int, Sequence[str]]) -> list[str]:
    """The organs that `labels` name as such. A lesion alone does not make its organ annotated."""
    found = {
        organ.name for all_names in names.values() for name in all_names if (organ := find_organ(name)) is not None
    }
    return [organ.name for organ in ORGANS if organ.name in found]


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
            known = ", ".join(Vocabulary().names)
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


def read_cohort(path: str | Path, vocabulary: Vocabulary | None = None, section: str = "training") -> list[Case]:
    """The cases of one dataset.json.

    Args:
        path: the dataset.json.
        vocabulary: the organs of the run.
        section: `training`, `test` or `validation`.

    Raises:
        InputError: naming the file and what to do.
    """
    path, vocabulary = Path(path), vocabulary or Vocabulary()
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
    organs: Sequence[str] | None = None,
    section: str = "training",
) -> list[Case]:
    """The cases of all cohorts.

    Args:
        dataset_dir: folder of the cohorts.
        cohorts: names of cohorts (folders, or paths of dataset.json files); None takes all there are.
        organs: names of the vocabulary; None takes all organs.
        section: section of the datalists.
    """
    vocabulary = Vocabulary(organs)
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


# --- Choosing cases --------------------------------------------------------------------------------------------------
def is_full(case: Mapping[str, Any], organs: Sequence[str] | None = None) -> bool:
    """Whether every organ of the vocabulary is annotated. Items without a label set (MONAI Label's) are full."""
    names = Vocabulary(organs).names
    return set(case.get("labelled", names)) == set(names)


def full_cases(cases: Iterable[Case], organs: Sequence[str] | None = None) -> list[Case]:
    return [case for case in cases if is_full(case, organs)]


def largest_vocabulary(cases: Iterable[Case]) -> list[str]:
    """The largest label set of a case: with these as `organs`, a case is full. Of equals the one most cases have."""
    sets: Counter[tuple[str, ...]] = Counter(tuple(case["labelled"]) for case in cases)
    names, _ = max(sets.items(), key=lambda entry: (len(entry[0]), entry[1]), default=((), 0))
    return list(names)


def partial_cases(cases: Iterable[Case], organs: Sequence[str] | None = None) -> list[Case]:
    return [case for case in cases if not is_full(case, organs)]


def deal_folds(patients: Sequence[str], folds: int = 5, seed: int = 0) -> list[int]:
    """A fold for each case, given whom it is of: those of a patient are in one fold, and folds are of one size."""
    from monai.data.utils import partition_dataset  # here: commands that deal no folds start seconds sooner

    people = sorted(set(patients))
    if not 2 <= folds <= len(people):
        raise InputError(f"folds: expected a number from 2 to the {len(people)} patients there are, found {folds}")
    parts = partition_dataset(people, num_partitions=folds, shuffle=True, seed=seed)
    fold_of = {patient: number for number, part in enumerate(parts) for patient in part}
    return [fold_of[patient] for patient in patients]


def person(case: Case) -> str:
    """Whom a case is of, among all cohorts."""
    return f"{case['cohort']}/{case['patient']}"


def held_out(cases: Sequence[Case], fold: int | None, folds: int = 5) -> list[bool]:
    """For each fully labelled case whether it belongs to ``fold``. Cases without a fold are dealt out, seeded."""
    patients = [person(case) for case in cases]
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
    return {**{key: value for key, value in case.items() if key != "label"}, "labelled": []}


def training_cases(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    organs: Sequence[str] | None = None,
    supervision: str = "pann",
    fold: int | None = None,
    check: bool = True,
    remembered: str | Path | None = None,
) -> list[Case]:
    """The cases a supervision trains on: fully labelled ones outside the fold, and partially labelled ones.

    `full` drops the partially labelled cases, `semi` keeps them but forgets their labels. All cases are checked first,
    those for testing too: a scan in both would be a leak. Results are kept in the file ``remembered``.

    Raises:
        InputError: when a case cannot be used, or none is fully labelled.
    """
    if supervision not in SUPERVISIONS:
        raise InputError(f'supervision: expected one of {", ".join(SUPERVISIONS)}, found "{supervision}"')
    cases = load_cases(dataset_dir, cohorts, organs)
    full, partial = full_cases(cases, organs), partial_cases(cases, organs)
    if not full:
        sets = sorted({f"{case['cohort']}: {', '.join(case['labelled']) or 'nothing'}" for case in cases})
        names = largest_vocabulary(cases)
        shorter = f', or take the largest vocabulary that one case has: --organs "{names}"' if names else ""
        raise InputError(
            f"{dataset_dir}: no case has all organs of the vocabulary annotated, and stage 1 needs at least one "
            f"(annotated are {'; '.join(sets)}); add a fully labelled cohort{shorter}"
        )
    out = held_out(full, fold)
    kept = [case for case, held in zip(full, out, strict=True) if not held]
    if not kept:
        raise InputError(f"{dataset_dir}: fold {fold} holds out every fully labelled case; choose another fold")
    if check:
        held_back = [case for section in SECTIONS[1:] for case in load_cases(dataset_dir, cohorts, organs, section)]
        check_cases([*cases, *held_back], organs, remembered)
    tested = {person(case) for case, held in zip(full, out, strict=True) if held}
    partial = [case for case in partial if person(case) not in tested]  # other scans of those patients, less annotated
    log_label_sets(cases)
    if supervision == "full":
        return kept
    if not partial:
        logger.warning("supervision %s: no case is partially labelled, so stage 2 trains as `full` does", supervision)
    return kept + ([unannotated(case) for case in partial] if supervision == "semi" else partial)


def log_label_sets(cases: Sequence[Case]) -> None:
    """Tell how the cohorts were understood: a wrong name is easier to see here than in the scores."""
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
    organs: Sequence[str] | None = None,
    section: str = "test",
    remembered: str | Path | None = None,
    fold: int | None = None,
) -> list[Case]:
    """The labelled cases of a section, checked; results are kept in the file ``remembered``, as training keeps them.

    The section `fold` stands for the cases that training with this ``fold`` has held out.

    Raises:
        InputError: when there is none, or when two of them would be saved under one name.
    """
    if section == "fold":
        cases = validation_cases(dataset_dir, cohorts, organs, fold)
    else:
        cases = [case for case in load_cases(dataset_dir, cohorts, organs, section) if "label" in case]
    if not cases and section == "fold":
        raise InputError(f"{dataset_dir}: fold {fold} holds out no fully labelled case; choose --fold, or --section")
    if not cases:
        raise InputError(f'{dataset_dir}: no labelled case in the section "{section}" of any cohort; choose --section')
    names = [case["case"] for case in cases]
    for name in names:
        if names.count(name) > 1:
            raise InputError(
                f"{dataset_dir}: two cases are called {name}; evaluate their cohorts one by one: --cohorts"
            )
    check_cases(cases, organs, remembered)
    return cases


def validation_cases(
    dataset_dir: str | Path,
    cohorts: str | Sequence[str] | None = None,
    organs: Sequence[str] | None = None,
    fold: int | None = None,
) -> list[Case]:
    """The fully labelled cases of the fold."""
    full = full_cases(load_cases(dataset_dir, cohorts, organs), organs)
    return [case for case, out in zip(full, held_out(full, fold), strict=True) if out]
