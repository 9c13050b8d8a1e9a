# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The cost of the checks before a training: from the start of the process to its first iteration, with and without."""

from __future__ import annotations

import json
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from ignite.engine import Engine, Events
from tqdm import tqdm

from bundle.cohorts.phantoms import make_phantoms
from scripts.configs import TRAIN
from scripts.runs import ROOT, bundle_command

__all__ = ["EndAtOnce", "run"]

OURS = ("bundle.configs.check_values", "bundle.configs.build_parts", "bundle.training.rehearsal.rehearse")
OF_DATA = ("bundle.checks.cases.check_cohorts",)  # which examine every scan: bench check times them


class EndAtOnce:
    """A handler that ends the process after the first iteration.

    Not before it: whatever computes first pays for what PyTorch prepares once.
    """

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.end)

    def end(self) -> None:
        raise SystemExit(0)


def overlay_without(targets: Sequence[str]) -> dict[str, Any]:
    """A config that leaves acts out of the training, and ends it after the first iteration."""
    acts = yaml.safe_load(TRAIN.read_text(encoding="utf-8"))["training"]
    kept = [act for act in acts if not (isinstance(act, dict) and act.get("_target_") in targets)]
    return {"training": kept, "+warmup::handlers": [{"_target_": f"{__name__}.EndAtOnce"}]}


def run(repeats: int, full: int, partial: int, grid: Sequence[int], overlays: Sequence[str]) -> None:
    kinds = ("without", "with")
    times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_phantoms(str(folder / "data"), full=full, partial=partial, test=0, grid=tuple(grid))
        for turn in tqdm(range(-1, repeats), desc="starting", unit="pair"):  # the first one warms the disk
            for kind in kinds[:: 1 if turn % 2 else -1]:
                seconds = timed_start(folder, kind, overlays, f"{kind}{turn}")
                times[kind] += [seconds] if turn >= 0 else []
    cohorts = f"{full} full and 3×{partial} partial phantoms"
    print(f"from the start to the end of the first iteration, {cohorts}, median of {repeats}")
    print(f"{'':<24}{'time, s':>10}{'ratio':>8}{'CPU, s':>10}{'ratio':>8}")
    base = np.array(times["without"])
    for kind, label in zip(kinds, ("without checks", "with checks, rehearsal"), strict=True):
        (elapsed, busy), (ratio, busy_ratio) = np.median(times[kind], 0), np.median(np.array(times[kind]) / base, 0)
        print(f"{label:<24}{elapsed:>10.2f}{ratio:>8.3f}{busy:>10.2f}{busy_ratio:>8.3f}")


def timed_start(folder: Path, kind: str, overlays: Sequence[str], name: str) -> tuple[float, float]:
    """Seconds to the end of the first iteration of a fresh run, and those of them that it computed.

    The latter say more where other programs are busy. What is read of data is the same with and without checks.
    """
    config = folder / f"{kind}.json"
    config.write_text(json.dumps(overlay_without(OF_DATA if kind == "with" else (*OURS, *OF_DATA))))
    values = {"dataset_dir": folder / "data", "bundle_root": folder / name}
    command = bundle_command("training", [TRAIN, *(ROOT / overlay for overlay in overlays), config], **values)
    started, used = time.perf_counter(), cpu_of_children()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - started, cpu_of_children() - used
    if done.returncode:
        raise RuntimeError(f"the training did not start: {done.stderr[-1000:]}")
    return seconds


def cpu_of_children() -> float:
    """Seconds that ended child processes have computed."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
