# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Completed label maps of partially labelled cases on disk, on the preprocessed grid."""

from __future__ import annotations

import shutil
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.datalists import Case, case_file
from bundle.errors import InputError
from bundle.files import whole_file
from bundle.training.patches import Patches, Region, occupied_slices
from bundle.training.run_folder import TrainingRun

__all__ = ["PseudoLabelStore"]

OCCUPIED = "occupied"  # name of the piece that says which slices show an organ
AGAIN = "give the same command again, which makes them anew"
SLAB = 8  # slices per compressed piece, where patches are blocks


class PseudoLabelStore:
    """Completed label maps on disk: one compressed file a case, in slabs, so that a patch reads little of it.

    A refresh makes a generation of its own, which is read once it is whole: RUN/ITERATION/COHORT/CASE.npz. The one
    before stays until a checkpoint of the run no longer needs it. What other runs left is never read.

    Args:
        run: whose files these are.
        patches: how patches are cut: a patch that is a slice is a compressed piece of its own.
    """

    def __init__(self, run: TrainingRun, patches: Patches) -> None:
        self.run = run
        self.axis, self.slab = (2, SLAB) if patches.slice_axis is None else (patches.slice_axis, 1)
        self.generation: int | None = None  # the iteration of the last refresh
        self.unfinished: int | None = None  # that of the refresh under way
        self.known: dict[Path, tuple[int, NDArray[np.bool_] | None]] = {}  # asked for at every draw

    # --- Generations -------------------------------------------------------------------------------------------------
    def folder(self, generation: int) -> Path:
        return self.run.pseudo_labels / f"{generation:07d}"

    @contextmanager
    def refreshing(self, iteration: int) -> Iterator[None]:
        """What is written in the block becomes a generation when the block ends."""
        self.unfinished = iteration
        if iteration != self.generation:  # one that was interrupted must not be looked at
            shutil.rmtree(self.folder(iteration), ignore_errors=True)
        try:
            yield
            self.generation = iteration
        finally:
            self.unfinished = None

    def forget_others(self) -> None:
        """Remove all generations but the present one, and what other runs left."""
        for folder in self.run.pseudo_labels.parent.glob("*"):
            if folder != self.run.pseudo_labels:
                shutil.rmtree(folder, ignore_errors=True)
        for folder in self.run.pseudo_labels.glob("*"):
            if self.generation is None or folder != self.folder(self.generation):
                shutil.rmtree(folder, ignore_errors=True)

    def is_intact(self, cases: Iterable[Case]) -> bool:
        """Whether the present generation has a readable file of each case."""
        try:
            return all(self.read(case) is not None for case in cases)
        except InputError:
            return False

    # --- Cases -------------------------------------------------------------------------------------------------------
    def path(self, case: Case) -> Path | None:
        """The case's newest file: of the refresh under way if it has been made, else of the last one."""
        found = [
            self.file(generation, case) for generation in (self.unfinished, self.generation) if generation is not None
        ]
        return next((path for path in found if path.is_file()), None)

    def file(self, generation: int, case: Case) -> Path:
        return case_file(self.folder(generation), case, ".npz")

    def write(self, case: Case, completed: NDArray[np.uint8]) -> None:
        """Write the case's file of the refresh under way, in one step."""
        assert self.unfinished is not None
        across = np.moveaxis(completed, self.axis, 0)
        slabs = {f"{start:05d}": across[start : start + self.slab] for start in range(0, len(across), self.slab)}
        occupied = {OCCUPIED: occupied_slices(completed, self.axis)}
        with whole_file(self.file(self.unfinished, case)) as unfinished, unfinished.open("wb") as file:
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
        if path is None:
            return None
        made = path.stat().st_mtime_ns
        if self.known.get(path, (0, None))[0] != made:
            with self.opened(case) as slabs:
                self.known[path] = (made, slabs[OCCUPIED])
        return self.known[path][1]

    @contextmanager
    def opened(self, case: Case) -> Iterator[Any]:
        """The case's file; None before the first refresh."""
        path = self.path(case)
        if path is None:
            if self.generation is not None and self.unfinished is None:
                raise InputError(f"{self.file(self.generation, case)}: pseudo-labels are gone; {AGAIN}")
            yield None
            return
        try:
            with np.load(path, allow_pickle=False) as slabs:
                yield slabs
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError) as error:
            raise InputError(f"{path}: pseudo-labels are damaged ({error}); {AGAIN}") from None
