# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Voxels and affines of NIfTI files, by nibabel, which corrects some headers in silence that are refused here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from nibabel.openers import ImageOpener
from numpy.typing import NDArray

from bundle.scans.headers import DEFLATE, check_data_size, check_header, check_memory, check_spacing
from bundle.scans.itk_files import refuse_pixels, unreadable

__all__ = ["open_nifti", "read_nifti"]


HEADER_BYTES = 540  # of NIfTI-2, the longer one

EXTENSION_BYTES = 2**26  # before the voxels at most: nibabel reads them all


def open_nifti(path: Path) -> tuple[nib.Nifti1Image, NDArray[np.float64]]:
    """A file whose header is read and sound, and the affine, to RAS."""
    try:
        check_raw_header(path, raw_header(path))
        image = nib.load(path, keep_file_open=True)  # one pass over a compressed file, slab after slab
        shape, stored = image.shape, image.get_data_dtype()
        affine = np.asarray(image.affine, np.float64)
    except Exception as error:  # nibabel raises a dozen kinds for a broken file
        raise unreadable(path, error) from None
    if stored.kind not in "iuf":
        refuse_pixels(path, "complex values" if stored.kind == "c" else "several (colors)")
    check_header(path, shape, affine)
    return image, affine


def read_nifti(path: Path) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """X×Y×Z voxels and the affine of a file, to RAS."""
    image, affine = open_nifti(path)
    shape, stored = image.shape, image.get_data_dtype()
    packed = path.name.lower().endswith(".gz")
    check_data_size(path, shape, stored.itemsize, path.stat().st_size, DEFLATE if packed else 1)
    try:
        as_stored = is_plain(image.dataobj)
        if packed or not as_stored:  # else the file itself is the memory
            check_memory(path, shape, stored.itemsize if as_stored else 4)
        return nifti_voxels(image.dataobj, shape[:3]), affine
    except Exception as error:
        raise unreadable(path, error) from None


def raw_header(path: Path) -> Any:
    """The header as it is in the file, before nibabel corrects it; None where there is none."""
    with ImageOpener(path) as file:
        block = file.read(HEADER_BYTES)
    for kind in (nib.Nifti1Header, nib.Nifti2Header):
        if kind.may_contain_header(block):
            return kind(block[: kind.sizeof_hdr], check=False)
    return None


def check_raw_header(path: Path, header: Any) -> None:
    """Refuse a spacing that nibabel would replace by another, and extensions that fill the memory."""
    if header is None:
        return
    if header["sform_code"] <= 0:  # else the spacing is in the sform
        check_spacing(path, header["pixdim"][1:4])
    if not header["vox_offset"] <= EXTENSION_BYTES:
        raise ValueError(f"its voxels begin at byte {header['vox_offset']:g}")
    if np.isinf([header["scl_slope"], header["scl_inter"]]).any():  # nibabel would leave the values unscaled
        raise ValueError(f"its values are scaled by {header['scl_slope']:g} and {header['scl_inter']:g}")


def is_plain(stored: Any) -> bool:
    """Whether the file holds the values themselves, as a type that `Scan` has."""
    dtype = stored.dtype
    return (dtype.kind in "iu" or dtype.itemsize == 4) and (stored.slope, stored.inter) == (1, 0)


def nifti_voxels(stored: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Stored integers and float32 as they are, all else as float32, with no float64 beyond one slice."""
    if is_plain(stored):
        voxels = np.asanyarray(stored).reshape(shape, order="F")
        return voxels if stored.dtype.isnative else voxels.astype(stored.dtype.newbyteorder("="))
    voxels = np.empty(shape, np.float32, order="F")
    with np.errstate(over="ignore"):  # an infinity is refused later
        for index in range(shape[2]):
            voxels[:, :, index] = stored[:, :, index].reshape(shape[:2])
    return voxels
