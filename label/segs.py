# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Label maps to DICOM SEG and back, on the grid of the CT series they belong to.

Nothing of MONAI Label is needed here: `dicomweb` brings the files.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import WHOLE_VOCABULARY, Organ, Vocabulary
from bundle.scans.dicom import read_slices, stack
from bundle.scans.dicom_seg import write_dicom_seg
from bundle.scans.finding import scans_at
from bundle.scans.grids import turn_axes
from bundle.scans.reading import LPS_TO_RAS, Scan, read_label_map
from label.naming import Entry, in_vocabulary, name_values, organ_of_segment, values_in

__all__ = ["SeriesGrid", "answer_seg", "nifti_to_dicom_seg", "read_seg", "read_series_grid", "seg_of_label"]

logger = logging.getLogger(__name__)

METADATA = Path(__file__).resolve().parent.parent / "configs" / "metadata.json"

TOLERANCE = 0.1  # voxels; positions are rounded when they are written


@dataclass(frozen=True)
class SeriesGrid:
    """Where the voxels of a DICOM series lie.

    Args:
        path: the folder of the series.
        slices: the file of each slice along the last axis.
        shape: columns, rows, slices.
        affine: 4×4, voxel to RAS in mm.
    """

    path: Path
    slices: tuple[str, ...]
    shape: tuple[int, int, int]
    affine: NDArray[np.float64]


def read_series_grid(folder: str | Path) -> SeriesGrid:
    """The grid of the one CT series in a folder, whatever the order and names of its files.

    Raises:
        InputError: when it is not one whole, even stack of slices.
    """
    found = [source for source in scans_at(folder).values() if source.series]
    if len(found) != 1:
        raise InputError(f"{folder}: expected one DICOM series of CT, found {len(found)}; keep one there")
    slices = read_slices(found[0].series)
    affine, order = stack(slices, Path(folder))
    columns, rows = slices[0].size
    return SeriesGrid(
        Path(folder), tuple(slices[index].file for index in order), (columns, rows, len(slices)), LPS_TO_RAS @ affine
    )


# --- Label map to SEG ------------------------------------------------------------------------------------------------
def answer_seg(image_dir: str | Path, label_file: str | Path, vocabulary: Vocabulary = WHOLE_VOCABULARY) -> str:
    """Write the label map of a model as a DICOM SEG, a temporary file.

    Args:
        image_dir: the folder of the DICOM series.
        label_file: the label map on the grid of the series, its axes turned or not; values are channels.
        vocabulary: the organs of the model.

    Raises:
        InputError: for a value that the vocabulary does not have, another grid, or a map without an organ.
    """
    channels = dict(enumerate(vocabulary, start=1))
    return seg_of_label(image_dir, label_file, channels, reviewed=False)


def nifti_to_dicom_seg(
    series_dir: str | Path,
    label: str | Path,
    label_info: Sequence[Entry] | None,
    file_ext: str = "*",
    use_itk: bool = True,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
) -> str:
    """`answer_seg` in the place of MONAI Label's function of this name, which names organs by their order.

    Args:
        series_dir: the folder of the DICOM series.
        label: the label map.
        label_info: names by ``idx``; the vocabulary's channels where it is empty.
        file_ext: not used, as MONAI Label's.
        use_itk: not used, as MONAI Label's.
        vocabulary: the organs of the model.
    """
    if not label_info:
        return answer_seg(series_dir, label, vocabulary)
    return seg_of_label(series_dir, label, label_info, reviewed=False)


def seg_of_label(
    series_dir: str | Path, label_file: str | Path, names: Mapping[int, Organ] | Sequence[Entry], reviewed: bool
) -> str:
    """Write a label map as a DICOM SEG, a temporary file.

    Args:
        series_dir: the folder of the DICOM series.
        label_file: the label map.
        names: the organ of each value, or a ``label_info``.
        reviewed: whether a person drew or corrected it.
    """
    series = read_series_grid(series_dir)
    drawn = read_label_map(label_file)
    what = f"label map of {Path(series_dir).name}"  # the file itself is a temporary one of the server
    labels = on_grid(drawn, series, what)
    values = values_in(labels)
    if isinstance(names, Mapping):
        names = [{"name": organ.name, "idx": value} for value, organ in names.items()]
    organs = name_values(values, names, what)
    with tempfile.NamedTemporaryFile(suffix=".dcm", delete=False) as file:
        written = False
        try:
            written = write_dicom_seg(
                file.name, series, in_vocabulary(labels, organs), WHOLE_VOCABULARY, bundle_version(), reviewed
            )
        finally:
            if not written:
                Path(file.name).unlink(missing_ok=True)
    if not written:
        raise InputError(f"{what}: has no organ, and a DICOM SEG needs one; draw an organ, or save nothing")
    return file.name


def bundle_version() -> str:
    return str(json.loads(METADATA.read_text())["version"])


def on_grid(label: Scan, series: SeriesGrid, what: str) -> NDArray[Any]:
    """The label map with its axes as the series has them; one of another grid is refused, nothing is resampled."""
    turned = turn_axes(label, series.affine)
    voxels, affine = turned.voxels, turned.affine
    corners = np.array(np.meshgrid(*[(0, size - 1) for size in series.shape], [1])).reshape(4, -1)
    apart = np.abs((np.linalg.inv(series.affine) @ affine - np.eye(4)) @ corners).max()
    if voxels.shape != series.shape or apart > TOLERANCE:
        raise InputError(
            f"{what}: is not on the grid of its series ({voxels.shape} voxels, expected {series.shape}, up to "
            f"{apart:.1f} voxels away); save it with the geometry of the CT"
        )
    return voxels


# --- SEG to label map ------------------------------------------------------------------------------------------------
def read_seg(path: str | Path, series: SeriesGrid) -> tuple[NDArray[np.uint8], list[dict[str, Any]]]:
    """Read a DICOM SEG of any writer into a label map on the grid of its series.

    Segments that are no organ of the vocabulary are left out with a warning. Two segments of one organ become one.

    Args:
        path: the SEG: binary, fractional (a voxel counts from one half on) or a label map.
        series: the grid.

    Returns:
        X×Y×Z with the values of the vocabulary, and MONAI Label's ``label_info`` of the organs that have a segment.

    Raises:
        InputError: for a file that is no SEG on this grid, or where segments of two organs overlap.
    """
    import pydicom

    try:
        seg = pydicom.dcmread(path)
        segments = {int(item.SegmentNumber): item for item in seg.SegmentSequence}
        organs = {number: organ_of_segment(item, str(path)) for number, item in segments.items()}
        known = {number: organ for number, organ in organs.items() if organ is not None}
        labels = np.zeros(series.shape, np.uint8)
        for number, frame, groups in frames_of_seg(seg):
            if number in known and frame.any():
                paint(labels, known[number], places(frame, groups, series, path), path)
    except InputError:
        raise
    except Exception as error:  # pydicom raises many kinds for a broken file
        raise InputError(f"{path}: cannot be read as a DICOM SEG ({error!r}); store it again") from error
    present = sorted(set(known.values()), key=lambda organ: organ.value)
    return labels, [{"name": organ.name, "idx": organ.value} for organ in present]


def frames_of_seg(seg: Any) -> list[tuple[int, NDArray[np.bool_], list[Any]]]:
    """The segment's number, the mask (row × column) and the functional groups of each frame, its own first."""
    pixels = seg.pixel_array.reshape(-1, seg.Rows, seg.Columns)
    shared = list(seg.get("SharedFunctionalGroupsSequence") or [])
    half = float(seg.get("MaximumFractionalValue") or 1) / 2
    frames = []
    for plane, own in zip(pixels, seg.PerFrameFunctionalGroupsSequence, strict=True):
        groups = [own, *shared]
        if seg.SegmentationType == "LABELMAP":
            frames += [(int(number), plane == number, groups) for number in np.unique(plane) if number]
        else:
            number = group_of(groups, "SegmentIdentificationSequence").ReferencedSegmentNumber
            frames.append((int(number), plane >= half, groups))
    return frames


def group_of(groups: Sequence[Any], name: str) -> Any:
    return next(group[name].value[0] for group in groups if name in group)


def places(
    frame: NDArray[np.bool_], groups: Sequence[Any], series: SeriesGrid, path: str | Path
) -> tuple[NDArray[np.int64], ...]:
    """Voxels of the series (indices along X, Y and Z) that the pixels of a frame lie on, by its position in space.

    So the order of frames and slices does not matter, nor whether the writer turned or cropped them.
    """
    row, column = np.array(group_of(groups, "PlaneOrientationSequence").ImageOrientationPatient, float).reshape(2, 3)
    between_rows, between_columns = map(float, group_of(groups, "PixelMeasuresSequence").PixelSpacing)
    position = np.array(group_of(groups, "PlanePositionSequence").ImagePositionPatient, float)
    to_voxel = np.linalg.inv(LPS_TO_RAS @ series.affine)
    steps = to_voxel[:3, :3] @ np.stack([column * between_rows, row * between_columns], axis=1)  # 3×2
    start = to_voxel[:3, :3] @ position + to_voxel[:3, 3]
    pixels = np.array(np.nonzero(frame))  # 2×N: rows, columns
    exact = start[:, None] + steps @ pixels
    voxels = np.round(exact).astype(np.int64)
    inside = (voxels >= 0) & (voxels < np.array(series.shape)[:, None])
    if np.abs(exact - voxels).max() > TOLERANCE or not inside.all() or not is_whole(steps):
        raise InputError(f"{path}: is not on the grid of its CT series; store a SEG that has the geometry of the CT")
    return tuple(voxels)


def is_whole(steps: NDArray[Any]) -> bool:
    """Whether a step to the next row or column is a step to the next voxel: a coarser SEG would leave holes."""
    sizes = np.abs(steps)
    return bool(np.allclose([sizes.sum(0), sizes.max(0)], 1, atol=0.01))


def paint(labels: NDArray[np.uint8], organ: Organ, where: tuple[NDArray[np.int64], ...], path: str | Path) -> None:
    """Give voxels to an organ, unless another one has them."""
    before = labels[where]
    taken = before[(before != 0) & (before != organ.value)]
    if taken.size:
        other = next(one.name for one in WHOLE_VOCABULARY if one.value == taken[0])
        raise InputError(
            f"{path}: {organ.name} and {other} overlap in {taken.size} voxels or more, and a label map has one organ "
            "for each; correct the segments and store them again"
        )
    labels[where] = organ.value
