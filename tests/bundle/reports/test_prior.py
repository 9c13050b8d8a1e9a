"""The report of a survey: the figure and the tables show the values given."""

import re
from pathlib import Path

import numpy as np
from matplotlib.image import imread

from bundle.organs import Vocabulary
from bundle.reports.prior import plot_prior, share_table, view_table, write_prior_page
from bundle.training.prior import Prior
from bundle.training.survey import Cohort, Given, Survey

PRIOR = Prior(["background", "spleen", "liver"], [0.95, 0.01, 0.04], [0.0, 0.002, 0.006], ["a"], {"patch": [8, 8, 4]})
SURVEY = Survey(
    PRIOR,
    Cohort("full cases", 3, (400.0, 390.0, 240.0), 37.4, {}),
    [Cohort("livers", 2, (300.0, 290.0, 180.0), 15.7, {"liver": Given(0.06, 0.003, 2, 1.5)}),
     Cohort("spleens", 1, (300.0, 290.0, 180.0), 15.7, {"spleen": Given(0.02, 0.0, 1, None)})],
    {},
    [],
    ["cohort <livers>: its scans show less"],
)  # fmt: skip


def test_shares_are_per_mille_and_the_background_comes_last() -> None:
    table = share_table(SURVEY)
    assert table.head == ["organ", "q ‰", "spread", "livers (2)", "spleens (1)"]
    assert table.rows == [
        ["spleen", "10.000", "2.000", "–", "20.000 ± 0.000"],
        ["liver", "40.000", "6.000", "60.000 ± 3.000  ×1.50", "–"],
        ["background", "950.000", "0.000", "–", "–"],
    ]


def test_fields_of_view_end_with_the_full_cases() -> None:
    assert view_table(SURVEY).rows[::2] == [
        ["livers", "2", "300", "290", "180", "15.7"],
        ["full cases", "3", "400", "390", "240", "37.4"],
    ]


def test_the_page_has_everything_inside(tmp_path: Path) -> None:
    html = write_prior_page(tmp_path, SURVEY, Vocabulary(["spleen", "liver"])).read_text(encoding="utf-8")
    assert "cohort &lt;livers&gt;: its scans show less" in html
    assert "patches of 8×8×4 voxels" in html
    assert html.count("<table>") == 2
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    assert imread(tmp_path / "prior.png")[..., :3].std() > 0.01


def test_the_plot_shows_the_values_given() -> None:
    q = Prior(["background", "spleen", "liver", "aorta"], [0.96, 0.004, 0.036, 0.0], [0.0, 0.005, 0.006, 0.0], [], {})
    marks = {"one": {"liver": Given(0.02, 0.001, 2, 0.5)}, "two": {"liver": Given(0.0, 0.0, 1, 0.0)}}
    (axis,) = plot_prior(q, marks, Vocabulary(["spleen", "liver", "aorta"])).axes
    points = {line.get_marker(): np.ravel(line.get_xdata()) for line in axis.lines}
    assert [label.get_text() for label in axis.get_yticklabels()] == ["liver", "spleen", "aorta"]
    dots = [np.ravel(line.get_xdata())[0] for line in axis.lines if line.get_marker() == "o"]
    np.testing.assert_allclose(dots, [36, 4])
    np.testing.assert_allclose(points["s"], [20])
    np.testing.assert_allclose(points["<"], axis.get_xlim()[0])  # the spleen's spread goes on to 0
    assert [text.get_text() for text in axis.texts] == ["one", "two: 0", "q is 0"]
