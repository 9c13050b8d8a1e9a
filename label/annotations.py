# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What an annotator said by saving a label map: which organs are annotated in it, and what its values mean.

Slicer makes an empty segment for every organ and sends the names of all of them, numbered by position. So a name alone
says nothing, and neither does a number: annotated are the organs whose *name* belongs to a value that is *in the map*.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.datalists import Entry, write_datalist
from bundle.cohorts.labels import HIGHEST_VALUE, check_spelling, declared_organs, map_values
from bundle.errors import InputError
from bundle.files import make_folder, whole_file
from bundle.organs import BACKGROUND, IGNORED, UNKNOWN, Vocabulary, normalize
from bundle.scans.grids import check_grid, turn_axes
from bundle.scans.reading import read_label_map, read_scan
from bundle.scans.writing import write_nifti
from bundle.untrusted import shown
from label.naming import segment_names, values_in

__all__ = [
    "COHORT",
    "Annotation",
    "embed_info",
    "embedded_info",
    "is_complete",
    "names_of",
    "read_annotation",
    "write_saved_cohort",
]

COHORT = "saved"  # the name of the cohort of saved cases
COMPLETE = "complete"  # a parameter of a save, or the name of an empty segment: what is not drawn is not there
SCRIBBLES = {"foreground scribbles", "background scribbles"}  # Slicer's own; never organs
OTHER, LEFT_OUT = 101, 102  # values in the cohort: a structure that is no organ of the model's; what nobody can say


@dataclass(frozen=True)
class Annotation:
    """A saved label map and what it says.

    Args:
        case: the image's id in the datastore.
        image: its file, or the folder of a DICOM series.
        affine: of the image's grid, on which the label map lies.
        label: the label map; its axes may be turned.
        names: {value in the map: name}, of the values that are there.
        meanings: {value in the map: channel of the model's vocabulary, BACKGROUND, UNKNOWN or IGNORED}.
        labelled: the label set: organs that are annotated.
        complete: whether the annotator said that what is not drawn is not there.
    """

    case: str
    image: str
    affine: NDArray[np.float64]
    label: str
    names: dict[int, str]
    meanings: dict[int, int]
    labelled: list[str]
    complete: bool = False


# --- What a save says ------------------------------------------------------------------------------------------------
def names_of(found: Iterable[int], label_info: Any, where: str) -> dict[int, str]:
    """{value: name} of the values in a label map.

    Args:
        found: values in the map.
        label_info: what the client sent; None where it sent nothing, which makes nothing annotated.
        where: the image, for sentences.

    Raises:
        InputError: for a value that nobody named, or a name that is probably a misspelled organ.

    >>> all_names = [{"name": "spleen", "idx": 1}, {"name": "liver", "idx": 2}]  # of a map that shows the liver alone
    >>> names_of([0, 2], all_names, "ct1")
    {2: 'liver'}
    """
    if label_info is None:
        return {}
    known = segment_names(label_info, where)
    names: dict[int, str] = {}
    for value in sorted(set(found) - {0}):
        if value not in known:
            numbers = ", ".join(f"{number} {name}" for number, name in known.items()) or "none"
            raise InputError(
                f'{where}: the label map holds the value {value}, which no segment of "label_info" has (sent were '
                f"{numbers}); send the name of each segment with its number"
            )
        if normalize(known[value]) not in SCRIBBLES:
            names[value] = known[value]
    check_spelling({value: [name] for value, name in names.items()}, Path(where))
    return names


def is_complete(info: Mapping[str, Any]) -> bool:
    """Whether a save says that what is not drawn is not there: `complete`, or an empty segment of that name.

    >>> is_complete({"complete": True}), is_complete({"label_info": [{"name": "complete", "idx": 14}]}), is_complete({})
    (True, True, False)
    """
    said = info.get(COMPLETE, False)
    if not isinstance(said, bool):
        raise InputError(f'"{COMPLETE}": expected true or false, found {shown(said)}')
    entries = info.get("label_info")
    segments = entries if isinstance(entries, list | tuple) else ()
    return said or any(isinstance(one, Mapping) and normalize(str(one.get("name", ""))) == COMPLETE for one in segments)


def read_annotation(
    case: str, image: str | Path, label: str | Path, info: Mapping[str, Any], vocabulary: Vocabulary
) -> Annotation:
    """What a saved label map says.

    Args:
        case: the image's id.
        image: its file.
        label: the label map, of any format that is read here.
        info: what the client sent with it: `label_info`, perhaps `complete`.
        vocabulary: the organs of the model.

    Raises:
        InputError: when the map cannot be read, lies on another grid than its image, or its values are unclear.
    """
    scan = read_scan(image)
    saved = turn_axes(read_label_map(label), scan.affine)  # viewers turn axes as they like
    check_grid(scan, saved)
    values, complete = values_in(saved.voxels), is_complete(info)
    if values and values[-1] > HIGHEST_VALUE:
        raise InputError(f"{case}: expected values up to {HIGHEST_VALUE} in a label map, found {values[-1]}")
    names = names_of(values, info.get("label_info"), case)
    if complete and info.get("label_info") is None:
        raise InputError(f'{case}: is called complete, but no segment has a name; send "label_info" with it')
    if any(normalize(name) == COMPLETE for name in names.values()):
        raise InputError(f'{case}: the segment "{COMPLETE}" is a note, and something is drawn in it; empty it')
    named = {value: [name] for value, name in names.items()}
    annotated = declared_organs(named)
    labelled = vocabulary.names if complete else [name for name in vocabulary.names if name in annotated]
    meanings = map_values(named, labelled, vocabulary, Path(case))
    return Annotation(case, str(image), scan.affine, str(label), names, meanings, list(labelled), complete)


# --- In a file -------------------------------------------------------------------------------------------------------
def embed_info(annotation: Annotation, path: Path, named: bool = True) -> None:
    """Write a saved label map as NIfTI, with what the client said about it inside.

    Map and names are one file, so that nobody ever reads the names of another save.

    Args:
        annotation: what was saved.
        path: ends with `.nii.gz`.
        named: whether the client sent names at all.
    """
    saved = turn_axes(read_label_map(annotation.label), annotation.affine)
    said = [{"name": name, "idx": value} for value, name in annotation.names.items()]
    info = json.dumps({"label_info": said if named else None, COMPLETE: annotation.complete})
    image = nib.Nifti1Image(saved.voxels.astype(np.uint16), annotation.affine)
    image.header.set_xyzt_units("mm")
    image.header.extensions.append(nib.nifti1.Nifti1Extension("comment", info.encode()))
    with whole_file(path) as unfinished:
        nib.save(image, unfinished)


def embedded_info(path: str | Path) -> dict[str, Any] | None:
    """What `embed_info` wrote into a label map; None where there is nothing of the kind."""
    if not str(path).endswith((".nii.gz", ".nii")):
        return None
    try:
        for extension in nib.load(path).header.extensions:
            info = json.loads(extension.text if hasattr(extension, "text") else extension.get_content())
            if isinstance(info, dict) and set(info) == {"label_info", COMPLETE}:
                return info
    except Exception:  # of other writers, or no NIfTI: the reader of label maps says what is wrong with it
        return None
    return None


# --- As a cohort -----------------------------------------------------------------------------------------------------
def write_saved_cohort(
    folder: Path, annotations: Sequence[Annotation], vocabulary: Vocabulary, held_out: Iterable[str] = ()
) -> Path:
    """Write the saved cases as a cohort: one numbering for all label maps, and the label set of each case.

    The label maps are copied, since annotators go on saving while a training runs; the images are referred to.

    Args:
        folder: of the cohort.
        annotations: those that say something.
        vocabulary: the organs of the model.
        held_out: ids of complete cases to validate on: their fold is 0, that of others is 1.

    Returns:
        The dataset.json.
    """
    outside, entries = set(held_out), list[Entry]()
    for annotation in annotations:
        path = folder / "labelsTr" / f"{annotation.case}.nii.gz"
        copy_label_map(annotation, vocabulary, path)
        entries.append(
            {
                "image": str(Path(annotation.image).resolve()),
                "label": f"labelsTr/{path.name}",
                "case": annotation.case,
                "labelled": annotation.labelled,
                "fold": 0 if annotation.case in outside else 1,
            }
        )
    labels = {0: "background", **{organ.value: organ.name for organ in vocabulary}}
    labels |= {OTHER: "another structure", LEFT_OUT: "ignore"}
    about = {"name": COHORT, "description": "saved by annotators in MONAI Label"}
    write_datalist(folder / "dataset.json", about, labels, {"training": entries})
    return folder / "dataset.json"


def copy_label_map(annotation: Annotation, vocabulary: Vocabulary, path: Path) -> None:
    """Copy a label map in the cohort's values.

    A part of an organ whose whole was not drawn is unknown: 0 where 0 means that; else it is left out.
    """
    saved = turn_axes(read_label_map(annotation.label), annotation.affine)
    own = {channel: organ.value for channel, organ in enumerate(vocabulary, start=1)}
    unclear = LEFT_OUT if annotation.complete else 0  # scribbles too
    own |= {BACKGROUND: OTHER, IGNORED: LEFT_OUT, UNKNOWN: unclear}
    table = np.full(max(*annotation.meanings, int(saved.voxels.max())) + 1, unclear, np.uint8)
    table[0] = 0
    for value, meaning in annotation.meanings.items():
        table[value] = own[meaning] if value else 0
    make_folder(path.parent)
    write_nifti(path, table[saved.voxels], saved.affine)
