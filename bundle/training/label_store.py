# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Completed label maps of partially labelled cases on disk, on the preprocessed grid."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.datalists import Case, case_file
from bundle.errors import InputError
from bundle.files import whole_file
from bundle.training.patches import Patches, Region, occupied_slices

__all__ = ["PseudoLabelStore"]

OCCUPIED = "occupied"  # name of the piece that says which slices show an organ
SLAB = 8  # slices per compressed piece, where patches are blocks


class PseudoLabelStore:
    """Completed label maps on disk: one compressed file a case, in slabs, so that a patch reads little of it.

    Args:
        directory: folder of the files.
        patches: how patches are cut: a patch that is a slice is a compressed piece of its own.
    """

    def __init__(self, directory: str | Path, patches: Patches) -> None:
        self.directory = Path(directory)
        self.axis, self.slab = (2, SLAB) if patches.slice_axis is None else (patches.slice_axis, 1)
        self.known: dict[Path, tuple[int, NDArray[np.bool_] | None]] = {}  # asked for at every draw

    def path(self, case: Case) -> Path:
        return case_file(self.directory, case, ".npz")

    def write(self, case: Case, completed: NDArray[np.uint8]) -> None:
        """Replace the case's file in one step: a reader sees the old one or the new one, never half of one."""
        across = np.moveaxis(completed, self.axis, 0)
        slabs = {f"{start:05d}": across[start : start + self.slab] for start in range(0, len(across), self.slab)}
        occupied = {OCCUPIED: occupied_slices(completed, self.axis)}
        with whole_file(self.path(case)) as unfinished, unfinished.open("wb") as file:
            np.savez_compressed(file, **occupied, **slabs)  # type: ignore[arg-type]

    def read(self, case: Case, region: Region | None = None) -> NDArray[np.uint8] | None:
        """The completed labels of a region of the case, or of all of it; None before the first refresh."""
        with self.opened(case) as slabs:
            if slabs is None:
                return None
            starts = sorted(int(name) for name in slabs.files if name != OCCUPIED)
            side = region[self.axis] if region else slice(0, starts[-1] + self.slab)
            wanted = [start for start in starts if start < side.stop and start + self.slab > side.start]
            volume = np.concatenate([slabs[f"{start:05d}"] for start in wanted])
        if region is None:
            return np.moveaxis(volume, 0, self.axis)
        inner = slice(side.start - wanted[0], side.stop - wanted[0])
        others = [part for axis, part in enumerate(region) if axis != self.axis]
        return np.ascontiguousarray(np.moveaxis(volume[(inner, *others)], 0, self.axis))

    def occupied(self, case: Case) -> NDArray[np.bool_] | None:
        """Which slices show an organ; None before the first refresh."""
        path = self.path(case)
        made = path.stat().st_mtime_ns if path.is_file() else 0
        if self.known.get(path, (0, None))[0] != made:
            with self.opened(case) as slabs:
                self.known[path] = (made, None if slabs is None else slabs[OCCUPIED])
        return self.known.get(path, (0, None))[1]

    @contextmanager
    def opened(self, case: Case) -> Iterator[Any]:
        """The case's file; None before the first refresh."""
        path = self.path(case)
        try:
            with np.load(path, allow_pickle=False) as slabs:
                yield slabs
        except FileNotFoundError:
            yield None
        except (zipfile.BadZipFile, zlib.error, ValueError, KeyError) as error:
            raise InputError(f"{path}: pseudo-labels are damaged ({error}); delete the file and train again") from None
