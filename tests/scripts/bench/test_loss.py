"""`bench loss` runs and prints ratios, for people to read: no test asserts on time."""

import re

import pytest
import torch

from scripts.bench import Bench
from scripts.bench.loss import stage2_step


def test_both_ratios_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().loss(repeats=2, size=32)
    printed = capsys.readouterr().out
    assert re.search(r"time, s +\d+\.\d+ +\d+\.\d+ +\d+\.\d+", printed)
    assert re.search(r"peak, GB +\d+\.\d+ +\d+\.\d+ +\d+\.\d+", printed)


def test_both_steps_run_on_any_loss() -> None:
    for kind in ("ce", "dice_ce"):
        for with_prior in (True, False):
            stage2_step(with_prior, kind, 32)()
    assert torch.is_grad_enabled()
