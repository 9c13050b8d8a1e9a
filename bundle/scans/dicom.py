# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""CT series in DICOM: what their headers say, whether their slices are one even stack, and their voxels.

The lowest layer of `scans`: how ITK opens and decodes any file is here too. ITK takes a second to import, so it is
imported where it is used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError

__all__ = [
    "CONVERT",
    "CT_CLASSES",
    "DicomSlice",
    "check_modality",
    "decode",
    "decode_frames",
    "decode_series",
    "dicom_class",
    "frames_of",
    "open_with_itk",
    "read_slices",
    "read_tags",
    "refuse_pixels",
    "stack",
    "unreadable",
]


CT_CLASSES = {f"1.2.840.10008.5.1.4.1.1.2{kind}" for kind in ("", ".1", ".2")}  # plain, enhanced, converted to enhanced

TAGS = {
    "ImageType": "0008|0008",
    "Modality": "0008|0060",
    "SliceThickness": "0018|0050",
    "SpacingBetweenSlices": "0018|0088",
    "SeriesInstanceUID": "0020|000e",
    "SeriesNumber": "0020|0011",
    "ImagePositionPatient": "0020|0032",
    "ImageOrientationPatient": "0020|0037",
    "SamplesPerPixel": "0028|0002",
    "NumberOfFrames": "0028|0008",
    "Rows": "0028|0010",
    "Columns": "0028|0011",
    "PixelSpacing": "0028|0030",
}

GROUPS = {  # where multi-frame files keep what differs between frames
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
}

STEP_TOLERANCE = 0.01  # of the median step, and mm on top: positions are rounded when they are written

TILT_TOLERANCE = math.tan(math.radians(0.1))  # mm sideways per mm along the normal

SHIFT_TOLERANCE = 0.1  # mm sideways, for rounded positions

CONVERT = "convert the series to NIfTI (for instance with dcm2niix) and give that"

Tags = dict[str, str]


@dataclass(frozen=True)
class DicomSlice:
    """What the header of a DICOM slice says about its place."""

    file: str
    size: tuple[int, ...]  # columns, rows
    position: NDArray[Any]  # 3, LPS
    orientation: NDArray[Any]  # 6: along a row, along a column
    spacing: NDArray[Any]  # 2: between rows, between columns
    thickness: float  # 0 where the header does not say


# --- Files of any format, by ITK -------------------------------------------------------------------------------------
def refuse_pixels(path: Path, found: str) -> NoReturn:
    raise InputError(f"{path}: expected one HU value for each voxel, found {found}; export the scan as gray values")


def unreadable(path: Path | str, error: Exception) -> InputError:
    # ITK puts source file, line and address before what happened, and a stale system error behind it
    reason = " ".join(str(error).split("): ", 1)[-1].split("Reason:")[0].split())
    return InputError(f"{path}: cannot be read as an image ({reason[:200]}); replace the file")


def open_with_itk(path: Path | str, reader: str) -> Any:
    """The header of a file, as the image IO of ITK with this name."""
    import itk

    io = getattr(itk, reader).New()
    io.SetFileName(str(path))
    try:
        io.ReadImageInformation()
    except RuntimeError as error:
        raise unreadable(path, error) from None
    return io


class ItkPixels:
    """Lets numpy use an image's memory and keep the image alive: plain views of ITK's own array do not."""

    def __init__(self, image: Any) -> None:
        import itk

        self.image = image
        self.__array_interface__ = itk.array_view_from_image(image).__array_interface__


def decode(path: Path | str, io: Any) -> NDArray[Any]:
    """X×Y×Z voxels of a file whose header is read."""
    import itk

    if io.GetNumberOfComponents() != 1:
        kind = io.GetPixelTypeAsString(io.GetPixelType())
        refuse_pixels(Path(path), f"{io.GetNumberOfComponents()} ({kind} pixels)")
    component = io.GetComponentTypeAsString(io.GetComponentType())
    kinds = {"char": itk.SS, "unsigned_char": itk.UC, "short": itk.SS, "unsigned_short": itk.US}
    kinds |= {"int": itk.SI, "unsigned_int": itk.UI}
    reader = itk.ImageFileReader[itk.Image[kinds.get(component, itk.F), 3]].New()
    reader.SetFileName(str(path))
    reader.SetImageIO(io)
    try:
        reader.Update()
    except RuntimeError as error:
        raise unreadable(path, error) from None
    return np.asarray(ItkPixels(reader.GetOutput())).T


# --- Headers ---------------------------------------------------------------------------------------------------------
def dicom_class(path: Path) -> str | None:
    """The SOP class that the file meta information states, empty where it does not; None where this is not DICOM."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror}); allow reading it or move it away") from None
    if head[128:132] != b"DICM":
        return None
    stated = re.search(rb"\x02\x00\x02\x00UI..([\d.]*)", head[132:], re.DOTALL)
    return stated[1].decode() if stated else ""


def read_tags(path: Path | str) -> Tags:
    """The `TAGS` of a file, empty where it has none."""
    io = open_with_itk(path, "GDCMImageIO")  # must outlive its dictionary, which is only a reference
    found = io.GetMetaDataDictionary()
    return {name: found[tag].strip() if found.HasKey(tag) else "" for name, tag in TAGS.items()}


def frames_of(tags: Tags) -> int:
    return int(tags["NumberOfFrames"] or 1)


def check_modality(tags: Tags, path: Path | str) -> None:
    if tags["Modality"] != "CT":
        raise InputError(f"{path}: expected CT, found modality {tags['Modality'] or 'unknown'}; give the CT series")
    if tags["SamplesPerPixel"] not in ("", "1"):
        refuse_pixels(Path(path), f"{tags['SamplesPerPixel']} (a color image)")


def read_slices(files: Sequence[str]) -> list[DicomSlice]:
    """What the headers of a series' files say; a multi-frame file has a slice for each frame."""
    slices: list[DicomSlice] = []
    for file in files:
        tags = read_tags(file)
        check_modality(tags, file)
        slices += [slice_from(file, part) for part in (frames_in(file, tags) if frames_of(tags) > 1 else [tags])]
    return slices


def slice_from(file: str, tags: Tags) -> DicomSlice:
    between = next((tag for tag in ("SpacingBetweenSlices", "SliceThickness") if tags[tag]), "")
    return DicomSlice(
        file,
        size=(int(tags["Columns"]), int(tags["Rows"])),
        position=numbers(tags, "ImagePositionPatient", 3, file),
        orientation=numbers(tags, "ImageOrientationPatient", 6, file),
        spacing=numbers(tags, "PixelSpacing", 2, file),
        thickness=abs(numbers(tags, between, 1, file)[0]) if between else 0.0,
    )


def numbers(tags: Tags, tag: str, count: int, file: str) -> NDArray[Any]:
    try:
        values = np.array([float(part) for part in tags[tag].split("\\")])
    except ValueError:
        values = np.empty(0)
    if len(values) != count or not np.isfinite(values).all():
        found = tags[tag] or "none"
        raise InputError(f"{file}: expected {count} finite numbers as {tag}, found {found}; export the series again")
    return values


def frames_in(file: str, tags: Tags) -> list[Tags]:
    """The tags of each frame: GDCM alone would pass over gaps, a changed order and a tilt without a word."""
    try:
        import pydicom
    except ImportError:
        raise InputError(f"{file}: multi-frame DICOM needs pydicom; `pip install pydicom`, or {CONVERT}") from None
    header = pydicom.dcmread(file, stop_before_pixels=True)
    shared = header.get("SharedFunctionalGroupsSequence") or []

    def value(frame: Any, tag: str) -> str:
        items = [group[GROUPS[tag]][0].get(tag) for group in (frame, *shared) if GROUPS[tag] in group]
        found = items[0] if items and items[0] is not None else ""
        return str(found) if isinstance(found, str | float) else "\\".join(map(str, found))

    frames = [
        {tag: value(frame, tag) for tag in GROUPS} for frame in header.get("PerFrameFunctionalGroupsSequence") or []
    ]
    if len(frames) != frames_of(tags):
        raise InputError(f"{file}: expected the position of each frame in its header, found {len(frames)}; {CONVERT}")
    if len({(frame["RescaleSlope"], frame["RescaleIntercept"]) for frame in frames}) > 1:
        raise InputError(f"{file}: expected one rescale slope and intercept, found several; {CONVERT}")
    return [{**tags, **frame} for frame in frames]


# --- Stacks ----------------------------------------------------------------------------------------------------------
def stack(slices: Sequence[DicomSlice], path: Path) -> tuple[NDArray[np.float64], list[int]]:
    """The affine of a stack, to LPS, and the order of its slices along their normal."""
    first = slices[0]
    for other in slices[1:]:
        check_alike(first, other)
    row, column = first.orientation[:3], first.orientation[3:]
    normal = np.cross(row, column)
    if not np.allclose([row @ row, column @ column, normal @ normal], 1, atol=1e-3):
        raise InputError(f"{first.file}: ImageOrientationPatient is not two perpendicular unit vectors; {CONVERT}")
    order = sorted(range(len(slices)), key=lambda index: (float(slices[index].position @ normal), slices[index].file))
    ordered = [slices[index] for index in order]
    step = first.thickness if len(slices) == 1 else check_steps(ordered, normal, path)
    affine = np.eye(4)
    affine[:3, 0] = row * first.spacing[1]
    affine[:3, 1] = column * first.spacing[0]
    affine[:3, 2] = normal * step
    affine[:3, 3] = ordered[0].position
    return affine, order


def check_alike(first: DicomSlice, other: DicomSlice) -> None:
    for what, one, two in (
        ("size", first.size, other.size),
        ("orientation", first.orientation, other.orientation),
        ("pixel spacing", first.spacing, other.spacing),
    ):
        if not np.allclose(one, two, rtol=0, atol=1e-4):
            raise InputError(
                f"{other.file}: expected slices of one {what}, found {np.asarray(two).tolist()} here and "
                f"{np.asarray(one).tolist()} in {Path(first.file).name}; keep one series in the folder"
            )


def check_steps(ordered: Sequence[DicomSlice], normal: NDArray[Any], path: Path) -> float:
    """The mean distance of slices that lie straight, once each and evenly along their normal."""
    positions = np.stack([part.position for part in ordered])
    along = positions @ normal
    steps = np.diff(along)
    sideways = np.linalg.norm(positions - positions[0] - np.outer(along - along[0], normal), axis=1)
    median = float(np.median(steps))
    for index, step in enumerate(steps):
        names = f"{Path(ordered[index].file).name} and {Path(ordered[index + 1].file).name}"
        place = f"between {along[index]:.2f} mm and {along[index + 1]:.2f} mm"
        if step <= STEP_TOLERANCE:
            raise InputError(f"{path}: two slices lie at {along[index]:.2f} mm ({names}); keep one acquisition")
        if abs(step - median) > STEP_TOLERANCE * median + STEP_TOLERANCE:
            raise InputError(
                f"{path}: slices are missing or uneven: expected a step of {median:.2f} mm, found {step:.2f} mm "
                f"{place} ({names}); export the whole series again"
            )
    tilted = sideways > SHIFT_TOLERANCE + TILT_TOLERANCE * (along - along[0])
    if tilted.any():
        angle = math.degrees(math.atan2(sideways[-1], along[-1] - along[0]))
        raise InputError(
            f"{path}: expected slices stacked along their normal, found a gantry tilt of {angle:.1f}°; {CONVERT}, "
            "with the tilt corrected"
        )
    return float(along[-1] - along[0]) / len(steps)


# --- Voxels ----------------------------------------------------------------------------------------------------------
def narrowest(voxels: NDArray[Any]) -> type[np.generic]:
    """GDCM answers int32 or float64 where a rescaled value might not fit into less; of a CT it nearly always does."""
    if voxels.dtype.kind == "f":
        return np.float32
    limits = np.iinfo(np.int16)
    return np.int16 if limits.min <= voxels.min() and voxels.max() <= limits.max else np.int32


def decode_series(files: Sequence[str], size: Sequence[int]) -> NDArray[Any]:
    kinds: list[type[np.generic]] = [np.int16, np.int32, np.float32]  # each gives way to the next where it must
    voxels: NDArray[Any] = np.empty((*size, len(files)), np.int16, order="F")
    for index, file in enumerate(files):
        plane = decode(file, open_with_itk(file, "GDCMImageIO"))[:, :, 0]
        needed = kinds[max(kinds.index(voxels.dtype.type), kinds.index(narrowest(plane)))]
        voxels = voxels.astype(needed, copy=False)
        voxels[:, :, index] = plane
    return voxels


def decode_frames(file: str, order: list[int]) -> NDArray[Any]:
    voxels = decode(file, open_with_itk(file, "GDCMImageIO"))
    voxels = voxels.astype(narrowest(voxels), copy=False)
    return voxels if order == sorted(order) else voxels[:, :, order]
