"""The paper's 2D network through the real commands: both stages, evaluation, inference, three views fused."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.training.history import read_history
from tests.paths import ROOT

TINY = ROOT / "tests" / "integration" / "tiny_slices.yaml"
OVERLAYS = (ROOT / "configs" / "overlays" / "paper_2d.yaml", TINY)
Run = Callable[..., subprocess.CompletedProcess[str]]


def bundle(run: Run, run_id: str, *names: str, **values: object) -> None:
    files = [*(ROOT / "configs" / f"{name}.yaml" for name in names), *OVERLAYS]
    if "evaluate" in names:  # it is an overlay on all others
        files = [files[0], *OVERLAYS, files[1]]
    arguments = [argument for key, value in values.items() for argument in (f"--{key}", value)]
    done = run("-m", "monai.bundle", "run", run_id, "--config_file", str([str(file) for file in files]), *arguments)
    assert done.returncode == 0, done.stderr[-3000:]


def test_both_stages_evaluation_and_inference_with_one_overlay(
    run_command: Run, tiny_cohorts: Path, tmp_path: Path
) -> None:
    bundle(run_command, "training", "train", dataset_dir=tiny_cohorts, bundle_root=tmp_path)
    history = read_history(tmp_path / "eval" / "history.jsonl")
    assert {record["stage"] for record in history} == {"warmup", "train"}
    for stage, rate in (("warmup", 2e-5), ("train", 1e-5)):  # the paper's, decayed to the power 0.9 over 4 iterations
        steps = [record for record in history if record["stage"] == stage and record["kind"] == "step"]
        assert [record["iteration"] for record in steps] == [2, 4]
        expected = [rate * (1 - (record["iteration"] - 1) / 4) ** 0.9 for record in steps]
        assert [record["learning_rate"] for record in steps] == pytest.approx(expected, rel=1e-6)
    model = json.loads((tmp_path / "models" / "model.json").read_text())
    assert model["patch_size"] == [32, 32, 1]
    bundle(run_command, "evaluating", "train", "evaluate", dataset_dir=tiny_cohorts, bundle_root=tmp_path)
    assert len(json.loads((tmp_path / "eval" / "scores.json").read_text())["organs"]) == 13
    images = tiny_cohorts / "test" / "imagesTs"
    bundle(run_command, "inferring", "inference", dataset_dir=images, bundle_root=tmp_path)
    labels = sorted((tmp_path / "eval" / "inference").glob("*_seg.nii.gz"))
    assert [path.name for path in labels] == ["test_000_seg.nii.gz", "test_001_seg.nii.gz"]
    for made in labels:
        scan = nib.load(images / made.name.replace("_seg", ""))
        assert nib.load(made).shape == scan.shape
        np.testing.assert_allclose(nib.load(made).affine, scan.affine, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("supervision", ["full", "semi", "partial"])
def test_every_supervision_trains_on_slices(
    run_command: Run, tiny_cohorts: Path, tmp_path: Path, supervision: str
) -> None:
    more = {"context": 1, "empty_rate": 0.5, "view": "coronal", "slice_size": "[32,16]"}
    bundle(
        run_command, "training", "train", dataset_dir=tiny_cohorts, bundle_root=tmp_path, supervision=supervision,
        **more,
    )  # fmt: skip
    assert (tmp_path / "models" / "model.pt").is_file()


@pytest.mark.slow
def test_three_views_are_fused(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    sizes = {"axial": "[32,32]", "coronal": "[32,16]", "sagittal": "[32,16]"}
    for view, size in sizes.items():
        bundle(
            run_command, "training", "train", dataset_dir=tiny_cohorts, bundle_root=tmp_path / view, view=view,
            slice_size=size, train_iterations=0,
        )  # fmt: skip
    models = ",".join(str(tmp_path / view / "models" / "warmup.pt") for view in sizes)
    images = tiny_cohorts / "test" / "imagesTs"
    done = run_command("-m", "scripts", "segment", images, tmp_path / "out", "--model", models)
    assert done.returncode == 0, done.stderr[-3000:]
    made = sorted((tmp_path / "out").glob("*.nii.gz"))
    assert [path.name for path in made] == sorted(path.name for path in images.glob("*.nii.gz"))
    for path in made:
        assert nib.load(path).shape == nib.load(images / path.name).shape


@pytest.mark.slow
def test_the_3d_demo_of_the_docs_trains(run_command: Run, tiny_cohorts: Path, tmp_path: Path) -> None:
    files = [str(ROOT / "configs" / f"{name}.yaml") for name in ("train", "overlays/demo", "overlays/demo_3d")]
    values = {"dataset_dir": tiny_cohorts, "bundle_root": tmp_path, "warmup_iterations": 2, "train_iterations": 2}
    values |= {"pixdim": "[12,12,15]", "patch_size": "[16,16,8]", "network_def::channels": "[4,8,8,8]"}
    arguments = [argument for key, value in values.items() for argument in (f"--{key}", value)]
    done = run_command("-m", "monai.bundle", "run", "training", "--config_file", str(files), *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "models" / "model.json").read_text())["patch_size"] == [16, 16, 8]
