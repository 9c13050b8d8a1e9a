# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts phantom`: write synthetic cohorts."""

from __future__ import annotations

from collections.abc import Sequence

from bundle.phantom import GRID, make_phantoms


def phantom(
    output: str,
    seed: int = 0,
    full: int = 6,
    partial: int = 8,
    test: int = 8,
    grid: Sequence[int] = GRID,
    workers: int | None = None,
) -> None:
    """Write synthetic abdominal CT cohorts: one full, three partial (spleen, pancreas, liver) and one test cohort.

    Args:
        output: folder to write to.
        seed: the same seed gives the same voxels.
        full: cases of the fully labelled cohort.
        partial: cases of each partially labelled cohort.
        test: cases of the test cohort.
        grid: voxels of a scan, for instance 96,96,40 or 512,512,100.
        workers: processes; default one per core.
    """
    folder = make_phantoms(output, seed, full, partial, test, grid, workers=workers)
    print(f"cohorts are in {folder}; train with --dataset_dir {folder}")
