# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What the values of a label map mean: the one place. Nothing else knows a cohort's own values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
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

__all__ = ["undeclared"]


Meaning = str | int  # an organ's name, or BACKGROUND, UNKNOWN or IGNORED

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


SLABS = 64  # parts a label map is counted in: numpy widens each to 8 bytes a voxel


def channels_of(label: NDArray[Any], case: Mapping[str, Any]) -> NDArray[np.uint8]:
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


def undeclared(case: Mapping[str, Any], values: Sequence[int]) -> NoReturn:
    found = ", ".join(map(str, values[:5]))
    raise InputError(
        f'{case["label"]}: holds the value {found}, which "labels" in the dataset.json of cohort {case["cohort"]} does '
        'not declare; add it there with the name of what it marks ("ignore" if nobody knows)'
    )
