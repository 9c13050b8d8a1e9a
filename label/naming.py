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
from bundle.organs import ORGANS, WHOLE_VOCABULARY, Organ, Vocabulary, find_organ

__all__ = ["Entry", "in_vocabulary", "name_values", "organ_of_segment", "values_in"]

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
    names = names_by_value(label_info, what)
    return {value: named(value, names.get(value, set()), what) for value in values}


def names_by_value(label_info: Sequence[Entry], what: str) -> dict[int, set[str]]:
    names: dict[int, set[str]] = {}
    for entry in label_info:
        try:
            names.setdefault(int(entry["idx"]), set()).add(str(entry["name"]))
        except (KeyError, TypeError, ValueError):
            raise InputError(
                f'{what}: expected a list of entries like {{"name": "spleen", "idx": 1}} as label_info, found {entry}; '
                "say which value of the label map each name belongs to"
            ) from None
    return names


def named(value: int, names: set[str], what: str) -> Organ:
    """The one organ that all names of a value mean."""
    organs = {name: find_organ(name) for name in names}
    unknown = sorted(name for name, organ in organs.items() if organ is None)
    found = {organ for organ in organs.values() if organ is not None}
    if unknown:
        known = ", ".join(WHOLE_VOCABULARY.names)
        raise InputError(f'{what}: "{unknown[0]}", its value {value}, is not in the vocabulary; choose from: {known}')
    if not found:
        raise InputError(f"{what}: value {value} has no name in label_info; name it, or delete what has this value")
    if len(found) > 1:
        raise InputError(
            f"{what}: value {value} is named {' and '.join(sorted(names))} in label_info; give it one name"
        )
    return found.pop()


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
