"""`bench busy` runs and prints a table, for people to read: no test asserts on time."""

import re

import pytest

from scripts.bench import Bench
from scripts.bench.busy import ALONE, CROWDED, Measured, policies, rows_of, training_step, verdict


def test_every_policy_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    Bench().busy(rounds=2, steps=1, spins=(1000,), threads=1, batch=1, size=32)
    lines = capsys.readouterr().out.splitlines()
    head, _, _, *rows, sentence = [line for line in lines if not line.startswith("note: ")]
    assert head.startswith("training step of the demo's U-Net, 1 slices of 32×32, 1 threads, ")
    numbers = r" +\d+\.\d{4} +\d+\.\d\d +\d+\.\d{4} +\d+\.\d\d +\d+\.\d +\d+\.\d{4}"
    for policy, row in zip(("default", "PASSIVE", "PASSIVE, 1000 spins"), rows, strict=True):
        assert re.fullmatch(policy + numbers, row)
    assert re.search(r"times as fast as by default beside other programs, and take \d+\.\d\d times as long", sentence)


def test_ratios_are_those_of_medians() -> None:
    default, passive = (Measured(policy, {}, 1, 1, 1) for policy in ("default", "PASSIVE"))
    default.times = {ALONE: [1.0, 1.0, 9.0], CROWDED: [30.0, 20.0, 10.0]}
    passive.times = {ALONE: [1.1, 1.1, 1.1], CROWDED: [2.2, 2.2, 5.2]}
    head, *rows = rows_of([default, passive])
    assert rows == [
        ["default", "1.0000", "1.00", "20.0000", "1.00", "20.0", "20.0000"],
        ["PASSIVE", "1.1000", "1.10", "2.2000", "0.11", "2.0", "3.2000"],
    ]
    assert len(head) == len(rows[0])
    assert verdict([default, passive]) == (
        'threads that wait as "PASSIVE" make a step 9.1 times as fast as by default beside other programs, '
        "and take 1.10 times as long alone"
    )


def test_policies_differ_in_their_variables() -> None:
    assert policies([7]) == {
        "default": {},
        "PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
        "PASSIVE, 7 spins": {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "7"},
    }


def test_a_step_runs() -> None:
    step = training_step(1, 32)
    step()
    step()
