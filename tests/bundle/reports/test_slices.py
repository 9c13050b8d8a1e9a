"""Slices of scans: the one with the most organs, and contours where the labels are."""

from pathlib import Path

import numpy as np

from bundle.organs import Vocabulary
from bundle.reports.slices import plot_slices, richest, shown_range


def test_slices_show_contours_where_the_labels_are(tiny_cohorts: Path) -> None:
    images = [("case", tiny_cohorts / "test" / "imagesTs" / "test_000.nii.gz")]
    labels = {"truth": [tiny_cohorts / "test" / "labelsTs" / "test_000.nii.gz"]}
    picture, contours = plot_slices(images, labels, Vocabulary()).axes
    assert len(picture.collections) == 0
    assert len(contours.collections) >= 4


def test_the_slice_with_the_most_organs_is_shown() -> None:
    counts = np.array([[0, 0, 0], [0, 90, 0], [0, 5, 5], [0, 6, 5]])
    assert richest(counts) == 3  # two organs; of two such slices the one with more of them
    assert richest(np.zeros((7, 3), int)) == 3  # the middle


def test_a_range_has_a_margin_inside_the_scan() -> None:
    assert shown_range([False, True, False, True, False]) == slice(1, 4)
    assert shown_range([False, True, False, True, False], margin=2) == slice(0, 6)
    assert shown_range([False, False]) == slice(None)
