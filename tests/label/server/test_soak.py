# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A server that is asked two hundred times and trains five times takes no more memory at the end than early on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from label.viewer import Viewer, draw_organs
from tests.label.server.conftest import Scene

pytestmark = [pytest.mark.slow, pytest.mark.label]

TRAININGS, ANSWERS = 5, 40
GROWTH = 1.10


def resident(viewer: Viewer) -> int:
    return int(psutil.Process(viewer.process).memory_info().rss)


def test_memory_stays_flat(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    images = sorted(scene.truth)
    label, info = draw_organs(scene.truth[images[0]], ["liver"], tmp_path / "label.nii.gz")
    assert server.save(images[0], label, label_info=info).status_code == 200
    measured = []
    for turn in range(TRAININGS):
        for number in range(ANSWERS):
            server.infer(images[number % len(images)], tmp_path)
        task = server.train(max_epochs=1, margin=1.0, resume="no", values={"seed": turn, "epoch_length": 2})
        assert task["status"] == "DONE", task["details"]
        measured.append(resident(server))
    print("resident memory after each training, MB:", [round(size / 1e6, 1) for size in measured])
    assert measured[-1] <= GROWTH * measured[0]
    assert server.get("/pann/versions").json()["served"] == 1 + TRAININGS
