# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Which patch of which case enters which mini-batch. Every draw follows from (seed, iteration, slot) alone.

Patches know both how to be drawn and how often a draw covers each voxel (`coverage`), so that the prior q and the
predicted proportions are estimated on the same footing as the mini-batches.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
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
from bundle.errors import InputError
from bundle.organs import BACKGROUND, IGNORED, Vocabulary
from bundle.scaling import resize

__all__ = [
    "VIEWS",
    "Draw",
    "LabelStore",
    "MixedBatches",
    "PatchDataset",
    "Patches",
    "annotated_channels",
    "full_indices",
    "occupied_slices",
    "partial_indices",
    "slice_patch_size",
]

logger = logging.getLogger(__name__)

Region = tuple[slice, ...]
SCALE_SLOT = 2**16  # beyond the places in a batch: its randomness is its own
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
    """One sample to make: which case, the integers its randomness is derived from, and the scale of its batch."""

    number: int
    seed: tuple[int, ...]
    scale: float = 1.0


class LabelStore(Protocol):
    """Where completed labels of partially labelled cases are read from (see `bundle.pseudo_labels`)."""

    def read(self, case: Case, region: Region) -> NDArray[np.uint8] | None: ...

    def occupied(self, case: Case) -> NDArray[np.bool_] | None: ...


VIEWS = {"axial": 2, "coronal": 1, "sagittal": 0}  # the axis that slices lie across


def slice_patch_size(view: str, size: Sequence[int]) -> list[int]:
    """The size of a patch that is a slice of a view, of ``size`` pixels."""
    if view not in VIEWS:
        raise InputError(f'view: expected one of {", ".join(VIEWS)}, found "{view}"')
    if len(size) != 2:
        raise InputError(f"slice_size: expected two numbers of pixels, found {size}")
    patch = [int(n) for n in size]
    patch.insert(VIEWS[view], 1)
    return patch


def occupied_slices(label: NDArray[Any], axis: int) -> NDArray[np.bool_]:
    """Which slices across an axis of a label map show an organ."""
    organ = (label != BACKGROUND) & (label < IGNORED)
    found: NDArray[np.bool_] = organ.any(tuple(other for other in range(label.ndim) if other != axis))
    return found


class Patches:
    """Patches of a fixed size at uniformly drawn positions.

    Args:
        size: voxels per axis; an axis of size 1 is dropped, which makes slices for a 2D network. -1 is the whole axis.
        margin: voxels read around the patch and cut off after augmentation, so that a rotation needs no padding.
        organ_rate: share of the draws in *fully labelled* cases that are centred on a voxel of a random organ. Draws
            in partially labelled cases are never: the prior is about them.
        empty_rate: how often a slice without any organ is drawn, compared with one that shows one. In partially
            labelled cases the completed labels tell: both kinds of cases are on one footing.
        context: slices on either side that are further channels of the image.
    """

    def __init__(
        self,
        size: Sequence[int],
        margin: int | Sequence[int] = 0,
        organ_rate: float = 0.0,
        empty_rate: float = 1.0,
        context: int = 0,
    ) -> None:
        self.size = tuple(int(n) for n in size)
        margins = (margin,) * len(self.size) if isinstance(margin, int) else tuple(margin)
        self.margin = tuple(0 if n in (1, -1) else int(m) for n, m in zip(self.size, margins, strict=True))
        self.organ_rate, self.empty_rate, self.context = float(organ_rate), float(empty_rate), int(context)
        if not 0 <= self.empty_rate <= 1:
            raise InputError(f"empty_rate: expected a number from 0 to 1, found {empty_rate}")
        if self.context < 0:
            raise InputError(f"context: expected a number of slices from 0 on, found {context}")
        if self.slice_axis is None and (self.empty_rate < 1 or self.context):
            raise InputError(
                f"empty_rate, context: are about slices, but patch_size is {list(size)}; give it one axis of size 1"
            )

    @property
    def slice_axis(self) -> int | None:
        """The axis across which slices lie; None for blocks."""
        thin = [axis for axis, n in enumerate(self.size) if n == 1]
        return thin[0] if len(thin) == 1 else None

    @property
    def read_size(self) -> tuple[int, ...]:
        """Voxels read per axis: the patch and its margins."""
        return tuple(n if n == -1 else n + 2 * m for n, m in zip(self.size, self.margin, strict=True))

    def room(self, shape: Sequence[int]) -> list[tuple[int, int]]:
        """Per axis the size that is read and the number of positions it can take."""
        sizes = [total if n == -1 else n for n, total in zip(self.read_size, shape, strict=True)]
        return [(min(n, total), max(1, total - n + 1)) for n, total in zip(sizes, shape, strict=True)]

    def draw(self, shape: Sequence[int], rng: np.random.Generator, occupied: NDArray[np.bool_] | None = None) -> Region:
        """A region at a uniformly drawn position; empty slices come at their rate."""
        region = [slice(start := int(rng.integers(count)), start + n) for n, count in self.room(shape)]
        if occupied is not None and self.slice_axis is not None:
            start = int(rng.choice(len(occupied), p=self.slice_rates(occupied)))
            region[self.slice_axis] = slice(start, start + 1)
        return tuple(region)

    def slice_rates(self, occupied: NDArray[np.bool_]) -> NDArray[np.float64]:
        """How often each slice is drawn; they add up to 1."""
        rates = np.where(occupied, 1.0, self.empty_rate)
        return rates / rates.sum() if rates.any() else np.full(len(rates), 1 / len(rates))

    def draw_around(self, center: Sequence[Any], shape: Sequence[int], rng: np.random.Generator) -> Region:
        """A region that has ``center`` somewhere in its patch, as far inside the volume as it goes."""
        region = []
        for (n, count), margin, middle in zip(self.room(shape), self.margin, center, strict=True):
            start = int(middle) - margin - int(rng.integers(max(1, n - 2 * margin)))
            start = min(max(start, 0), count - 1)
            region.append(slice(start, start + n))
        return tuple(region)

    def coverage(self, shape: Sequence[int], occupied: NDArray[np.bool_] | None = None) -> list[NDArray[np.float64]]:
        """Per axis how often a draw covers each voxel; sums to 1. The product over the axes is the voxel's.

        A voxel at the rim of the volume is covered by fewer positions than one in the middle. ``occupied`` tells which
        slices show an organ, where empty ones come less often.
        """
        weights = []
        for (n, count), margin, total in zip(self.room(shape), self.margin, shape, strict=True):
            weight = np.zeros(total)
            for start in range(count):
                weight[start + margin : start + n - margin] += 1
            weights.append(weight / weight.sum())
        if occupied is not None and self.slice_axis is not None:
            weights[self.slice_axis] = self.slice_rates(occupied)
        return weights

    def laid_out(self, volume: torch.Tensor) -> torch.Tensor:
        """The same 1×volume, whose slices lie in one piece of memory each: one is read without touching others."""
        if self.slice_axis is None:
            return volume
        axis = 1 + self.slice_axis
        return volume.movedim(axis, 0).contiguous().movedim(0, axis)

    def cut(self, volume: torch.Tensor, region: Region, context: int = 0) -> torch.Tensor:
        """A region of 1×volume without its axes of size 1; slices beside it as further channels, in order.

        Beyond the ends of the volume the last slice is repeated.
        """
        axis = self.slice_axis
        if axis is None or not context:
            return self.squeeze(volume[(slice(None), *region)].clone())
        middle, last = region[axis].start, volume.shape[1 + axis] - 1
        places = [min(max(middle + step, 0), last) for step in range(-context, context + 1)]
        rows = [volume[(slice(None), *region[:axis], slice(k, k + 1), *region[axis + 1 :])] for k in places]
        return torch.cat([self.squeeze(row) for row in rows])

    def trim(self, patch: torch.Tensor) -> torch.Tensor:
        """Cut the margins off a channel-first patch."""
        dropped = [m for n, m in zip(self.size, self.margin, strict=True) if n != 1]
        inner = [slice(m, size - m if m else None) for m, size in zip(dropped, patch.shape[1:], strict=True)]
        return patch[(slice(None), *inner)]

    def squeeze(self, patch: torch.Tensor) -> torch.Tensor:
        """Drop the axes of size 1 of a channel-first patch."""
        axes = [axis for axis, n in enumerate(self.size, start=1) if n == 1]
        return patch.squeeze(axes) if axes else patch


def annotated_channels(case: Case, vocabulary: Vocabulary) -> list[int]:
    """Channels of the case's label set; all organs for items without one (MONAI Label's)."""
    names = case.get("labelled", vocabulary.names)
    return [channel for name in names if (channel := vocabulary.channel(name)) is not None]


class PatchDataset(PersistentDataset):
    """Cases, preprocessed once into files that are mapped into memory, and cut into patches on demand.

    The transforms before the first random one are run once per case and kept in ``cache_dir``; only a patch is read
    from there. Where a partially labelled case has a completed label map in ``completed``, the patch comes from it,
    read anew each time: a refresh of the pseudo-labels shows at once.

    Items have `image` (1×patch, or a channel for each slice), `label` (1×patch), `partial` (bool) and `annotated` (C,
    bool: the channels of the label set).

    Args:
        data: cases.
        transform: deterministic transforms, then random ones.
        patches: how patches are cut.
        cache_dir: folder of the preprocessed cases.
        organs: names of the vocabulary.
        completed: store of completed label maps.
        limit: GB that the preprocessed cases may take there. Cases beyond it are preprocessed whenever they are drawn.
    """

    def __init__(
        self,
        data: Sequence[Case],
        transform: Any,
        patches: Patches,
        cache_dir: str,
        organs: Sequence[str] | None = None,
        completed: LabelStore | None = None,
        limit: float | None = None,
    ) -> None:
        super().__init__(data, transform, cache_dir)
        self.patches, self.organs, self.completed, self.limit = patches, organs, completed, limit
        self.vocabulary = Vocabulary(organs)
        steps = [describe(step) for step in self.deterministic_transforms()]
        self.fingerprint = json.dumps([*steps, patches.slice_axis])
        self.open_volumes: dict[int, dict[str, Any]] = {}
        self.occupied_slices: dict[int, NDArray[np.bool_]] = {}
        self.filled = False
        self.beyond: tuple[int, dict[str, Any]] = (-1, {})  # the last case that is not kept: it takes memory
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
                key: [plain(part) for part in value] if isinstance(value, list) else self.patches.laid_out(plain(value))
                for key, value in made.items()
                if key in ("image", "label", "label_cls_indices")
            }
            if not self.fits(tensors):
                return tensors
            # Written beside its place and moved: several processes may make it, none may see half of it.
            partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            torch.save(tensors, partial)
            os.replace(partial, path)
        loaded: dict[str, Any] = torch.load(path, weights_only=True, mmap=True)
        return loaded

    def volume(self, index: int) -> dict[str, Any]:
        """The preprocessed case: `image` and `label`, 1×volume, mapped into memory."""
        if index == self.beyond[0]:
            return self.beyond[1]
        if index not in self.open_volumes:
            volume = self._cachecheck(self.data[index])
            if not self.cache_file(self.data[index]).is_file():
                self.beyond = (index, volume)
                return volume
            if len(self.open_volumes) >= OPEN_VOLUMES:
                self.open_volumes.pop(next(iter(self.open_volumes)))
            self.open_volumes[index] = volume
        return self.open_volumes[index]

    def fits(self, tensors: Mapping[str, Any]) -> bool:
        """Whether a case can be kept. Once `prepare` has filled the folder none is: processes need not agree."""
        if self.limit is None:
            return True
        parts = [part for value in tensors.values() for part in (value if isinstance(value, list) else [value])]
        size = sum(part.nbytes for part in parts)
        held = sum(path.stat().st_size for case in self.data if (path := self.cache_file(case)).is_file())
        return not self.filled and held + size <= self.limit * 1e9

    def occupied(self, index: int, partial: bool) -> NDArray[np.bool_] | None:
        """Which slices of a case show an organ; None where it does not matter."""
        axis = self.patches.slice_axis
        if self.patches.empty_rate == 1 or axis is None:
            return None
        if partial and self.completed is not None:
            return self.completed.occupied(self.data[index])
        if index not in self.occupied_slices:
            self.occupied_slices[index] = occupied_slices(self.volume(index)["label"][0].numpy(), axis)
        return self.occupied_slices[index]

    def prepare(self) -> None:
        """Preprocess all cases now, with a progress bar, rather than inside the first iterations."""
        missing = [case for case in self.data if not self.cache_file(case).is_file()]
        for number, case in enumerate(tqdm(missing, desc="preprocessing", unit="case", disable=not missing)):
            self._cachecheck(case)
            if not self.cache_file(case).is_file():
                self.filled = True
                logger.warning(
                    "cache_limit: %g GB do not hold all cases; %d of %d are preprocessed whenever they are drawn, "
                    "which takes time",
                    self.limit,
                    len(missing) - number,
                    len(self.data),
                )
                return

    def __getitem__(self, draw: Any) -> dict[str, torch.Tensor]:
        index, seed, scale = draw if isinstance(draw, Draw) else Draw(int(draw), (0, int(draw)))
        case, volume = self.data[index], self.volume(index)
        rng = np.random.default_rng(seed)
        partial = not is_full(case, self.organs)
        region = self.choose_region(index, partial, rng)
        sample = {
            "image": self.patches.cut(volume["image"], region, self.patches.context),
            "label": self.patches.cut(volume["label"], region),
        }
        completed = self.completed.read(case, region) if partial and self.completed is not None else None
        if completed is not None:
            sample["label"] = self.patches.squeeze(torch.from_numpy(completed)[None])
        self.transform.set_random_state(seed=int(rng.integers(2**31)))
        with no_metadata():
            sample = self._post_transform(sample)
        image = self.patches.trim(plain(sample["image"]).float())
        label = self.patches.trim(plain(sample["label"]).round().to(torch.uint8))
        return {
            "image": resize(image[None], scale)[0],
            "label": resize(label[None], scale, labels=True)[0],
            "partial": torch.tensor(partial),
            "annotated": self.annotated(case),
        }

    def annotated(self, case: Case) -> torch.Tensor:
        """Which channels belong to the case's label set (C, bool)."""
        flags = torch.zeros(self.vocabulary.out_channels, dtype=torch.bool)
        flags[annotated_channels(case, self.vocabulary)] = True
        return flags

    def choose_region(self, index: int, partial: bool, rng: np.random.Generator) -> Region:
        volume, occupied = self.volume(index), self.occupied(index, partial)
        shape = volume["image"].shape[1:]
        # Always drawn, so that the rate changes which patches are centred and nothing else.
        centred = rng.random() < self.patches.organ_rate
        if partial or not centred:
            return self.patches.draw(shape, rng, occupied)
        present = [voxels for voxels in volume["label_cls_indices"][1:] if len(voxels)]
        if not present:
            return self.patches.draw(shape, rng, occupied)
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
        scales: factors by which the samples of a batch are resized; each batch draws one.
    """

    def __init__(
        self,
        dataset: PatchDataset,
        full: int,
        partial: int = 0,
        seed: int = 0,
        stage: int = 0,
        start: int = 0,
        scales: float | Sequence[float] = (1.0,),
    ) -> None:
        self.full_cases, self.cohorts = full_indices(dataset), list(partial_indices(dataset).values())
        self.partial = partial if self.cohorts else 0
        self.full = full + partial - self.partial
        self.seed, self.stage, self.start = int(seed), int(stage), int(start)
        scales = [scales] if isinstance(scales, int | float) else list(scales)
        if not scales or not all(isinstance(scale, int | float) and scale > 0 for scale in scales):
            raise InputError(f"train_scales: expected numbers above 0, found {scales}")
        self.scales = tuple(float(scale) for scale in scales)

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
        scale = self.scales[
            np.random.default_rng((self.seed, self.stage, iteration, SCALE_SLOT)).integers(len(self.scales))
        ]
        return [Draw(index, (self.seed, self.stage, iteration, slot), scale) for slot, index in enumerate(indices)]

    def __iter__(self) -> Iterator[list[Draw]]:
        return (self.batch(iteration) for iteration in itertools.count(self.start))
