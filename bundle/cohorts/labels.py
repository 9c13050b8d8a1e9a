# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What the values of a label map mean: the one place.

The first half reads `labels` of a dataset.json into {value: meaning} for each case; the second, `LabelValues`, applies
that to label maps. Nothing else knows a cohort's own values, or what to do with one that is not declared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import (
    AMBIGUOUS,
    BACKGROUND,
    IGNORED,
    ORGANS,
    UNKNOWN,
    WHOLE_VOCABULARY,
    Vocabulary,
    find_organ,
    normalize,
    similar_organ,
)
from bundle.untrusted import is_whole, shown

__all__ = ["LabelValues", "check_spelling", "declared_organs", "map_values", "names_by_value"]


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

HIGHEST_VALUE = 65535  # of a label map: 16 bits, as all tools take them

SLABS = 64  # parts in which a label map is counted: each is widened to 8 bytes a voxel


# --- What the values of a cohort mean --------------------------------------------------------------------------------
def names_by_value(labels: Mapping[str, Any], path: Path) -> dict[int, list[str]]:
    """`labels` of a dataset.json in either common form: {"1": "spleen"} (Decathlon) or {"spleen": 1} (nnU-Net v2).

    nnU-Net's regions ({"kidney": [1, 2, 3]}) give a value several names. Outside of regions a value has one name.

    Raises:
        InputError: when it is neither form, a value is none of a label map, or two structures have one value.

    >>> names_by_value({"background": 0, "kidney": [1, 2], "tumor": 2}, Path("dataset.json"))
    {0: ['background'], 1: ['kidney'], 2: ['kidney', 'tumor']}
    """
    names: dict[int, list[str]] = {}
    alone: dict[int, str] = {}  # values that are given to a structure, not to a region
    for value, name, region in named_values(labels, path):
        if not region:
            other = alone.setdefault(value, name)
            if other != name:
                raise InputError(
                    f'{path}: expected one name for each value in "labels", found {shown(other)} and {shown(name)} for '
                    f"{value}; correct one of them"
                )
        names.setdefault(value, []).append(name)
    organ = next((found for name in names.get(0, ()) if (found := find_organ(name)) is not None), None)
    if organ is not None:
        raise InputError(f'{path}: value 0 in "labels" is the background, found {organ.name}; give the organ another')
    return names


def named_values(labels: Mapping[str, Any], path: Path) -> Iterator[tuple[int, str, bool]]:
    """Each value of `labels` with a name that it has, and whether that is the name of a region."""
    decathlon = all(key.strip().lstrip("-").isdigit() for key in labels)
    for key, entry in labels.items():
        region = isinstance(entry, list) and bool(entry) and not decathlon
        for one in entry if region else [entry]:
            value, name = (key, one) if decathlon else (one, key)
            if not isinstance(name, str) or not name.strip():
                refuse_labels(labels, path)
            yield label_value(value, labels, path), name, region


def label_value(value: Any, labels: Mapping[str, Any], path: Path) -> int:
    """A value that a label map may have, given as a number or as text."""
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,18}\s*", value):
        value = int(value)
    if not is_whole(value):
        refuse_labels(labels, path)
    if not 0 <= value <= HIGHEST_VALUE:
        where = f'{path}: expected values of at least 0 and at most {HIGHEST_VALUE} in "labels"'
        raise InputError(f"{where}, found {value}")
    return int(value)


def refuse_labels(labels: Mapping[str, Any], path: Path) -> NoReturn:
    raise InputError(f'{path}: expected "labels" such as {{"1": "spleen"}} or {{"spleen": 1}}, found {shown(labels)}')


def is_lesion(name: str) -> bool:
    """Whether a name is that of a tumor, a cyst or the like."""
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
    """What every declared value means. Of several names of a value (nnU-Net's regions) the most specific one counts.

    Raises:
        InputError: when a value is that of two organs, or of an organ and of what is to be ignored.
    """
    structures = {value: [name for name in all_names if not is_lesion(name)] for value, all_names in names.items()}
    declared = {meaning_of(name) for value in structures if value != 0 for name in structures[value]}
    sites = declared - {BACKGROUND, IGNORED}  # where a bare "tumor" may lie
    result: dict[int, Meaning] = {}
    for value, all_names in names.items():
        found = [meaning_of(name) for name in structures[value]]
        if not found or (set(found) == {BACKGROUND} and len(found) < len(all_names)):
            found = [meaning_of_lesion(name, sites, path) for name in all_names if is_lesion(name)]
        organs = sorted({meaning for meaning in found if isinstance(meaning, str)})
        if len(organs) > 1 or (organs and IGNORED in found):
            others = " and ".join([*organs, *(["ignored voxels"] if IGNORED in found else [])])
            raise InputError(f'{path}: value {value} in "labels" is that of {others}; give each a value of its own')
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
        f"{path}: label {shown(name)} is a lesion, but what it lies in is not clear (organs declared: {choices}); name "
        'it after that in "labels", for instance "liver tumor" or "lung tumor"'
    )


def check_spelling(names: Mapping[int, Sequence[str]], path: Path) -> None:
    """A structure outside the vocabulary is background: a misspelled organ would be learned as that."""
    for name in {normalize(name) for value, some in names.items() if value for name in some}:
        if meaning_of(name) == BACKGROUND and not is_lesion(name):
            close = similar_organ(name)
            if close:
                raise InputError(
                    f'{path}: {shown(name)} in "labels" is no organ of the vocabulary; did you mean "{close}"? '
                    "If it is another structure, give it a name that cannot be confused with that"
                )


def map_values(
    names: Mapping[int, Sequence[str]], labelled: Sequence[str], vocabulary: Vocabulary, path: Path
) -> dict[int, int]:
    """{value in the file: value in the loaded label map} for a case whose label set is ``labelled``.

    An annotated organ gets its channel. An organ that is not in the label set is unknown, even where the file has it.
    Zero is background only where every organ is annotated: elsewhere it means "none of the label set". A declared
    structure outside the vocabulary is known to be background.

    Args:
        names: of each value in `labels` of the dataset.json.
        labelled: the organs annotated in the case.
        vocabulary: the organs of the run.
        path: the dataset.json, for messages.

    >>> names = {0: ["background"], 1: ["liver"], 2: ["liver tumor"], 3: ["spleen"], 4: ["duodenum"]}
    >>> map_values(names, ["liver"], Vocabulary("liver,spleen"), Path("dataset.json"))
    {0: 255, 1: 1, 2: 1, 3: 255, 4: 0}
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


def own_values(labelled: Sequence[str], vocabulary: Vocabulary) -> dict[int, int]:
    """`map_values` for a label map with the vocabulary's own values."""
    names = {channel: [name] for channel, name in enumerate(vocabulary.names, start=1)}
    return {**map_values(names, labelled, vocabulary, Path()), IGNORED: IGNORED, UNKNOWN: UNKNOWN}


# --- What the values of one label map mean ---------------------------------------------------------------------------
@dataclass(frozen=True)
class LabelValues:
    """What the values of a label map mean; a value that nobody declared is always an error.

    Args:
        meanings: {value in the file: channel of the vocabulary, UNKNOWN or IGNORED}.
        file: the label map, for messages.
        cohort: whose dataset.json declares the values, for messages; None where no dataset.json does, and the file has
            the vocabulary's own values.

    Example:
        >>> values = LabelValues({0: UNKNOWN, 1: 6, 9: BACKGROUND}, "case1_label.nii.gz", "livers")
        >>> values.map(np.array([0, 1, 9])).tolist()
        [255, 6, 0]
        >>> values.channels(np.array([0, 1, 9])).tolist()
        [0, 6, 0]
    """

    meanings: Mapping[int, int]
    file: str = "label map"
    cohort: str | None = None

    @classmethod
    def of(
        cls, case: Mapping[Any, Any], file: str | Path | None = None, vocabulary: Vocabulary = WHOLE_VOCABULARY
    ) -> LabelValues:
        """The values of a case's label map.

        Args:
            case: with `values`; JSON may have made its keys text. Without them the label map has the values of the
                vocabulary's channels, of which those of the label set count; without a label set either, all do.
            file: the label map, where `label` of the case is no longer its path.
            vocabulary: the organs of the run, for a case without `values`.

        >>> LabelValues.of({"labelled": ["liver"]}, vocabulary=Vocabulary("liver,spleen")).meanings
        {0: 255, 1: 1, 2: 255, 254: 254, 255: 255}
        """
        label = case.get("label", cls.file) if file is None else file
        if case.get("values") is None:
            return cls(own_values(case.get("labelled", vocabulary.names), vocabulary), str(label))
        meanings = {int(value): int(meaning) for value, meaning in case["values"].items()}
        return cls(meanings, str(label), str(case.get("cohort", "")))

    @property
    def highest(self) -> int:
        """The highest value that is declared."""
        return max(self.meanings)

    def map(self, labels: NDArray[Any]) -> NDArray[np.uint8]:
        """A label map in channels, UNKNOWN and IGNORED; ``labels`` itself where nothing changes.

        Raises:
            InputError: for a value that is not declared.
        """
        return self._look_up(labels, self.meanings)

    def channels(self, labels: NDArray[Any]) -> NDArray[np.uint8]:
        """`map` with organs only: what is unknown or ignored is 0, as the background is."""
        unclear = (UNKNOWN, IGNORED)
        return self._look_up(
            labels, {value: BACKGROUND if to in unclear else to for value, to in self.meanings.items()}
        )

    def sum_counts(self, counts: NDArray[Any]) -> NDArray[np.float64]:
        """How often each meaning occurs (256 numbers), from how often each value of the file does.

        Args:
            counts: of the values from 0 to `highest`.

        Raises:
            InputError: when a value that is not declared occurs.
        """
        self.check(np.flatnonzero(counts).tolist())
        totals = np.zeros(256)
        for value, meaning in self.meanings.items():
            totals[meaning] += counts[value]
        return totals

    def check(self, found: Iterable[int]) -> None:
        """Refuse values that are not declared.

        Raises:
            InputError: naming the file, the values, and where to declare them.
        """
        extra = [int(value) for value in found if value not in self.meanings]
        if not extra:
            return
        holds = f"{self.file}: holds the value {', '.join(map(str, extra[:5]))}, which"
        if self.cohort is None:
            last = max(value for value in self.meanings if value not in (IGNORED, UNKNOWN))
            raise InputError(
                f"{holds} is none of the vocabulary's: 0 to {last}, {IGNORED} (ignored) and {UNKNOWN} (unknown); "
                "correct the label map, or list it in a dataset.json that says what its values mean"
            )
        raise InputError(
            f'{holds} "labels" in the dataset.json of cohort {self.cohort or "it belongs to"} does not declare; add it '
            'there with the name of what it marks ("ignore" if nobody knows)'
        )

    def _look_up(self, labels: NDArray[Any], meanings: Mapping[int, int]) -> NDArray[np.uint8]:
        """Flat, in the order of memory: several times faster, and no copy with 8 bytes a voxel is made."""
        if labels.dtype.kind == "f":
            labels = np.rint(labels).astype(np.int32)
        low, high = (int(labels.min()) if labels.dtype.kind == "i" else 0), int(labels.max())
        if low < 0:
            self.check([low])
        if high > max(self.highest, 255):  # before a table of that size is made
            self.check([high])
        order: Literal["C", "F"] = "F" if labels.flags.f_contiguous else "C"
        flat = labels.ravel(order=order)  # no copy
        table = np.zeros(max(self.highest, high) + 1, np.uint8)
        table[list(meanings)] = list(meanings.values())
        slabs = np.array_split(flat, SLABS)
        counts = sum(np.bincount(slab.astype(np.intp), minlength=len(table)) for slab in slabs)
        found = np.flatnonzero(counts)
        self.check(found.tolist())
        if labels.dtype == np.uint8 and (table[found] == found).all():
            return labels
        return table[flat].reshape(labels.shape, order=order)
