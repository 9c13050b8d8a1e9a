"""`bench check` runs and prints ratios, for people to read: no test asserts on time."""

import re

import pytest

from scripts.bench import Bench


def test_a_check_is_shown_beside_reading_the_files(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().check(cases=1, grid=(32, 32, 16), repeats=1, workers=1)
    printed = capsys.readouterr().out
    assert printed.startswith("1 cases of 32×32×16, 1 processes, median of 1\n")
    assert re.search(r"\nreading the files +\d+\.\d\d +1.00\n", printed)
    assert re.search(r"\ncheck, with thumbnails +\d+\.\d\d +\d+\.\d\d\n", printed)
    assert re.search(r"\ncheck before training +\d+\.\d\d +\d+\.\d\d\n", printed)
