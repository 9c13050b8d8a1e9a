"""`bench start` runs and prints ratios, for people to read: no test asserts on time."""

import re

import pytest
import yaml

from scripts.bench import Bench
from scripts.bench.start import OF_DATA, OURS, overlay_without
from scripts.configs import TRAIN


def test_only_the_checks_are_left_out() -> None:
    acts = yaml.safe_load(TRAIN.read_text())["training"]
    targets = [act["_target_"] for act in acts if isinstance(act, dict)]
    assert set(OURS + OF_DATA) <= set(targets)
    assert len(overlay_without(OURS)["training"]) == len(acts) - 3


@pytest.mark.slow
def test_starts_are_timed_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().start(repeats=1, full=2, partial=1, grid=(32, 32, 16), overlays="tests/integration/tiny.yaml")
    printed = capsys.readouterr().out
    assert re.search(r"\nwithout checks +\d+\.\d\d +1.000 +\d+\.\d\d +1.000\n", printed)
    assert re.search(r"\nwith checks, rehearsal +\d+\.\d\d +\d+\.\d{3} +\d+\.\d\d +\d+\.\d{3}\n", printed)
