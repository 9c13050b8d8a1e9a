# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The reference cohorts as a training of the server sees them: copies of their datalists that say what is held out.

The server trains again and again; a case that it validates on must never have been trained on before. So the choice is
made from the reference alone, whatever annotators save later.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bundle.cohorts.datalists import Case, Entry, listed_entries, read_cohort, read_datalist
from bundle.cohorts.folders import cohort_name
from bundle.cohorts.selection import full_cases, held_out
from bundle.errors import InputError
from bundle.files import write_json
from bundle.organs import Vocabulary

__all__ = ["copy_reference"]

COPIED = ("training", "validation")  # test cases are none of the server's business
HELD_OUT, KEPT = 0, 1  # folds of the copies


def copy_reference(
    datalists: Sequence[str | Path], folder: Path, vocabulary: Vocabulary, fold: int | None = 0
) -> list[Path]:
    """Write the datalists of the reference into ``folder``, with paths and folds that hold there.

    Fully labelled cases of a section `validation` are validated on. Only where there is none, a fold of the training
    cases is held out.

    Args:
        datalists: the dataset.json files.
        folder: for the copies, one folder per cohort.
        vocabulary: the organs of the model.
        fold: that the model was trained without, if it says so.

    Returns:
        The copies.

    Raises:
        InputError: when two cohorts have one name.
    """
    paths = [Path(path) for path in datalists]
    names = [cohort_name(path) for path in paths]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"reference: two cohorts are called {twice[0]}; rename the folder of one of them")
    outside = held_out_images(paths, vocabulary, fold)
    return [copy_datalist(path, folder / name, outside) for path, name in zip(paths, names, strict=True)]


def held_out_images(paths: Sequence[Path], vocabulary: Vocabulary, fold: int | None) -> set[str]:
    """Images of the training sections that are validated on."""
    if any(full_cases(read_cohort(path, vocabulary, "validation"), vocabulary) for path in paths):
        return set()
    full: list[Case] = [case for path in paths for case in full_cases(read_cohort(path, vocabulary), vocabulary)]
    try:
        out = held_out(full, 0 if fold is None else fold)
    except InputError:  # the reference is not what the model was trained on, and has no such fold
        out = held_out(full, min((case["fold"] for case in full if case["fold"] is not None), default=0))
    return {case["image"] for case, held in zip(full, out, strict=True) if held}


def copy_datalist(path: Path, folder: Path, outside: set[str]) -> Path:
    datalist = read_datalist(path)
    copied = {key: value for key, value in datalist.items() if key not in (*COPIED, "test", "file_ending")}
    for section in COPIED:
        copied[section] = [absolute(entry, path.parent, outside) for entry in listed_entries(datalist, section, path)]
    write_json(folder / "dataset.json", copied)
    return folder / "dataset.json"


def absolute(entry: Entry, folder: Path, outside: set[str]) -> Entry:
    """An entry whose files are found from anywhere."""
    image = str(folder / entry["image"])
    placed = {key: os.path.abspath(folder / entry[key]) for key in ("image", "label") if entry.get(key) is not None}
    return {**entry, **placed, "fold": HELD_OUT if image in outside else KEPT}
