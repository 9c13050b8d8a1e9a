# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The server stands on the library and is stood on by nothing; most of it knows nothing of MONAI Label."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bundle.test_rooms import imported
from tests.paths import ROOT

ORDER = [  # a file imports only from files above it
    "naming", "annotations", "state", "replay", "gate", "reports", "planning", "trainings", "predictions", "choosing",
    "series", "archive", "segs", "client", "screenshot", "viewer", "pictures", "datastore", "dicomweb", "tasks",
    "main", "server",
]  # fmt: skip
THEIRS = {"client", "datastore", "dicomweb", "tasks", "main", "server"}  # what MONAI Label calls
FILES = sorted((ROOT / "label").glob("[!_]*.py"))


def used(path: Path) -> set[str]:
    """Files of the folder that a file imports."""
    return {module.split(".")[1] for module in imported(path) if module.startswith("label.")}


def test_every_file_has_its_place() -> None:
    assert {path.stem for path in FILES} == set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_imports_only_from_above(path: Path) -> None:
    above = ORDER[: ORDER.index(path.stem)]
    assert used(path) - set(above) == set()
    assert len(path.read_text().splitlines()) <= 400
    theirs = any(module.split(".")[0] in ("monailabel", "fastapi") for module in imported(path))
    assert theirs == (path.stem in THEIRS)


def test_nothing_stands_on_the_server() -> None:
    others = [*(ROOT / "bundle").rglob("*.py"), *(ROOT / "scripts").rglob("*.py")]
    standing = {path.relative_to(ROOT).as_posix() for path in others if used(path)}
    assert standing == {"scripts/serve.py", "scripts/bench/label.py"}  # which start one
