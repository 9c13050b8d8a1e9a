"""Work in several processes: in order, and what goes wrong is reported."""

import os
import signal

import pytest
import torch

from bundle.errors import InputError
from bundle.processes import check_device, run_all


def double(number: int) -> int:
    return 2 * number


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def refuse(number: int) -> int:
    if number == 1:
        raise InputError("one is not wanted")
    return number


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order(workers: int) -> None:
    assert list(run_all(double, range(20), "doubling", workers, progress=False)) == list(range(0, 40, 2))
    assert not list(run_all(double, [], "doubling", workers, progress=False))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_is_passed_on(workers: int) -> None:
    with pytest.raises(InputError, match="one is not wanted"):
        list(run_all(refuse, range(20), "refusing", workers, progress=False))


def test_a_killed_process_is_explained() -> None:
    with pytest.raises(InputError, match="working: a process was ended from outside, probably for lack of memory"):
        list(run_all(die, range(6), "working", 2, progress=False))


@pytest.mark.parametrize("workers", [0, -1, "two", 1.5])
def test_a_wrong_number_of_processes_is_refused(workers: object) -> None:
    with pytest.raises(InputError, match="workers: expected a number of processes from 1 on"):
        list(run_all(double, range(3), "doubling", workers, progress=False))  # type: ignore[arg-type]


def test_a_device_that_this_machine_has_not_is_named() -> None:
    assert check_device("cpu") == check_device(torch.device("cpu")) == "cpu"
    for device in ("cuda:77", "gpu"):
        with pytest.raises(InputError, match=f"expected a device of this machine .*, found {device}; choose cpu"):
            check_device(device)
