# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The real server for tests: started on a free loopback port, asked over HTTP, ended by its process id."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import requests
from numpy.typing import NDArray

from tests.paths import ROOT

START = 90  # seconds until a server answers
PATIENCE = 300  # seconds that a training may take
ORGANS = (
    "spleen", "right kidney", "left kidney", "gallbladder", "esophagus", "liver", "stomach", "aorta",
    "inferior vena cava", "portal and splenic vein", "pancreas", "right adrenal gland", "left adrenal gland",
)  # fmt: skip  # as the challenge numbers them, from 1 on


def free_port() -> int:
    with socket.socket() as test:
        test.bind(("127.0.0.1", 0))
        return int(test.getsockname()[1])


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`python -m …` in this environment."""
    command = [sys.executable, "-W", "ignore", "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)


@dataclass
class Client:
    """What a viewer asks of a server."""

    url: str
    process: int
    log: Path

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=60, **options)

    def post(self, path: str, **options: Any) -> requests.Response:
        return requests.post(self.url + path, timeout=300, **options)

    def infer(self, image: str, folder: Path, **params: Any) -> tuple[Path, dict[str, Any]]:
        """The label map and the JSON part of an answer."""
        sent = {"params": json.dumps({"device": "cpu", **params})}
        answer = self.post(f"/infer/pann?image={image}&output=image", data=sent)
        assert answer.status_code == 200, answer.text
        path = folder / f"{image}{params.get('result_extension', '.nii.gz')}"
        path.write_bytes(answer.content)
        said = self.post(f"/infer/pann?image={image}&output=json", data=sent).json()
        return path, said

    def save(self, image: str, label: Path, tag: str = "final", **params: Any) -> requests.Response:
        with label.open("rb") as file:
            return requests.put(
                f"{self.url}/datastore/label?image={image}&tag={tag}",
                files={"label": (label.name, file)}, data={"params": json.dumps(params)}, timeout=60,
            )  # fmt: skip

    def train(self, **params: Any) -> dict[str, Any]:
        """A training from its request to its end."""
        started = self.post("/train/pann", json={"device": "cpu", **params})
        assert started.status_code == 200, started.text
        return self.wait_for("/train/")

    def wait_for(self, path: str) -> dict[str, Any]:
        """The task after its end."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.get(f"{path}?check_if_running=true").status_code == 404:
                task: dict[str, Any] = self.get(path).json()
                if task["status"] not in ("SUBMITTED", "RUNNING"):
                    return task
            time.sleep(0.3)
        raise AssertionError(f"{path}: not finished within {PATIENCE} s: {self.get(path).text}")


@contextmanager
def serving(studies: str | Path, state: Path, *options: object) -> Iterator[Client]:
    """A server for the length of a block."""
    port, log = free_port(), state.parent / f"{state.name}.log"
    command = [sys.executable, "-W", "ignore", "-m", "scripts", "serve", str(studies), "--state", str(state)]
    environment = {**os.environ, "MONAI_LABEL_DICOMWEB_CACHE_PATH": str(state.parent / "dicom")}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), *map(str, options)],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    client = Client(f"http://127.0.0.1:{port}", process.pid, log)
    try:
        wait_until_up(client, process)
        yield client
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_up(client: Client, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        assert process.poll() is None, client.log.read_text()
        try:
            if client.get("/info/").status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(0.3)
    raise AssertionError(f"no answer within {START} s: {client.log.read_text()}")


# --- What annotators do ----------------------------------------------------------------------------------------------
def write_map(path: Path, labels: NDArray[Any], like: Path) -> Path:
    image = nib.load(like)
    nib.save(nib.Nifti1Image(labels.astype(np.uint8), image.affine), path)
    return path


def as_slicer(truth: Path, organs: list[str], path: Path, shift: int = 3) -> tuple[Path, list[dict[str, Any]]]:
    """What Slicer sends of some organs: all 13 names, numbered by position in an order of its own, most of them empty."""
    order = [*ORGANS[shift:], *ORGANS[:shift]]
    labels = np.asanyarray(nib.load(truth).dataobj)
    drawn = np.zeros(labels.shape, np.uint8)
    for organ in organs:
        drawn[labels == 1 + ORGANS.index(organ)] = 1 + order.index(organ)
    info = [{"name": name, "idx": number} for number, name in enumerate(order, start=1)]
    return write_map(path, drawn, truth), info
