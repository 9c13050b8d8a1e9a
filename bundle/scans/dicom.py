# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""CT series in DICOM: what their headers say, whether their slices are one even stack, and their voxels.

`finding` asks it which files are CT slices, `reading` for their volume.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.scans.itk_files import decode, open_with_itk, refuse_pixels, unreadable
from bundle.untrusted import shown

__all__ = [
    "CONVERT",
    "CT_CLASSES",
    "DicomSlice",
    "check_modality",
    "decode_frames",
    "decode_series",
    "dicom_class",
    "frames_of",
    "read_slices",
    "read_tags",
    "stack",
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
    "BitsAllocated": "0028|0100",
    "PixelSpacing": "0028|0030",
    "RescaleSlope": "0028|1053",
}

GROUPS = {  # where multi-frame files keep what differs between frames
    "ImagePositionPatient": "PlanePositionSequence",
    "ImageOrientationPatient": "PlaneOrientationSequence",
    "PixelSpacing": "PixelMeasuresSequence",
    "RescaleSlope": "PixelValueTransformationSequence",
    "RescaleIntercept": "PixelValueTransformationSequence",
}

# Transfer syntaxes that store plain numbers: byte order, and how an element of bytes or words begins behind its tag.
PLAIN = {
    "1.2.840.10008.1.2": ("<", b""),
    "1.2.840.10008.1.2.1": ("<", b"O[BW]\0\0"),
    "1.2.840.10008.1.2.2": (">", b"O[BW]\0\0"),
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


def frames_of(tags: Tags, path: Path | str) -> int:
    """How many slices a file holds."""
    return count_of(tags, "NumberOfFrames", path) if tags["NumberOfFrames"] else 1


def count_of(tags: Tags, tag: str, path: Path | str) -> int:
    """A tag that counts something, from 1 to 16 bits."""
    if not re.fullmatch("0*[1-9][0-9]{0,4}", tags[tag]):
        raise InputError(f"{path}: expected a number from 1 on as {tag}, found {shown(tags[tag])}; export it again")
    return int(tags[tag])


def check_modality(tags: Tags, path: Path | str) -> None:
    """Refuse what is no CT, or has colors."""
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
        check_pixel_data(file, tags)
        slices += [slice_from(file, part) for part in (frames_in(file, tags) if frames_of(tags, file) > 1 else [tags])]
    return slices


def check_pixel_data(file: str, tags: Tags) -> None:
    """Refuse a file with less pixel data than its header announces: GDCM fills up the rest with whatever is in memory.

    Compressed pixel data is left to its decoder, which knows where it ends.
    """
    content = Path(file).read_bytes()
    stated = re.search(rb"\x02\x00\x10\x00UI..([\d.]*)", content[132:1024], re.DOTALL)
    if stated and stated[1].decode() not in PLAIN:
        return
    bits = count_of(tags, "BitsAllocated", file)
    needed = frames_of(tags, file) * count_of(tags, "Rows", file) * count_of(tags, "Columns", file) * bits // 8
    forms = [PLAIN[stated[1].decode()]] if stated else PLAIN.values()
    lengths = [length for order, begin in forms for length in pixel_lengths(content, order, begin)]
    if max(lengths, default=0) < needed:
        raise InputError(
            f"{file}: expected {needed} bytes of pixel data, as its header announces, found {max(lengths, default=0)}; "
            "export the series again"
        )


def pixel_lengths(content: bytes, order: str, begin: bytes) -> Iterator[int]:
    """Bytes of every pixel data in a file, of icons too, as far as they are in the file."""
    tag = struct.pack(f"{order}HH", 0x7FE0, 0x0010)
    for found in re.finditer(re.escape(tag) + begin, content):
        if found.end() + 4 <= len(content):
            (length,) = struct.unpack_from(f"{order}I", content, found.end())
            yield min(length, len(content) - found.end() - 4)


def slice_from(file: str, tags: Tags) -> DicomSlice:
    """A slice as its header describes it; the header says where it lies, or is refused."""
    if tags["RescaleSlope"] and not numbers(tags, "RescaleSlope", 1, file)[0]:
        raise InputError(f"{file}: expected a RescaleSlope other than 0, which leaves no HU; export the series again")
    between = next((tag for tag in ("SpacingBetweenSlices", "SliceThickness") if tags[tag]), "")
    return DicomSlice(
        file,
        size=(count_of(tags, "Columns", file), count_of(tags, "Rows", file)),
        position=numbers(tags, "ImagePositionPatient", 3, file),
        orientation=numbers(tags, "ImageOrientationPatient", 6, file),
        spacing=pixel_spacing(tags, file),
        thickness=abs(numbers(tags, between, 1, file)[0]) if between else 0.0,
    )


def pixel_spacing(tags: Tags, file: str) -> NDArray[Any]:
    """mm between rows and between columns; a negative one would mirror the scan."""
    spacing = numbers(tags, "PixelSpacing", 2, file)
    if spacing.min() <= 0:
        raise InputError(
            f"{file}: expected a PixelSpacing above 0 mm, found {spacing.tolist()}; export the series again"
        )
    return spacing


def numbers(tags: Tags, tag: str, count: int, file: str) -> NDArray[Any]:
    """The numbers of a tag.

    >>> numbers({"PixelSpacing": "0.7\\\\0.9"}, "PixelSpacing", 2, "slice.dcm").tolist()
    [0.7, 0.9]
    """
    try:
        values = np.array([float(part) for part in tags[tag].split("\\")])
    except ValueError:
        values = np.empty(0)
    if len(values) != count or not np.isfinite(values).all():
        found = shown(tags[tag]).strip('"') or "none"
        raise InputError(f"{file}: expected {count} finite numbers as {tag}, found {found}; export the series again")
    return values


def frames_in(file: str, tags: Tags) -> list[Tags]:
    """The tags of each frame: GDCM alone would pass over gaps, a changed order and a tilt without a word."""
    try:
        import pydicom
    except ImportError:
        raise InputError(f"{file}: multi-frame DICOM needs pydicom; `pip install pydicom`, or {CONVERT}") from None
    try:
        frames = frame_tags(pydicom.dcmread(file, stop_before_pixels=True))
    except Exception as error:  # pydicom raises many kinds for a broken file
        raise unreadable(file, error) from None
    if len(frames) != frames_of(tags, file):
        raise InputError(f"{file}: expected the position of each frame in its header, found {len(frames)}; {CONVERT}")
    if len({(frame["RescaleSlope"], frame["RescaleIntercept"]) for frame in frames}) > 1:
        raise InputError(f"{file}: expected one rescale slope and intercept, found several; {CONVERT}")
    return [{**tags, **frame} for frame in frames]


def frame_tags(header: Any) -> list[Tags]:
    """The `GROUPS` of each frame that a header describes."""
    shared = header.get("SharedFunctionalGroupsSequence") or []

    def value(frame: Any, tag: str) -> str:
        items = [group[GROUPS[tag]][0].get(tag) for group in (frame, *shared) if GROUPS[tag] in group]
        found = items[0] if items and items[0] is not None else ""
        return str(found) if isinstance(found, str | float) else "\\".join(map(str, found))

    frames = header.get("PerFrameFunctionalGroupsSequence") or []
    return [{tag: value(frame, tag) for tag in GROUPS} for frame in frames]


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
    """Refuse slices of one series that differ in size, orientation or spacing."""
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
        files = dict.fromkeys(Path(part.file).name for part in ordered[index : index + 2])  # one of many frames
        names = " and ".join(files)
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
    """X×Y×Z voxels of a series, a file for each slice in order; ``size`` is X and Y."""
    kinds: list[type[np.generic]] = [np.int16, np.int32, np.float32]  # each gives way to the next where it must
    voxels: NDArray[Any] = np.empty((*size, len(files)), np.int16, order="F")
    for index, file in enumerate(files):
        plane = decode(file, open_with_itk(file, "GDCMImageIO"))[:, :, 0]
        needed = kinds[max(kinds.index(voxels.dtype.type), kinds.index(narrowest(plane)))]
        voxels = voxels.astype(needed, copy=False)
        voxels[:, :, index] = plane
    return voxels


def decode_frames(file: str, order: list[int]) -> NDArray[Any]:
    """X×Y×Z voxels of a multi-frame file, its frames in this order."""
    voxels = decode(file, open_with_itk(file, "GDCMImageIO"))
    voxels = voxels.astype(narrowest(voxels), copy=False)
    return voxels if order == sorted(order) else voxels[:, :, order]
