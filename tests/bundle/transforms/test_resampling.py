"""Positions: what is found in a scan lies in the world where it was, whatever the scan's axes are."""

import itertools

import nibabel as nib
import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from bundle.scans.grids import ScanGrid
from bundle.transforms.resampling import AxisMap, label_planes, lerp, to_network

SHAPE, SPACING, PIXDIM = (22, 26, 17), (1.1, 0.9, 2.3), (1.5, 1.5, 2.0)
ORIENTATIONS = [
    "".join(letters)
    for axes in itertools.permutations(["RL", "AP", "SI"])
    for letters in itertools.product(*axes)
]  # fmt: skip


def oblique() -> np.ndarray:
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", [17, -9, 24], degrees=True).as_matrix() @ np.diag(SPACING)
    affine[:3, 3] = (-35, 20, 150)
    return affine


def sheared() -> np.ndarray:
    shear = np.eye(4)
    shear[1, 2] = 0.35  # a gantry tilt of 19 degrees
    return shear @ np.diag([*SPACING, 1])


AFFINES = {"straight": np.diag([*SPACING, 1.0]), "oblique": oblique(), "sheared": sheared()}


def there_and_back(voxels: np.ndarray, affine: np.ndarray, threshold: float, axis: int) -> np.ndarray:
    """Labels on the scan's grid of a network that calls everything above a threshold an organ, in slabs of 3 planes."""
    grid = ScanGrid.spaced(voxels.shape, affine, PIXDIM)
    organ = (to_network(voxels, grid) / (2 * threshold)).clamp(0, 1)
    probabilities = torch.stack([1 - organ, organ]).movedim(1 + axis, 0)
    slabs = [(start, probabilities[start : start + 3]) for start in range(0, len(probabilities), 3)]
    labels = np.zeros(voxels.shape, np.uint8)
    planes_of = np.moveaxis(grid.oriented(labels), axis, 0)
    numbers = []
    for number, plane in label_planes(slabs, grid, axis):
        planes_of[number] = plane.numpy()
        numbers.append(number)
    assert numbers == list(range(len(planes_of)))
    return labels


def blob() -> np.ndarray:
    """A box of 5×6×4 voxels, off the center in all directions."""
    voxels = np.zeros(SHAPE, np.int16)
    voxels[4:9, 14:20, 10:14] = 1000
    return voxels


def center(labels: np.ndarray, affine: np.ndarray) -> np.ndarray:
    return nib.affines.apply_affine(affine, np.argwhere(labels).mean(0))


def test_there_are_48_orientations() -> None:
    assert len(set(ORIENTATIONS)) == 48


@pytest.mark.parametrize("kind", AFFINES)
@pytest.mark.parametrize("axes", ORIENTATIONS)
def test_a_labelled_voxel_returns_to_its_own_position(kind: str, axes: str) -> None:
    scan = nib.Nifti1Image(blob(), AFFINES[kind])
    turn = nib.orientations.ornt_transform(nib.io_orientation(scan.affine), nib.orientations.axcodes2ornt(axes))
    turned = scan.as_reoriented(turn)
    axis = sum(map(ord, axes)) % 3
    labels = there_and_back(np.asanyarray(turned.dataobj), turned.affine, 500, axis)
    assert labels.shape == turned.shape
    # The same body part in all storages: the middle in mm, and every voxel of it.
    np.testing.assert_allclose(center(labels, turned.affine), center(blob(), scan.affine), atol=0.5 * max(SPACING))
    back = nib.orientations.ornt_transform(nib.orientations.axcodes2ornt(axes), nib.io_orientation(scan.affine))
    restored = nib.Nifti1Image(labels, turned.affine).as_reoriented(back)
    overlap = 2 * (np.asanyarray(restored.dataobj) & (blob() > 0)).sum() / (labels.sum() + (blob() > 0).sum())
    assert overlap > 0.85


@pytest.mark.parametrize("spacing", [(0.5, 0.5, 0.5), (0.5, 0.5, 10.0), (10.0, 10.0, 10.0), (3.0, 0.7, 1.0)])
def test_any_spacing_returns_to_its_position(spacing: tuple[float, ...]) -> None:
    affine = np.diag([*spacing, 1.0])
    grid = ScanGrid.spaced(SHAPE, affine, PIXDIM)
    extent = (np.array(SHAPE) - 1) * spacing
    np.testing.assert_allclose((np.array(grid.network_shape) - 1) * PIXDIM, extent, atol=max(PIXDIM))
    position = np.indices(SHAPE).astype(np.float32)  # a scan whose value is its own voxel number
    for axis in range(3):
        made = to_network(position[axis], grid)
        corner = [0, 0, 0]
        corner[axis] = grid.network_shape[axis] // 2
        expected = min(corner[axis] * PIXDIM[axis] / spacing[axis], SHAPE[axis] - 1)
        assert float(made[tuple(corner)]) == pytest.approx(expected, rel=1e-6)


def test_interpolation_by_hand() -> None:
    values = torch.tensor([[0.0, 10.0, 30.0]], dtype=torch.float64)
    where = AxisMap.linear(5, 0.75, 0.25, 3)  # 0.25, 1, 1.75, 2.5, 3.25: the last two lie beyond the end
    assert lerp(values, 1, where).tolist() == [[2.5, 10.0, 25.0, 30.0, 30.0]]
    assert where.reach(0, 0) == (0, 1)
    assert where.reach(2, 2) == (1, 5)  # position 1 lies on voxel 1, and 2 is its neighbour


def test_ties_go_to_the_first_channel_and_narrow_winners_are_found() -> None:
    # Voxel 0 is channel 1's, voxel 1 channel 2's; half-way channel 3, second everywhere, wins.
    plane = torch.tensor([[0.0, 0.0], [0.55, 0.0], [0.0, 0.55], [0.45, 0.45]], dtype=torch.float64)[:, None]
    grid = ScanGrid((3, 1, 1), np.diag([0.5, 1, 1, 1]), (2, 1, 1), np.eye(4))
    slabs = [(0, plane.movedim(2, 0)[..., None].reshape(2, 4, 1, 1))]
    assert [int(labels) for _, labels in label_planes(slabs, grid, 0)] == [1, 3, 2]
    equal = [(0, torch.full((2, 4, 1, 1), 0.25))]
    assert [int(labels) for _, labels in label_planes(equal, grid, 0)] == [0, 0, 0]
