"""Whether a label map lies on the organs of its image, by the image's values."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.cohorts.agreement import FLIPS, better_flip, fit


def scan_and_labels() -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """Two organs of 60 and 150 HU in fat, off the middle along every axis."""
    voxels, labels = np.full((30, 32, 34), -100, np.int16), np.zeros((30, 32, 34), np.uint8)
    for value, (hu, box) in enumerate([(60, np.s_[3:13, 4:12, 20:30]), (150, np.s_[16:22, 3:9, 18:26])], start=1):
        voxels[box], labels[box] = hu, value
    return voxels, labels


def test_a_label_map_on_its_organs_fits_wholly() -> None:
    assert fit(*scan_and_labels()) == 1


def test_what_lies_on_fat_does_not_fit() -> None:
    voxels, labels = scan_and_labels()
    labels[labels == 2] = 0
    assert fit(voxels, np.roll(labels, 2, 1)) == pytest.approx(0.75)  # 2 of its 8 rows lie on fat
    assert fit(voxels, np.roll(labels, 16, 1)) == 0  # all of it


def test_nothing_marked_is_no_fault() -> None:
    voxels, labels = scan_and_labels()
    assert fit(voxels, 0 * labels) == 1


@pytest.mark.parametrize("axes", FLIPS)
def test_the_flip_that_puts_it_right_is_found(axes: tuple[int, ...]) -> None:
    voxels, labels = scan_and_labels()
    assert better_flip(voxels, np.flip(labels, axes)) == axes


def test_a_label_map_that_fits_is_left_as_it_is() -> None:
    assert better_flip(*scan_and_labels()) == ()
