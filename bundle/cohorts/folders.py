# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Where cohorts are: the dataset.json files in a folder of cohorts, or those that a command line names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import InputError
from bundle.untrusted import check_name

__all__ = ["RESERVED", "cohort_files", "cohort_name", "find_cohorts"]


RESERVED = '/\\<>:"|?*'  # no part of a name: cohorts and results are copied between systems


def cohort_name(path: Path) -> str:
    """A cohort has the name of the folder of its dataset.json."""
    name = Path(os.path.abspath(path)).parent.name  # of `../dataset.json` too
    return check_name(name, f"{path}: the name of the cohort, which is that of its folder", "rename it", RESERVED)


def find_cohorts(dataset_dir: str | Path, cohorts: str | Sequence[str] | None = None) -> list[Path]:
    """The dataset.json of each cohort: those named, or all found in ``dataset_dir`` and its folders.

    Hidden folders are left out.

    Raises:
        InputError: when there is none, or when a folder cannot be looked into: a cohort is never left out in silence.
    """
    root = Path(dataset_dir)
    if cohorts is None:
        found = datalists_in(root)
        if not os.path.isdir(root):
            raise InputError(f"{root}: no such folder; give the folder of your cohorts as --dataset_dir")
        if not found:
            raise InputError(
                f"{root}: no dataset.json found there or one folder below; give the folder of your cohorts as "
                "--dataset_dir"
            )
        return found
    if not isinstance(cohorts, list | tuple):
        cohorts = str(cohorts).split(",")
    paths = [root / str(cohort).strip() for cohort in cohorts]
    files = [path if path.suffix == ".json" else path / "dataset.json" for path in paths]
    for file in files:
        if not os.path.exists(file):
            known = ", ".join(sorted(path.parent.name for path in datalists_in(root))) or "none"
            raise InputError(f"{file}: no such cohort; those in {root} are: {known}")
    return files


def datalists_in(root: Path) -> list[Path]:
    """The dataset.json of a folder and those of the folders in it."""
    if not os.path.isdir(root):
        return []
    folders = [root, *(root / name for name in sorted(names_in(root)) if not name.startswith("."))]
    return sorted(folder / "dataset.json" for folder in folders if "dataset.json" in names_in(folder))


def names_in(folder: Path) -> list[str]:
    """What is in a folder; nothing is in a file.

    Raises:
        InputError: when it cannot be looked into, or is a link that leads nowhere.
    """
    try:
        return os.listdir(folder)
    except NotADirectoryError:
        return []
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be looked into ({error.strerror}), and it may be a cohort; allow reading it, remove it, "
            "or name the cohorts to use one by one"
        ) from None


def cohort_files(datasets: Sequence[str | Path]) -> list[Path]:
    """The dataset.json files that a command line names: files, folders of cohorts, or folders that hold several."""
    if not datasets:
        raise InputError("expected at least one dataset.json, or a folder of cohorts, found none")
    files: list[Path] = []
    for dataset in (Path(str(dataset)) for dataset in datasets):
        if not os.path.exists(dataset):
            raise InputError(f"{dataset}: no such file or folder; give a dataset.json or a folder of cohorts")
        if os.path.isfile(dataset) and dataset.suffix != ".json":
            raise InputError(
                f"{dataset}: expected a dataset.json or a folder of cohorts, found another file; give those"
            )
        files += [dataset] if os.path.isfile(dataset) else find_cohorts(dataset)
    return list({file.resolve(): file for file in files}.values())
