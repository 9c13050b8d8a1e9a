# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Read a scan or a label map of any format as it was stored, lean in memory.

Nothing is resampled or turned here. What cannot be a whole, undistorted CT volume is refused with an `InputError`.
What single formats need is in `nifti`, `itk_files` and `dicom`, what headers may say in `headers`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.scans.dicom import decode_frames, decode_series, read_slices, stack
from bundle.scans.finding import ENDINGS, ITK_READERS, NIFTI, Source, ending_of, scans_at
from bundle.scans.headers import check_header, check_memory, check_spacing
from bundle.scans.itk_files import check_data, decode, find_data, open_with_itk
from bundle.scans.nifti import read_nifti

__all__ = ["Scan", "read_label_map", "read_scan"]


LPS_TO_RAS = np.diag([-1.0, -1.0, 1.0, 1.0])


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

    voxels: NDArray[Any]
    affine: NDArray[np.float64]
    path: Path
    slices: tuple[str, ...] = ()


def read_scan(source: str | Path | Source) -> Scan:
    """Read and check one scan.

    Args:
        source: from `find_scans`, or the path of a file or of a folder that holds one scan.

    Raises:
        InputError: when it is not one whole, undistorted CT volume.
    """
    if not isinstance(source, Source):
        found = scans_at(source)
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
    if not os.path.isfile(path):
        raise InputError(f"{path}: no such file; expected a label map")
    if ending_of(path) not in ENDINGS:
        raise InputError(f"{path}: expected a label map ending with {', '.join(ENDINGS)}; convert it to NIfTI")
    scan = read_file(path)
    if scan.voxels.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # what is no number differs afterwards
            whole = scan.voxels.astype(np.int32)
        if not np.array_equal(whole, scan.voxels):
            found = scan.voxels[whole != scan.voxels][0]
            resample = "a label map must be resampled with nearest-neighbor interpolation"
            cure = resample if np.isfinite(found) else "correct the label map"
            raise InputError(f"{path}: expected whole numbers, found {found:g}; {cure}")
        scan.voxels = whole
    if scan.voxels.dtype.kind == "i" and scan.voxels.min() < 0:
        raise InputError(f"{path}: expected values of at least 0, found {scan.voxels.min()}; correct the label map")
    return scan


def read_file(path: Path) -> Scan:
    """The volume of a file that is not DICOM, whatever its values are."""
    return Scan(*read_nifti(path), path) if ending_of(path) in NIFTI else read_with_itk(path)


def check_values(scan: Scan) -> None:
    """Refuse what is not finite, or all one value; slice by slice, so that no mask of the whole volume is made."""
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


def read_with_itk(path: Path) -> Scan:
    """MetaImage and NRRD."""
    data = find_data(path)
    io = open_with_itk(path, ITK_READERS[ending_of(path)])
    axes = range(io.GetNumberOfDimensions())
    shape = [io.GetDimensions(axis) for axis in axes]
    affine = np.eye(4)
    for axis in axes[:3]:
        affine[: len(axes[:3]), axis] = np.array(io.GetDirection(axis)[:3]) * io.GetSpacing(axis)
        affine[axis, 3] = io.GetOrigin(axis)
    check_header(path, shape, affine)
    check_spacing(path, [io.GetSpacing(axis) for axis in axes[:3]])  # a negative one would mirror the scan
    check_data(data, path, shape, io.GetComponentSize() * io.GetNumberOfComponents())
    return Scan(decode(path, io), LPS_TO_RAS @ affine, path)


def read_dicom(source: Source) -> Scan:
    """The volume of a series, its slices in the order of their positions."""
    slices = read_slices(source.series)
    affine, order = stack(slices, source.path)
    shape = (*slices[0].size, len(slices))
    check_header(source.path, shape, affine)
    check_memory(source.path, shape, itemsize=2)
    files = tuple(slices[index].file for index in order)
    frames = len(slices) > len(source.series)
    voxels = decode_frames(files[0], order) if frames else decode_series(files, slices[0].size)
    return Scan(voxels, LPS_TO_RAS @ affine, source.path, files)
