# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The grid of a scan: whether two are the same, and how it lies beside the network's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.scans.reading import Scan

__all__ = ["ScanGrid", "check_grid", "grid_difference", "same_grid", "turn_axes"]


GRID_TOLERANCE = 0.1  # voxels, at the corners: a rounded header is not a shifted label map


def grid_difference(one: Scan, other: Scan) -> float:
    """mm by which the corners of two grids of one shape lie apart, at most."""
    corners = np.array(np.meshgrid(*[(0, size) for size in one.voxels.shape], [1])).reshape(4, -1)
    return float(np.linalg.norm(((one.affine - other.affine) @ corners)[:3], axis=0).max())


def same_grid(one: Scan, other: Scan) -> bool:
    """Whether two scans have one shape, and voxels at one place but for the rounding of a header."""
    smallest = float(np.linalg.norm(one.affine[:3, :3], axis=0).min())
    return one.voxels.shape == other.voxels.shape and grid_difference(one, other) <= GRID_TOLERANCE * smallest


def turn_axes(scan: Scan, affine: NDArray[np.float64]) -> Scan:
    """The same volume with its axes in the order and direction of another grid's; no voxel changes its place in mm.

    >>> from pathlib import Path
    >>> scan = Scan(np.arange(6).reshape(1, 2, 3), np.diag([1.0, 1.0, 1.0, 1.0]), Path("ct.nii.gz"))
    >>> turned = turn_axes(scan, np.diag([1.0, -1.0, 1.0, 1.0]))
    >>> turned.voxels[0, 0].tolist(), turned.affine[1].tolist()
    ([3, 4, 5], [0.0, -1.0, 0.0, 1.0])
    """
    turn = nib.orientations.ornt_transform(nib.io_orientation(scan.affine), nib.io_orientation(affine))
    turned = scan.affine @ nib.orientations.inv_ornt_aff(turn, scan.voxels.shape)
    return Scan(nib.orientations.apply_orientation(scan.voxels, turn), turned, scan.path)


class ScanGrid:
    """A scan's grid beside the network's.

    Args:
        shape: voxels of the scan.
        affine: 4×4, voxel of the scan to mm, right-anterior-superior; oblique and sheared ones are fine.
        network_shape: voxels of the network's grid.
        network_affine: 4×4 of the network's grid. Its axes run along the scan's, unless the scan is sheared (gantry
            tilt): the network's grid never is.
    """

    def __init__(
        self, shape: Sequence[int], affine: NDArray[Any], network_shape: Sequence[int], network_affine: NDArray[Any]
    ) -> None:
        self.shape, self.affine = tuple(int(n) for n in shape), np.asarray(affine, np.float64)
        self.network_shape = tuple(int(n) for n in network_shape)
        self.network_affine = np.asarray(network_affine, np.float64)
        orientation = orientation_of(self.affine)
        self.axes = tuple(int(axis) for axis in np.argsort(orientation[:, 0]))
        self.flipped = tuple(bool(orientation[axis, 1] < 0) for axis in self.axes)
        self.oriented_shape = tuple(self.shape[axis] for axis in self.axes)
        # Voxel of the network's grid to voxel of the oriented scan.
        self.between = np.linalg.solve(oriented_affine(self.shape, self.affine), self.network_affine)
        self.scale, self.shift = np.diag(self.between)[:3], self.between[:3, 3]
        skew = np.abs(self.between[:3, :3] - np.diag(self.scale)) * np.array(self.network_shape)
        self.sheared = bool(skew.max() > 1e-3)  # by a thousandth of a voxel, at the far end

    @classmethod
    def spaced(cls, shape: Sequence[int], affine: NDArray[Any], pixdim: Sequence[float]) -> ScanGrid:
        """The network's grid that Orientationd (RAS) and Spacingd (``pixdim``, mm; 0 keeps an axis) would make.

        >>> grid = ScanGrid.spaced((512, 512, 100), np.diag([-0.75, -0.75, 4.0, 1.0]), (1.5, 1.5, 2.0))
        >>> grid.network_shape, grid.flipped
        ((256, 256, 199), (True, True, False))
        """
        from monai.data.utils import AFFINE_TOL, compute_shape_offset, zoom_affine  # here: it brings torch

        affine = np.asarray(affine, np.float64)
        oriented = oriented_affine(shape, affine)
        oriented_shape = [shape[int(axis)] for axis in np.argsort(orientation_of(affine)[:, 0])]
        spacing = np.linalg.norm(oriented[:3, :3], axis=0)
        # Spacingd leaves such an axis as it is
        kept = (np.abs(spacing - np.asarray(pixdim)) <= AFFINE_TOL) | (np.asarray(pixdim) <= 0)
        spaced = zoom_affine(oriented, np.where(kept, spacing, pixdim), diagonal=False)
        network_shape, offset = compute_shape_offset(oriented_shape, oriented, spaced)
        spaced[:3, 3] = np.asarray(offset)[:3]
        # Nor does it resample where nothing moves by a thousandth of a voxel per voxel
        between = np.linalg.solve(oriented, spaced)
        close = (np.allclose(a, b, atol=AFFINE_TOL) for a, b in ((oriented, spaced), (between, np.eye(4))))
        if [int(n) for n in network_shape] == list(oriented_shape) and any(close):
            spaced = oriented
        return cls(shape, affine, [int(n) for n in network_shape], spaced)

    def oriented(self, volume: NDArray[Any]) -> NDArray[Any]:
        """A view of a volume of the scan's shape whose axes run right, anterior, superior."""
        return volume.transpose(self.axes)[tuple(slice(None, None, -1 if flip else 1) for flip in self.flipped)]


def orientation_of(affine: NDArray[Any]) -> NDArray[Any]:
    """Per axis of a scan the axis of the body it runs along, and whether with it (1) or against it (-1)."""
    orientation = nib.io_orientation(affine)
    if np.isnan(orientation).any():
        raise InputError("the affine has an axis of length 0; correct the header of the scan")
    return orientation


def oriented_affine(shape: Sequence[int], affine: NDArray[Any]) -> NDArray[np.float64]:
    turned: NDArray[np.float64] = affine @ nib.orientations.inv_ornt_aff(orientation_of(affine), tuple(shape))
    return turned


def axes_of(scan: Scan) -> str:
    return "".join(nib.aff2axcodes(scan.affine))


def in_ras(scan: Scan) -> Scan:
    """The same scan with its axes to the right, front and head; a view."""
    turn = nib.io_orientation(scan.affine)
    voxels = nib.orientations.apply_orientation(scan.voxels, turn)
    return Scan(voxels, scan.affine @ nib.orientations.inv_ornt_aff(turn, scan.voxels.shape), scan.path)


def check_grid(image: Scan, label: Scan) -> None:
    """Raises an InputError where the label map is not on the image's grid."""
    if axes_of(image) != axes_of(label) and same_grid(in_ras(image), in_ras(label)):
        raise InputError(
            f"{label.path}: its axes run {axes_of(label)}, those of its image {image.path} run {axes_of(image)}; store "
            "both alike, for instance with nibabel.as_closest_canonical"
        )
    if image.voxels.shape != label.voxels.shape:
        raise InputError(
            f"{label.path}: its shape {label.voxels.shape} is not that of its image {image.path} {image.voxels.shape}; "
            "resample the label map to the image's grid"
        )
    if not same_grid(image, label):
        raise InputError(
            f"{label.path}: its affine differs from that of its image {image.path} by up to "
            f"{grid_difference(image, label):.3g} mm; copy the image's affine if the voxels agree, else resample the "
            "label map"
        )
