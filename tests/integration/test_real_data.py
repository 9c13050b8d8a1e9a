"""A real DICOM series against a label map that another program made for it."""

import numpy as np
import pytest

from bundle.scans.reading import Scan, read_label_map, read_scan
from tests.paths import REAL_DATA

DATA = REAL_DATA
SPLEEN, LIVER, VENA_CAVA, PANCREAS = 1, 6, 9, 11

pytestmark = pytest.mark.skipif(
    not (DATA / "example_dicom").exists(), reason="needs the real CT data of ../shared/data, which is not published"
)


@pytest.fixture(scope="module")
def image() -> Scan:
    return read_scan(DATA / "example_dicom")


@pytest.fixture(scope="module")
def label() -> Scan:
    return read_label_map(DATA / "example_dicom_label.nii.gz")


def test_every_label_voxel_lies_on_an_image_voxel(image: Scan, label: Scan) -> None:
    """Within 0.01 mm, for all voxels of organs and the corners of the grid."""
    corners = np.array(np.meshgrid(*[(0, size - 1) for size in label.voxels.shape])).reshape(3, -1)
    index = np.hstack([np.stack(np.nonzero(label.voxels)), corners])
    world = label.affine[:3, :3] @ index + label.affine[:3, 3:]
    nearest = np.round(np.linalg.inv(image.affine)[:3] @ np.vstack([world, np.ones(index.shape[1])]))
    assert (nearest >= 0).all()
    assert (nearest.max(axis=1) < image.voxels.shape).all()
    found = image.affine[:3, :3] @ nearest + image.affine[:3, 3:]
    assert np.linalg.norm(found - world, axis=0).max() < 1e-2


@pytest.mark.parametrize("organ", [SPLEEN, LIVER, VENA_CAVA, PANCREAS])
def test_organs_in_the_portal_phase_are_soft_tissue(organ: int, image: Scan, label: Scan) -> None:
    values = image.voxels[label.voxels == organ]
    assert 40 < values.mean() < 150  # HU
    assert np.mean((values > -20) & (values < 220)) > 0.95


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("organ", [SPLEEN, LIVER])
def test_a_mirrored_image_does_not_fit(organ: int, axis: int, image: Scan, label: Scan) -> None:
    """The organs are even as they are (their HU spread by noise only), and a mixture of tissues when mirrored."""
    inside = label.voxels == organ
    spread = image.voxels[inside].std()
    assert spread < 30
    assert np.flip(image.voxels, axis)[inside].std() > 1.5 * spread
