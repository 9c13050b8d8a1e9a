"""The report of a check: thumbnails, the table of cohorts, and a page with the worst cases first."""

import re
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imread

from bundle.checks.results import CaseCheck
from bundle.checks.rules import Finding
from bundle.organs import Vocabulary
from bundle.reports.check import cohort_table, draw_thumbnail, facts_of, write_check_page
from bundle.scans.reading import Scan
from bundle.scans.volumes import count_by_slice


def check_of(case: str, *findings: Finding, **values: Any) -> CaseCheck:
    return CaseCheck("full", case, "training", f"{case}.nii.gz", findings=list(findings), **values)


def measured(case: str, thickness: float) -> CaseCheck:
    return check_of(
        case, shape=[4, 5, 6], spacing=[1.0, 1.0, thickness], field_of_view=[4.0, 5.0, 6 * thickness],
        hu=[-1000.0, 900.0], volumes={"liver": 1200.0}, thumbnail=b"png",
    )  # fmt: skip


def test_a_cohort_s_row_has_ranges_and_counts() -> None:
    checks = [measured("a", 2.5), measured("b", 5.0), check_of("c", Finding("file", True, "no such file"))]
    table = cohort_table(checks, {"full": "liver"})
    assert table.rows == [["full", "3 training", "liver", "2.5–5", "15–30", "1", "0"]]
    assert cohort_table(checks[2:], {}).rows == [["full", "1 training", "", "–", "–", "1", "0"]]


def test_facts_are_in_one_line() -> None:
    assert facts_of(measured("a", 2.5)) == "training · 4×5×6 · 1×1×2.5 mm · -1000 to 900 HU · 1 organ"
    assert facts_of(check_of("c")) == "training"


def test_the_worst_cases_come_first(tmp_path: Path) -> None:
    error, warning = Finding("file", True, "no <file>"), Finding("hu", False, "clipped")
    checks = [measured("good", 2.5), check_of("odd", warning), check_of("bad", warning, error)]
    write_check_page(tmp_path / "report.html", checks, {"full": "liver"}, "3 cases: 1 error, 2 warnings")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.findall(r"<b>full/(\w+)</b>", html) == ["bad", "odd", "good"]
    assert re.findall(r'<div class="case( [\w-]+|)">', html) == [" has-error", " has-warning", ""]
    assert html.index("no &lt;file&gt;") < html.index("clipped")
    assert '<p class="big error">3 cases: 1 error, 2 warnings</p>' in html
    assert html.count("<img ") == 1
    assert "rgb(" in html
    assert ">liver</span>" in html


def test_a_thumbnail_shows_the_patient_s_right_on_the_left_and_contours_in_color(tmp_path: Path) -> None:
    voxels = np.full((40, 30, 20), -1000, np.int16)
    voxels[2:38, 2:28] = 40
    labels = np.zeros(voxels.shape, np.uint8, order="F")
    labels[28:34, 10:20, 8:12] = 6  # the liver, to the patient's right
    counts = count_by_slice(labels, 14)
    (tmp_path / "a.png").write_bytes(
        draw_thumbnail(Scan(voxels, np.diag([8.0, 8, 10, 1]), tmp_path), labels, counts, Vocabulary())
    )
    picture = np.round(imread(tmp_path / "a.png")[:, :, :3] * 255).astype(int)
    red = np.argwhere((picture == Vocabulary().organs[5].color).all(-1))
    axial = picture.shape[1] // 2
    assert len(red) > 20
    assert red[red[:, 1] < axial, 1].max() < axial / 2
