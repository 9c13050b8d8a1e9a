"""Exact resume: a training that was killed, wherever, ends as if nothing had happened."""

import itertools
import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.paths import ROOT

HERE = ROOT / "tests" / "integration"
CONFIGS = [ROOT / "configs" / "train.yaml", HERE / "tiny.yaml", HERE / "killing.yaml"]
WEIGHTS = ("warmup.pt", "model.pt", "model_best.pt")


def train(point: int, data: Path, root: Path, **values: object) -> subprocess.CompletedProcess[str]:
    """Train, and be killed at a point; 0 is none."""
    command = [sys.executable, "-W", "ignore", str(HERE / "killed_training.py"), str(point), "run", "training"]
    command += ["--config_file", str([str(path) for path in CONFIGS])]
    for name, value in {"dataset_dir": data, "bundle_root": root, **values}.items():
        command += [f"--{name}", str(value)]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def left_by(root: Path) -> dict[str, Any]:
    """Everything that a run leaves, without the run's own name."""
    left: dict[str, Any] = {}
    for name in [name for name in WEIGHTS if (root / "models" / name).is_file()]:
        left[name] = torch.load(root / "models" / name, weights_only=True)
        left[name]["record"]["training"].pop("run")
    left["history"] = (root / "eval" / "history.jsonl").read_text().splitlines()[1:]
    left["prior"] = json.loads((root / "eval" / "prior.json").read_text())
    left["prior"].pop("run")
    for path in sorted((root / "eval" / "pseudo_labels").rglob("*.npz")):
        with np.load(path) as arrays:
            left[str(path.relative_to(root / "eval" / "pseudo_labels").parts[1:])] = dict(arrays)
    return left


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}, key=str):
            yield from differences(one.get(key), other.get(key), f"{place}/{key}")
    elif isinstance(one, torch.Tensor | np.ndarray):
        if type(one) is not type(other) or one.shape != other.shape or not bool((one == other).all()):
            yield place
    elif one != other:
        yield f"{place}: {str(one)[:200]} / {str(other)[:200]}"


@pytest.fixture(scope="module")
def undisturbed(tiny_cohorts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A training that nothing happened to, and how many points it has."""
    root = tmp_path_factory.mktemp("undisturbed")
    finished = train(0, tiny_cohorts, root)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return root, int(finished.stdout.split("points:")[1])


def check_kills(points: list[int], data: Path, root: Path, undisturbed: Path, **values: object) -> None:
    """Kill one training at several points, one after the other, and let it end."""
    for point in points:  # counted anew in each: a training that goes on has fewer of them
        killed = train(point, data, root, **values)
        assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    finished = train(0, data, root, **values)
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert list(differences(left_by(undisturbed), left_by(root))) == []
    assert not (root / "models" / "checkpoint.pt").exists()
    assert not list(root.rglob(".unfinished*"))
    assert len(list((root / "eval" / "pseudo_labels").glob("*/*"))) == 1  # of one run, one generation


def spread(count: int, points: int, seed: int) -> list[int]:
    """Random points, one in each of ``count`` equal parts of a training."""
    draw = random.Random(seed)
    edges = [1 + part * points // count for part in range(count + 1)]
    return [draw.randrange(low, high) for low, high in itertools.pairwise(edges)]


@pytest.mark.parametrize("part", range(3))
def test_a_killed_training_ends_as_if_nothing_had_happened(
    tiny_cohorts: Path, undisturbed: tuple[Path, int], tmp_path: Path, part: int
) -> None:
    root, points = undisturbed
    check_kills([spread(3, points, seed=part)[part]], tiny_cohorts, tmp_path, root)


def test_a_killed_training_on_partial_cases_alone_ends_as_if_nothing_had_happened(
    tiny_cohorts: Path, undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    given = {"warmup_checkpoint": undisturbed[0] / "models" / "model.pt",
             "prior_file": undisturbed[0] / "eval" / "prior.json", "cohorts": "spleen,liver"}  # fmt: skip
    whole = train(0, tiny_cohorts, tmp_path / "whole", **given)
    assert whole.returncode == 0, whole.stderr[-3000:]
    points = int(whole.stdout.split("points:")[1])
    check_kills([points // 2], tiny_cohorts, tmp_path / "killed", tmp_path / "whole", **given)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("part", range(12))
def test_a_training_killed_anywhere_ends_as_if_nothing_had_happened(
    tiny_cohorts: Path, undisturbed: tuple[Path, int], tmp_path: Path, part: int, workers: int
) -> None:
    root, points = undisturbed
    check_kills([spread(12, points, seed=100)[part]], tiny_cohorts, tmp_path, root, workers=workers)


@pytest.mark.slow
def test_a_training_killed_again_and_again_ends_as_if_nothing_had_happened(
    tiny_cohorts: Path, undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    check_kills([90, 40, 40, 40, 40], tiny_cohorts, tmp_path, undisturbed[0])


@pytest.mark.slow
def test_a_training_killed_from_outside_with_rare_checkpoints_goes_on_exactly(
    tiny_cohorts: Path, undisturbed: tuple[Path, int], tmp_path: Path
) -> None:
    check_kills([150], tiny_cohorts, tmp_path, undisturbed[0], save_minutes=30, workers=2)
