"""Grids of scans: whether two are the same, and the network's beside them."""

from pathlib import Path

import numpy as np
import pytest
from monai.data import MetaTensor
from monai.transforms import Orientation, Spacing

from bundle.errors import InputError
from bundle.scans.grids import ScanGrid, check_grid, grid_difference, same_grid
from bundle.scans.reading import Scan
from tests.scan_files import RIGID, SHEARED

SHAPE, PIXDIM = (22, 26, 17), (1.5, 1.5, 2.0)


def scan(affine: np.ndarray, name: str = "ct.nii.gz") -> Scan:
    return Scan(np.zeros(SHAPE, np.int16), affine, Path(name))


@pytest.mark.parametrize("kind", [*RIGID, "sheared"])
def test_the_network_s_grid_is_the_one_monai_makes(kind: str) -> None:
    affine = RIGID.get(kind, SHEARED)
    grid = ScanGrid.spaced(SHAPE, affine, PIXDIM)
    usual = Spacing(PIXDIM)(Orientation("RAS", labels=None)(MetaTensor(np.zeros((1, *SHAPE), np.float32), affine)))
    assert grid.network_shape == tuple(usual.shape[1:])
    np.testing.assert_allclose(grid.network_affine, usual.affine.numpy(), atol=1e-9)
    assert grid.sheared == (kind == "sheared")


def test_an_oriented_volume_runs_right_anterior_superior() -> None:
    volume = np.random.default_rng(0).integers(0, 9, SHAPE)
    grid = ScanGrid.spaced(SHAPE, RIGID["LPS"], PIXDIM)
    np.testing.assert_array_equal(grid.oriented(volume), volume[::-1, ::-1])
    assert np.shares_memory(grid.oriented(volume), volume)


def test_a_flat_affine_is_refused() -> None:
    with pytest.raises(InputError, match="an axis of length 0"):
        ScanGrid.spaced(SHAPE, np.diag([1.0, 1.0, 0.0, 1.0]), PIXDIM)


def test_a_tenth_of_a_voxel_is_no_shift() -> None:
    image, near, far = (scan(RIGID["RAS"].copy()) for _ in range(3))
    near.affine[0, 3] += 0.06  # the smallest voxel side is 0.7 mm
    far.affine[0, 3] += 0.08
    assert same_grid(image, near)
    assert not same_grid(image, far)
    assert grid_difference(image, far) == pytest.approx(0.08)


def test_a_label_map_on_another_grid_is_refused_with_what_to_do() -> None:
    image, label = scan(RIGID["RAS"]), scan(RIGID["RAS"].copy(), "label.nii.gz")
    check_grid(image, label)
    label.affine[1, 3] += 7
    with pytest.raises(InputError, match=r"label.nii.gz: its affine differs .* by up to 7 mm; copy the image's affine"):
        check_grid(image, label)
    label.voxels = label.voxels[:-1]
    with pytest.raises(InputError, match=r"label.nii.gz: its shape \(21, 26, 17\) is not that of its image ct.nii.gz"):
        check_grid(image, label)
