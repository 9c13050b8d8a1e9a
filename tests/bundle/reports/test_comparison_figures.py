"""Figures of a comparison: they show the values given, and nothing where nothing was recorded."""

from pathlib import Path

import numpy as np
import pytest

from bundle.evaluation.comparisons import Comparison
from bundle.organs import Vocabulary
from bundle.reports.comparison_figures import method_colors, plot_boxes, plot_gradients, plot_quality, plot_shares
from bundle.reports.figures import COLORS
from tests.bundle.evaluation.small_comparison import HISTORY, ORGANS, PRIOR, write_small_comparison


@pytest.fixture
def folder(tmp_path: Path, tiny_cohorts: Path) -> Path:
    write_small_comparison(tmp_path, tiny_cohorts)
    return tmp_path


def test_the_reference_has_the_first_color_and_every_method_its_own(folder: Path) -> None:
    colors = method_colors(Comparison.load(folder))
    assert list(colors.items()) == list(zip(["pann", "full", "partial", "no_prior"], COLORS, strict=False))


def test_boxes_show_every_case(folder: Path) -> None:
    spleen, _, means = plot_boxes(Comparison.load(folder), ["full", "pann"]).axes
    dots = [line for line in spleen.lines if line.get_marker() == "."]
    np.testing.assert_allclose([sorted(line.get_ydata()) for line in dots], [[30, 50], [80, 90]])  # type: ignore[type-var]
    dots = [line for line in means.lines if line.get_marker() == "."]
    np.testing.assert_allclose([sorted(line.get_ydata()) for line in dots], [[60, 60], [80, 90]])  # type: ignore[type-var]


def test_pseudo_label_quality_is_the_mean_of_the_cohorts_that_have_one() -> None:
    figure = plot_quality({"Pann": HISTORY, "Full": []}, {"Pann": "#000000", "Full": "#ffffff"}, ORGANS)
    assert figure is not None
    values = [[float(line.get_ydata()[0]) for line in axis.lines] for axis in figure.axes]  # type: ignore[index]
    np.testing.assert_allclose(values, [[60, 50], [60, 10]])  # precision and recall of spleen and liver
    assert plot_quality({"Full": HISTORY[1:]}, {"Full": "#ffffff"}, ORGANS) is None


def test_proportions_are_relative_to_the_prior() -> None:
    figure = plot_shares(HISTORY, PRIOR)
    assert figure is not None
    spleen, liver = figure.axes
    np.testing.assert_allclose(spleen.lines[1].get_ydata(), [0.5, 1])  # cohort A; line 0 is the prior itself
    np.testing.assert_allclose(liver.lines[1].get_ydata(), [2, 1])
    np.testing.assert_allclose(liver.lines[2].get_ydata(), [1])
    assert plot_shares([], PRIOR) is None


def test_gradients_are_compared_by_their_means() -> None:
    figure = plot_gradients(HISTORY, Vocabulary(ORGANS))
    assert figure is not None
    left, right = figure.axes
    dots = [float(line.get_xdata()[0]) for line in left.lines if line.get_marker() == "o"]  # type: ignore[index]
    assert dots == pytest.approx([(2 + 6) / (1 + 3), (1 + 1) / (4 + 0)])
    np.testing.assert_allclose(right.lines[0].get_ydata(), [2, 2])
    np.testing.assert_allclose(right.lines[1].get_ydata(), [0.25, np.nan])  # no cross-entropy: no ratio
    assert plot_gradients([], Vocabulary(ORGANS)) is None
