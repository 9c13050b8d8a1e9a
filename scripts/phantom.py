# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts phantom --output DIR`: synthetic cohorts to try everything with."""

from __future__ import annotations

from bundle.errors import InputError

__all__ = ["GRID", "check_phantoms", "phantom"]

SMALLEST, LARGEST = 8, 2048  # voxels of a scan along an axis
GRID = (96, 96, 40)  # of bundle.cohorts.phantoms, which is not imported for the help


def phantom(
    output: str,
    seed: int = 0,
    full: int = 6,
    partial: int = 8,
    test: int = 8,
    grid: tuple[int, int, int] = GRID,
    folds: int = 5,
    difficulty: float = 1.0,
    drop_labels: int = 0,
    fraction: float = 0.2,
    workers: int | None = None,
    validation: int = 0,
) -> None:
    """Write one full, three partial (spleen, pancreas, liver), a test and a validation cohort of synthetic CTs.

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
        validation: cases of the validation cohort.
    """
    others = {"seed": seed, "folds": folds, "drop_labels": drop_labels, "workers": workers}
    check_phantoms(full, partial, test, grid, validation=validation, **others)
    for name, value, high in (("difficulty", difficulty, 100), ("fraction", fraction, 1)):
        if not 0 <= value <= high:
            raise InputError(f"--{name}: expected a number from 0 to {high}, found {value}")
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
        validation=validation,
    )
    print(made)


def check_phantoms(full: int, partial: int, test: int, grid: tuple[int, int, int] | None, **others: int | None) -> None:
    """Numbers of phantoms that can be made.

    Args:
        full: fully labelled cases.
        partial: cases of each partially labelled cohort.
        test: cases of the test cohort.
        grid: voxels of a scan; None takes the usual ones.
        others: whole numbers from 0 on.

    Raises:
        InputError: naming the option.
    """
    for name, value in {"full": full, "partial": partial, "test": test, **others}.items():
        if value is not None and value < 0:
            raise InputError(f"--{name}: expected a whole number from 0 on, found {value}")
    if not any((full, partial, test, others.get("validation"))):
        raise InputError("--full, --partial, --test: expected a case at least, found 0 of each")
    if grid is not None and not all(SMALLEST <= n <= LARGEST for n in grid):
        raise InputError(f"--grid: expected 3 numbers of voxels, each from {SMALLEST} to {LARGEST}, found {grid}")
