"""Cohorts are found, and none is left out in silence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bundle.cohorts.datalists import load_cases, read_cohort
from bundle.cohorts.folders import cohort_files, cohort_name, find_cohorts
from bundle.errors import InputError


@pytest.fixture
def cohorts(tmp_path: Path) -> Path:
    for name in ("full", "liver", ".hidden"):
        (tmp_path / name).mkdir()
        datalist = {"labels": {"1": "liver"}, "training": ["a.nii.gz"]}
        (tmp_path / name / "dataset.json").write_text(json.dumps(datalist))
    (tmp_path / "notes.txt").write_text("a file is no cohort")
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_all_cohorts_are_found_but_hidden_ones(cohorts: Path) -> None:
    assert [path.parent.name for path in find_cohorts(cohorts)] == ["full", "liver"]
    (cohorts / "dataset.json").write_text("{}")
    assert len(find_cohorts(cohorts)) == 3


@pytest.mark.parametrize("target", ["nowhere", "broken"])
def test_a_link_that_leads_nowhere_is_no_reason_to_leave_a_cohort_out(cohorts: Path, target: str) -> None:
    (cohorts / "broken").symlink_to(target)  # to itself: a loop
    with pytest.raises(
        InputError, match=r"broken: cannot be looked into \(.+\), and it may be a cohort; allow reading"
    ):
        find_cohorts(cohorts)
    assert len(find_cohorts(cohorts, "full,liver")) == 2


def test_a_folder_that_must_not_be_read_is_an_error(cohorts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir

    def forbidden(path: Any) -> list[str]:
        if Path(path).name == "liver":
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", forbidden)
    with pytest.raises(InputError, match=r"liver: cannot be looked into \(Permission denied\)"):
        load_cases(cohorts)
    with pytest.raises(InputError, match=r"liver: cannot be looked into \(Permission denied\)"):
        cohort_files([cohorts])


def test_a_dataset_json_that_is_no_file_is_an_error(cohorts: Path) -> None:
    (cohorts / "empty" / "dataset.json").mkdir()
    with pytest.raises(InputError, match="empty/dataset.json: expected a JSON file, but it cannot be read"):
        load_cases(cohorts)
    (cohorts / "empty" / "dataset.json").rmdir()
    (cohorts / "empty" / "dataset.json").symlink_to("gone.json")
    with pytest.raises(InputError, match="empty/dataset.json: expected a JSON file, but it cannot be read"):
        load_cases(cohorts)


def test_a_linked_cohort_has_the_name_of_the_link(cohorts: Path) -> None:
    (cohorts / "livers").symlink_to("liver")
    assert [case["cohort"] for case in load_cases(cohorts)] == ["full", "liver", "livers"]


def test_a_cohort_is_named_after_its_folder_however_that_is_written(
    cohorts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cohorts / "empty")
    assert read_cohort("../full/dataset.json")[0]["cohort"] == "full"
    assert cohort_name(Path("dataset.json")) == "empty"
    assert cohort_name(Path("../dataset.json")) == cohorts.name
    with pytest.raises(InputError, match="the name of the cohort, which is that of its folder: expected a name, found"):
        cohort_name(Path("/dataset.json"))
    with pytest.raises(InputError, match=r"expected a name without any of .*, found \"a:b\"; rename it"):
        cohort_name(Path("a:b/dataset.json"))


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "loop"])
def test_names_that_cannot_be_looked_up_are_no_cohorts(cohorts: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such cohort; those in .* are: full, liver"):
        find_cohorts(cohorts, [name])
    with pytest.raises(InputError, match="no such file or folder"):
        cohort_files([cohorts / name])
