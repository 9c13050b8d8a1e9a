"""`python -m scripts prepare` and `folds`: from a download to a cohort that training takes."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bundle.cohorts.adapters import ADAPTERS
from bundle.cohorts.datalists import read_cohort
from bundle.cohorts.selection import validation_cases
from bundle.errors import InputError
from scripts.check import check
from scripts.folds import folds
from scripts.prepare import prepare
from tests.bundle.cohorts.adapters import test_kits
from tests.bundle.cohorts.adapters.downloads import affine_for, make_ct, paint, save
from tests.paths import REAL_DATA, ROOT

REAL = REAL_DATA / "totalsegmentator"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def download(tmp_path: Path) -> Path:
    root, affine = tmp_path / "Task09_Spleen", affine_for("LAS")
    for number in range(1, 8):
        save(root / "imagesTr" / f"spleen_{number}.nii.gz", make_ct(affine, seed=number), affine)
        save(root / "labelsTr" / f"spleen_{number}.nii.gz", paint({"spleen": 1}, affine), affine)
    return root


def test_the_list_has_a_line_for_each_dataset(capsys: pytest.CaptureFixture[str]) -> None:
    prepare(datasets=True)
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "organs", "cases", "registration", "license", "where", "to", "get", "it"]
    assert [line.split()[0] for line in lines] == list(ADAPTERS)
    (spleen,) = [line for line in lines if line.startswith("msd_spleen")]
    assert spleen.split()[1:4] == ["spleen", "41", "none"]


def test_a_download_becomes_a_cohort(download: Path, tmp_path: Path, run_command: Run) -> None:
    done = run_command("-m", "scripts", "prepare", "msd_spleen", download, "--output", tmp_path / "out", "--cases", "3")
    assert done.returncode == 0, done.stderr
    assert "3 training cases, 0 test cases in" in done.stdout
    cases = read_cohort(tmp_path / "out" / "dataset.json")
    assert [case["case"] for case in cases] == ["spleen_1", "spleen_4", "spleen_7"]
    assert all(Path(case["image"]).is_file() for case in cases)


def test_a_broken_case_is_told_and_the_others_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kidneys are split into right and left, so that every file is read."""
    test_kits.download(tmp_path / "in", 3)
    broken = tmp_path / "in" / "dataset" / "case_00001" / "segmentation.nii.gz"
    broken.write_bytes(broken.read_bytes()[:-20])
    with pytest.raises(SystemExit) as stopped:
        prepare("kits", str(tmp_path / "in"), str(tmp_path / "out"), workers=1)
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    (error,) = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: {broken}: cannot be read as an image")
    assert "1 cases could not be prepared" in printed.err
    assert "2 training cases, 1 test cases in" in printed.out
    datalist = json.loads((tmp_path / "out" / "dataset.json").read_text())
    assert [entry["case"] for entry in datalist["training"]] == ["case_00000", "case_00002"]
    assert [entry["case"] for entry in datalist["test"]] == ["case_00210"]


def test_a_broken_file_that_is_only_referred_to_is_left_to_the_check(download: Path, tmp_path: Path) -> None:
    (download / "labelsTr" / "spleen_3.nii.gz").write_bytes(b"?")
    prepare("msd_spleen", str(download), str(tmp_path / "out"), workers=1)
    with pytest.raises(SystemExit) as stopped:
        check(str(tmp_path / "out"), output=str(tmp_path / "check"), workers=1)
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected NAME and SOURCE"),
        (("msd_splen", "x"), r'msd_splen: no dataset has this name .*; did you mean "msd_spleen"'),
        (("btcv", "nowhere"), "nowhere: no such folder; give the folder that the download of"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(*arguments)


@pytest.mark.skipif(not REAL.is_dir(), reason="needs the real scans in ../shared/data")
def test_real_scans_are_prepared_and_pass_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare("totalsegmentator", str(REAL), str(tmp_path / "out"), workers=2)
    check(str(tmp_path / "out"), output=str(tmp_path / "check"), workers=2)
    assert "3 cases: no errors" in capsys.readouterr().out
    record = json.loads((tmp_path / "check" / "report.json").read_text())
    assert [case["case"] for case in record["cases"]] == ["s0002", "s0003", "s0009"]


def test_folds_are_written_into_a_dataset_and_used(
    tiny_cohorts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "full" / "dataset.json"
    path.parent.mkdir()
    datalist = json.loads((tiny_cohorts / "full" / "dataset.json").read_text())
    for number, entry in enumerate(datalist["training"]):
        entry["patient"] = "ab"[number % 2]
        del entry["fold"]
    path.write_text(json.dumps(datalist))
    folds(str(path), folds=2, seed=5)
    assert "3 fully labelled cases in folds of" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert {key: value for key, value in written.items() if key != "training"} == {
        key: value for key, value in datalist.items() if key != "training"
    }
    dealt = [entry.pop("fold") for entry in written["training"]]
    assert written["training"] == datalist["training"]
    assert dealt[0] == dealt[2] != dealt[1]
    assert Counter(dealt) == Counter({fold: len(validation_cases(tmp_path, fold=fold)) for fold in (0, 1)})
    first = path.read_bytes()
    folds(str(path.parent), folds=2, seed=5)
    assert path.read_bytes() == first


def test_folds_of_a_partial_cohort_are_refused(tiny_cohorts: Path) -> None:
    with pytest.raises(InputError, match="no case has all of spleen, .* annotated; choose --organs"):
        folds(str(tiny_cohorts / "spleen"))


def test_what_cannot_be_dropped_is_told_before_any_work(download: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="drop_labels, fraction: expected"):
        prepare("msd_spleen", str(download), str(tmp_path / "out"), drop_labels=8, fraction=1.5)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["cases", "folds", "drop_labels", "seed", "workers"])
def test_numbers_are_numbers(option: str) -> None:
    with pytest.raises(InputError, match=f"{option}: expected a whole number from 0 on, found abc"):
        prepare("btcv", "x", **{option: "abc"})


def test_ctrl_c_ends_without_a_traceback(tiny_cohorts: Path, tmp_path: Path) -> None:
    # a process that was started in the background may ignore Ctrl-C from the beginning
    code = "import os, signal, sys, bundle.checks.cases; signal.signal(signal.SIGINT, signal.default_int_handler); "
    code += "bundle.checks.cases.read_scan = lambda source: os.kill(os.getpid(), signal.SIGINT); "
    code += f"sys.argv = ['x', 'check', {str(tiny_cohorts)!r}, '--output', {str(tmp_path)!r}, '--workers', '1']; "
    code += "from scripts.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 130, done.stderr
    assert done.stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.stderr
