# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Servers that begin with less: without a model, and with nothing but a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from label.viewer import draw_organs, running_server
from tests.label.server.conftest import Scene

pytestmark = [pytest.mark.slow, pytest.mark.label]

SHORT = {"epoch_length": 2, "history_interval": 2, "val_interval": 1}


def test_without_a_model_the_first_training_has_both_stages(scene: Scene, tmp_path: Path) -> None:
    options = ["--reference", scene.reference, "--overlays", scene.overlay]
    with running_server(scene.studies("studies_none"), scene.folder / "state_none", *options) as viewer:
        assert viewer.get("/info/").json()["models"] == {}
        answer = viewer.post("/infer/pann?image=test_000&output=json", data={"params": "{}"})
        assert answer.status_code == 400
        assert "no model yet" in answer.json()["detail"]
        label, info = draw_organs(scene.truth["test_000"], ["liver"], tmp_path / "label.nii.gz")
        assert viewer.save("test_000", label, label_info=info).json()["label_set"] == ["liver"]
        task = viewer.train(max_epochs=11, values=SHORT)
        assert task["status"] == "DONE", task["details"]
        assert viewer.judge("test_001")["version"] == 1
    path = scene.folder / "state_none" / "trainings" / "0001" / "eval" / "history.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    reached = {line["stage"]: line["iteration"] for line in lines if line["kind"] == "step"}
    assert reached == {"warmup": 20, "train": 2}  # 11 epochs of 2 in all, shared as 40 to 4 in the overlay
    assert lines[0]["label_sets"]["saved/test_000"] == ["liver"]


def test_partial_saves_alone_train_with_the_prior_of_the_model(scene: Scene, tmp_path: Path) -> None:
    state = scene.folder / "state_alone"
    options = ["--model", scene.model, "--overlays", scene.overlay]
    with running_server(scene.studies("studies_alone"), state, *options) as viewer:
        refused = viewer.train(max_epochs=1, values=SHORT)
        assert refused["status"] == "ERROR"
        assert "nothing to learn from" in refused["details"][-1]
        label, info = draw_organs(scene.truth["test_000"], ["liver"], tmp_path / "label.nii.gz")
        assert viewer.save("test_000", label, label_info=info).status_code == 200
        task = viewer.train(max_epochs=2, values=SHORT)
        assert task["status"] == "DONE", task["details"]
        assert "not compared" in viewer.get("/pann/trainings/2").text
        assert viewer.get("/pann/versions").json()["served"] == 2
    with running_server(scene.folder / "studies_alone", state) as viewer:  # it remembers what it was set up with
        assert viewer.judge("test_001")["version"] == 2
        assert len(viewer.get("/pann/trainings/").json()) == 2
    lines = [json.loads(line) for line in (state / "trainings/0002/eval/history.jsonl").read_text().splitlines()]
    assert lines[0]["label_sets"] == {"saved/test_000": ["liver"]}
    steps = [line for line in lines if line["kind"] == "step"]
    assert all({"partial", "prior"} <= set(line) and "labelled" not in line for line in steps)
