# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What the header of a scan may say, whatever its format: sizes, places, and how much data there must be.

It is asked before voxels are decoded, so that a small file that announces a huge volume takes neither memory nor time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.processes import available_memory

__all__ = ["DEFLATE", "check_data_size", "check_header", "check_memory", "check_spacing"]


SPACING_MM = (0.05, 100.0)  # between voxels: beyond it the unit is not mm

LENGTH_MM = 5000.0  # of a scan along an axis

DEFLATE = 1032  # times smaller than its content at most is a file that zlib has packed


def check_header(path: Path, shape: Sequence[int], affine: NDArray[Any]) -> None:
    """Refuse what is no 3D volume with an invertible affine, or has voxels of absurd size.

    Args:
        path: the file, for the message.
        shape: of all its axes.
        affine: 4×4, voxel to mm.

    >>> check_header(Path("ct.nii.gz"), (512, 512), np.eye(4))
    Traceback (most recent call last):
    bundle.errors.InputError: ct.nii.gz: expected one 3D volume, found an image of shape (512, 512); give the whole scan
    """
    if len(shape) < 3 or any(size != 1 for size in shape[3:]):
        raise InputError(
            f"{path}: expected one 3D volume, found an image of shape {tuple(shape)}; "
            + ("give the whole scan" if len(shape) < 3 else "split it into volumes")
        )
    if min(shape) < 1:
        raise InputError(f"{path}: expected voxels, found an image of shape {tuple(shape)}; export the scan again")
    axes = affine[:3, :3]
    lengths = np.linalg.norm(axes, axis=0)
    # relative to the spacing: a tiny but sound grid is not singular
    if not np.isfinite(affine).all() or not lengths.all() or abs(np.linalg.det(axes / lengths)) < 1e-6:
        raise InputError(
            f"{path}: expected an invertible affine, found {np.round(affine[:3], 4).tolist()}; correct the header's "
            "spacing and orientation"
        )
    check_spacing(path, lengths)
    extent = lengths * shape[:3]
    if extent.max() > LENGTH_MM:
        raise InputError(
            f"{path}: expected a scan of at most {LENGTH_MM:g} mm along each axis, found {millimeters(extent)}; "
            "correct the header"
        )


def check_spacing(path: Path | str, spacing: Sequence[float] | NDArray[Any]) -> None:
    """Refuse distances of voxels that are not above 0, not finite or absurd.

    >>> check_spacing("ct.nii.gz", [0.7, -0.7, 5.0])
    Traceback (most recent call last):
    bundle.errors.InputError: ct.nii.gz: expected voxels of 0.05 to 100 mm, found 0.7 × -0.7 × 5 mm; correct the header
    """
    low, high = SPACING_MM
    if not all(low <= step <= high for step in spacing):
        raise InputError(
            f"{path}: expected voxels of {low:g} to {high:g} mm, found {millimeters(spacing)}; correct the header"
        )


def millimeters(values: Sequence[float] | NDArray[Any]) -> str:
    return " × ".join(f"{value:g}" for value in values) + " mm"


def check_data_size(path: Path | str, shape: Sequence[int], itemsize: int, stored: int, packing: int = 1) -> None:
    """Refuse a file that is too short for the volume that its header announces.

    Args:
        path: the file, for the message.
        shape: of the volume.
        itemsize: bytes of a voxel.
        stored: bytes that there are.
        packing: how much smaller than the volume they may be.
    """
    needed = math.prod(int(size) for size in shape) * itemsize
    if needed > stored * packing:
        raise InputError(
            f"{path}: expected {' × '.join(map(str, shape))} voxels, {needed} bytes, as its header announces, found a "
            f"file of {stored} bytes; replace the file"
        )


def check_memory(path: Path | str, shape: Sequence[int], itemsize: int) -> None:
    """Refuse a volume that does not fit into the memory that there is now."""
    needed, free = math.prod(int(size) for size in shape) * itemsize, available_memory()
    if needed > free:
        raise InputError(
            f"{path}: needs {needed / 2**30:.1f} GB of memory for {' × '.join(map(str, shape))} voxels, found "
            f"{free / 2**30:.1f} GB; correct its header if that is not its size, or use a machine with more memory"
        )
