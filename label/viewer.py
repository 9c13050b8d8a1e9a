# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A server started for the length of a block, and what a viewer asks of it: for benchmarks, pictures and tests."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import requests

from bundle.organs import WHOLE_VOCABULARY
from bundle.scans.writing import write_nifti
from scripts.runs import ROOT

__all__ = ["Viewer", "draw_organs", "free_port", "running_server"]

START, PATIENCE = 90, 1800  # seconds until a server answers, and that a task may take
POLL = 0.3  # seconds between two questions
HOST = "127.0.0.1"


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as test:
        test.bind((HOST, 0))
        return int(test.getsockname()[1])


@dataclass
class Viewer:
    """What 3D Slicer and other viewers ask of a server.

    Args:
        url: of the server.
        process: its number.
        log: where its output goes.
    """

    url: str
    process: int
    log: Path

    def get(self, path: str) -> requests.Response:
        return requests.get(self.url + path, timeout=60)

    def post(self, path: str, **options: Any) -> requests.Response:
        return requests.post(self.url + path, timeout=600, **options)

    def put(self, path: str, **options: Any) -> requests.Response:
        return requests.put(self.url + path, timeout=60, **options)

    def delete(self, path: str) -> requests.Response:
        return requests.delete(self.url + path, timeout=60)

    def infer(self, image: str, folder: Path, **params: Any) -> Path:
        """The label map of an answer, as a file in ``folder``."""
        answer = self.post(
            f"/infer/pann?image={image}&output=image", data={"params": json.dumps({"device": "cpu", **params})}
        )
        self.check(answer)
        path = folder / f"{image}{params.get('result_extension', '.nii.gz')}"
        path.write_bytes(answer.content)
        return path

    def judge(self, image: str) -> dict[str, Any]:
        """The JSON part of an answer."""
        answer = self.post(f"/infer/pann?image={image}&output=json", data={"params": '{"device": "cpu"}'})
        return dict(self.check(answer).json())

    def save(self, image: str, label: Path, tag: str = "final", **params: Any) -> requests.Response:
        """Submit a label map."""
        with label.open("rb") as file:
            return requests.put(
                f"{self.url}/datastore/label?image={image}&tag={tag}",
                files={"label": (label.name, file)},
                data={"params": json.dumps(params)},
                timeout=600,
            )

    def train(self, **params: Any) -> dict[str, Any]:
        """A training from its request to its end."""
        self.check(self.post("/train/pann", json={"device": "cpu", **params}))
        return self.wait_for("/train/")

    def wait_for(self, path: str) -> dict[str, Any]:
        """The task of this kind, after its end."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if self.get(f"{path}?check_if_running=true").status_code == 404:
                task: dict[str, Any] = self.get(path).json()
                if task["status"] not in ("SUBMITTED", "RUNNING"):
                    return task
            time.sleep(POLL)
        raise TimeoutError(f"{path}: not finished within {PATIENCE} s: {self.get(path).text}")

    def check(self, answer: requests.Response) -> requests.Response:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.request.method} {answer.url}: {answer.status_code} {answer.text}")
        return answer


@contextmanager
def running_server(studies: str | Path, state: Path, *options: object, port: int | None = None) -> Iterator[Viewer]:
    """`python -m scripts serve` on a loopback port, ended by its process id when the block ends.

    Args:
        studies: a folder of scans, or the URL of a DICOMweb server.
        state: folder of the server.
        options: further ones of the command.
        port: a free one if not given.
    """
    port, log = port or free_port(), state.parent / f"{state.name}.log"
    command = [sys.executable, "-W", "ignore", "-m", "scripts", "serve", str(studies), "--state", str(state)]
    environment = {**os.environ, "MONAI_LABEL_DICOMWEB_CACHE_PATH": str(state.parent / f"{state.name}_archive")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as output:
        process = subprocess.Popen(
            [*command, "--port", str(port), *map(str, options)],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    viewer = Viewer(f"http://{HOST}:{port}", process.pid, log)
    try:
        wait_until_up(viewer, process)
        yield viewer
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_up(viewer: Viewer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended: {viewer.log.read_text()}")
        try:
            if viewer.get("/info/").status_code == 200:
                return
        except requests.ConnectionError:
            time.sleep(POLL)
    raise TimeoutError(f"no answer within {START} s: {viewer.log.read_text()}")


def draw_organs(truth: Path, organs: Sequence[str], path: Path, shift: int = 3) -> tuple[Path, list[dict[str, Any]]]:
    """What Slicer sends of some organs: the names of all 13, numbered by position, most of them empty segments.

    Args:
        truth: a complete label map with the vocabulary's values.
        organs: those that the annotator drew.
        path: of the label map to send.
        shift: by which its numbering differs from the vocabulary's.

    Returns:
        The label map and its `label_info`.
    """
    names = WHOLE_VOCABULARY.names
    order = [*names[shift:], *names[:shift]]
    image = nib.load(truth)
    labels = np.asanyarray(image.dataobj)
    drawn = np.zeros(labels.shape, np.uint8)
    for organ in organs:
        drawn[labels == WHOLE_VOCABULARY.channel(organ)] = 1 + order.index(organ)
    write_nifti(path, drawn, image.affine)
    return path, [{"name": name, "idx": number} for number, name in enumerate(order, start=1)]


def main(url: str, image: str, truth: str, organ: str) -> None:
    """Save one organ of a known truth, as an annotator would who draws it perfectly: for trying a server out.

    Args:
        url: of the server.
        image: its id there.
        truth: complete label map of the image, with the vocabulary's values.
        organ: to save.
    """
    viewer = Viewer(url.rstrip("/"), process=0, log=Path(os.devnull))
    with tempfile.TemporaryDirectory() as folder:
        label, info = draw_organs(Path(truth), [organ], Path(folder) / f"{image}.nii.gz")
        answer = viewer.check(viewer.save(image, label, label_info=info))
    print(json.dumps(answer.json()))


if __name__ == "__main__":
    main(*sys.argv[1:])
