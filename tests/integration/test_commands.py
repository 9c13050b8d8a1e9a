"""The real commands on tiny cohorts: training, evaluation and inference, from the root and from elsewhere."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

from bundle.inference.weights import read_checkpoint
from bundle.organs import Vocabulary
from bundle.training.history import read_history
from bundle.training.prior import Prior
from tests.paths import ROOT

TINY = ROOT / "tests" / "integration" / "tiny.yaml"
Run = Callable[..., subprocess.CompletedProcess[str]]


def configs(*names: str) -> str:
    return str([str(TINY if name == "tiny" else ROOT / "configs" / f"{name}.yaml") for name in names])


def bundle(run: Run, run_id: str, names: tuple[str, ...], cwd: Path = ROOT, **values: object) -> str:
    arguments = [argument for key, value in values.items() for argument in (f"--{key}", value)]
    finished = run("-m", "monai.bundle", "run", run_id, "--config_file", configs(*names), *arguments, cwd=cwd)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout + finished.stderr


@pytest.fixture(scope="module")
def trained(tiny_cohorts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle root in which both stages have been trained, started from another directory with absolute paths."""
    folder = tmp_path_factory.mktemp("trained")
    command = ["-m", "monai.bundle", "run", "training", "--config_file", configs("train", "tiny")]
    command += ["--dataset_dir", str(tiny_cohorts), "--bundle_root", str(folder)]
    finished = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return folder


def test_training_leaves_weights_history_prior_and_pseudo_labels(trained: Path) -> None:
    for name in ("warmup.pt", "model.pt", "model_best.pt"):
        assert torch.load(trained / "models" / name, weights_only=True)
    history = read_history(trained / "eval" / "history.jsonl")
    assert {record["stage"] for record in history} == {"warmup", "train"}
    prior = json.loads((trained / "eval" / "prior.json").read_text())
    assert prior["names"] == Vocabulary().channel_names
    assert sum(prior["proportions"]) == pytest.approx(1)
    assert len(list((trained / "eval" / "pseudo_labels").glob("*/*/*/*.npz"))) == 6


def test_stage_two_changes_the_weights(trained: Path) -> None:
    before, after = (read_checkpoint(trained / "models" / f"{name}.pt").state for name in ("warmup", "model"))
    assert any(not torch.equal(before[key], after[key]) for key in before)


def test_training_runs_from_the_root(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    printed = bundle(run_command, "training", ("train", "tiny"), dataset_dir=tiny_cohorts, bundle_root=tmp_path)
    assert "stage 1" in printed
    assert "stage 2" in printed
    assert (tmp_path / "models" / "model.pt").is_file()


@pytest.mark.parametrize("supervision", ["full", "semi", "partial"])
def test_every_supervision_trains(
    run_command: Run, tiny_cohorts: Path, trained: Path, tmp_path: Path, supervision: str
) -> None:
    bundle(
        run_command, "training", ("train", "tiny"), dataset_dir=tiny_cohorts, bundle_root=tmp_path,
        supervision=supervision, warmup_checkpoint=trained / "models" / "warmup.pt", fold="None",
    )  # fmt: skip
    assert (tmp_path / "models" / "model.pt").is_file()
    assert not (tmp_path / "models" / "warmup.pt").exists()  # stage 1 was taken from the checkpoint
    steps = [record for record in read_history(tmp_path / "eval" / "history.jsonl") if record["kind"] == "step"]
    assert all("prior" not in record for record in steps)
    assert all(("partial" in record) == (supervision != "full") for record in steps)


def test_partial_cohorts_alone_are_trained_on_from_weights_and_their_prior(
    run_command: Run, tiny_cohorts: Path, trained: Path, tmp_path: Path
) -> None:
    """As a server goes on with the model that it serves: cases with a label set each, and none with all organs."""
    record = read_checkpoint(trained / "models" / "model.pt").record
    assert record is not None
    stored = tmp_path / "stored.json"
    Prior.from_record(record.prior).save(stored)
    values = {
        "dataset_dir": tiny_cohorts, "bundle_root": tmp_path / "run", "cohorts": "spleen,liver",
        "warmup_checkpoint": trained / "models" / "model.pt", "prior_file": stored,
    }  # fmt: skip
    bundle(run_command, "training", ("train", "tiny"), **values)
    path = tmp_path / "run" / "eval" / "history.jsonl"
    steps = [line for line in read_history(path) if line["kind"] == "step"]
    assert {line["stage"] for line in steps} == {"train"}
    for line in steps:
        assert "labelled" not in line
        assert {"partial", "prior"} <= set(line)
    head = json.loads(path.read_text().splitlines()[0])
    assert head["label_sets"] == {
        "liver/liver_000": ["liver"], "liver/liver_001": ["liver"],
        "spleen/spleen_000": ["spleen"], "spleen/spleen_001": ["spleen"],
    }  # fmt: skip
    made = read_checkpoint(tmp_path / "run" / "models" / "model.pt").record
    assert made is not None
    assert made.prior == record.prior  # as it was: it can go on again
    assert set(made.sizes) <= {"spleen", "liver"}
    again = run_command("-m", "monai.bundle", "run", "training", "--config_file", configs("train", "tiny"), *(
        argument for key, value in values.items() if key != "prior_file" for argument in (f"--{key}", value)),
        "--overwrite", "True")  # fmt: skip
    assert again.returncode == 2
    assert "give the prior.json of an earlier training (--prior_file)" in again.stderr


def test_weights_know_their_prior_and_the_sizes_of_organs(trained: Path) -> None:
    for name in ("warmup.pt", "model.pt", "model_best.pt"):
        record = read_checkpoint(trained / "models" / name).record
        assert record is not None
        prior = Prior.load(trained / "eval" / "prior.json")
        assert Prior.from_record(record.prior).proportions == prior.proportions
        assert record.prior["cases"] == len(prior.cases) == 2
        assert record.sizes["liver"]["cases"] >= 2
    assert not {"sizes", "prior"} & set(json.loads((trained / "models" / "model.json").read_text()))


def test_a_call_as_monai_label_s_stock_app_makes_it_is_refused(
    run_command: Run, tiny_cohorts: Path, tmp_path: Path
) -> None:
    """It hands on images and label maps, and nothing that says which organs were drawn."""
    folder = tiny_cohorts / "full"
    items = [
        {"image": str(image), "label": str(folder / "labelsTr" / image.name)}
        for image in sorted((folder / "imagesTr").glob("*.nii.gz"))
    ]
    overlay = tmp_path / "items.json"
    overlay.write_text(json.dumps({"train#dataset#data": items[1:], "validate#dataset#data": items[:1]}))
    files = str([str(ROOT / "configs" / "train.yaml"), str(TINY), str(overlay)])
    finished = run_command(
        "-m", "monai.bundle", "run", "training", "--config_file", files, "--dataset_dir", folder / "imagesTr",
        "--bundle_root", tmp_path / "run", "--train#trainer#max_epochs", 1,
    )  # fmt: skip
    assert finished.returncode == 2, finished.stderr[-3000:]
    assert "Traceback" not in finished.stderr
    assert "without saying which organs were annotated, as MONAI Label's stock app does" in finished.stderr
    assert "serve the bundle with `make serve`" in finished.stderr
    assert not (tmp_path / "run").exists()


def test_a_2d_network_trains_evaluates_and_infers_with_one_overlay(
    run_command: Run, tiny_cohorts: Path, tmp_path: Path
) -> None:
    small = {"bundle_root": tmp_path, "network_def::channels": "[4,8]", "network_def::strides": "[2]"}
    bundle(
        run_command, "training", ("train", "overlays/demo"), **small, dataset_dir=tiny_cohorts, warmup_iterations=2,
        train_iterations=2, cohorts="full,spleen", organs="['liver','spleen']",
    )  # fmt: skip
    organs = {"organs": "['liver','spleen']"}
    bundle(
        run_command, "evaluating", ("train", "overlays/demo", "evaluate"), **small, **organs, dataset_dir=tiny_cohorts
    )
    summary = json.loads((tmp_path / "eval" / "scores.json").read_text())
    assert list(summary["organs"]) == ["liver", "spleen"]
    images = tiny_cohorts / "test" / "imagesTs"
    bundle(run_command, "inferring", ("inference", "overlays/demo"), **small, **organs, dataset_dir=images)
    assert len(list((tmp_path / "eval" / "inference").glob("*_seg.nii.gz"))) == 2


def test_evaluation_scores_every_case_and_organ_on_the_files_own_grid(
    run_command: Run, tiny_cohorts: Path, trained: Path, tmp_path: Path
) -> None:
    printed = bundle(
        run_command, "evaluating", ("train", "tiny", "evaluate"), dataset_dir=tiny_cohorts, output_dir=tmp_path,
        bundle_root=trained,
    )  # fmt: skip
    assert "mean over organs" in printed
    with (tmp_path / "scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 13
    for name in ("test_000", "test_001"):
        truth = nib.load(tiny_cohorts / "test" / "labelsTs" / f"{name}.nii.gz")
        saved = nib.load(tmp_path / "segmentations" / f"{name}.nii.gz")
        assert saved.shape == truth.shape
        prediction, label = (np.asanyarray(image.dataobj) for image in (saved, truth))
        for channel, organ in enumerate(Vocabulary().names, start=1):
            (row,) = [row for row in rows if row["case"] == name and row["organ"] == organ]
            a, b = prediction == channel, label == channel
            if a.any() or b.any():
                assert float(row["dice"]) == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()), abs=1e-6)
            else:
                assert row["dice"] == ""


@pytest.mark.parametrize("axes", ["RAS", "LPS", "PIL"])
def test_inference_keeps_the_input_s_geometry(
    run_command: Run, tiny_cohorts: Path, trained: Path, tmp_path: Path, axes: str
) -> None:
    source = nib.load(tiny_cohorts / "test" / "imagesTs" / "test_000.nii.gz")
    turn = nib.orientations.ornt_transform(nib.io_orientation(source.affine), nib.orientations.axcodes2ornt(axes))
    (tmp_path / "in").mkdir()
    nib.save(source.as_reoriented(turn), tmp_path / "in" / "ct.nii.gz")
    bundle(
        run_command, "run", ("inference", "tiny"), dataset_dir=tmp_path / "in", output_dir=tmp_path / "out",
        bundle_root=trained,
    )  # fmt: skip
    given, made = nib.load(tmp_path / "in" / "ct.nii.gz"), nib.load(tmp_path / "out" / "ct_seg.nii.gz")
    assert made.shape == given.shape
    assert made.get_data_dtype() == np.uint8
    np.testing.assert_allclose(made.affine, given.affine, atol=1e-4)
    assert int(np.asanyarray(made.dataobj).max()) <= 13


@pytest.mark.slow
def test_the_default_config_trains_as_it_stands(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    """No overlay: the paper's 3D U-Net on 64³ patches at 1.5×1.5×2 mm; only the number of iterations is ours."""
    bundle(
        run_command, "training", ("train",), dataset_dir=tiny_cohorts, bundle_root=tmp_path, warmup_iterations=2,
        train_iterations=2, cohorts="full,spleen",
    )  # fmt: skip
    assert (tmp_path / "models" / "model.pt").is_file()
    assert len(list((tmp_path / "eval" / "pseudo_labels").glob("*/*/spleen/*.npz"))) == 2


# --- What a user sees when something is wrong ------------------------------------------------------------------------
def refused(run: Run, *arguments: object) -> str:
    finished = run(*arguments)
    assert finished.returncode == 2, (finished.returncode, finished.stderr[-2000:])
    assert "Traceback" not in finished.stderr
    (sentence,) = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    return sentence


def test_a_bad_label_is_refused_before_training_starts(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    subprocess.run(["cp", "-r", str(tiny_cohorts), str(data)], check=True)
    path = data / "spleen" / "labelsTr" / "spleen_001.nii.gz"
    label = nib.load(path)
    volume = np.asanyarray(label.dataobj).copy()
    volume[3, 3, 3] = 9
    nib.save(nib.Nifti1Image(volume, label.affine), path)
    sentence = refused(
        run_command, "-m", "monai.bundle", "run", "training", "--config_file", configs("train", "tiny"),
        "--dataset_dir", data, "--bundle_root", tmp_path,
    )  # fmt: skip
    assert "spleen_001.nii.gz: holds the value 9" in sentence
    assert not list((tmp_path / "models").glob("*.pt"))


def test_missing_weights_and_images_are_refused(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    command = ("-m", "monai.bundle", "run", "--config_file", configs("inference", "tiny"), "--bundle_root", tmp_path)
    sentence = refused(run_command, *command, "--dataset_dir", tiny_cohorts / "test" / "imagesTs")
    assert "model.pt: no such weights; train first" in sentence


def test_script_errors_are_one_sentence(run_command: Run, tmp_path: Path) -> None:
    sentence = refused(run_command, "-m", "scripts", "phantom", "--output", tmp_path / "p", "--grid", "96,96")
    assert "--grid: expected 3 whole numbers" in sentence
    assert not (tmp_path / "p").exists()


def test_a_misspelt_option_is_refused(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    sentence = refused(
        run_command, "-m", "monai.bundle", "run", "training", "--config_file", configs("train", "tiny"),
        "--dataset_dir", tiny_cohorts, "--bundle_root", tmp_path, "--suprevision", "full",
    )  # fmt: skip
    assert 'did you mean "supervision"?' in sentence
    assert not (tmp_path / "models").exists()


def test_a_truncated_scan_is_named_at_inference(
    run_command: Run, tiny_cohorts: Path, trained: Path, tmp_path: Path
) -> None:
    whole = (tiny_cohorts / "test" / "imagesTs" / "test_000.nii.gz").read_bytes()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ct.nii.gz").write_bytes(whole[: len(whole) // 2])
    sentence = refused(
        run_command, "-m", "monai.bundle", "run", "--config_file", configs("inference", "tiny"),
        "--dataset_dir", tmp_path / "in", "--output_dir", tmp_path / "out", "--bundle_root", trained,
    )  # fmt: skip
    assert "ct.nii.gz: cannot be read as an image" in sentence
    assert "replace the file" in sentence
    assert not list((tmp_path / "out").glob("*"))
