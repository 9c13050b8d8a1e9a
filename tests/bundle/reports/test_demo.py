"""The report of a demo: figures show what was given, and the table marks gains and losses."""

import io

import numpy as np
from matplotlib.image import imread

from bundle.reports.demo import plot_before_after, plot_losses, plot_proportions, score_table
from bundle.reports.pages import draw_picture
from bundle.training.prior import Prior

PRIOR = Prior(["background", "spleen", "liver"], [0.9, 0.04, 0.06], [0.0, 0.01, 0.02], ["a"], {})
HISTORY = [
    {"kind": "step", "stage": "warmup", "iteration": 10, "loss": 1.0},
    {"kind": "step", "stage": "warmup", "iteration": 20, "loss": 0.5},
    {"kind": "refresh", "stage": "train", "iteration": 0, "proportions": [0.9, 0.02, 0.08], "by_cohort": {}},
    {"kind": "step", "stage": "train", "iteration": 10, "loss": 0.9, "labelled": 0.4, "partial": 0.4, "prior": 0.1,
     "proportions": [0.9, 0.03, 0.07], "tracked": [0.9, 0.025, 0.075]},
    {"kind": "refresh", "stage": "train", "iteration": 10, "proportions": [0.9, 0.04, 0.06], "by_cohort": {}},
]  # fmt: skip


def score(dice: float | None) -> dict[str, float | None]:
    return {"dice": dice, "surface_distance": 1.0, "hausdorff": 5.0, "hausdorff95": 4.0, "surface_dice": 0.5}


def test_every_figure_is_a_picture() -> None:
    for figure in (plot_losses(HISTORY), plot_proportions(HISTORY, PRIOR), plot_before_after(HISTORY, PRIOR)):
        picture = imread(io.BytesIO(draw_picture(figure, "").png))
        assert min(picture.shape[:2]) > 150
        assert picture[..., :3].std() > 0.01
    plot_before_after([], PRIOR)  # a run without refreshes has nothing to show, and says so by an empty figure


def test_lines_show_the_values_given() -> None:
    first, second = plot_losses(HISTORY).axes
    assert first.lines[0].get_ydata().tolist() == [1.0, 0.5]  # type: ignore[union-attr]
    assert [line.get_label() for line in second.lines[:3]] == ["labelled  J_L", "partial  λ1 J_P", "prior  λ2 J_C"]
    (axis,) = plot_before_after(HISTORY, PRIOR).axes
    np.testing.assert_allclose(axis.lines[0].get_ydata(), [0.5, 0.08 / 0.06])
    np.testing.assert_allclose(axis.lines[1].get_ydata(), [1, 1])


def test_the_score_table_marks_gains_and_losses() -> None:
    before = {"organs": {"spleen": score(0.5), "liver": score(0.9), "aorta": score(None)}, "mean": score(0.7)}
    after = {"organs": {"spleen": score(0.8), "liver": score(0.8), "aorta": score(0.1)}, "mean": score(0.8)}
    table = score_table(before, {**after, "surface_dice_tolerance_mm": 2.0})
    changes = [(row[3], kinds[3]) for row, kinds in zip(table.rows, table.kinds, strict=True)]
    assert changes == [("+0.300", "up"), ("-0.100", "down"), ("–", ""), ("+0.100", "up")]
    assert table.rows[2][1] == "–"  # no Dice before, so no change
    assert table.total
