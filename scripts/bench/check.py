# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The cost of a data check: beside that of reading the files, in the same number of processes."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np

from bundle.checks.cases import examine_cases
from bundle.cohorts.datalists import Case, read_cohort
from bundle.cohorts.phantoms import make_phantoms
from bundle.processes import run_all
from bundle.reports.check import draw_thumbnail

__all__ = ["run"]


def read_files(case: Case) -> int:
    """Decompress the files of a case, as plainly as can be."""
    return sum(int(np.asanyarray(nib.load(case[key]).dataobj).nbytes) for key in ("image", "label"))


def timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def run(cases: int, grid: Sequence[int], repeats: int, workers: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_phantoms(folder, full=cases, partial=0, test=0, grid=tuple(grid), workers=workers)
        listed = read_cohort(Path(folder) / "full" / "dataset.json")
        work: dict[str, Callable[[], Any]] = {
            "reading the files": lambda: list(run_all(read_files, listed, "reading", workers)),
            "check, with thumbnails": lambda: examine_cases(listed, picture=draw_thumbnail, workers=workers),
            "check before training": lambda: examine_cases(listed, workers=workers),
        }
        times: dict[str, list[float]] = {name: [] for name in work}
        for turn in range(repeats):
            for name in list(work)[:: 1 if turn % 2 else -1]:
                times[name].append(timed(work[name]))
    print(f"{cases} cases of {'×'.join(map(str, grid))}, {workers or os.cpu_count()} processes, median of {repeats}")
    print(f"{'':<24}{'time, s':>10}{'ratio':>8}")
    base = np.array(times["reading the files"])
    for name, values in times.items():
        print(f"{name:<24}{np.median(values):>10.2f}{np.median(np.array(values) / base):>8.2f}")
