"""`bench views` runs and prints what views and scales cost, for people to read: no test asserts on time."""

import re

import pytest

from scripts.bench import Bench


def test_time_memory_and_file_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().views(slices=10, size=32, scales=(1, 2), width=4, backbone="tiny", backbone_slices=4)
    printed = capsys.readouterr().out
    assert "14 classes, untrained weights, air included\nscales 1, 2; " in printed
    costs = r" +\d+\.\d +\d+\.\d\d +"
    assert re.search(rf"U-Net, width 4, 32×32×10, 1 view, 1 scale{costs}0.00\n", printed)
    assert re.search(rf"U-Net, width 4, 32×32×10, 3 views, 2 scales{costs}\d.\d\d\n", printed)
    assert re.search(rf"DeepLabV3\+, tiny, 32×32×4, 3 views, 2 scales{costs}\d.\d\d\n", printed)
