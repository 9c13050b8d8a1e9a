"""`python -m scripts segment`: what it writes, goes on with, refuses, and survives."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.errors import InputError, find_input_error
from bundle.organs import Vocabulary
from bundle.scans.finding import Source
from scripts.segment import segment
from scripts.segment.jobs import ScanJob
from tests.model_files import save_model
from tests.paths import ROOT
from tests.scan_files import label_names

DICOM = ROOT.parent / "shared" / "data" / "example_dicom"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untrained weights for all organs."""
    folder = tmp_path_factory.mktemp("model")
    return save_model(folder, organs=Vocabulary().names, pixdim=[12.0, 12.0, 15.0]).parent


@pytest.fixture
def scans(tiny_cohorts: Path, tmp_path: Path) -> Path:
    """Three scans: two synthetic ones and a copy."""
    folder = tmp_path / "scans"
    shutil.copytree(tiny_cohorts / "test" / "imagesTs", folder)
    shutil.copy(folder / "test_000.nii.gz", folder / "again.nii.gz")
    return folder


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def labels_of(path: Path) -> np.ndarray:
    return np.asanyarray(nib.load(path).dataobj)


def test_one_scan_gives_a_label_map_volumes_and_a_picture(
    scans: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment(str(scans / "test_000.nii.gz"), str(tmp_path / "out"), model=str(model), preview=True)
    assert written(tmp_path / "out") == ["organs.ctbl", "test_000.json", "test_000.nii.gz", "test_000.png"]
    scan, made = nib.load(scans / "test_000.nii.gz"), nib.load(tmp_path / "out" / "test_000.nii.gz")
    assert made.shape == scan.shape
    np.testing.assert_allclose(made.affine, scan.affine, atol=1e-5)
    assert label_names(tmp_path / "out" / "test_000.nii.gz")[6] == "liver"
    record = json.loads((tmp_path / "out" / "test_000.json").read_text())
    labels, voxel = labels_of(tmp_path / "out" / "test_000.nii.gz"), abs(np.linalg.det(scan.affine[:3, :3]))
    assert len(np.unique(labels)) > 3
    for channel, name in enumerate(Vocabulary().names, start=1):
        assert record["organs"][name]["ml"] == pytest.approx((labels == channel).sum() * voxel / 1000)
    printed = capsys.readouterr().out
    assert "1 of 1 segmented" in printed
    assert " ml" in printed


def test_the_output_can_be_a_file(scans: Path, model: Path, tmp_path: Path) -> None:
    segment(str(scans / "test_000.nii.gz"), str(tmp_path / "out" / "mine.nii.gz"), model=str(model))
    assert written(tmp_path / "out") == ["mine.json", "mine.nii.gz", "organs.ctbl"]


def test_organs_restrict_the_output(scans: Path, model: Path, tmp_path: Path) -> None:
    everything, some = tmp_path / "all", tmp_path / "some"
    for folder, organs in ((everything, None), (some, "liver,stomach")):
        segment(str(scans / "test_000.nii.gz"), str(folder), model=str(model), organs=organs, backend="torch")
    whole, part = (labels_of(folder / "test_000.nii.gz") for folder in (everything, some))
    channels = [Vocabulary().channel(name) for name in ("liver", "stomach")]
    np.testing.assert_array_equal(part, np.where(np.isin(whole, channels), whole, 0))
    assert part.any()


@pytest.fixture
def sized(scans: Path, model: Path, tmp_path: Path) -> tuple[Path, float]:
    """A model that expects a tenth of the liver that it finds, and that volume; of the spleen what it finds."""
    segment(str(scans / "test_000.nii.gz"), str(tmp_path / "plain"), model=str(model))
    organs = json.loads((tmp_path / "plain" / "test_000.json").read_text())["organs"]
    assert not any("plausibility" in organ for organ in organs.values())  # this model knows no sizes
    liver = organs["liver"]["ml"]
    sizes = {"liver": {"cases": 7, "ml": liver / 10, "spread": 0.1}}
    values = {"organs": Vocabulary().names, "pixdim": [12.0, 12.0, 15.0]}
    return save_model(tmp_path / "sized", sizes=sizes, **values).parent, liver


def test_sizes_that_are_not_plausible_are_said(
    scans: Path, sized: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, liver = sized
    capsys.readouterr()
    segment(str(scans / "test_000.nii.gz"), str(tmp_path / "out"), model=str(model), organs="liver")
    organs = json.loads((tmp_path / "out" / "test_000.json").read_text())["organs"]
    found = organs["liver"]["plausibility"]
    assert set(found) == {"flag", "spreads", "expected_ml", "why"}
    assert found["flag"] == "implausible"
    assert found["expected_ml"] == pytest.approx(liver / 10)
    assert found["spreads"] == pytest.approx(math.log(10) / 0.2)  # 0.1 is less than one can know
    assert [name for name, organ in organs.items() if "plausibility" in organ] == ["liver"]  # the others nobody wanted
    said = [line for line in capsys.readouterr().out.splitlines() if "implausible" in line]
    assert said == [f"implausible: {found['why']}"]
    segment(str(scans), str(tmp_path / "several"), model=str(model), organs="liver")
    said = [line for line in capsys.readouterr().out.splitlines() if "implausible" in line]
    assert f"again: implausible: {found['why']}" in said
    assert len(said) == 3


def test_finished_cases_are_skipped_until_something_changes(
    scans: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"

    def run(**options: object) -> tuple[str, dict[str, int]]:
        segment(str(scans), str(out), model=str(model), backend="torch", **options)
        return capsys.readouterr().out, {path.name: path.stat().st_mtime_ns for path in out.glob("*.nii.gz")}

    printed, first = run()
    assert "3 of 3 segmented; " in printed
    printed, second = run()
    assert "0 of 3 segmented, 3 finished before" in printed
    assert second == first
    (out / "again.nii.gz").unlink()
    assert "1 of 3 segmented, 2 finished before" in run()[0]
    assert "3 of 3 segmented; " in run(clean=True)[0]
    assert "3 of 3 segmented; " in run(clean=True, overwrite=True)[0]
    os.utime(scans / "again.nii.gz", (1, 1))
    assert "1 of 3 segmented, 2 finished before" in run(clean=True)[0]


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"settings": 1}'])
def test_a_damaged_record_is_made_again(scans: Path, tmp_path: Path, content: bytes) -> None:
    job = ScanJob(
        "again", Source(scans / "again.nii.gz"), tmp_path, single=False, settings={"organs": None}, preview=False
    )
    job.label_map.touch()
    job.beside(".json").write_text(json.dumps({"settings": job.record()}))
    assert job.finished()
    job.beside(".json").write_bytes(content)
    assert not job.finished()


def test_a_bad_case_does_not_stop_the_others(run_command: Run, scans: Path, model: Path, tmp_path: Path) -> None:
    data = labels_of(scans / "test_000.nii.gz")
    for name, bad in {
        "nan": np.where(np.indices(data.shape)[0] == 3, np.nan, data).astype(np.float32),
        "empty": np.zeros_like(data),
        "four": np.stack([data, data], -1),
    }.items():
        nib.save(nib.Nifti1Image(bad, np.eye(4)), scans / f"{name}.nii.gz")
    color = np.zeros(data.shape, np.dtype([(channel, "u1") for channel in "RGB"]))
    nib.save(nib.Nifti1Image(color, np.eye(4)), scans / "rgb.nii.gz")
    (scans / "broken.nii.gz").write_bytes((scans / "test_000.nii.gz").read_bytes()[:500])
    finished = run_command("-m", "scripts", "segment", scans, tmp_path / "out", "--model", model)
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    assert "3 of 8 segmented" in finished.stdout
    errors = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 5
    for name, reason in {"nan": "NaN or infinity", "empty": "is empty", "four": "expected one 3D volume",
                         "rgb": "one HU value", "broken": "cannot be read as an image"}.items():  # fmt: skip
        assert any(f"{name}.nii.gz" in line and reason in line for line in errors), (name, errors)
    assert "5 of 8 could not be segmented" in finished.stderr
    assert not [name for name in written(tmp_path / "out") if name.split(".")[0] in ("nan", "four", "rgb", "broken")]


def test_one_bad_scan_ends_with_one_sentence_and_nothing_written(run_command: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "ct.nii.gz").write_bytes(b"no image")
    finished = run_command("-m", "scripts", "segment", tmp_path / "ct.nii.gz", tmp_path / "out", "--model", model)
    assert finished.returncode == 2
    assert "Traceback" not in finished.stderr
    assert "ct.nii.gz: cannot be read as an image" in finished.stderr
    assert not (tmp_path / "out").exists()


def test_places_that_would_destroy_something_are_refused(scans: Path, model: Path, tmp_path: Path) -> None:
    one = str(scans / "test_000.nii.gz")
    for source, target, reason in [
        (one, str(scans), "the scans are there"),
        (str(scans), str(scans), "the scans are there"),
        (one, one, "is the input itself"),
        (str(scans), str(tmp_path / "all.nii.gz"), "holds several scans"),
        (one, str(tmp_path / "out.nrrd"), "expected a folder, or a file name ending with .nii.gz"),
    ]:
        with pytest.raises(InputError, match=reason):
            segment(source, target, model=str(model))


def test_organs_the_model_does_not_know_are_refused(scans: Path, model: Path, tmp_path: Path) -> None:
    small = save_model(tmp_path / "small", organs=["liver"])
    with pytest.raises(InputError, match="not trained for the spleen; it knows liver"):
        segment(str(scans), str(tmp_path / "out"), model=str(small), organs="spleen")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"flips": 3}, "flips: expected axes 0, 1 or 2, found [3]"),
        ({"scales": 0}, "scales: expected numbers above 0"),
        ({"memory": "lots"}, "memory: expected a number of GB above 0, found lots"),
        ({"threads": "two"}, "threads: expected a number from 1 on, found two"),
        ({"device": "abacus"}, "device: expected a device of this machine that PyTorch can use, found abacus"),
        ({"backend": "onnx"}, "expected one of auto, torch, openvino"),
        ({"overlays": "nope.yaml"}, "nope.yaml: no such config"),
    ],
)
def test_bad_values_are_refused_before_any_work(
    scans: Path, model: Path, tmp_path: Path, options: dict[str, object], reason: str
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        segment(str(scans), str(tmp_path / "out"), model=str(model), **options)
    assert reason in str(find_input_error(caught.value))
    assert not list((tmp_path / "out").glob("*"))


def test_a_misspelled_option_is_refused_before_any_work(
    run_command: Run, scans: Path, model: Path, tmp_path: Path
) -> None:
    finished = run_command("-m", "scripts", "segment", scans, tmp_path / "out", "--model", model, "--organ", "liver")
    assert finished.returncode == 2
    assert finished.stderr.splitlines()[-1] == "error: --organ: there is no such option; did you mean --organs?"
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_refused(scans: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written to"):
        segment(str(scans), str(tmp_path / "file" / "out"), model=str(model))


def test_a_picture_of_other_settings_does_not_stay(scans: Path, model: Path, tmp_path: Path) -> None:
    one, out = str(scans / "test_000.nii.gz"), tmp_path / "out"
    segment(one, str(out), model=str(model), preview=True, organs="liver")
    first = (out / "test_000.png").read_bytes()
    segment(one, str(out), model=str(model))
    assert not (out / "test_000.png").exists()
    segment(one, str(out), model=str(model), preview=True)
    assert (out / "test_000.png").read_bytes() != first


@pytest.mark.skipif(not DICOM.is_dir(), reason="the example DICOM series is not part of the project")
def test_a_dicom_series_gets_a_dicom_seg(model: Path, tmp_path: Path) -> None:
    segment(str(DICOM), str(tmp_path / "out"), model=str(model), dicom_seg=True, organs="liver")
    assert "example_dicom.seg.dcm" in written(tmp_path / "out")
    made = nib.load(tmp_path / "out" / "example_dicom.nii.gz")
    label = nib.load(DICOM.parent / "example_dicom_label.nii.gz")
    # Both are maps of one series: the same corner of the world, whatever the order of their slices.
    assert corners(made) == pytest.approx(corners(label), abs=0.05)


def corners(image: nib.Nifti1Image) -> list[float]:
    """Smallest and largest coordinates of the eight corners, mm."""
    ends = np.indices((2, 2, 2)).reshape(3, -1).T * (np.array(image.shape) - 1)
    world = nib.affines.apply_affine(image.affine, ends)
    return [*world.min(0), *world.max(0)]


# --- Real processes, really stopped ----------------------------------------------------------------------------------
def start(source: Path, target: Path, model: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "scripts", "segment", str(source), str(target), "--model", str(model)]
    # tests that run in the background ignore Ctrl-C, and so would what they start
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, preexec_fn=listen_to_ctrl_c, **pipes)


def listen_to_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def many(scans: Path, count: int) -> None:
    for number in range(count):
        shutil.copy(scans / "test_000.nii.gz", scans / f"copy_{number:03d}.nii.gz")


def wait_for(folder: Path, pattern: str, count: int, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and len(list(folder.glob(pattern))) < count:
        time.sleep(0.005)
    assert process.poll() is None, "it finished before it could be stopped"


def check_whole(folder: Path, count: int) -> None:
    """Every label map is whole, and what a straight run gives."""
    maps = sorted(folder.glob("[!.]*.nii.gz"))
    assert len(maps) == count
    copies = [labels_of(path) for path in maps if path.name.startswith("copy_")]
    assert all(np.array_equal(copies[0], other) for other in copies)
    assert len(list(folder.glob("*.json"))) == count


@pytest.mark.slow
def test_a_killed_batch_goes_on_and_every_output_is_whole(
    run_command: Run, scans: Path, model: Path, tmp_path: Path
) -> None:
    many(scans, 40)
    out = tmp_path / "out"
    for attempt in range(3):
        process = start(scans, out, model)
        wait_for(out, "*.json", 8 * (attempt + 1), process)
        time.sleep(0.013 * attempt)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        for path in out.glob("[!.]*.nii.gz"):
            assert labels_of(path).shape == (32, 32, 16)
    finished = run_command("-m", "scripts", "segment", scans, out, "--model", model)
    assert finished.returncode == 0, finished.stderr
    assert "finished before" in finished.stdout
    assert not list(out.glob(".unfinished-*"))
    check_whole(out, 43)


@pytest.mark.slow
def test_ctrl_c_leaves_no_half_written_file(run_command: Run, scans: Path, model: Path, tmp_path: Path) -> None:
    many(scans, 40)
    out = tmp_path / "out"
    process = start(scans, out, model)
    wait_for(out, "*.json", 5, process)
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command goes on from here" in errors
    assert "segmented" in printed
    assert not list(out.glob(".*"))
    assert run_command("-m", "scripts", "segment", scans, out, "--model", model).returncode == 0
    check_whole(out, 43)
