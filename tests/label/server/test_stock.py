# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The bundle in MONAI Label's own `monaibundle` app: it answers there, and refuses to unlearn organs nobody drew."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from monai.bundle import ConfigParser

from label.viewer import Viewer, draw_organs, free_port, wait_until_up
from tests.label.server.commands import run
from tests.label.server.conftest import Scene
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.label]

# torchvision has no build for PyTorch on CPUs: it does not import before somebody defines its operators.
OPERATORS = """import torch
for name in ("nms", "qnms"):
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


@pytest.fixture(scope="module")
def stock(scene: Scene) -> Iterator[Viewer]:
    """The stock app with a copy of this bundle, its model and one config that has both."""
    app = scene.folder / "monaibundle"
    shutil.copytree(Path(sys.prefix) / "monailabel" / "sample-apps" / "monaibundle", app)
    target = app / "model" / "pann"
    for name in ("bundle", "configs", "docs", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, target / name if (ROOT / name).is_dir() else target)
    shutil.copytree(scene.model, target / "models")
    merged = ConfigParser.load_config_files([str(target / "configs/inference.yaml"), str(target / "models/model.json")])
    ConfigParser.export_config_file(merged, str(target / "configs" / "inference.json"))
    (scene.folder / "operators").mkdir()
    (scene.folder / "operators" / "sitecustomize.py").write_text(OPERATORS)
    port, log = free_port(), scene.folder / "stock.log"
    options = ["--conf", "models", "pann", "--conf", "zoo_source", "local", "--conf", "sam2", "false"]
    command = [sys.executable, "-W", "ignore", "-m", "monailabel.main", "start_server", "--app", str(app), "--studies",
               str(scene.studies("studies_stock")), "--host", "127.0.0.1", "--port", str(port), *options]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(scene.folder / "operators"), "MONAI_ZOO_SOURCE": "local"}
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, cwd=scene.folder)
    viewer = Viewer(f"http://127.0.0.1:{port}", process.pid, log)
    try:
        wait_until_up(viewer, process)
        yield viewer
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def test_answers_are_those_of_segment(stock: Viewer, scene: Scene, tmp_path: Path) -> None:
    scan = scene.folder / "scans" / "test" / "imagesTs" / "test_000.nii.gz"
    made = run("scripts", "segment", scan, tmp_path / "segment", "--model", scene.model, "--backend", "torch")
    assert made.returncode == 0, made.stderr
    expected = np.asanyarray(nib.load(tmp_path / "segment" / "test_000.nii.gz").dataobj)
    found = nib.load(stock.infer("test_000", tmp_path, result_dtype="uint8", result_extension=".nii.gz"))
    np.testing.assert_array_equal(np.asanyarray(found.dataobj), expected)
    assert expected.any()


def test_training_is_refused_with_the_way_out(stock: Viewer, scene: Scene, tmp_path: Path) -> None:
    before = (scene.folder / "monaibundle/model/pann/models/model.pt").read_bytes()
    label, info = draw_organs(scene.truth["test_000"], ["liver"], tmp_path / "test_000.nii.gz")
    assert stock.save("test_000", label, label_info=info).status_code == 200
    task = stock.train(max_epochs=1, val_split=0.0, multi_gpu=False, pretrained=True)
    assert task["status"] == "ERROR"
    details = " ".join(task["details"])
    assert "make serve" in details
    assert (scene.folder / "monaibundle/model/pann/models/model.pt").read_bytes() == before
    assert json.loads(stock.get("/info/").text)["models"]["pann"]["labels"]["liver"] == 6
