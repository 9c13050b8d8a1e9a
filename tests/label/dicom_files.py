# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What tests of the archive share: an oblique CT series in files of any order, SEGs by hand, and a plain reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pydicom
from numpy.typing import NDArray

from label.segs import SeriesGrid
from label.series import save, write_ct_series
from tests.scan_files import affine_of

SHAPE = (7, 6, 5)
TURN = np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]])
TILT = np.array([[1.0, 0.0, 0.0], [0.0, 0.96, -0.28], [0.0, 0.28, 0.96]])
AFFINE = affine_of(TURN @ TILT @ np.diag([-0.7, -0.8, 2.5]))  # oblique, axes about left, back and head
Points = dict[str, set[tuple[float, ...]]]  # of each segment's label: places of its voxels, LPS in mm


def ct_series(folder: Path, affine: NDArray[np.float64] = AFFINE, shape: tuple[int, int, int] = SHAPE) -> Path:
    """A series whose file names say nothing about the order of its slices."""
    voxels = np.random.default_rng(3).integers(-1000, 1000, shape).astype(np.int16)
    write_ct_series(folder, voxels, affine, "TEST")
    files = sorted(folder.iterdir())
    for place, file in zip(np.random.default_rng(5).permutation(len(files)), files, strict=True):
        file.rename(folder / f"{'qwertzuiop'[place]}.dcm")
    return folder


def save_labels(path: Path, labels: NDArray[np.uint8], affine: NDArray[np.float64] = AFFINE) -> Path:
    nib.save(nib.Nifti1Image(labels, affine), path)
    return path


def points_of_map(labels: NDArray[Any], affine: NDArray[np.float64], names: dict[int, str]) -> Points:
    """Places of the voxels of a label map, by its affine alone."""
    found: Points = {}
    for value, name in names.items():
        voxels = np.argwhere(labels == value)
        ras = voxels @ affine[:3, :3].T + affine[:3, 3]
        found[name] = {tuple(point) for point in np.round(ras * (-1, -1, 1), 2) + 0.0}
    return found


def points_of_seg(path: str | Path) -> Points:
    """Places of the pixels of a SEG, by pydicom and the equation of C.7.6.2.1.1 alone."""
    seg = pydicom.dcmread(path)
    names = {item.SegmentNumber: item.SegmentLabel for item in seg.SegmentSequence}
    shared = seg.SharedFunctionalGroupsSequence[0]
    row, column = np.reshape(np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float), (2, 3))
    between_rows, between_columns = map(float, shared.PixelMeasuresSequence[0].PixelSpacing)
    found: Points = {name: set() for name in names.values()}
    frames = seg.pixel_array.reshape(-1, seg.Rows, seg.Columns)
    for frame, groups in zip(frames, seg.PerFrameFunctionalGroupsSequence, strict=True):
        position = np.array(groups.PlanePositionSequence[0].ImagePositionPatient, float)
        number = groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        for y, x in np.argwhere(frame):
            point = position + row * between_columns * x + column * between_rows * y
            found[names[number]].add(tuple(np.round(point, 2) + 0.0))
    return found


def segment(number: int, label: str, code: str = "", scheme: str = "SCT", algorithm: str = "") -> pydicom.Dataset:
    """An item of SegmentSequence."""
    item = pydicom.Dataset()
    item.SegmentNumber, item.SegmentLabel, item.SegmentAlgorithmType = number, label, "MANUAL"
    if algorithm:
        item.SegmentAlgorithmName = algorithm
    if code:
        kind = pydicom.Dataset()
        kind.CodeValue, kind.CodingSchemeDesignator, kind.CodeMeaning = code, scheme, "meaning"
        item.SegmentedPropertyTypeCodeSequence = [kind]
    return item


def one(**values: Any) -> pydicom.Dataset:
    """A dataset with these values."""
    dataset = pydicom.Dataset()
    for name, value in values.items():
        setattr(dataset, name, value)
    return dataset


def write_seg_by_hand(
    path: Path,
    series: SeriesGrid,
    segments: Sequence[pydicom.Dataset],
    masks: Sequence[tuple[int, int, NDArray[np.bool_]]],
    spacing: tuple[float, float] | None = None,
    fractions: bool = False,
) -> Path:
    """A SEG of another writer.

    Args:
        path: of the file.
        series: to which it belongs.
        segments: items of SegmentSequence.
        masks: of each frame the segment, the slice and the mask (row × column; 0 to 255 where fractions).
        spacing: between rows and between columns; those of the series if not given.
        fractions: whether the SEG is fractional, up to 255.
    """
    source = pydicom.dcmread(series.slices[0], stop_before_pixels=True)
    seg = pydicom.Dataset()
    seg.file_meta = pydicom.dataset.FileMetaDataset()
    seg.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    seg.SOPClassUID = seg.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.66.4"
    seg.SOPInstanceUID = seg.file_meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
    seg.SeriesInstanceUID, seg.StudyInstanceUID = pydicom.uid.generate_uid(), source.StudyInstanceUID
    seg.PatientID, seg.PatientName, seg.Modality = source.PatientID, source.PatientName, "SEG"
    seg.StudyDate, seg.StudyTime, seg.ContentDate, seg.ContentTime = "20240101", "120000", "20240101", "120000"
    seg.SegmentationType = "FRACTIONAL" if fractions else "BINARY"
    seg.SegmentSequence = list(segments)
    seg.ReferencedSeriesSequence = [one(SeriesInstanceUID=source.SeriesInstanceUID)]
    orientation = one(ImageOrientationPatient=source.ImageOrientationPatient)
    measures = one(PixelSpacing=[f"{step:g}" for step in spacing] if spacing else source.PixelSpacing)
    seg.SharedFunctionalGroupsSequence = [one(PlaneOrientationSequence=[orientation], PixelMeasuresSequence=[measures])]
    seg.PerFrameFunctionalGroupsSequence = []
    for number, place, _ in masks:
        position = pydicom.dcmread(series.slices[place], stop_before_pixels=True).ImagePositionPatient
        seg.PerFrameFunctionalGroupsSequence.append(
            one(
                PlanePositionSequence=[one(ImagePositionPatient=position)],
                SegmentIdentificationSequence=[one(ReferencedSegmentNumber=number)],
            )
        )
    pixels = np.stack([mask for _, _, mask in masks])
    seg.NumberOfFrames, seg.Rows, seg.Columns = pixels.shape
    seg.SamplesPerPixel, seg.PhotometricInterpretation, seg.PixelRepresentation = 1, "MONOCHROME2", 0
    bits = 8 if fractions else 1
    seg.BitsAllocated, seg.BitsStored, seg.HighBit = bits, bits, bits - 1
    if fractions:
        seg.MaximumFractionalValue = 255
    packed = pixels.astype(np.uint8) if fractions else np.packbits(pixels.ravel() > 0, bitorder="little")
    data = packed.tobytes()
    seg.PixelData = data + b"\0" * (len(data) % 2)
    seg["PixelData"].VR = "OB"
    save(seg, path)
    return path
