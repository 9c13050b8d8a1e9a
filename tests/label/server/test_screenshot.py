# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""OHIF shows the organs of a DICOM SEG that was saved through the server: a real browser, server and archive."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("monailabel", reason="needs the environment of MONAI Label; see make test-label")
pytest.importorskip("selenium", reason="needs selenium")
import requests
from PIL import Image

from bundle.errors import InputError
from bundle.organs import ORGANS, find_organ
from label.archive import free_port, running_orthanc, upload
from label.screenshot import take_screenshot
from label.series import write_phantom_series
from tests.paths import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("Orthanc") or Path("/usr/sbin/Orthanc").exists()), reason="Orthanc is not installed"
    ),
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="Chromium or its driver is not installed",
    ),
]

APP = """
from monailabel.interfaces.app import MONAILabelApp
from label.dicomweb import open_archive

class ArchiveApp(MONAILabelApp):
    def init_remote_datastore(self):
        return open_archive(self.studies)
"""
SERVE = """
import sys, torch, uvicorn
for name in ("nms", "qnms"):  # torchvision does not import without them on a CPU
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
uvicorn.run("monailabel.app:app", host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
"""


@contextmanager
def running_server(folder: Path, studies: str) -> Iterator[str]:
    """MONAI Label with an app that has the archive and no model; it stands on a port other than 8000."""
    (folder / "app").mkdir()
    (folder / "app" / "main.py").write_text(APP)
    settings = {"APP_DIR": folder / "app", "STUDIES": studies, "DICOMWEB_CACHE_PATH": folder / "cache"}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {f"MONAI_LABEL_{name}": str(value) for name, value in settings.items()}
    port = free_port()
    with (folder / "server.log").open("w") as log:
        command = [sys.executable, "-c", SERVE, str(port)]
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(240):
            assert process.poll() is None, (folder / "server.log").read_text()
            with suppress(OSError), urllib.request.urlopen(f"{url}/info/"):
                break
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def near(picture: Path, color: tuple[int, int, int]) -> int:
    """Pixels of the outline of an organ, which OHIF draws in its full color."""
    pixels = np.asarray(Image.open(picture).convert("RGB"), np.int16)
    return int((np.abs(pixels - color).max(axis=2) < 12).sum())


def test_ohif_shows_ct_and_organs(tmp_path: Path) -> None:
    with running_orthanc(tmp_path / "orthanc") as archive, running_server(tmp_path, archive) as server:
        study, image, labels, affine = write_phantom_series(tmp_path / "ct", grid=(96, 96, 24))
        upload(archive, tmp_path / "ct")
        nib.save(nib.Nifti1Image(labels, affine), tmp_path / "label.nii.gz")
        sent = {"label_info": [{"name": organ.name, "idx": organ.value} for organ in ORGANS]}
        with (tmp_path / "label.nii.gz").open("rb") as file:
            answer = requests.put(
                f"{server}/datastore/label?image={image}&tag=final",
                files={"label": file},
                data={"params": json.dumps(sent)},
                timeout=120,
            )
        assert answer.status_code == 200, answer.text
        picture = take_screenshot(server, study, tmp_path / "ohif.png")
        middle = (labels.shape[2] + 1) // 2 - 1  # slices count from the feet, as z does
        for name in ("liver", "spleen", "left kidney"):
            organ = find_organ(name)
            assert organ is not None
            assert (labels[:, :, middle] == organ.value).any()
            assert near(picture, organ.color) > 50, name
        with pytest.raises(InputError, match="expected a number from 1 to 24, found 25"):
            take_screenshot(server, study, tmp_path / "none.png", slice_number=25)
    assert not (tmp_path / "none.png").exists()
