"""`bench slices` runs and prints ratios, for people to read: no test asserts on time."""

import re

import pytest

from scripts.bench import Bench


def test_the_loader_is_shown_beside_volumes_and_the_network(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().slices(cases=1, grid=(32, 32, 16), views="axial", backbones="tiny", slices=3, batch=2)
    printed = capsys.readouterr().out
    assert re.search(r"\naxial +\d+\.\d +\d+\.\d\d +\d+\.\d\n", printed)
    assert re.search(r"\ntiny +\d+\.\d{3} +\d+\.\d{3} +\d+\.\d\n", printed)
