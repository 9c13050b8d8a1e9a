# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A day of a server, over HTTP: it answers, annotators save, it learns, is stopped, goes on, and goes back."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import psutil
import pytest
import torch

from label.viewer import Viewer, draw_organs
from tests.label.server.commands import run
from tests.label.server.conftest import Scene

ORGANS = (
    "spleen", "right kidney", "left kidney", "gallbladder", "esophagus", "liver", "stomach", "aorta",
    "inferior vena cava", "portal and splenic vein", "pancreas", "right adrenal gland", "left adrenal gland",
)  # fmt: skip  # as the challenge numbers them, from 1 on
pytestmark = [pytest.mark.slow, pytest.mark.label]


def state_of(scene: Scene) -> Path:
    return scene.folder / "state_test_server"


def weights(scene: Scene, version: int) -> dict[str, torch.Tensor]:
    path = state_of(scene) / "versions" / f"{version:04d}" / "model.pt"
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["model"]
    return state


def history_of(scene: Scene, training: int) -> list[dict[str, Any]]:
    path = state_of(scene) / "trainings" / f"{training:04d}" / "eval" / "history.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- It answers ------------------------------------------------------------------------------------------------------
def test_info_names_the_organs_without_background(server: Viewer) -> None:
    info = server.get("/info/").json()
    assert info["labels"] == list(ORGANS)
    assert info["models"]["pann"]["labels"] == {name: number for number, name in enumerate(ORGANS, start=1)}
    assert {"first", "random", "unlikely_sizes", "rarest_organs"} == set(info["strategies"])
    assert {"dice", "plausibility"} == set(info["scoring"])


@pytest.mark.parametrize("name", ["ras", "pil", "las", "oblique"])
def test_answers_are_those_of_segment_voxel_by_voxel(
    server: Viewer, scene: Scene, odd_scans: dict[str, Path], name: str, tmp_path: Path
) -> None:
    made = run("scripts", "segment", odd_scans[name], tmp_path / "segment", "--model", scene.model)
    assert made.returncode == 0, made.stderr
    expected = nib.load(tmp_path / "segment" / f"{name}.nii.gz")
    found, said = nib.load(server.infer(name, tmp_path)), server.judge(name)
    assert np.asanyarray(expected.dataobj).any()
    np.testing.assert_array_equal(np.asanyarray(found.dataobj), np.asanyarray(expected.dataobj))
    np.testing.assert_allclose(found.affine, expected.affine, atol=1e-5)
    assert said["label_names"]["liver"] == 6
    assert said["label_colors"]["liver"] == [193, 18, 31]
    voxels = int((np.asanyarray(found.dataobj) == 6).sum())
    assert said["volumes_ml"]["liver"] == pytest.approx(voxels * abs(np.linalg.det(found.affine)) / 1000, abs=0.01)
    assert set(said["plausibility"]) == set(ORGANS)
    assert {"flag", "why", "expected_ml", "spreads"} <= set(said["plausibility"]["liver"])


def test_slicer_gets_the_same_labels_as_nrrd(server: Viewer, tmp_path: Path) -> None:
    import itk

    nifti = server.infer("oblique", tmp_path)
    nrrd = server.infer("oblique", tmp_path, result_extension=".nrrd", result_dtype="uint8")
    image, other = itk.imread(str(nrrd)), itk.imread(str(nifti))
    np.testing.assert_array_equal(itk.array_from_image(image), itk.array_from_image(other))
    for part in ("GetOrigin", "GetSpacing"):
        np.testing.assert_allclose(list(getattr(image, part)()), list(getattr(other, part)()), atol=1e-4)
    np.testing.assert_allclose(
        itk.array_from_matrix(image.GetDirection()), itk.array_from_matrix(other.GetDirection()), atol=1e-5
    )


# --- Annotators save -------------------------------------------------------------------------------------------------
SHORT = {"epoch_length": 2, "history_interval": 2, "val_interval": 1}  # of tiny trainings
SAVED = {"test_000": ["liver"], "test_001": ["spleen"], "test_002": ["left kidney", "pancreas"]}


def test_only_what_is_drawn_is_annotated(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    for image, organs in SAVED.items():
        label, info = draw_organs(scene.truth[image], organs, tmp_path / f"{image}.nii.gz")
        answer = server.save(image, label, label_info=info).json()
        assert sorted(answer["label_set"]) == sorted(organs)
        assert answer["complete"] is False


def test_a_map_without_names_says_nothing(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    label, _ = draw_organs(scene.truth["test_003"], ["liver"], tmp_path / "test_003.nii.gz")
    answer = server.save("test_003", label).json()
    assert answer["label_set"] == []
    assert "nothing will be learned" in answer["note"]


# --- It learns -------------------------------------------------------------------------------------------------------
def test_a_training_uses_exactly_these_label_sets_and_is_served(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    before = server.infer("test_004", tmp_path)
    labels = np.asanyarray(nib.load(before).dataobj)
    task = server.train(max_epochs=4, margin=1.0, values={**SHORT, "train_learning_rate": 0.01})
    assert task["status"] == "DONE", task["details"]
    lines = history_of(scene, 1)
    sets = {name: organs for name, organs in lines[0]["label_sets"].items() if name.startswith("saved/")}
    assert {name: sorted(organs) for name, organs in sets.items()} == {
        f"saved/{image}": sorted(organs) for image, organs in SAVED.items()
    }
    steps = [line for line in lines if line["kind"] == "step"]
    assert {"labelled", "partial", "prior"} <= set(steps[-1])
    assert steps[-1]["iteration"] == 8  # 4 epochs of 2 iterations bound the whole training: stage 1 is the served model
    assert not [line for line in lines if line.get("stage") == "warmup"]
    assert server.get("/pann/versions").json()["served"] == 2
    first, second = weights(scene, 1), weights(scene, 2)
    assert any(not torch.equal(first[name], second[name]) for name in first)
    after = server.infer("test_004", tmp_path)
    assert server.judge("test_004")["version"] == 2
    assert not np.array_equal(np.asanyarray(nib.load(after).dataobj), labels)
    report = server.get("/pann/trainings/1")
    assert report.status_code == 200
    assert "Served now, as version 2" in report.text
    assert server.get("/info/").json()["train_stats"]["pann"]["status"] == "finished"


def test_validation_cases_are_never_trained_on(scene: Scene) -> None:
    trained = set(history_of(scene, 1)[0]["label_sets"])
    assert trained
    assert not [name for name in trained if name.startswith("validation/")]
    record = json.loads((state_of(scene) / "trainings" / "0001" / "training.json").read_text())
    assert record["plan"]["validated"] == 2
    assert record["comparison"]["cases"] == 2


def test_a_worse_candidate_is_not_served(server: Viewer, scene: Scene) -> None:
    task = server.train(max_epochs=3, margin=0.0, values={**SHORT, "train_learning_rate": 1.0})
    assert task["status"] == "DONE", task["details"]
    record = json.loads((state_of(scene) / "trainings" / "0002" / "training.json").read_text())
    assert record["comparison"]["accepted"] is False
    assert record["comparison"]["why"].startswith("worse than the ")
    assert server.get("/pann/versions").json()["served"] == 2
    assert "Not served" in server.get("/pann/trainings/2").text


# --- It is stopped, goes on, goes back -------------------------------------------------------------------------------
def test_a_training_is_stopped_and_goes_on(server: Viewer, scene: Scene) -> None:
    values = {**SHORT, "save_minutes": 0, "train_learning_rate": 0.001}
    request = {"device": "cpu", "max_epochs": 100, "margin": 1.0, "values": values}
    assert server.post("/train/pann", json=request).status_code == 200
    checkpoint = state_of(scene) / "trainings" / "0003" / "models" / "checkpoint.pt"
    deadline = time.monotonic() + 120
    while not checkpoint.is_file():
        assert time.monotonic() < deadline, server.get("/train/").text
        time.sleep(0.1)
    time.sleep(1)
    assert server.delete("/train/").json()["status"] == "STOPPED"
    reached = torch.load(checkpoint, weights_only=True)["iteration"]
    assert 0 < reached < 200
    assert server.get("/pann/versions").json()["served"] == 2
    request["resume"] = "yes"
    assert server.post("/train/pann", json=request).status_code == 200
    task = server.wait_for("/train/")
    assert task["status"] == "DONE", task["details"]
    record = json.loads((state_of(scene) / "trainings" / "0003" / "training.json").read_text())
    assert record["status"] == "finished"
    assert f"after iteration {reached}" in server.log.read_text()
    assert server.get("/pann/versions").json()["served"] == 3


def test_the_previous_model_is_put_back(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    assert server.judge("test_004")["version"] == 3
    assert server.post("/pann/rollback").json() == {"served": 2}
    assert server.judge("test_004")["version"] == 2
    assert server.post("/pann/rollback?version=1").json() == {"served": 1}
    path = server.infer("ras", tmp_path)
    assert server.judge("ras")["version"] == 1
    made = run("scripts", "segment", scene.folder / "odd" / "ras.nii.gz", tmp_path / "s", "--model", scene.model)
    assert made.returncode == 0
    expected = np.asanyarray(nib.load(tmp_path / "s" / "ras.nii.gz").dataobj)
    np.testing.assert_array_equal(np.asanyarray(nib.load(path).dataobj), expected)


def test_a_failed_training_says_why_and_the_server_lives(server: Viewer, scene: Scene) -> None:
    image = scene.reference / "full" / "imagesTr" / "full_000.nii.gz"
    hidden = image.with_suffix(".away")
    image.rename(hidden)
    try:
        task = server.train(max_epochs=1, values=SHORT)
    finally:
        hidden.rename(image)
    assert task["status"] == "ERROR"
    assert "no such file" in " ".join(task["details"])
    assert "Traceback" not in " ".join(task["details"])
    assert server.get("/info/").json()["train_stats"]["pann"]["status"] == "failed"
    assert "This training failed" in server.get("/pann/trainings/4").text
    assert server.get("/pann/versions").json()["served"] == 1


# --- What next, and how good -----------------------------------------------------------------------------------------
def test_a_batch_is_not_done_twice(server: Viewer) -> None:
    sent = {"device": "cpu", "max_batch_size": 2}
    assert server.post("/batch/infer/pann?images=all", json=sent).status_code == 200
    assert server.wait_for("/batch/infer")["status"] == "DONE"
    assert server.get("/datastore/").json()["label_tags"]["original"] == 2
    assert server.post("/batch/infer/pann?images=all", json={"device": "cpu", "multi_gpu": True}).status_code == 200
    task = server.wait_for("/batch/infer")
    assert task["status"] == "DONE", task
    assert "2 of 9 images were segmented before" in server.log.read_text()
    assert server.get("/datastore/").json()["label_tags"]["original"] == 9


def test_strategies_answer_and_say_why(server: Viewer) -> None:
    for strategy in ("first", "random"):
        assert server.post(f"/activelearning/{strategy}", json={}).json()["id"]
    sample = server.post("/activelearning/unlikely_sizes", json={}).json()
    assert sample["looked_at"] == sample["unlabeled"]
    assert sample["why"]
    sample = server.post("/activelearning/rarest_organs", json={}).json()
    assert sample["id"]
    assert all("annotated in" in sentence for sentence in sample["why"])


def test_scoring_is_by_organ_and_only_of_what_was_drawn(server: Viewer) -> None:
    for method in ("dice", "plausibility"):
        assert server.post(f"/scoring/{method}", json={}).status_code == 200
        assert server.wait_for("/scoring/")["status"] == "DONE"
    answer = server.post("/scoring/dice?run_sync=true", json={}).json()
    assert {image: sorted(scores) for image, scores in answer.items() if scores} == {
        image: sorted(organs) for image, organs in SAVED.items()
    }
    plausible = server.post("/scoring/plausibility?run_sync=true", json={}).json()
    assert set(plausible["ras"]["organs"]) == set(ORGANS)


# --- Bad requests ----------------------------------------------------------------------------------------------------
BAD = [
    ("an image that is not there", "post", "/infer/pann?image=gone", {"data": {"params": "{}"}}, 404, "no image"),
    ("another model", "post", "/infer/other?image=ras", {"data": {"params": "{}"}}, 404, "no model 'other'"),
    ("no JSON", "post", "/infer/pann?image=ras", {"data": {"params": "{"}}, 400, "expected JSON"),
    ("a file of the machine", "post", "/infer/pann?image=/etc/hostname", {"data": {"params": "{}"}}, 400, "image"),
    (
        "a file type",
        "post",
        "/infer/pann?image=ras",
        {"data": {"params": '{"result_extension": ".exe"}'}},
        400,
        ".nrrd",
    ),
    ("a device", "post", "/infer/pann?image=ras", {"data": {"params": '{"device": "abacus"}'}}, 400, "device"),
    ("no epochs", "post", "/train/pann", {"json": {"max_epochs": 0}}, 400, "max_epochs"),
    ("a value that is code", "post", "/train/pann", {"json": {"values": {"seed": "$print(1)"}}}, 400, "plain value"),
    (
        "a value of the server's",
        "post",
        "/train/pann",
        {"json": {"values": {"bundle_root": "/"}}},
        400,
        "by the server",
    ),
    ("a misspelled value", "post", "/train/pann", {"json": {"values": {"sed": 1}}}, 400, 'mean "seed"'),
    ("another trainer", "post", "/train/other", {"json": {}}, 404, "no model 'other'"),
    ("another strategy", "post", "/activelearning/other", {"json": {}}, 404, "other"),
    ("another scoring", "post", "/scoring/other?run_sync=true", {"json": {}}, 404, "other"),
    ("a version that is not there", "post", "/pann/rollback?version=99", {}, 400, "99"),
    ("a report that is not there", "get", "/pann/trainings/99", {}, 404, "no report"),
    *(
        (
            f"an answer under the tag {tag}",
            "post",
            "/infer/pann?image=ras",
            {"data": {"params": json.dumps({"save_label": True, "label_tag": tag})}},
            400,
            "tag",
        )
        for tag in ("final", "../../escaped")
    ),
    (
        "code in a list",
        "post",
        "/train/pann",
        {"json": {"values": {"rotation": ["$exit()", 0, 0]}}},
        400,
        "plain value",
    ),
    (
        "an object as a value",
        "post",
        "/train/pann",
        {"json": {"values": {"seed": {"_target_": "x"}}}},
        400,
        "plain value",
    ),
    ("a misspelled option", "post", "/train/pann", {"json": {"max_epoch": 1}}, 400, "max_epochs"),
    ("a device to train on", "post", "/train/pann", {"json": {"device": "abacus"}}, 400, "device"),
    ("all trainings", "post", "/train/", {"json": {}}, 400, "name the model"),
    (
        "scores of what people saved",
        "post",
        "/scoring/plausibility?run_sync=true",
        {"json": {"tag": "final"}},
        400,
        "saved",
    ),
    ("other weights", "put", "/model/pann", {"files": {"file": b"x"}}, 405, "versions come from trainings"),
    ("no weights", "delete", "/model/pann", {}, 405, "versions come from trainings"),
    ("a tag that is a path", "get", "/datastore/label?label=ras&tag=../../x", {}, 400, "tag"),
]


@pytest.mark.parametrize(("name", "method", "path", "options", "status", "words"), BAD, ids=[row[0] for row in BAD])
def test_bad_requests_get_a_sentence(
    server: Viewer, name: str, method: str, path: str, options: dict[str, Any], status: int, words: str
) -> None:
    answer = getattr(server, method)(path, **options)
    assert answer.status_code == status, answer.text
    assert words in answer.json()["detail"]


def test_bad_saves_get_a_sentence_and_change_nothing(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    before = server.get("/datastore/?output=all").json()
    truth = scene.truth["test_004"]
    label, info = draw_organs(truth, ["liver"], tmp_path / "test_004.nii.gz")
    small = tmp_path / "small.nii.gz"
    nib.save(nib.Nifti1Image(np.ones((4, 4, 4), np.uint8), np.eye(4)), small)
    bad = [
        (label, {"label_info": info[:2]}, "which no segment"),
        (label, {"label_info": [{**one, "name": one["name"].replace("liver", "livr")} for one in info]}, "liver"),
        (label, {"label_info": "liver"}, "label_info"),
        (label, {"label_info": info, "complete": "yes"}, "complete"),
        (small, {"label_info": [{"name": "liver", "idx": 1}]}, "grid"),
    ]
    for path, params, words in bad:
        answer = server.save("test_004", path, **params)
        assert answer.status_code == 400, answer.text
        assert words in answer.json()["detail"]
    assert server.save("gone", label, label_info=info).status_code == 404
    assert server.get("/datastore/?output=all").json() == before


def test_a_complete_case_is_fully_labeled(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    label, info = draw_organs(scene.truth["test_004"], ["liver", "spleen"], tmp_path / "test_004.nii.gz")
    answer = server.save("test_004", label, label_info=info, complete=True).json()
    assert answer["label_set"] == list(ORGANS)
    assert answer["complete"] is True


def test_the_server_is_alive_at_the_end(server: Viewer) -> None:
    assert psutil.Process(server.process).is_running()
    assert server.get("/info/").json()["datastore"]["completed"] == 5
    assert "Traceback" not in server.log.read_text()
