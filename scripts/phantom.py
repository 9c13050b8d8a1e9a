# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts phantom --output DIR`: synthetic cohorts to try everything with."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["GRID", "phantom"]

GRID = (96, 96, 40)  # of bundle.cohorts.phantoms, which is not imported for the help


def phantom(
    output: str,
    seed: int = 0,
    full: int = 6,
    partial: int = 8,
    test: int = 8,
    grid: Sequence[int] = GRID,
    folds: int = 5,
    difficulty: float = 1.0,
    drop_labels: int = 0,
    fraction: float = 0.2,
    workers: int | None = None,
) -> None:
    """Write one full, three partial (spleen, pancreas, liver) and one test cohort of synthetic abdominal CTs.

    The complete labels of the partial cohorts go to truth/, which no dataset.json mentions: training never sees them.

    Args:
        output: folder to create the cohorts in.
        seed: the same seed gives the same voxels.
        full: cases of the fully labelled cohort.
        partial: cases of each partially labelled cohort.
        test: cases of the test cohort.
        grid: voxels of a scan, for instance 96,96,40 or 512,512,100.
        folds: folds of the fully labelled cohort.
        difficulty: so many times the noise and the blur of every protocol.
        drop_labels: organs whose labels are forgotten in some fully labelled cases (the paper's PaNN*: 8).
        fraction: share of those cases.
        workers: processes; default one per core.
    """
    from bundle.cohorts.phantoms import make_phantoms

    made = make_phantoms(
        str(output),
        seed=seed,
        full=full,
        partial=partial,
        test=test,
        grid=grid,
        folds=folds,
        difficulty=difficulty,
        drop_labels=drop_labels,
        fraction=fraction,
        workers=workers,
    )
    print(made)
