"""A long stage 2 on tiny phantoms: what a training takes does not grow with its length."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import psutil
import pytest

from tests.paths import ROOT

ITERATIONS, REFRESH = 2000, 100
VALUES = {
    "fold": 0, "pixdim": [12.0, 12.0, 15.0], "patch_size": [32, 32, 1], "patch_margin": 0, "rotation": [0.26, 0, 0],
    "warmup_iterations": 100, "train_iterations": ITERATIONS, "refresh_interval": REFRESH, "epoch_length": REFRESH,
    "val_interval": 1, "history_interval": 10, "network_def::spatial_dims": 2, "network_def::channels": [4, 8],
    "network_def::strides": [2], "device": "cpu",
}  # fmt: skip


def watch(process: subprocess.Popen[bytes], history: Path) -> dict[int, list[tuple[int, int]]]:
    """Resident bytes and open files of a training at many moments, by the refreshes that were done by then."""
    found, seen = defaultdict(list), psutil.Process(process.pid)
    while process.poll() is None:
        try:
            lines = history.read_text().splitlines() if history.is_file() else []
            refreshes = sum('"refresh"' in line for line in lines)
            found[refreshes].append((seen.memory_info().rss, seen.num_fds()))
        except (psutil.Error, OSError):  # it has ended between two questions
            break
        time.sleep(0.05)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_memory_and_open_files_stay_the_same_over_2000_iterations(
    tiny_cohorts: Path, tmp_path: Path, workers: int
) -> None:
    overlay = tmp_path / "soak.json"
    overlay.write_text(json.dumps(VALUES | {"workers": workers}))
    configs = str([str(ROOT / "configs" / "train.yaml"), str(overlay)])
    command = [sys.executable, "-m", "monai.bundle", "run", "training", "--config_file", configs]
    command += ["--dataset_dir", str(tiny_cohorts), "--bundle_root", str(tmp_path / "run")]
    with (tmp_path / "log.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        found = watch(process, tmp_path / "run" / "eval" / "history.jsonl")
    assert process.wait() == 0, (tmp_path / "log.txt").read_text()[-2000:]
    # The first refresh is at iteration 0, the last one at the end, after which the process may be leaving.
    last = ITERATIONS // REFRESH
    before, after = (statistics.median(memory for memory, _ in found[number]) for number in (1, last))
    # Batches under way between processes are open files too: one left by each refresh would still be more than those.
    most, fewest = max(files for _, files in found[2]), min(files for _, files in found[last])
    print(f"resident {before / 1e6:.1f} MB, at the end {after / 1e6:.1f} MB; open files {most}, at the end {fewest}")
    assert after < 1.05 * before
    assert fewest <= most
