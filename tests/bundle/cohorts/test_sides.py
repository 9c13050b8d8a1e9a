import numpy as np
import pytest

from bundle.cohorts.sides import body_middle, split_sides
from bundle.scans.reading import read_label_map, read_scan
from tests.bundle.cohorts.adapters.downloads import affine_for
from tests.paths import REAL_DATA

REAL = REAL_DATA / "example_ct"
SHAPE = (40, 10, 10)


def bars(*ranges: tuple[int, int], shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    mask = np.zeros(shape, bool)
    for start, end in ranges:
        mask[start:end, 3:6, 3:6] = True
    return mask


def test_right_is_where_the_affine_says() -> None:
    mask = bars((2, 8), (30, 38))
    right, left = split_sides(mask, affine_for("RAS", SHAPE), 0.0)
    np.testing.assert_array_equal(right, bars((30, 38)))
    np.testing.assert_array_equal(left, bars((2, 8)))
    right, left = split_sides(mask, affine_for("LAS", SHAPE), 0.0)
    np.testing.assert_array_equal(right, bars((2, 8)))
    np.testing.assert_array_equal(left, bars((30, 38)))


def test_any_axis_may_run_to_the_side() -> None:
    mask = np.moveaxis(bars((2, 8), (30, 38)), 0, 2)
    right, left = split_sides(mask, affine_for("IPL", mask.shape), 0.0)
    assert set(np.nonzero(right)[2]) == set(range(2, 8))
    assert set(np.nonzero(left)[2]) == set(range(30, 38))


def test_the_middle_is_that_of_the_body() -> None:
    # x = 8 · (index - 19.5) mm: both bars lie left of the grid's middle, and on the two sides of 8 · (8 - 19.5) = -92
    mask = bars((2, 6), (10, 14))
    right, left = split_sides(mask, affine_for("RAS", SHAPE), -92.0)
    np.testing.assert_array_equal(right, bars((10, 14)))
    np.testing.assert_array_equal(left, bars((2, 6)))


def test_one_side_alone_and_none() -> None:
    right, left = split_sides(bars((2, 8)), affine_for("RAS", SHAPE), 0.0)
    assert not right.any()
    np.testing.assert_array_equal(left, bars((2, 8)))
    right, left = split_sides(np.zeros(SHAPE, bool), affine_for("RAS", SHAPE), 0.0)
    assert not right.any()
    assert not left.any()


def test_a_part_across_the_middle_cannot_be_split() -> None:
    assert split_sides(bars((2, 38)), affine_for("RAS", SHAPE), 0.0) is None
    assert split_sides(bars((2, 8), (15, 25)), affine_for("RAS", SHAPE), 0.0) is None


def test_a_part_that_hardly_reaches_across_stays_whole() -> None:
    # index 20 is the first one on the right: 1 of 21 slices, less than 5 %
    mask = bars((0, 21), (30, 38))
    right, left = split_sides(mask, affine_for("RAS", SHAPE), 0.0)
    np.testing.assert_array_equal(left, bars((0, 21)))
    np.testing.assert_array_equal(right, bars((30, 38)))


def test_a_stray_voxel_in_the_middle_spoils_nothing() -> None:
    mask = bars((2, 12), (28, 38))
    mask[19:21, 9, 9] = True  # 2 of 182 voxels are more than 1 %; one of 181 is not
    assert split_sides(mask, affine_for("RAS", SHAPE), 0.0) is None
    mask[19, 9, 9] = False
    right, left = split_sides(mask, affine_for("RAS", SHAPE), 0.0)
    assert right[20, 9, 9]
    assert (right | left).sum() == mask.sum() == 181
    assert not (right & left).any()


@pytest.mark.parametrize(("step", "expected"), [(1, 71.0), (4, 72.0)])
def test_middle_of_the_body(step: int, expected: float) -> None:
    # x = 100 - 2 · index mm; the body fills the indices 10 to 19: their middle is at 71, that of 12 and 16 at 72
    voxels = np.full((40, 8, 8), -1000, np.int16)
    voxels[10:20] = 40
    affine = np.diag([-2.0, 2.0, 2.0, 1.0])
    affine[0, 3] = 100
    assert body_middle(voxels, affine, step) == expected


@pytest.mark.parametrize(("right_value", "left_value"), [(2, 3), (12, 13)], ids=["kidneys", "adrenal glands"])
@pytest.mark.skipif(not REAL.is_dir(), reason="needs a real CT: no ../shared/data")
def test_organs_of_a_real_patient_get_their_sides(right_value: int, left_value: int) -> None:
    image, label = read_scan(REAL / "ct.nii.gz"), read_label_map(REAL / "label.nii.gz").voxels
    mask = (label == right_value) | (label == left_value)
    right, left = split_sides(mask, image.affine, body_middle(image.voxels, image.affine))
    np.testing.assert_array_equal(right, label == right_value)
    np.testing.assert_array_equal(left, label == left_value)
