"""`bench inference` runs and prints ratios, for people to read: no test asserts on time."""

import re

import pytest

from scripts.bench import Bench


def test_labels_are_compared_and_the_growth_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().inference(slices=40, lengths=(20,), size=64, window=32, backends=("torch",), repeats=1)
    printed = capsys.readouterr().out
    assert re.search(r"usual MONAI pipeline +\d+\.\d +1.00 +\d+\.\d\d +1.00\n", printed)
    assert re.search(r"torch, all windows +\d+\.\d +\d+\.\d\d +\d+\.\d\d +\d\.\d\d +100.0000% +0\n", printed)
    assert re.search(r"torch, body only +\d+\.\d", printed)
    assert re.search(r"\n +20 +\d+\.\d +\d+\.\d\d +\d+\.\d\d", printed)
