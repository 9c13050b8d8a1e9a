# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What tests of scans share: DICOM series to write, and the check of a refusal."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import InputError
from bundle.scans.finding import Source
from bundle.scans.reading import read_scan

OBLIQUE = np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]) @ np.array(
    [[1.0, 0.0, 0.0], [0.0, 0.6, -0.8], [0.0, 0.8, 0.6]]
)


def save_series(
    folder: Path,
    positions: Sequence[Sequence[float]] = tuple((-10, -20, 3 * z) for z in range(5)),
    change: Callable[[Any, int], None] = lambda header, index: None,
    name: str = "{:03}.dcm",
) -> Path:
    """Little 8×6 slices; slice ``i`` holds 1000 + i, and 2000 at column 5, row 1, before the intercept of -1024."""
    pydicom = pytest.importorskip("pydicom")
    folder.mkdir(parents=True, exist_ok=True)
    series = pydicom.uid.generate_uid()
    for index, position in enumerate(positions):
        meta = pydicom.dataset.FileMetaDataset()
        meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        header = pydicom.Dataset()
        header.file_meta = meta
        header.SOPClassUID = pydicom.uid.CTImageStorage
        header.SOPInstanceUID = pydicom.uid.generate_uid()
        header.ImageType, header.Modality = ["ORIGINAL", "PRIMARY", "AXIAL"], "CT"
        header.SeriesInstanceUID, header.SeriesNumber, header.InstanceNumber = series, 7, 99 - index
        header.ImagePositionPatient = list(position)
        header.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        header.PixelSpacing, header.SliceThickness = [0.9, 0.7], 4
        header.Rows, header.Columns, header.SamplesPerPixel = 6, 8, 1
        header.PhotometricInterpretation = "MONOCHROME2"
        header.BitsAllocated, header.BitsStored, header.HighBit, header.PixelRepresentation = 16, 16, 15, 0
        header.RescaleSlope, header.RescaleIntercept = 1, -1024
        pixels = np.full((6, 8), 1000 + index, np.uint16)
        pixels[1, 5] = 2000
        header.PixelData = pixels.tobytes()
        change(header, index)
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = header.SOPClassUID, header.SOPInstanceUID
        header.save_as(folder / name.format(index), enforce_file_format=True)
    return folder


def save_multiframe(path: Path, heights: Sequence[float], last_intercept: int = -100) -> Path:
    """An enhanced CT whose frame ``i`` holds ``i`` before the intercept of -100."""
    dataset = pytest.importorskip("pydicom").Dataset

    def item(**fields: Any) -> Any:
        made = dataset()
        for key, value in fields.items():
            setattr(made, key, value)
        return made

    def enhance(header: Any, index: int) -> None:
        for tag in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing", "RescaleSlope"):
            delattr(header, tag)
        header.SOPClassUID = "1.2.840.10008.5.1.4.1.1.2.1"
        header.NumberOfFrames = len(heights)
        orientation = item(ImageOrientationPatient=[1, 0, 0, 0, 1, 0])
        transform = item(RescaleSlope=1, RescaleIntercept=-100)
        header.SharedFunctionalGroupsSequence = [
            item(
                PixelMeasuresSequence=[item(PixelSpacing=[0.9, 0.7], SliceThickness=3)],
                PlaneOrientationSequence=[orientation],
                PixelValueTransformationSequence=[transform],
            )
        ]
        header.PerFrameFunctionalGroupsSequence = [
            item(PlanePositionSequence=[item(ImagePositionPatient=[-10, -20, height])]) for height in heights
        ]
        last = item(RescaleSlope=1, RescaleIntercept=last_intercept)
        header.PerFrameFunctionalGroupsSequence[-1].PixelValueTransformationSequence = [last]
        header.PixelData = np.repeat(np.arange(len(heights), dtype=np.uint16), 48).tobytes()

    save_series(path.parent, [(0, 0, 0)], enhance, path.name)
    return path


def refuse(source: Path | Source, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_scan(source)
    assert "\n" not in str(caught.value)
