# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The reference cohorts as a server's trainings see them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bundle.cohorts.datalists import read_cohort
from bundle.cohorts.folders import find_cohorts
from bundle.errors import InputError
from bundle.organs import WHOLE_VOCABULARY
from label.replay import copy_reference


def folds(paths: list[Path], section: str = "training") -> dict[str, int | None]:
    return {case["case"]: case["fold"] for path in paths for case in read_cohort(path, WHOLE_VOCABULARY, section)}


def test_a_fold_of_the_full_cases_is_held_out(tiny_cohorts: Path, tmp_path: Path) -> None:
    copies = copy_reference(find_cohorts(tiny_cohorts), tmp_path, WHOLE_VOCABULARY, fold=1)
    found = folds(copies)
    assert [name for name, fold in found.items() if fold == 0] == ["full_001"]  # the phantoms say fold 1 of it
    assert not folds(copies, "test")
    for path in copies:
        for case in read_cohort(path, WHOLE_VOCABULARY):
            assert Path(case["image"]).is_file()
            assert Path(case["label"]).is_file()


def test_without_a_fold_of_the_model_the_first_is_held_out(tiny_cohorts: Path, tmp_path: Path) -> None:
    copies = copy_reference(find_cohorts(tiny_cohorts), tmp_path, WHOLE_VOCABULARY, fold=None)
    assert [name for name, fold in folds(copies).items() if fold == 0] == ["full_000"]


def test_a_fold_that_the_reference_does_not_have(tiny_cohorts: Path, tmp_path: Path) -> None:
    copies = copy_reference(find_cohorts(tiny_cohorts), tmp_path, WHOLE_VOCABULARY, fold=77)
    assert [name for name, fold in folds(copies).items() if fold == 0] == ["full_000"]


def test_a_validation_section_holds_out_enough(tiny_cohorts: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(tiny_cohorts, tmp_path / "data"))
    text = (data / "full" / "dataset.json").read_text()
    (data / "unseen").mkdir()
    (data / "unseen" / "dataset.json").write_text(text.replace('"training"', '"validation"').replace("./", "../full/"))
    copies = copy_reference(find_cohorts(data), tmp_path / "copies", WHOLE_VOCABULARY)
    assert set(folds(copies).values()) == {1}
    assert set(folds(copies, "validation")) == {"full_000", "full_001", "full_002"}


def test_two_cohorts_of_one_name_are_refused(tiny_cohorts: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_cohorts / "full", tmp_path / "full")
    paths = [tiny_cohorts / "full" / "dataset.json", tmp_path / "full" / "dataset.json"]
    with pytest.raises(InputError, match="two cohorts are called full"):
        copy_reference(paths, tmp_path / "copies", WHOLE_VOCABULARY)
