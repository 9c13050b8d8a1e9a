"""What goes wrong around a training: it ends with one sentence, leaves no half file, or goes on as if nothing were."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from tests.paths import ROOT

LONG = ("--train_iterations", 100_000, "--epoch_length", 500, "--val_interval", 100, "--refresh_interval", 40_000)
GO_ON = "the same command goes on from the last checkpoint"


class Training:
    """A training in a process group of its own, as a shell starts it."""

    def __init__(self, cohorts: Path, folder: Path, *values: object, limit: int | None = None) -> None:
        configs = [str(ROOT / "configs" / "train.yaml"), str(ROOT / "tests" / "integration" / "tiny.yaml")]
        command = [sys.executable, "-m", "monai.bundle", "run", "training", "--config_file", str(configs)]
        command += ["--dataset_dir", str(cohorts), "--bundle_root", str(folder), *map(str, values)]
        before = None if limit is None else partial(resource.setrlimit, resource.RLIMIT_FSIZE, (limit, limit))
        self.folder, self.seen = folder, b""
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
            preexec_fn=before,
        )  # fmt: skip
        assert self.process.stderr is not None
        self.stream = self.process.stderr

    def read_until(self, pattern: bytes) -> None:
        """Wait until the training has printed this."""
        while not re.search(pattern, self.seen):
            more = os.read(self.stream.fileno(), 2**16)
            assert more, self.seen.decode()
            self.seen += more

    def end(self) -> str:
        """The last line that it prints; no part of a traceback is among the others, and no half file is left."""
        try:
            _, rest = self.process.communicate(timeout=300)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.seen += rest
        text = self.seen.decode()
        assert "Traceback" not in text, text
        assert "terminating due to" not in text
        assert not list(self.folder.rglob(".unfinished-*"))
        return text.rstrip("\n").splitlines()[-1]


STAGE_2 = rb"stage 2: [^\r]*\| [1-9]"


# --- A training that is ended ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("number", "workers", "word", "code"),
    [
        (signal.SIGINT, 2, "interrupted", 130),
        pytest.param(signal.SIGINT, 0, "interrupted", 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 0, "terminated", 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 2, "terminated", 143, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_training_says_how_to_go_on(
    tiny_cohorts: Path, tmp_path: Path, number: signal.Signals, workers: int, word: str, code: int
) -> None:
    training = Training(tiny_cohorts, tmp_path, *LONG, "--workers", workers)
    training.read_until(STAGE_2)
    started = psutil.Process(training.process.pid).children(recursive=True)
    os.killpg(training.process.pid, number)  # to all processes, as from a terminal
    assert training.end() == f"{word}; {GO_ON}"
    assert training.process.returncode == code
    assert not psutil.wait_procs(started, timeout=60)[1]


def test_a_killed_loader_process_ends_the_training_with_advice(tiny_cohorts: Path, tmp_path: Path) -> None:
    training = Training(tiny_cohorts, tmp_path, *LONG, "--workers", 2)
    training.read_until(STAGE_2)
    loader = psutil.Process(training.process.pid).children(recursive=True)[-1]
    loader.kill()
    assert re.fullmatch(r"error: workers: a process that loads data was ended .*--workers 0.* again", training.end())
    assert training.process.returncode == 2


# --- Disks and devices that are not there ----------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("limit", [3_000, 20_000, 60_000])
def test_a_full_disk_leaves_whole_files_and_a_sentence(tiny_cohorts: Path, tmp_path: Path, limit: int) -> None:
    training = Training(tiny_cohorts, tmp_path, limit=limit)  # bytes of a file, refused as a full disk refuses them
    said = training.end()
    assert re.fullmatch(rf"error: {tmp_path}/.*: cannot be written: it is larger than this system allows.*", said)
    assert training.process.returncode == 2
    for path in tmp_path.rglob("*.pt"):
        torch.load(path, weights_only=True)
    assert not (tmp_path / "models" / "model.pt").exists()


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_is_named(tiny_cohorts: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    training = Training(tiny_cohorts, tmp_path / "file" / "run")
    assert re.match(rf"error: {tmp_path}/file/run\S*: cannot be (created|written|used): ", training.end())
    assert training.process.returncode == 2


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_named_before_anything_is_done(tiny_cohorts: Path, tmp_path: Path) -> None:
    training = Training(tiny_cohorts, tmp_path, "--device", "cuda")
    assert training.end().startswith("error: --device: expected a device of this machine")
    assert training.process.returncode == 2
    assert not (tmp_path / "models").exists()


# --- A cache that is damaged or deleted ------------------------------------------------------------------------------
def damage(cache: Path) -> None:
    for path in cache.glob("*.pt"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(os.urandom(64))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("harm", [damage, shutil.rmtree])
def test_a_cache_harmed_under_a_training_changes_no_weight(
    tiny_cohorts: Path, tmp_path: Path, harm: Callable[[Path], None], workers: int
) -> None:
    values = ("--train_iterations", 400, "--epoch_length", 100, "--val_interval", 4, "--refresh_interval", 100)
    runs = [Training(tiny_cohorts, tmp_path / name, *values, "--workers", workers) for name in ("whole", "harmed")]
    runs[1].read_until(STAGE_2)
    harm(tmp_path / "harmed" / "eval" / "cache")
    whole, harmed = ((run.end(), run.process.returncode, weights(run.folder)) for run in runs)
    assert whole[1] == harmed[1] == 0
    assert whole[2].keys() == harmed[2].keys()
    assert all(torch.equal(value, harmed[2][name]) for name, value in whole[2].items())
    assert [b"is damaged" in run.seen for run in runs] == [False, harm is damage]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    content = torch.load(folder / "models" / "model.pt", weights_only=True)
    found: dict[str, torch.Tensor] = content.get("model", content)
    return found
