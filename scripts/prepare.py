# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts prepare NAME SOURCE --output DIR`: a public dataset as downloaded becomes a cohort."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.errors import EXIT_CODE, InputError
from bundle.organs import ORGANS
from scripts.common import check_numbers, check_writable, print_table

if TYPE_CHECKING:  # else imported where they are used: the help needs none of these
    from bundle.cohorts.adapters.base import Adapter
    from bundle.cohorts.preparing import Prepared

__all__ = ["prepare", "row_of"]


def prepare(
    name: str | None = None,
    source: str | None = None,
    output: str | None = None,
    cases: int | None = None,
    folds: int | None = None,
    drop_labels: int = 0,
    fraction: float = 0.0,
    seed: int = 0,
    workers: int | None = None,
    datasets: bool = False,
) -> None:
    """Turn the official download of a public dataset into a cohort: a folder with a dataset.json.

    NIfTI files are referred to where they are, so keep the download; other formats are converted.

    Args:
        name: of the dataset; see --datasets.
        source: folder that the download was unpacked to. It is not changed.
        output: folder of the cohort; data/NAME if not given.
        cases: take so many labelled cases, evenly spread (the paper takes 40 of each partial cohort).
        folds: folds to deal out by patient; five for datasets with all organs annotated, none for others.
        drop_labels: organs whose labels are forgotten in some cases (the paper's PaNN*: 8).
        fraction: share of those cases (the paper's PaNN*: 0.2).
        seed: of the folds and of what is forgotten.
        workers: processes; all cores if not given.
        datasets: print the datasets there are, and do nothing.
    """
    if datasets:
        print_datasets()
        return
    if name is None or source is None:
        raise InputError("expected NAME and SOURCE, as in `prepare btcv downloads/RawData`; --datasets shows the names")
    from bundle.cohorts.adapters import find_adapter
    from bundle.cohorts.preparing import prepare_cohort

    check_numbers(cases=cases, folds=folds, drop_labels=drop_labels, seed=seed, workers=workers)
    adapter = find_adapter(str(name))
    folder = Path(str(output)) if output is not None else Path("data", adapter.name)
    check_writable(folder)
    prepared = prepare_cohort(adapter, Path(str(source)), folder, cases, folds, drop_labels, fraction, seed, workers)
    report(prepared, adapter)
    if prepared.failures:
        sys.exit(EXIT_CODE)


def print_datasets() -> None:
    from bundle.cohorts.adapters import ADAPTERS

    head = ("name", "organs", "cases", "registration", "license", "where to get it")
    rows = [head, *(row_of(adapter) for adapter in ADAPTERS.values())]
    print_table(rows)


def row_of(adapter: Adapter) -> tuple[str, ...]:
    """What the list of datasets says of one."""
    from bundle.cohorts.preparing import annotated_organs

    organs = annotated_organs(adapter)
    left_out = [organ.name for organ in ORGANS if organ.name not in organs]
    words = ", ".join(organs)
    if not left_out:
        words = f"all {len(ORGANS)}"
    elif len(left_out) < 6:
        words = f"all but {', '.join(left_out)}"
    needed = "needed" if adapter.registration else "none"
    return adapter.name, words, str(adapter.cases), needed, adapter.license, adapter.url


def report(prepared: Prepared, adapter: Adapter) -> None:
    for note in prepared.notes:
        print(f"note: {note}")
    for failure in prepared.failures:
        print(f"error: {failure}", file=sys.stderr)
    training, test = (prepared.entries[section] for section in ("training", "test"))
    numbers = sorted({entry["fold"] for entry in training if "fold" in entry})
    dealt = f" in {len(numbers)} folds" if numbers else ""
    fewer = sum("labelled" in entry for entry in training)
    partly = f" ({fewer} with fewer labels)" if fewer else ""
    print(f"{adapter.title}: {len(training)} training cases{dealt}{partly}, {len(test)} test cases in {prepared.path}")
    if prepared.failures:
        print(f"{len(prepared.failures)} cases could not be prepared and are left out", file=sys.stderr)
    print(f"next: python -m scripts check {prepared.path}")
