# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts folds DATASET.json`: deal the fully labelled cases of a cohort out to folds, and store them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bundle.errors import InputError
from bundle.files import write_json
from bundle.organs import Vocabulary
from scripts.common import check_numbers

__all__ = ["folds"]


def folds(dataset: str, folds: int = 5, seed: int = 0, organs: str | Sequence[str] | None = None) -> None:
    """Write a fold into each fully labelled training case of a dataset.json; all cases of a patient get the same one.

    Args:
        dataset: the dataset.json. Everything else in it stays.
        folds: how many.
        seed: another one deals them out in another way.
        organs: the vocabulary, for instance liver,spleen; all organs if not given.
    """
    # Imported here: the help needs none of these.
    from bundle.cohorts.datalists import read_cohort, read_datalist
    from bundle.cohorts.selection import deal_folds, is_full

    path = Path(str(dataset))
    path = path / "dataset.json" if path.is_dir() else path
    vocabulary = Vocabulary(organs)
    datalist, cases = read_datalist(path), read_cohort(path, vocabulary)
    check_numbers(folds=folds, seed=seed)
    if "training" not in datalist:
        raise InputError(f'{path}: expected a list of cases under "training" to write folds into, found none')
    full = [number for number, case in enumerate(cases) if is_full(case, vocabulary)]
    if not full:
        raise InputError(f"{path}: no case has all of {', '.join(vocabulary.names)} annotated; choose --organs")
    entries: list[dict[str, Any]] = [
        {"image": entry} if isinstance(entry, str) else entry for entry in datalist["training"]
    ]
    for entry in entries:
        entry.pop("fold", None)
    for number, fold in zip(full, deal_folds([cases[number]["patient"] for number in full], folds, seed), strict=True):
        entries[number]["fold"] = fold
    datalist["training"] = entries
    write_json(path, datalist)
    sizes = Counter(int(entry["fold"]) for entry in entries if "fold" in entry)
    print(
        f"{path}: {len(full)} fully labelled cases in folds of {', '.join(str(sizes[fold]) for fold in range(folds))}"
    )
