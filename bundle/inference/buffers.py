# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Tensors that take no memory: they are held in temporary files."""

from __future__ import annotations

import math
import mmap
import tempfile
import weakref
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

__all__ = ["DiskBuffers"]


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
