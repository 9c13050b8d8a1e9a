# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A tiny trained model, tiny phantoms and a server on them, made once for all tests of the server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("monailabel", reason="MONAI Label has an environment of its own: make test-label")

from label.viewer import Viewer, running_server
from tests.label.server.commands import run

GRID = "64,64,32"
TINY = """# Overlay for tests of the server: a tiny network, a handful of iterations.
fold: null
pixdim: [6.0, 6.0, 7.5]
patch_size: [32, 32, 16]
patch_margin: [2, 2, 0]
epoch_length: 2
warmup_iterations: 40
train_iterations: 4
warmup_learning_rate: 1.0e-2
refresh_interval: 2
history_interval: 2
val_interval: 1
loss: dice_ce
network_def::channels: [4, 8]
network_def::strides: [2]
"""


@dataclass(frozen=True)
class Scene:
    """Files of a test.

    Args:
        folder: of all of them.
        reference: cohorts: full, partial and validation.
        overlay: config of the tiny model.
        model: its weights.
        truth: complete label maps of the scans to annotate, by name of the scan.
    """

    folder: Path
    reference: Path
    overlay: Path
    model: Path
    truth: dict[str, Path]

    def studies(self, name: str) -> Path:
        """A folder of its own with the scans."""
        target = self.folder / name
        shutil.copytree(self.folder / "scans" / "test" / "imagesTs", target)
        return target


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("label")
    counts = ["--full", 3, "--partial", 1, "--test", 0, "--validation", 2]
    assert (
        run("scripts", "phantom", "--output", folder / "reference", "--seed", 1, "--grid", GRID, *counts).returncode
        == 0
    )
    counts = ["--full", 0, "--partial", 0, "--test", 5]
    assert run("scripts", "phantom", "--output", folder / "scans", "--seed", 5, "--grid", GRID, *counts).returncode == 0
    overlay = folder / "tiny.yaml"
    overlay.write_text(TINY)
    files = str(["configs/train.yaml", str(overlay)])
    places = ["--dataset_dir", folder / "reference", "--bundle_root", folder / "run"]
    trained = run("scripts", "run", "training", "--config_file", files, *places)
    assert trained.returncode == 0, trained.stderr
    truth = {path.name.removesuffix(".nii.gz"): path for path in (folder / "scans/test/labelsTs").iterdir()}
    return Scene(folder, folder / "reference", overlay, folder / "run" / "models", truth)


@pytest.fixture(scope="session")
def odd_scans(scene: Scene) -> dict[str, Path]:
    """One scan as RAS, PIL, LAS and turned by 20 degrees, by name."""
    source = nib.load(next(iter(scene.truth.values())).parent.parent / "imagesTs" / "test_000.nii.gz")
    folder, angle = scene.folder / "odd", np.deg2rad(20)
    folder.mkdir(exist_ok=True)
    turn = np.eye(4)
    turn[:3, :3] = [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]]
    found = {}
    for axes in ("RAS", "PIL", "LAS"):
        ornt = nib.orientations.ornt_transform(nib.io_orientation(source.affine), nib.orientations.axcodes2ornt(axes))
        found[axes.lower()] = source.as_reoriented(ornt)
    found["oblique"] = nib.Nifti1Image(np.asanyarray(source.dataobj), turn @ source.affine)
    for name, image in found.items():
        nib.save(image, folder / f"{name}.nii.gz")
    return {name: folder / f"{name}.nii.gz" for name in found}


@pytest.fixture(scope="module")
def server(scene: Scene, odd_scans: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Viewer]:
    """A server of the module's own, on the scans to annotate and the odd ones."""
    name = request.module.__name__.split(".")[-1]
    studies = scene.studies(f"studies_{name}")
    for path in odd_scans.values():
        shutil.copy(path, studies)
    options = ["--model", scene.model, "--reference", scene.reference, "--overlays", scene.overlay]
    with running_server(studies, scene.folder / f"state_{name}", *options) as viewer:
        yield viewer
