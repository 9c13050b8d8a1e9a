# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""How much memory this process takes, and tensors that take none of it."""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import resource
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["DiskBuffers", "give_back", "peak_memory", "resident_memory", "watch_memory"]

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


class DiskBuffers:
    """Tensors whose memory is that of temporary files: the system writes them out when it needs the room.

    The files have no name, so that nothing is left of them however the process ends. TMPDIR says where they are.
    """

    def __init__(self) -> None:
        self.maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def zeros(self, shape: Sequence[int]) -> Tensor:
        """A float32 tensor."""
        with tempfile.TemporaryFile(prefix="pann-") as file:
            file.truncate(4 * math.prod(shape))
            mapped = mmap.mmap(file.fileno(), 0)
        self.maps.add(mapped)
        return torch.from_numpy(np.frombuffer(mapped, np.float32).reshape(shape))

    def release(self) -> None:
        """Let go of the memory; what is in the files stays, and is read again when it is used."""
        for mapped in list(self.maps):
            mapped.madvise(mmap.MADV_DONTNEED)
