# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Work on many cases in several processes, with a progress bar."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tqdm import tqdm

from bundle.errors import InputError

__all__ = ["run_all"]

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
