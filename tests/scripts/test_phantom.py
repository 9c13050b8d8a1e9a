"""`python -m scripts phantom`: the options of the library's function, without importing it for the help."""

import inspect
from pathlib import Path
from typing import Any

import pytest

from bundle.cohorts.phantoms import make_phantoms
from bundle.errors import InputError
from scripts.phantom import phantom


def test_options_and_defaults_are_those_of_the_library() -> None:
    ours, theirs = (inspect.signature(function).parameters for function in (phantom, make_phantoms))
    assert {name: one.default for name, one in ours.items()} == {name: one.default for name, one in theirs.items()}


def test_cohorts_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phantom(str(tmp_path / "data"), full=1, partial=1, test=0, grid=(16, 16, 8), folds=1, workers=1)
    assert (tmp_path / "data" / "spleen" / "dataset.json").is_file()
    assert capsys.readouterr().out.strip() == str(tmp_path / "data")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"full": -1}, "--full: expected a whole number from 0 on, found -1"),
        ({"seed": -1}, "--seed: expected a whole number from 0 on, found -1"),
        ({"grid": (32, 32, 0)}, "--grid: expected 3 numbers of voxels, each from 8 to 2048, found (32, 32, 0)"),
        ({"full": 0, "partial": 0, "test": 0}, "--full, --partial, --test: expected a case at least, found 0 of each"),
        ({"drop_labels": 13}, "drop_labels: expected fewer than the 13 organs, found 13"),
        ({"fraction": 2}, "--fraction: expected a number from 0 to 1, found 2"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        phantom(str(tmp_path / "data"), **options)
    assert str(caught.value) == sentence
    assert not (tmp_path / "data").exists()
