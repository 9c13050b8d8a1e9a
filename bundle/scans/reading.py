# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Read a scan or a label map of any format as it was stored, lean in memory.

Nothing is resampled or turned here. What cannot be a whole, undistorted CT volume is refused with an `InputError`.
DICOM itself is in `dicom`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.scans.dicom import (
    decode,
    decode_frames,
    decode_series,
    open_with_itk,
    read_slices,
    refuse_pixels,
    stack,
    unreadable,
)
from bundle.scans.finding import ENDINGS, ITK_READERS, NIFTI, Source, ending_of, find_scans

__all__ = ["Scan", "check_header", "read_label_map", "read_scan"]


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


def check_header(path: Path, shape: Sequence[int], affine: NDArray[Any]) -> None:
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


def nifti_voxels(stored: Any, shape: tuple[int, ...]) -> NDArray[Any]:
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
