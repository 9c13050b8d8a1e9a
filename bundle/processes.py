# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Several processes with a progress bar, and how much memory this one takes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from bundle.errors import InputError

__all__ = ["give_back", "peak_memory", "resident_memory", "run_all", "watch_memory"]


Item = TypeVar("Item")

Result = TypeVar("Result")


def leave_interrupts() -> None:
    """Ctrl-C reaches all processes; the one that was started deals with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


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
                pool.shutdown(wait=False, cancel_futures=True)  # what is wrong is told at once, not after all others
                raise


STATUS = Path("/proc/self/status")


def status_bytes(field: str) -> int | None:
    """A field of Linux's account of this process; None on other systems."""
    if not STATUS.is_file():
        return None
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


def peak_memory() -> int:
    """Peak resident memory of this process, bytes.

    Linux hands a parent's ru_maxrss down to the processes it starts; VmHWM begins anew with each program.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return status_bytes("VmHWM") or (usage if sys.platform == "darwin" else usage * 1024)


def resident_memory() -> int:
    """Resident memory of this process now, bytes; its peak where the system does not tell."""
    return status_bytes("VmRSS") or peak_memory()


@contextlib.contextmanager
def watch_memory() -> Iterator[Callable[[], int]]:
    """Watch the block; the function it gives tells the most that was resident in it, bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(
            "5"
        )  # Linux: the peak begins anew; elsewhere it is that of the process
    yield peak_memory


def give_back() -> None:
    """Return freed memory to the system: C's allocator keeps it, in pieces, which was half a GB on long scans."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL("libc.so.6").malloc_trim(0)
