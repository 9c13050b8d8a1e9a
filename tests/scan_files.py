# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What tests of scans share: files to write in every format, label maps, and the check of a refusal."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.scans.finding import Source
from bundle.scans.reading import read_scan

OBLIQUE = np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]) @ np.array(
    [[1.0, 0.0, 0.0], [0.0, 0.6, -0.8], [0.0, 0.8, 0.6]]
)


SHAPE = (6, 5, 4)
VOXELS = (np.arange(120).reshape(SHAPE, order="F") - 60).astype(np.int16)
MARK = (4, 1, 3)  # a voxel off every symmetry axis
SPACING = (0.7, 0.9, 2.5)
AFFINE = np.eye(4)
AFFINE[:3, :3] = OBLIQUE * SPACING
AFFINE[:3, 3] = (-11, 22, 33)


def affine_of(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = matrix, (12.5, -80.25, 300.0)
    return affine


RIGID = {
    "RAS": affine_of(np.diag([0.7, 0.8, 2.5])),
    "LPS": affine_of(np.diag([-0.7, -0.8, 2.5])),
    "mirrored": affine_of(np.diag([-0.7, 0.8, 2.5])),
    "permuted": affine_of(np.array([[0, 0, -2.5], [0.7, 0, 0], [0, 0.8, 0]])),
    "oblique": affine_of(OBLIQUE @ np.diag([-0.7, -0.8, 2.5])),
}
SHEARED = affine_of(np.array([[0.7, 0.0, 0.0], [0.0, 0.8, 0.5], [0.0, 0.0, 2.5]]))  # a tilted gantry


def some_labels() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 14, (5, 6, 7)).astype(np.uint8)


def label_names(path: Path) -> dict[int, str]:
    """Value and name of each label, from the extension that `write_label_map` writes into the header."""
    contents = [extension.get_content().rstrip(b"\0 \n") for extension in nib.load(path).header.extensions]
    labels = [label for content in contents for label in ElementTree.fromstring(content).iter("Label")]
    return {int(label.attrib["Key"]): (label.text or "").strip() for label in labels}


def save_nifti(path: Path, voxels: np.ndarray = VOXELS, affine: np.ndarray | None = AFFINE) -> Path:
    nib.save(nib.Nifti1Image(voxels, affine), path)
    return path


def save_itk(path: Path, voxels: np.ndarray = VOXELS) -> Any:
    import itk

    image = itk.image_from_array(np.ascontiguousarray(voxels.T))
    image.SetSpacing(SPACING)
    image.SetOrigin((-11, 22, 33))
    image.SetDirection(itk.matrix_from_array(OBLIQUE))
    itk.imwrite(image, str(path))
    return image


def save_mha(path: Path, size: Sequence[int] = SHAPE, **fields: object) -> Path:
    header = {
        "ObjectType": "Image",
        "NDims": len(size),
        "BinaryData": "True",
        "DimSize": " ".join(map(str, size)),
        "ElementSpacing": " ".join("1" for _ in size),
        **fields,
        "ElementType": "MET_SHORT",
        "ElementDataFile": "LOCAL",
    }
    text = "".join(f"{key} = {value}\n" for key, value in header.items())
    path.write_bytes(text.encode() + VOXELS.tobytes(order="F"))
    return path


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
