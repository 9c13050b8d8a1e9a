# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts crossval`: every fold trained and scored, and a submission of the folds together.

What is trained is in plan.py, the folds' scores are in results.py, scans nobody trained on in unseen.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bundle.errors import InputError

__all__ = ["crossval"]


def crossval(
    dataset_dir: str,
    output: str = "eval/crossval",
    overlays: str | Sequence[str] = (),
    folds: int | Sequence[int] = 5,
    values: str | Sequence[str] | Mapping[str, Any] = (),
    test: str | None = None,
    all_cases: bool = False,
    submission: bool = False,
    cores: int | None = None,
    threads: int | None = None,
    memory: float | None = None,
) -> None:
    """Train and score every fold, then put the scores together. What is finished is kept: run it again to go on.

    A fold is scored with its last weights: the best ones were chosen on the very cases that are scored.

    Args:
        dataset_dir: folder of the cohorts; `python -m scripts folds` stores folds in a dataset.json.
        output: folder for scores.csv, scores.json, and the folds' weights and segmentations.
        overlays: config files on configs/train.yaml, for instance configs/overlays/demo.yaml.
        folds: how many, or which: 0,1,2.
        values: further values of the config: supervision=partial,seed=1
        test: scans that all folds' models segment together, into OUTPUT/ensemble; scored if they have labels.
        all_cases: instead of folds train once, on all cases, and segment the test scans with that, into OUTPUT/all.
        submission: with test, also write OUTPUT/submission.zip; img0001 becomes label0001, as BTCV wants it.
        cores: to use in all; all there are if not given.
        threads: of one run; 1 if not given, or all with a GPU, where one run at a time is best.
        memory: GB to use in all; 80 % of what is available if not given.
    """
    if submission and test is None:
        raise InputError("submission: expected scans to segment beside it, found none; give their folder as --test")
    # Imported here: the help needs none of these.
    from scripts.common import listed
    from scripts.crossval.plan import CrossValidation, chosen_folds, chosen_values
    from scripts.crossval.results import report_folds
    from scripts.crossval.unseen import UnseenScans
    from scripts.runs import check_budget, run_all_within

    chosen = [None] if all_cases else chosen_folds(folds)
    plan = CrossValidation(
        Path(str(dataset_dir)).resolve(),
        Path(str(output)).resolve(),
        tuple(str(Path(str(overlay)).resolve()) for overlay in listed(overlays)),
        chosen_values(values),
    )
    cores = os.cpu_count() or 1 if cores is None else cores
    threads = default_threads(cores) if threads is None else threads
    check_budget(cores, threads, memory)
    plan.check(chosen)
    target = plan.output / ("all" if all_cases else "ensemble")
    unseen = None if test is None else UnseenScans(Path(str(test)).resolve(), target, plan)
    plan.check_data(chosen)
    run_all_within(plan.runs(chosen), cores, threads, memory)
    if not all_cases:
        report_folds(plan, [fold for fold in chosen if fold is not None])
    if unseen is None:
        print(f"weights are {', '.join(str(plan.weights(fold)) for fold in chosen)}")
        return
    unseen.segment([plan.weights(fold) for fold in chosen], cores, memory)
    if submission:
        unseen.write_submission(plan.output / "submission.zip")


def default_threads(cores: int) -> int:
    """One for each run; all of them with a GPU, where one run at a time is best."""
    import torch

    return cores if torch.cuda.is_available() else 1
