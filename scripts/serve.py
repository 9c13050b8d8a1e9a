# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts serve STUDIES`: a MONAI Label server that annotators use and that learns from what they save.

It runs in the environment that `make serve` makes; the server itself is in label/.
"""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import InputError
from bundle.files import make_folder, write_text
from scripts.runs import ROOT

__all__ = ["serve"]

HOST = "127.0.0.1"
POLL = 0.5  # seconds between two looks whether the server is up
STATE = ROOT / "eval" / "label"
APP = """# Made by `python -m scripts serve`: here MONAI Label looks for the app.
from label.main import PannApp  # noqa: F401
"""
# Values of MONAI Label's own settings: nothing is fetched, nothing is scored unasked, nothing is tracked elsewhere.
SETTINGS = {
    "MONAI_ZOO_SOURCE": "local",
    "MONAI_LABEL_AUTO_UPDATE_SCORING": "false",
    "MONAI_LABEL_TRACKING_ENABLED": "false",
}


def serve(
    studies: str,
    model: str | None = None,
    reference: str | Sequence[str] = (),
    state: str = str(STATE),
    overlays: str | Sequence[str] = (),
    prior: str | None = None,
    port: int = 8000,
    host: str = HOST,
) -> None:
    """Serve a model to 3D Slicer and OHIF, and train it on what annotators save.

    Args:
        studies: a folder of scans (NIfTI or NRRD), or the URL of a DICOMweb server.
        model: weights to begin with, or their folder; without any the first training makes a model.
        reference: cohorts that each training sees again, and validates on: folders with a dataset.json.
        state: folder in which the server keeps its versions, trainings and reports; the same one goes on.
        overlays: config files on configs/train.yaml for its trainings, such as the one the model was trained with.
        prior: prior.json of an earlier training, where there is no fully labelled case to measure it on.
        port: on which it listens.
        host: on which it listens; 127.0.0.1 is this machine only.
    """
    from scripts.common import listed

    check_environment()
    check_studies(studies)
    check_port(host, port)
    from label.state import ServerState

    folder = ServerState(state)
    lock = folder.own()  # until this process ends
    folder.set_up(model, listed(reference), listed(overlays), prior)
    write_text(make_folder(folder.folder / "app") / "main.py", APP)
    text = welcome(studies, folder.folder, f"http://{host}:{port}", folder.served)
    threading.Thread(target=announce, args=(text, host, port), daemon=True).start()
    start(studies, folder.folder, host, port)
    lock.close()


def check_environment() -> None:
    if importlib.util.find_spec("monailabel") is None:
        raise InputError("serve: MONAI Label is not installed in this environment; `make serve` makes one of its own")


def check_studies(studies: str) -> None:
    """Scans are there; MONAI Label would make an empty folder."""
    if re.match(r"https?://", studies):
        return
    folder = Path(studies)
    if not folder.is_dir():
        raise InputError(f"{studies}: no such folder; give a folder of scans, or the URL of a DICOMweb server")
    if not any(path.name.endswith((".nii.gz", ".nii", ".nrrd")) for path in folder.iterdir()):
        raise InputError(f"{studies}: holds no scan ending with .nii.gz, .nii or .nrrd; give another folder")


def check_port(host: str, port: int) -> None:
    with socket.socket() as test:
        test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            test.bind((host, port))
        except OSError as error:
            raise InputError(f"{host}:{port}: cannot be used ({error.strerror}); choose another --port") from None


def welcome(studies: str, folder: Path, url: str, version: int | None) -> str:
    """How to connect, for whoever has started it."""
    served = f"version {version}" if version else "none yet: the first training makes one"
    ohif = f"{url}/ohif/" if studies.startswith("http") else "needs a DICOMweb server as STUDIES"
    return f"""
PaNN for MONAI, served by MONAI Label

  scans       {studies}
  model       {served}
  state       {folder}

  3D Slicer   Extensions Manager: install "MONAILabel". Module MONAI Label: server {url}, green arrow,
              "Next sample", then "Run" under Auto Segmentation.
              Before "Submit Label", delete every segment that you do not vouch for.
  OHIF        {ohif}
  by hand     {url}/          all requests
              {url}/info/     model, labels, strategies
              {url}/pann/trainings/  reports of trainings

  docs/how-to/label.md has the first ten minutes. Ctrl-C ends the server; the same command goes on.
"""


def announce(text: str, host: str, port: int) -> None:
    """Say how to connect once the server answers, below all that MONAI Label says while it starts."""
    while True:
        with socket.socket() as test:
            if test.connect_ex((host, port)) == 0:
                print(text, flush=True)
                return
        time.sleep(POLL)


def start(studies: str, folder: Path, host: str, port: int) -> None:
    """Become MONAI Label's own command, in this process."""
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ.update({**SETTINGS, "PYTHONPATH": os.pathsep.join(paths)})
    sys.argv = [
        "monailabel", "start_server", "--app", str(folder / "app"), "--studies", studies, "--host", host,
        "--port", str(port), "--conf", "state", str(folder), "--uvicorn_app", "label.server:app",
    ]  # fmt: skip
    from monailabel.main import Main

    Main().run()
