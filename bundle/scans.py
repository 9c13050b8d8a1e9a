# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Scans: finding CT scans in files and folders, and reading one of any format as it was stored, lean in memory.

Nothing is resampled or turned here. What cannot be a whole, undistorted CT volume is refused with an `InputError`.
DICOM itself is in `dicom`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.dicom import (
    CONVERT,
    CT_CLASSES,
    check_modality,
    decode,
    decode_frames,
    decode_series,
    dicom_class,
    frames_of,
    open_with_itk,
    read_slices,
    read_tags,
    refuse_pixels,
    stack,
    unreadable,
)
from bundle.errors import InputError

__all__ = [
    "ENDINGS",
    "NIFTI",
    "Scan",
    "Source",
    "check_header",
    "find_scans",
    "list_scans",
    "read_label_map",
    "read_scan",
    "same_grid",
]

NIFTI = (".nii.gz", ".nii")
ITK_READERS = {".mha": "MetaImageIO", ".mhd": "MetaImageIO", ".nrrd": "NrrdImageIO", ".nhdr": "NrrdImageIO"}
ENDINGS = (*NIFTI, *ITK_READERS)  # DICOM files may have any ending
GRID_TOLERANCE = 0.1  # voxels, at the corners: a rounded header is not a shifted label map
LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])

Array = NDArray[Any]


@dataclass
class Scan:
    """A CT scan as it was stored.

    Args:
        voxels: X×Y×Z in the file's own axis order, in HU; integers stay integers of the file's type, all else is
            float32. (DICOM: int16 where the values fit, else int32. ITK cannot hand out int8 and 64-bit integers.)
        affine: 4×4 float64, from voxel index to RAS in mm.
        path: the file, or the folder of the series.
        slices: for DICOM, the file of each slice along the last axis of ``voxels``; else empty.
    """

    voxels: Array
    affine: NDArray[np.float64]
    path: Path
    slices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Source:
    """Where a scan is.

    Args:
        path: the file, or the folder of the series.
        series: the DICOM files of the scan; empty for other formats.
    """

    path: Path
    series: tuple[str, ...] = ()


# --- Finding ---------------------------------------------------------------------------------------------------------
def find_scans(path: str | Path) -> dict[str, Source]:
    """The scans in a file, a folder of a DICOM series, or a folder of such files and folders, by name.

    Image files count directly in the folder, DICOM series at any depth. Hidden files are left out, and so are DICOM
    files that are not CT images.

    Raises:
        InputError: when there is no scan, or when two would have one name.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file or folder; give a CT scan or a folder of CT scans")
    found = [scan_of_file(path)] if path.is_file() else list(scans_of_folder(path))
    scans: dict[str, Source] = {}
    for name, source in sorted(found, key=lambda pair: pair[0]):
        if name in scans:
            raise InputError(
                f'{source.path}: would have the name "{name}", as {scans[name].path} has; rename one of them'
            )
        scans[name] = source
    if not scans:
        raise InputError(
            f"{path}: no CT scan found; expected {', '.join(ENDINGS)} files or CT series in DICOM{other_modality(path)}"
        )
    return scans


def list_scans(path: str | Path) -> list[dict[str, Any]]:
    """The scans of `find_scans` as MONAI takes them: ``image`` is the source, ``name`` its name."""
    return [{"image": source, "name": name} for name, source in find_scans(path).items()]


def ending_of(path: str | Path) -> str:
    name = Path(path).name.lower()
    return next((ending for ending in (*ENDINGS, ".dcm") if name.endswith(ending)), "")


def name_of(path: Path) -> str:
    return path.name[: len(path.name) - len(ending_of(path))]


def scan_of_file(path: Path) -> tuple[str, Source]:
    if ending_of(path) in ENDINGS:
        return name_of(path), Source(path)
    if dicom_class(path) is None:
        raise InputError(f"{path}: expected a file ending with {', '.join(ENDINGS)}, or DICOM; convert it to NIfTI")
    tags = read_tags(path)
    check_modality(tags, path)
    if frames_of(tags) < 2:
        raise InputError(f"{path}: is one slice of a DICOM series; give the folder of the series")
    return name_of(path), Source(path, (str(path),))


def scans_of_folder(root: Path) -> Iterator[tuple[str, Source]]:
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(folder, name) for name in sorted(files) if not name.startswith(".")]
        if Path(folder) == root:
            yield from ((name_of(path), Source(path)) for path in paths if ending_of(path) in ENDINGS)
        parts = Path(folder).relative_to(root).parts
        yield from series_of_folder(Path(folder), [path for path in paths if ending_of(path) not in ENDINGS], parts)


def series_of_folder(folder: Path, paths: Sequence[Path], parts: Sequence[str]) -> Iterator[tuple[str, Source]]:
    """The CT series among the files of one folder, which is ``parts`` below where the search began."""
    series: dict[tuple[str, str], list[str]] = {}  # of (number, UID): anonymization may have emptied both
    broken: list[str] = []
    for path in paths:
        if dicom_class(path) not in {*CT_CLASSES, ""}:
            continue
        try:
            tags = read_tags(path)
        except InputError:
            broken.append(str(path))
            continue
        if tags["Modality"] != "CT" or "LOCALIZER" in tags["ImageType"]:
            continue
        if frames_of(tags) > 1:
            yield "_".join((*parts, name_of(path))), Source(path, (str(path),))
        else:
            series.setdefault((tags["SeriesNumber"].zfill(8), tags["SeriesInstanceUID"]), []).append(str(path))
    if broken and not series:
        series["", ""] = []
    name = "_".join(parts) or folder.resolve().name
    for ending, key in zip(name_endings(sorted(series)), sorted(series), strict=True):
        # A broken file belongs to one of the series: none of them can be known to be whole, and read_scan says so.
        yield name + ending, Source(folder, (*series[key], *broken))


def name_endings(series: Sequence[tuple[str, str]]) -> list[str]:
    """What tells the (number, UID) of one folder apart: nothing for one series, its number, else an index."""
    if len(series) == 1:
        return [""]
    found = [number.lstrip("0") for number, _ in series]
    if len(set(found)) < len(found) or "" in found:
        found = [str(index) for index in range(1, len(series) + 1)]
    return [f"_{number}" for number in found]


def other_modality(path: Path) -> str:
    """What the first DICOM file is instead, for the message that there is no CT."""
    for file in sorted(path.rglob("*")):
        if dicom_class(file) is not None:
            try:
                modality = read_tags(file)["Modality"]
            except InputError:
                modality = ""
            return f", found only other DICOM (modality {modality or 'unknown'}); give the CT series"
    return f", found none; give another folder, or {CONVERT}"


# --- Reading ---------------------------------------------------------------------------------------------------------
def read_scan(source: str | Path | Source) -> Scan:
    """Read and check one scan.

    Args:
        source: from `find_scans`, or the path of a file or of a folder that holds one scan.

    Raises:
        InputError: when it is not one whole, undistorted CT volume.
    """
    if not isinstance(source, Source):
        found = find_scans(source)
        if len(found) > 1:
            raise InputError(f"{source}: expected one scan, found {len(found)} ({', '.join(found)}); give one of them")
        source = next(iter(found.values()))
    scan = read_dicom(source) if source.series else read_file(source.path)
    check_values(scan)
    return scan


def read_label_map(path: str | Path) -> Scan:
    """Read a label map; its values are integers of at least 0, whatever the type they are stored as.

    Raises:
        InputError: when it is not a volume of such values.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; expected a label map")
    if ending_of(path) not in ENDINGS:
        raise InputError(f"{path}: expected a label map ending with {', '.join(ENDINGS)}; convert it to NIfTI")
    scan = read_file(path)
    if scan.voxels.dtype.kind == "f":
        whole = scan.voxels.astype(np.int32)
        if not np.array_equal(whole, scan.voxels):
            raise InputError(
                f"{path}: expected whole numbers, found {scan.voxels[whole != scan.voxels][0]:g}; a label map must be "
                "resampled with nearest neighbours"
            )
        scan.voxels = whole
    if scan.voxels.dtype.kind == "i" and scan.voxels.min() < 0:
        raise InputError(f"{path}: expected values of at least 0, found {scan.voxels.min()}; mend the label map")
    return scan


def read_file(path: Path) -> Scan:
    return read_nifti(path) if ending_of(path) in NIFTI else read_with_itk(path)


def grid_difference(one: Scan, other: Scan) -> float:
    """mm by which the corners of two grids of one shape lie apart, at most."""
    corners = np.array(np.meshgrid(*[(0, size) for size in one.voxels.shape], [1])).reshape(4, -1)
    return float(np.linalg.norm(((one.affine - other.affine) @ corners)[:3], axis=0).max())


def same_grid(one: Scan, other: Scan) -> bool:
    """Whether two scans have one shape, and voxels at one place but for the rounding of a header."""
    smallest = float(np.linalg.norm(one.affine[:3, :3], axis=0).min())
    return one.voxels.shape == other.voxels.shape and grid_difference(one, other) <= GRID_TOLERANCE * smallest


def check_values(scan: Scan) -> None:
    """Slice by slice, so that no mask of the whole volume is made."""
    low, high = math.inf, -math.inf
    for index in range(scan.voxels.shape[2]):
        plane = scan.voxels[:, :, index]
        low, high = min(low, plane.min()), max(high, plane.max())
        # a NaN or an infinity survives the sum
        if plane.dtype.kind == "f" and not np.isfinite(plane.sum(dtype=np.float64)):
            raise InputError(
                f"{scan.path}: expected finite HU values, found NaN or infinity in slice {index} along the last axis; "
                "replace them with -1024"
            )
    if low == high:
        raise InputError(f"{scan.path}: is empty, all its values are {low:g}; export the scan again")


def check_header(path: Path, shape: Sequence[int], affine: Array) -> None:
    if len(shape) < 3 or any(size != 1 for size in shape[3:]):
        raise InputError(
            f"{path}: expected one 3D volume, found an image of shape {tuple(shape)}; "
            + ("give the whole scan" if len(shape) < 3 else "split it into volumes")
        )
    if 0 in shape:
        raise InputError(f"{path}: expected voxels, found an image of shape {tuple(shape)}; export the scan again")
    axes = affine[:3, :3]
    lengths = np.linalg.norm(axes, axis=0)
    # relative to the spacing: a tiny but sound grid is not singular
    if not np.isfinite(affine).all() or not lengths.all() or abs(np.linalg.det(axes / lengths)) < 1e-6:
        raise InputError(
            f"{path}: expected an invertible affine, found {np.round(affine[:3], 4).tolist()}; mend the header's "
            "spacing and orientation"
        )


def read_nifti(path: Path) -> Scan:
    try:
        image = nib.load(path, keep_file_open=True)  # one pass over a compressed file, slab after slab
        shape, stored = image.shape, image.get_data_dtype()
        affine = np.asarray(image.affine, np.float64)
    except Exception as error:  # nibabel raises a dozen kinds for a broken file
        raise unreadable(path, error) from None
    if stored.kind not in "iuf":
        refuse_pixels(path, "complex values" if stored.kind == "c" else f"several ({stored})")
    check_header(path, shape, affine)
    try:
        return Scan(nifti_voxels(image.dataobj, shape[:3]), affine, path)
    except Exception as error:
        raise unreadable(path, error) from None


def nifti_voxels(stored: Any, shape: tuple[int, ...]) -> Array:
    """Stored integers and float32 as they are, all else as float32, with no float64 beyond one slice."""
    dtype = stored.dtype
    if (dtype.kind in "iu" or dtype.itemsize == 4) and (stored.slope, stored.inter) == (1, 0):
        voxels = np.asanyarray(stored).reshape(shape, order="F")
        return voxels if dtype.isnative else voxels.astype(dtype.newbyteorder("="))
    voxels = np.empty(shape, np.float32, order="F")
    for index in range(shape[2]):
        voxels[:, :, index] = stored[:, :, index].reshape(shape[:2])
    return voxels


def read_with_itk(path: Path) -> Scan:
    io = open_with_itk(path, ITK_READERS[ending_of(path)])
    axes = range(io.GetNumberOfDimensions())
    affine = np.eye(4)
    for axis in axes[:3]:
        affine[: len(axes[:3]), axis] = np.array(io.GetDirection(axis)[:3]) * io.GetSpacing(axis)
        affine[axis, 3] = io.GetOrigin(axis)
    check_header(path, [io.GetDimensions(axis) for axis in axes], affine)
    return Scan(decode(path, io), LPS_TO_RAS @ affine, path)


def read_dicom(source: Source) -> Scan:
    slices = read_slices(source.series)
    affine, order = stack(slices, source.path)
    check_header(source.path, (*slices[0].size, len(slices)), affine)
    files = tuple(slices[index].file for index in order)
    frames = len(slices) > len(source.series)
    voxels = decode_frames(files[0], order) if frames else decode_series(files, slices[0].size)
    return Scan(voxels, LPS_TO_RAS @ affine, source.path, files)
