"""Pages: everything inside one file, text escaped, found from any working directory."""

import base64
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import UndefinedError

from bundle.evaluation.tables import Table
from bundle.reports.figures import grid_of_axes
from bundle.reports.pages import draw_picture, write_page
from tests.paths import ROOT

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_a_page_is_one_file_with_its_text_escaped(tmp_path: Path) -> None:
    figure, (axis,) = grid_of_axes(1, 1, 4.0, 3.0)
    axis.plot([1, 2])
    picture = draw_picture(figure, "a line & more", tmp_path / "line.png")
    table = Table(["organ", "Dice"], [["spleen", "0.9"], ["mean", "0.8"]], kinds=[["", "up"], ["", ""]], total=True)
    survey = SimpleNamespace(full=SimpleNamespace(cases=3), warnings=["<script>"])
    path = write_page(
        tmp_path / "new" / "report.html", "prior.html",
        title="a < b", survey=survey, patch="8×8", figure=picture, shares=table, views=table,
    )  # fmt: skip
    html = path.read_text(encoding="utf-8")
    assert "<h1>a &lt; b</h1>" in html
    assert "<p>&lt;script&gt;</p>" in html
    assert '<th class="text">organ</th><th>Dice</th>' in html
    assert '<tr><td class="text">spleen</td><td class="up">0.9</td></tr>' in html
    assert '<tr class="total"><td class="text">mean</td><td>0.8</td></tr>' in html
    assert "<figcaption>a line &amp; more</figcaption>" in html
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    (data,) = re.findall(r'base64,([^"]+)', html)
    assert base64.b64decode(data) == picture.png == (tmp_path / "line.png").read_bytes()


def test_a_value_that_a_template_needs_is_not_left_out_in_silence(tmp_path: Path) -> None:
    with pytest.raises(UndefinedError, match="verdict"):
        write_page(tmp_path / "report.html", "check.html", title="Data check", failed=False)
    assert list(tmp_path.iterdir()) == []


def test_templates_are_found_from_another_folder(run_command: Run, tmp_path: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from bundle.reports.check import write_check_page\n"
        "write_check_page('report.html', [], {}, 'nothing to check')"
    )
    done = run_command("-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nothing to check" in (tmp_path / "report.html").read_text()
