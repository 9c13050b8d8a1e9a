"""`python -m scripts check`: what it prints and writes, and its exit codes."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.errors import InputError
from scripts.check import check

Run = Callable[..., subprocess.CompletedProcess[str]]


def window(path: Path) -> None:
    image = nib.load(path)
    nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj).clip(-160, 240), image.affine), path)


def test_clean_data_gives_a_table_a_record_and_a_page(
    clean_cohorts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check(str(clean_cohorts), output=str(tmp_path / "out"), strict=True, workers=1)
    lines = capsys.readouterr().out.splitlines()
    assert re.split(r"\s{2,}", lines[0])[:3] == ["cohort", "cases", "annotated"]
    assert [line.split()[0] for line in lines[1:6]] == ["full", "liver", "pancreas", "spleen", "test"]
    assert lines[-1] == f"6 cases: no errors, no warnings; see {tmp_path / 'out' / 'report.html'}"
    record = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [case["case"] for case in record["cases"]] == [
        "full_000", "full_001", "liver_000", "pancreas_000", "spleen_000", "test_000",
    ]  # fmt: skip
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<img ") == 6
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


def test_warnings_count_only_with_strict(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    window(next((data / "liver" / "imagesTr").glob("*.nii.gz")))
    check(str(data / "liver" / "dataset.json"), output=str(tmp_path / "out"), workers=1)
    printed = capsys.readouterr()
    assert printed.err.splitlines()[-1].startswith("warning: ")
    assert "1 case: no errors, 1 warning;" in printed.out
    with pytest.raises(SystemExit) as stopped:
        check(str(data / "liver"), output=str(tmp_path / "out"), strict=True, workers=1)
    assert stopped.value.code == 1


def test_errors_end_with_code_2_and_no_traceback(data: Path, tmp_path: Path, run_command: Run) -> None:
    """Everything wrong is reported, in one sentence each; the page shows the image of a case with a bad label map."""
    (label,) = (data / "spleen" / "labelsTr").glob("*.nii.gz")
    image = nib.load(label)
    nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj) * 3, image.affine), label)
    (data / "full" / "imagesTr" / "full_000.nii.gz").unlink()
    done = run_command("-m", "scripts", "check", data, "--output", tmp_path / "out")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    assert "no such file" in errors[0]
    assert "holds the value 3" in errors[1]
    assert "Traceback" not in done.stderr
    assert "6 cases: 2 errors, no warnings" in done.stdout
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.index("full/full_000") < page.index("spleen/spleen_000") < page.index("liver/liver_000")
    assert page.count("<img ") == 5


def test_bad_input_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected at least one dataset.json"):
        check(output=str(tmp_path / "out"))
    with pytest.raises(InputError, match="nowhere: no such file or folder"):
        check("nowhere", output=str(tmp_path / "out"))
    with pytest.raises(InputError, match="no dataset.json found there"):
        check(str(tmp_path), output=str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
