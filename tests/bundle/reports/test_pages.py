"""Reports: everything inside one file, text escaped, figures that show what was given."""

import base64
import io
import re
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from bundle.organs import Vocabulary
from bundle.reports.demo import plot_before_after, plot_losses, plot_proportions, score_table
from bundle.reports.pages import Page
from bundle.reports.slices import plot_slices
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


def test_a_page_is_one_file_with_its_text_escaped(tmp_path: Path) -> None:
    page = Page("a < b")
    page.heading("scores & more")
    page.text("<script>")
    page.table(["organ", "Dice"], [["spleen", "0.9"]], [["", "up"]])
    page.figure(plot_losses(HISTORY), "losses")
    html = page.save(tmp_path / "new" / "report.html").read_text()
    assert "<h1>a &lt; b</h1>" in html
    assert "&lt;script&gt;" in html
    assert '<td class="up">0.9</td>' in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)


def test_every_figure_is_a_picture() -> None:
    page = Page("figures")
    for figure in (plot_losses(HISTORY), plot_proportions(HISTORY, PRIOR), plot_before_after(HISTORY, PRIOR)):
        page.figure(figure, "")
        data = re.findall(r"base64,([^\"]+)", page.parts[-1])[0]
        picture = imread(io.BytesIO(base64.b64decode(data)))
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
    page = Page("scores")
    before = {"organs": {"spleen": score(0.5), "liver": score(0.9), "aorta": score(None)}, "mean": score(0.7)}
    after = {"organs": {"spleen": score(0.8), "liver": score(0.8), "aorta": score(0.1)}, "mean": score(0.8)}
    score_table(page, before, {**after, "surface_dice_tolerance_mm": 2.0})
    table = page.parts[0]
    assert '<td class="up">+0.300</td>' in table
    assert '<td class="down">-0.100</td>' in table
    assert table.count('<td class="">–</td>') == 2  # no Dice before, so no change


def test_slices_show_contours_where_the_labels_are(tiny_cohorts: Path) -> None:
    images = [("case", tiny_cohorts / "test" / "imagesTs" / "test_000.nii.gz")]
    labels = {"truth": [tiny_cohorts / "test" / "labelsTs" / "test_000.nii.gz"]}
    picture, contours = plot_slices(images, labels, Vocabulary()).axes
    assert len(picture.collections) == 0
    assert len(contours.collections) >= 4
