# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Several processes with a progress bar, the memory that processes take, and threads that leave room for others."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tqdm import tqdm

from bundle.errors import InputError

__all__ = [
    "available_memory",
    "check_device",
    "give_back",
    "outlive_signals",
    "patient_threads",
    "peak_memory",
    "resident_memory",
    "run_all",
    "tree_memory",
    "warn_if_crowded",
    "watch_memory",
]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


GRACE = 30  # seconds from a scheduler's SIGTERM to its SIGKILL, by default


# --- Several processes -----------------------------------------------------------------------------------------------
def run_all(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    description: str,
    workers: int | None = None,
    progress: bool = True,
) -> Iterator[Result]:
    """What ``function`` makes of each item, in order.

    Args:
        function: can be pickled, unless there is one worker.
        items: one call for each.
        description: at the progress bar.
        workers: processes; all cores if None. One works in this process.
        progress: show a bar.

    Raises:
        InputError: when the number of workers is none, or a process was ended from outside.

    Example:
        >>> list(run_all(abs, [-1, 2, -3], "absolute values", workers=1, progress=False))
        [1, 2, 3]
    """
    if workers is not None and (not isinstance(workers, int) or workers < 1):
        raise InputError(f"workers: expected a number of processes from 1 on, found {workers}")
    count = min(workers or os.cpu_count() or 1, len(items))
    bar = tqdm(total=len(items), desc=description, unit="case", disable=not progress or not items)
    with bar:
        if count <= 1:
            for item in items:
                yield function(item)
                bar.update()
            return
        with ProcessPoolExecutor(count, initializer=leave_interrupts) as pool:
            try:
                for result in pool.map(function, items):
                    yield result
                    bar.update()
            except BrokenProcessPool:
                raise InputError(
                    f"{description}: a process was ended from outside, probably for lack of memory; try --workers 1"
                ) from None
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)  # report it at once, not after all the others
                raise


def leave_interrupts() -> None:
    """Ctrl-C reaches all processes; the one that started the others deals with it, and may end them at any time."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def outlive_signals(worker: int) -> None:
    """Let a loader process go on for a while after Ctrl-C and SIGTERM, which schedulers send to all processes of a job.

    The one that trains still wants the data of its last iteration; then it ends the loaders itself.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(GRACE))


# --- Devices ---------------------------------------------------------------------------------------------------------
def check_device(device: Any) -> str:
    """The device's name, if this machine has it.

    Args:
        device: a name (cpu, cuda, cuda:1) or a ``torch.device``.

    Raises:
        InputError: when it has not.

    >>> check_device("cpu")
    'cpu'
    """
    import torch  # here: commands that need no network start without it

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError):  # which says why depends on how PyTorch was built
        raise InputError(
            f"device: expected a device of this machine that PyTorch can use, found {device}; choose cpu, or see "
            "docs/how-to/gpu.md"
        ) from None
    return str(device)


# --- Memory ----------------------------------------------------------------------------------------------------------
def available_memory() -> int:
    """Bytes that programs can still have without swapping."""
    return int(psutil.virtual_memory().available)


def resident_memory() -> int:
    """Resident memory of this process now, bytes."""
    return int(psutil.Process().memory_info().rss)


def peak_memory() -> int:
    """Peak resident memory of this process, bytes.

    psutil has no peak on Linux, and Linux hands a parent's ru_maxrss down to the processes it starts; VmHWM begins
    anew with each program.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return linux_peak(os.getpid()) or (usage if sys.platform == "darwin" else usage * 1024)


def linux_peak(process: int) -> int | None:
    """VmHWM, the peak that Linux keeps of a process, bytes; None on other systems and when the process has ended."""
    with contextlib.suppress(OSError):
        for line in Path("/proc", str(process), "status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def tree_memory(process: int) -> int:
    """Bytes that a process and all that it started took at their peaks, together; 0 when it has ended.

    Pages that processes share count for each. Where the system keeps no peaks, what is resident now counts.
    """
    total = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(process)
        for one in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):  # it may end at any time
                total += linux_peak(one.pid) or int(one.memory_info().rss)
    return total


@contextlib.contextmanager
def watch_memory() -> Iterator[Callable[[], int]]:
    """Watch the block; the function it gives returns the most that was resident in it, bytes."""
    with contextlib.suppress(OSError):  # only Linux can let the peak begin anew, which psutil does not offer
        Path("/proc/self/clear_refs").write_text("5")
    yield peak_memory


def give_back() -> None:
    """Return freed memory to the system: C's allocator keeps it, in pieces, which was half a GB on long scans."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it, and psutil does not offer it
        ctypes.CDLL("libc.so.6").malloc_trim(0)


# --- Threads on a busy machine ---------------------------------------------------------------------------------------
# PyTorch's OpenMP threads spin while they wait for each other. With other programs on the cores that costs a multiple
# of the work; `python -m scripts bench busy` measures it. So they sleep, after some turns: with none a step on a quiet
# machine takes a quarter longer, with so many it takes no longer than by default.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}
CROWDED = 0.75  # share of the cores in use by others from which threads of ours have to wait for a core
GLANCE = 0.2  # seconds


def patient_threads(environment: MutableMapping[str, str] | None = None) -> None:
    """Let OpenMP threads sleep instead of spin while they wait, unless the user has decided about it.

    Has an effect on programs that load torch later: the variables are read at that moment.

    Args:
        environment: variables of a process to be started; those of this process if None.
    """
    variables = os.environ if environment is None else environment
    if not any(name in variables for name in PATIENT):  # one that is set says how the other is meant
        variables.update(PATIENT)


def warn_if_crowded() -> None:
    """Log a warning when other programs use the cores and the threads of this process spin while they wait.

    For programs that have loaded torch before our code runs, where :func:`patient_threads` comes too late.
    """
    if any(name in os.environ for name in PATIENT):
        return
    cores = psutil.cpu_count() or 1
    # The load is a mean over the last minute, in which it may have been ours: a glance shows the present.
    crowded = psutil.getloadavg()[0] > CROWDED * cores and psutil.cpu_percent(GLANCE) > 100 * CROWDED
    if crowded:
        settings = " ".join(f"{name}={value}" for name, value in PATIENT.items())
        logger.warning(
            "other programs keep the %d cores of this machine busy, which slows training down many times over: "
            "stop this, `export %s`, and start it again",
            cores,
            settings,
        )
