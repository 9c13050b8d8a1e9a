# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Which patch of which case enters which mini-batch. Every draw follows from (seed, iteration, slot) alone.

Patches know both how to be drawn and how often a draw covers each voxel (`coverage`), so that the prior q and the
predicted proportions are estimated on the same footing as the mini-batches.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from monai.data import MetaTensor, PersistentDataset, get_track_meta, set_track_meta
from monai.transforms.traits import RandomizableTrait
from numpy.typing import NDArray
from torch.utils.data import Sampler
from tqdm import tqdm

from bundle.cohorts import Case, is_full

__all__ = ["Draw", "LabelStore", "MixedBatches", "PatchDataset", "Patches", "full_indices", "partial_indices"]

Region = tuple[slice, ...]
OPEN_VOLUMES = 256  # mapped files kept open; what is mapped costs address space, not memory


def plain(value: Any) -> torch.Tensor:
    """The tensor without its metadata: MetaTensors would slow every operation of the network down."""
    tensor: torch.Tensor = value.as_tensor() if isinstance(value, MetaTensor) else torch.as_tensor(value)
    return tensor


@contextmanager
def no_metadata() -> Iterator[None]:
    """Transforms that keep no record of what they did: patches are never inverted, and this halves their time."""
    before = get_track_meta()
    set_track_meta(False)
    try:
        yield
    finally:
        set_track_meta(before)


def describe(value: Any) -> Any:
    """What an object is made of, as JSON that is the same in every process."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, dict):
        return {str(key): describe(item) for key, item in sorted(value.items(), key=str)}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in value)
    if isinstance(value, np.random.RandomState):
        return None
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return [type(value).__qualname__, describe(vars(value))]
    return str(value)


class Draw(NamedTuple):
    """One sample to make: which case, and the integers its randomness is derived from."""

    number: int
    seed: tuple[int, ...]


class LabelStore(Protocol):
    """Where completed labels of partially labelled cases are read from (see `bundle.pseudo_labels`)."""

    def read(self, case: Case, region: Region) -> NDArray[np.uint8] | None: ...


class Patches:
    """Patches of a fixed size at uniformly drawn positions.

    Args:
        size: voxels per axis; an axis of size 1 is dropped, which makes slices for a 2D network. -1 is the whole axis.
        margin: voxels read around the patch and cut off after augmentation, so that a rotation needs no padding.
        organ_rate: share of the draws in *fully labelled* cases that are centred on a voxel of a random organ. Draws
            in partially labelled cases are always uniform: the prior is about them.
    """

    def __init__(self, size: Sequence[int], margin: int | Sequence[int] = 0, organ_rate: float = 0.0) -> None:
        self.size = tuple(int(n) for n in size)
        margins = (margin,) * len(self.size) if isinstance(margin, int) else tuple(margin)
        self.margin = tuple(0 if n in (1, -1) else int(m) for n, m in zip(self.size, margins, strict=True))
        self.organ_rate = float(organ_rate)

    @property
    def read_size(self) -> tuple[int, ...]:
        """Voxels read per axis: the patch and its margins."""
        return tuple(n if n == -1 else n + 2 * m for n, m in zip(self.size, self.margin, strict=True))

    def room(self, shape: Sequence[int]) -> list[tuple[int, int]]:
        """Per axis the size that is read and the number of positions it can take."""
        sizes = [total if n == -1 else n for n, total in zip(self.read_size, shape, strict=True)]
        return [(min(n, total), max(1, total - n + 1)) for n, total in zip(sizes, shape, strict=True)]

    def draw(self, shape: Sequence[int], rng: np.random.Generator) -> Region:
        """A region at a uniformly drawn position."""
        return tuple(slice(start := int(rng.integers(count)), start + n) for n, count in self.room(shape))

    def draw_around(self, center: Sequence[Any], shape: Sequence[int], rng: np.random.Generator) -> Region:
        """A region that has ``center`` somewhere in its patch, as far inside the volume as it goes."""
        region = []
        for (n, count), margin, middle in zip(self.room(shape), self.margin, center, strict=True):
            start = int(middle) - margin - int(rng.integers(max(1, n - 2 * margin)))
            start = min(max(start, 0), count - 1)
            region.append(slice(start, start + n))
        return tuple(region)

    def coverage(self, shape: Sequence[int]) -> list[NDArray[np.float64]]:
        """Per axis how often a uniform draw covers each voxel; sums to 1. The product over the axes is the voxel's.

        A voxel at the rim of the volume is covered by fewer positions than one in the middle.
        """
        weights = []
        for (n, count), margin, total in zip(self.room(shape), self.margin, shape, strict=True):
            weight = np.zeros(total)
            for start in range(count):
                weight[start + margin : start + n - margin] += 1
            weights.append(weight / weight.sum())
        return weights

    def trim(self, patch: torch.Tensor) -> torch.Tensor:
        """Cut the margins off a channel-first patch."""
        dropped = [m for n, m in zip(self.size, self.margin, strict=True) if n != 1]
        inner = [slice(m, size - m if m else None) for m, size in zip(dropped, patch.shape[1:], strict=True)]
        return patch[(slice(None), *inner)]

    def squeeze(self, patch: torch.Tensor) -> torch.Tensor:
        """Drop the axes of size 1 of a channel-first patch."""
        axes = [axis for axis, n in enumerate(self.size, start=1) if n == 1]
        return patch.squeeze(axes) if axes else patch


class PatchDataset(PersistentDataset):
    """Cases, preprocessed once into files that are mapped into memory, and cut into patches on demand.

    The transforms before the first random one are run once per case and kept in ``cache_dir``; only a patch is read
    from there. Where a partially labelled case has a completed label map in ``completed``, the patch comes from it,
    read anew each time: a refresh of the pseudo-labels shows at once.

    Items have `image` (1×patch), `label` (1×patch) and `partial` (bool).

    Args:
        data: cases.
        transform: deterministic transforms, then random ones.
        patches: how patches are cut.
        cache_dir: folder of the preprocessed cases.
        organs: names of the vocabulary.
        completed: store of completed label maps.
    """

    def __init__(
        self,
        data: Sequence[Case],
        transform: Any,
        patches: Patches,
        cache_dir: str,
        organs: Sequence[str] | None = None,
        completed: LabelStore | None = None,
    ) -> None:
        super().__init__(data, transform, cache_dir)
        self.patches, self.organs, self.completed = patches, organs, completed
        self.fingerprint = json.dumps([describe(step) for step in self.deterministic_transforms()])
        self.open_volumes: dict[int, dict[str, Any]] = {}
        # Random transforms draw from a state set per sample; without this they would share one per dataset.
        self.transform.set_random_state(0)

    def cache_file(self, case: Case) -> Path:
        """Named by what it is made from: a changed file, label set or transform makes a new one."""
        paths = [os.path.abspath(case[key]) for key in ("image", "label") if key in case]
        files = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
        source = json.dumps([files, case.get("values"), self.fingerprint], sort_keys=True)
        assert self.cache_dir is not None
        return Path(self.cache_dir) / f"{hashlib.sha256(source.encode()).hexdigest()[:32]}.pt"

    def deterministic_transforms(self) -> list[Any]:
        """The transforms that are run once per case."""
        steps = self.transform.flatten().transforms
        return list(itertools.takewhile(lambda step: not isinstance(step, RandomizableTrait), steps))

    def _cachecheck(self, item_transformed: Case) -> dict[str, Any]:
        path = self.cache_file(item_transformed)
        if not path.is_file():
            made = self._pre_transform(dict(item_transformed))
            tensors = {
                key: [plain(part) for part in value] if isinstance(value, list) else plain(value)
                for key, value in made.items()
                if key in ("image", "label", "label_cls_indices")
            }
            # Written beside its place and moved: several processes may make it, none may see half of it.
            partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            torch.save(tensors, partial)
            os.replace(partial, path)
        loaded: dict[str, Any] = torch.load(path, weights_only=True, mmap=True)
        return loaded

    def volume(self, index: int) -> dict[str, Any]:
        """The preprocessed case: `image` and `label`, 1×volume, mapped into memory."""
        if index not in self.open_volumes:
            if len(self.open_volumes) >= OPEN_VOLUMES:
                self.open_volumes.pop(next(iter(self.open_volumes)))
            self.open_volumes[index] = self._cachecheck(self.data[index])
        return self.open_volumes[index]

    def prepare(self) -> None:
        """Preprocess all cases now, with a progress bar, rather than inside the first iterations."""
        missing = [case for case in self.data if not self.cache_file(case).is_file()]
        for case in tqdm(missing, desc="preprocessing", unit="case", disable=not missing):
            self._cachecheck(case)

    def __getitem__(self, draw: Any) -> dict[str, torch.Tensor]:
        index, seed = draw if isinstance(draw, Draw) else (int(draw), (0, int(draw)))
        case, volume = self.data[index], self.volume(index)
        rng = np.random.default_rng(seed)
        partial = not is_full(case, self.organs)
        region = self.choose_region(volume, partial, rng)
        sample = {key: self.patches.squeeze(volume[key][(slice(None), *region)].clone()) for key in ("image", "label")}
        completed = self.completed.read(case, region) if partial and self.completed is not None else None
        if completed is not None:
            sample["label"] = self.patches.squeeze(torch.from_numpy(completed)[None])
        self.transform.set_random_state(seed=int(rng.integers(2**31)))
        with no_metadata():
            sample = self._post_transform(sample)
        return {
            "image": self.patches.trim(plain(sample["image"]).float()),
            "label": self.patches.trim(plain(sample["label"]).round().to(torch.uint8)),
            "partial": torch.tensor(partial),
        }

    def choose_region(self, volume: dict[str, Any], partial: bool, rng: np.random.Generator) -> Region:
        shape = volume["image"].shape[1:]
        # Always drawn, so that the rate changes which patches are centred and nothing else.
        centred = rng.random() < self.patches.organ_rate
        if partial or not centred:
            return self.patches.draw(shape, rng)
        present = [voxels for voxels in volume["label_cls_indices"][1:] if len(voxels)]
        if not present:
            return self.patches.draw(shape, rng)
        voxels = present[rng.integers(len(present))]
        center = np.unravel_index(int(voxels[rng.integers(len(voxels))]), shape)
        return self.patches.draw_around(center, shape, rng)


def full_indices(dataset: PatchDataset) -> list[int]:
    return [index for index, case in enumerate(dataset.data) if is_full(case, dataset.organs)]


def partial_indices(dataset: PatchDataset) -> dict[str, list[int]]:
    """Indices of the partially labelled cases, by cohort."""
    cohorts: dict[str, list[int]] = {}
    for index, case in enumerate(dataset.data):
        if not is_full(case, dataset.organs):
            cohorts.setdefault(case.get("cohort", ""), []).append(index)
    return cohorts


@lru_cache(maxsize=64)
def shuffled(count: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    return np.random.default_rng(seed).permutation(count)


def endless(members: Sequence[int], position: int, seed: tuple[int, ...]) -> int:
    """Item ``position`` of an endless walk that visits all members in a new order every round."""
    turn, place = divmod(position, len(members))
    return members[shuffled(len(members), (*seed, turn))[place]]


class MixedBatches(Sampler[list[Draw]]):
    """Endless mini-batches of fully and partially labelled samples, for example 3 : 1, full ones first.

    Cohorts of partially labelled cases take turns whatever their sizes. Where there is no partially labelled case the
    whole batch is fully labelled. Batch ``i`` depends on the seed and on ``i`` alone; set ``start`` to begin there.

    Args:
        dataset: the cases.
        full: fully labelled samples per batch.
        partial: partially labelled samples per batch.
        seed: seed of the run.
        stage: keeps the draws of the stages apart.
        start: number of the first batch.
    """

    def __init__(
        self, dataset: PatchDataset, full: int, partial: int = 0, seed: int = 0, stage: int = 0, start: int = 0
    ) -> None:
        self.full_cases, self.cohorts = full_indices(dataset), list(partial_indices(dataset).values())
        self.partial = partial if self.cohorts else 0
        self.full = full + partial - self.partial
        self.seed, self.stage, self.start = int(seed), int(stage), int(start)

    def batch(self, iteration: int) -> list[Draw]:
        indices = [
            endless(self.full_cases, iteration * self.full + slot, (self.seed, self.stage, 0))
            for slot in range(self.full)
        ]
        for slot in range(self.partial):
            position = iteration * self.partial + slot
            cohort = endless(range(len(self.cohorts)), position, (self.seed, self.stage, 1))
            turn = position // len(self.cohorts)
            indices.append(endless(self.cohorts[cohort], turn, (self.seed, self.stage, 2, cohort)))
        return [Draw(index, (self.seed, self.stage, iteration, slot)) for slot, index in enumerate(indices)]

    def __iter__(self) -> Iterator[list[Draw]]:
        return (self.batch(iteration) for iteration in itertools.count(self.start))
