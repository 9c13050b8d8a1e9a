"""`python -m scripts phantom`: the options of the library's function, without importing it for the help."""

import inspect
from pathlib import Path

import pytest

from bundle.cohorts.phantoms import make_phantoms
from scripts.phantom import phantom


def test_options_and_defaults_are_those_of_the_library() -> None:
    ours, theirs = (inspect.signature(function).parameters for function in (phantom, make_phantoms))
    assert {name: one.default for name, one in ours.items()} == {name: one.default for name, one in theirs.items()}


def test_cohorts_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    phantom(str(tmp_path / "data"), full=1, partial=1, test=0, grid=(16, 16, 8), folds=1, workers=1)
    assert (tmp_path / "data" / "spleen" / "dataset.json").is_file()
    assert capsys.readouterr().out.strip() == str(tmp_path / "data")
