# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What tests share: tiny synthetic cohorts, made once per session, and how the real commands are run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.cohorts.phantoms import make_phantoms
from tests.paths import ROOT

TINY_GRID = (32, 32, 16)


@pytest.fixture(scope="session")
def tiny_cohorts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cohorts of two cases each, three full ones, on a 32×32×16 grid."""
    folder = tmp_path_factory.mktemp("cohorts")
    return make_phantoms(str(folder), seed=1, full=3, partial=2, test=2, grid=TINY_GRID, workers=2)


@pytest.fixture(scope="session")
def clean_cohorts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Cohorts of one case each, two full ones, on a 64×64×32 grid: fine enough for the check to find no fault."""
    folder = tmp_path_factory.mktemp("clean")
    return make_phantoms(str(folder), seed=3, full=2, partial=1, test=1, grid=(64, 64, 32), workers=2)


@pytest.fixture
def data(clean_cohorts: Path, tmp_path: Path) -> Path:
    """A copy of the clean cohorts to plant a fault in."""
    return Path(shutil.copytree(clean_cohorts, tmp_path / "data"))


@pytest.fixture
def run_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `python -m …` as a user would, from the root or another folder."""

    def run(*arguments: object, cwd: Path = ROOT, timeout: int = 600) -> subprocess.CompletedProcess[str]:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("COV_")}
        environment.pop("PYTHONPATH", None)
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout)

    return run


@pytest.fixture
def write_cohort(tmp_path: Path) -> Callable[..., Path]:
    """Write a cohort of 4×4×4 cases whose label maps are given; returns its dataset.json."""

    def write(
        name: str,
        labels: dict[str, object],
        maps: Sequence[np.ndarray | None],
        extra: Sequence[dict[str, object]] = (),
        **fields: object,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        cases = []
        for index, label in enumerate(maps):
            shape = (4, 4, 4) if label is None else label.shape
            nib.save(nib.Nifti1Image(np.zeros(shape, np.int16), np.eye(4)), folder / f"case{index}.nii.gz")
            case: dict[str, object] = {"image": f"./case{index}.nii.gz"}
            if label is not None:
                nib.save(nib.Nifti1Image(label.astype(np.uint8), np.eye(4)), folder / f"case{index}_label.nii.gz")
                case["label"] = f"./case{index}_label.nii.gz"
            cases.append(case | (extra[index] if index < len(extra) else {}))
        path = folder / "dataset.json"
        path.write_text(json.dumps({"labels": labels, "training": cases, **fields}))
        return path

    return write
