"""The report of a comparison: numbers that can be checked by hand, and pictures only of what is there."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread

from bundle.reports.comparison import dice_table, write_comparison
from tests.bundle.evaluation.small_comparison import add_runs, write_small_comparison


@pytest.fixture
def folder(tmp_path: Path, tiny_cohorts: Path) -> Path:
    write_small_comparison(tmp_path, tiny_cohorts)
    return tmp_path


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", html, re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]


def test_the_table_of_the_paper(folder: Path) -> None:
    write_comparison(folder)
    lines = [line.strip("| ").split(" | ") for line in (folder / "table.md").read_text().splitlines()[2:]]
    # What never sees the partial cohorts has one column.
    assert lines[0] == ["network", "Full", "Partial, A", "Partial, A+B", "Pann, A", "Pann, A+B"]
    assert lines[2] == ["unet", "60.00", "65.00", "75.00", "75.00", "**85.00**"]
    assert lines[3] == ["resnet", "–", "–", "–", "–", "90.00"]  # alone, it is not the best


def test_the_report_states_the_result_and_its_doubt(folder: Path) -> None:
    html = write_comparison(folder).read_text()
    # Two cases cannot decide: the smallest p of Wilcoxon's test is 2/4, and twice that is 1.
    sentence = "Pann has a mean Dice of 85.00 % (unet, A+B): 25.00 points above Full (p = 1.00), 10.00 points above"
    assert sentence in html
    assert "cannot give a p below 0.50" in html
    table = cells(html)
    # By case 0.8 − 0.6 and 0.9 − 0.6; with two cases the ends of the interval are the cases themselves.
    assert ["Full", "60.00", "+25.00", "+20.00 to +30.00", "1.00", "2 of 2"] in table
    assert ["No prior", "prior_weight: 0", "80.00", "+5.00", "+0.00 to +10.00", "1.00", "1 of 2"] in table
    assert ["spleen", "40.0", "70.0", "85.0"] in table
    assert ["mean of the cases", "60.0", "75.0", "85.0"] in table
    assert '<td class="best">85.0</td>' in html
    assert "a &lt;small&gt; one" in html
    assert "<h1>Methods &amp; cohorts</h1>" in html


def test_a_reference_that_loses_says_so(folder: Path) -> None:
    given = json.loads((folder / "comparison.json").read_text()) | {"reference": "full"}
    (folder / "comparison.json").write_text(json.dumps(given))
    html = write_comparison(folder).read_text()
    assert "25.00 points below Pann" in html
    assert ["Pann", "85.00", "−25.00", "−30.00 to −20.00", "1.00", "0 of 2"] in cells(html)


def test_without_runs_there_are_no_pictures_of_them(folder: Path) -> None:
    html = write_comparison(folder).read_text()
    assert [path.name for path in (folder / "figures").iterdir()] == ["boxes.png"]
    assert "Inside training" not in html
    assert "Where the methods differ" not in html


def test_with_runs_every_figure_is_a_file_and_in_the_page(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    html = write_comparison(folder).read_text()
    names = ["boxes", "gradients", "proportions", "pseudo_labels", "slices"]
    assert sorted(path.stem for path in (folder / "figures").iterdir()) == names
    assert html.count("data:image/png") == len(names)
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    for name in names:
        assert imread(folder / "figures" / f"{name}.png")[..., :3].std() > 0.01


def test_a_lead_that_nobody_can_read_is_none() -> None:
    means = pd.DataFrame({"a": [0.8501, 0.5], "b": [0.8499, None]}, index=["unet", "resnet"])
    assert dice_table("network", means, digits=1).kinds == [["", "best", "best"], ["", "", ""]]
    assert dice_table("network", means, digits=2).kinds == [["", "best", ""], ["", "", ""]]
