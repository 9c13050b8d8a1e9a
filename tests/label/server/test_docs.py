# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The commands of docs/how-to/label.md that need a server are run beside one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from label.viewer import Viewer
from tests.label.server.conftest import Scene
from tests.paths import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.label]

SERVED = ("curl ", "while curl ", "python -m label.viewer ")


def test_ten_minutes_from_nothing_to_a_model_that_has_learned(server: Viewer, scene: Scene, tmp_path: Path) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "docs/how-to/label.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(SERVED)]
    assert len(lines) == 9
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for line in lines:
        line = line.replace("http://127.0.0.1:8000", server.url).replace("python ", f"{sys.executable} ")
        line = line.replace("eval/label-demo/scans", str(scene.folder / "scans"))
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    said = json.loads(done.stdout)  # of the last command: the versions
    trained = server.get("/pann/trainings/").json()[-1]
    assert trained["status"] == "finished"
    assert trained["plan"]["label_sets"] == {"test_000": ["liver"], "test_001": ["spleen"], "test_002": ["pancreas"]}
    assert said["served"] == (2 if trained["comparison"]["accepted"] else 1)
    assert (tmp_path / "answer.nii.gz").stat().st_size > 100
