# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Which organ a value of a label map, or a segment of a DICOM SEG, means.

An organ never gets its name by its place among the others: a viewer leaves organs out, and sends names of empty ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import ORGANS, WHOLE_VOCABULARY, Organ, Vocabulary, find_organ, normalize
from bundle.untrusted import is_whole, shown

__all__ = ["Entry", "in_vocabulary", "name_values", "organ_of_segment", "segment_names", "values_in"]

logger = logging.getLogger(__name__)

Entry = Mapping[str, Any]  # of MONAI Label's label_info: {"name": "spleen", "idx": 1}, and more that is not used here

BY_CODE = {organ.snomed: organ for organ in ORGANS}
SNOMED = {"SCT", "SNOMED-CT", "2.16.840.1.113883.6.96"}  # what writers call SNOMED-CT

# The stock MONAI Label writes the spleen's code for every organ; only its labels can be believed.
WITHOUT_CODES = "MONAILABEL"


# --- Values of a label map -------------------------------------------------------------------------------------------
def values_in(labels: NDArray[Any]) -> list[int]:
    """The values of a label map but 0."""
    found: set[int] = set()
    for plane in labels.T:  # as the file stores it, so that none is copied
        found.update(np.unique(plane).tolist())
    return sorted(found - {0})


def segment_names(label_info: Any, where: str) -> dict[int, str]:
    """{number: name} of the segments that a client sent.

    >>> segment_names([{"name": "Spleen", "idx": 1}, {"name": "liver", "idx": 2}], "ct1")
    {1: 'Spleen', 2: 'liver'}
    """
    names: dict[int, str] = {}
    if not isinstance(label_info, Sequence) or isinstance(label_info, str):
        example = '[{"name": "spleen", "idx": 1}]'
        raise InputError(f'{where}: expected "label_info" such as {example}, found {shown(label_info)}')
    for entry in label_info:
        name, number = read_segment(entry, where)
        if meaning(names.setdefault(number, name)) != meaning(name):
            raise InputError(
                f'{where}: number {number} in "label_info" is {shown(names[number])} and {shown(name)}; give each '
                "segment a number of its own"
            )
    return names


def meaning(name: str) -> str:
    """What two names of one structure have in common."""
    organ = find_organ(name)
    return normalize(name) if organ is None else organ.name


def read_segment(entry: Any, where: str) -> tuple[str, int]:
    name, number = (entry.get("name"), entry.get("idx")) if isinstance(entry, Mapping) else (None, None)
    if isinstance(number, str) and number.isascii() and number.isdecimal() and len(number) < 6:
        number = int(number)
    if isinstance(name, str) and name.strip() and isinstance(number, int) and is_whole(number) and number >= 0:
        return name, number
    raise InputError(
        f'{where}: expected a name and a number "idx" for each segment in "label_info", found {shown(entry)}'
    )


def name_values(values: Iterable[int], label_info: Sequence[Entry], what: str) -> dict[int, Organ]:
    """The organ of each value, by the entry of ``label_info`` whose ``idx`` it is.

    Entries for other values are not looked at: Slicer names empty segments too.

    Args:
        values: of the label map, without 0.
        label_info: as MONAI Label's clients send it.
        what: the label map, to begin an error with.

    Raises:
        InputError: for a value without a name, with two names, or with a name that the vocabulary does not know.

    >>> found = name_values([2], [{"name": "Spleen", "idx": 1}, {"name": "gall bladder", "idx": 2}], "label.nii.gz")
    >>> found[2].name
    'gallbladder'
    """
    names = segment_names(label_info, what)
    return {value: named(value, names.get(value), what) for value in values}


def named(value: int, name: str | None, what: str) -> Organ:
    """The organ that a value's name means."""
    if name is None:
        raise InputError(f"{what}: value {value} has no name in label_info; name it, or delete what has this value")
    organ = find_organ(name)
    if organ is None:
        known = ", ".join(WHOLE_VOCABULARY.names)
        raise InputError(f'{what}: "{name}", its value {value}, is not in the vocabulary; choose from: {known}')
    return organ


def in_vocabulary(
    labels: NDArray[Any], organs: Mapping[int, Organ], vocabulary: Vocabulary = WHOLE_VOCABULARY
) -> NDArray[np.uint8]:
    """The label map in the vocabulary's channels; those of the whole vocabulary are the values of `Organ`.

    Two values of one organ become one.
    """
    table = np.zeros(max(organs, default=0) + 1, np.uint8)
    for value, organ in organs.items():
        table[value] = vocabulary.channel(organ.name) or 0
    return table[labels]


# --- Segments of a DICOM SEG -----------------------------------------------------------------------------------------
def organ_of_segment(segment: Any, what: str) -> Organ | None:
    """The organ of an item of SegmentSequence: by its SNOMED-CT code, else by its label.

    None, with a warning, for what is not in the vocabulary, and where code and label mean different organs.

    Args:
        segment: the item, a pydicom dataset.
        what: the SEG, to begin a warning with.
    """
    label = str(segment.get("SegmentLabel", ""))
    by_label, by_code = find_organ(label), organ_of_code(segment)
    if by_label and by_code and by_label != by_code:
        logger.warning(
            '%s: segment "%s" is left out: its code means %s; correct the one or the other', what, label, by_code.name
        )
        return None
    organ = by_code or by_label
    if organ is None:
        logger.warning('%s: segment "%s" is left out: it is not in the vocabulary', what, label)
    return organ


def organ_of_code(segment: Any) -> Organ | None:
    if str(segment.get("SegmentAlgorithmName", "")) == WITHOUT_CODES:
        return None
    for code in segment.get("SegmentedPropertyTypeCodeSequence") or []:
        if str(code.get("CodingSchemeDesignator", "")) in SNOMED:
            return BY_CODE.get(str(code.get("CodeValue", "")))
    return None
