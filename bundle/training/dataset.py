# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Cases, preprocessed once into files that are mapped into memory, and cut into patches on demand."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from monai.data import MetaTensor, PersistentDataset, get_track_meta, set_track_meta
from monai.transforms.traits import RandomizableTrait
from numpy.typing import NDArray
from tqdm import tqdm

from bundle.cohorts.datalists import Case
from bundle.cohorts.selection import is_full
from bundle.errors import InputError, os_error_sentence
from bundle.files import fingerprint_files, make_folder
from bundle.inference.scaling import resize
from bundle.organs import WHOLE_VOCABULARY, Vocabulary
from bundle.training.case_files import CaseFile, open_case_file, write_case_file
from bundle.training.patches import Patches, Region, occupied_slices

__all__ = ["Draw", "LabelStore", "PatchDataset", "annotated_channels", "full_indices", "partial_indices"]


logger = logging.getLogger(__name__)

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
    """Where completed labels of partially labelled cases are read from (see `bundle.training.label_store`)."""

    def read(self, case: Case, region: Region) -> NDArray[np.uint8] | None: ...

    def occupied(self, case: Case) -> NDArray[np.bool_] | None: ...


def annotated_channels(case: Case, vocabulary: Vocabulary) -> list[int]:
    """Channels of the case's label set."""
    return [channel for name in case["labelled"] if (channel := vocabulary.channel(name)) is not None]


class PatchDataset(PersistentDataset):
    """Cases, preprocessed once into files that are mapped into memory, and cut into patches on demand.

    The transforms before the first random one are run once per case and kept in ``cache_dir``; only a patch is read
    from there. A file that is damaged or deleted meanwhile is made again. Where a partially labelled case has a
    completed label map in ``completed``, the patch comes from it, read anew each time: a refresh of the pseudo-labels
    shows at once.

    Items have `image` (1×patch, or a channel for each slice), `label` (1×patch), `partial` (bool) and `annotated` (C,
    bool: the channels of the label set).

    Args:
        data: cases.
        transform: deterministic transforms, then random ones.
        patches: how patches are cut.
        cache_dir: folder of the preprocessed cases.
        vocabulary: the organs.
        completed: store of completed label maps.
        limit: GB that the preprocessed cases may take there. Cases beyond it are preprocessed whenever they are drawn.
    """

    def __init__(
        self,
        data: Sequence[Case],
        transform: Any,
        patches: Patches,
        cache_dir: str,
        vocabulary: Vocabulary = WHOLE_VOCABULARY,
        completed: LabelStore | None = None,
        limit: float | None = None,
    ) -> None:
        super().__init__(data, transform, make_folder(cache_dir))
        self.patches, self.vocabulary, self.completed, self.limit = patches, vocabulary, completed, limit
        steps = [describe(step) for step in self.deterministic_transforms()]
        self.fingerprint = json.dumps([*steps, patches.slice_axis])
        self.open_volumes: dict[int, CaseFile] = {}
        self.occupied_slices: dict[int, NDArray[np.bool_]] = {}
        self.kept: set[Path] | None = None  # files of the cases that are kept, once the limit is reached
        self.beyond: tuple[int, dict[str, Any]] = (-1, {})  # the last case that is not kept: it takes memory
        # Random transforms draw from a state set per sample; without this they would share one per dataset.
        self.transform.set_random_state(0)

    def cache_file(self, case: Case) -> Path:
        """Named by what it is made from: a changed file, label set or transform makes a new one."""
        paths = [case[key] for key in ("image", "label") if key in case]
        assert self.cache_dir is not None
        try:
            key = fingerprint_files(paths, case.get("values", case["labelled"]), self.fingerprint, length=32)
        except OSError as error:  # the disk of the scans may go away under a long run
            raise InputError(os_error_sentence(error, action="read")) from error
        return Path(self.cache_dir) / f"{key}.pt"

    def deterministic_transforms(self) -> list[Any]:
        """The transforms that are run once per case."""
        steps = self.transform.flatten().transforms
        return list(itertools.takewhile(lambda step: not isinstance(step, RandomizableTrait), steps))

    def open_or_make(self, case: Case) -> CaseFile | dict[str, Any]:
        """The file of a preprocessed case, or the tensors of one that is not kept."""
        path = self.cache_file(case)
        return open_case_file(path) or self.make(case, path)

    def make(self, case: Case, path: Path) -> CaseFile | dict[str, Any]:
        """Preprocess a case and keep it; its tensors where it cannot be kept."""
        made = self._pre_transform(dict(case))
        tensors = {
            key: [plain(part) for part in value] if isinstance(value, list) else self.patches.laid_out(plain(value))
            for key, value in made.items()
            if key in ("image", "label", "label_cls_indices")
        }
        if not self.fits(tensors, path):
            return tensors
        write_case_file(path, tensors)
        return open_case_file(path) or tensors  # somebody may be deleting the folder at this moment

    def volume(self, index: int) -> dict[str, Any]:
        """The preprocessed case: `image` and `label`, 1×volume, mapped into memory."""
        if index == self.beyond[0]:
            return self.beyond[1]
        kept = self.open_volumes.get(index)
        if kept is None or kept.changed():
            opened = self.open_or_make(self.data[index])
            if not isinstance(opened, CaseFile):
                self.beyond = (index, opened)
                return opened
            if len(self.open_volumes) >= OPEN_VOLUMES:
                self.open_volumes.pop(next(iter(self.open_volumes)))
            self.open_volumes[index] = kept = opened
        return kept.tensors

    def fits(self, tensors: Mapping[str, Any], path: Path) -> bool:
        """Whether a case can be kept. Once `prepare` has filled the folder, only what was: processes need not agree."""
        if self.limit is None:
            return True
        if self.kept is not None:
            return path in self.kept
        parts = [part for value in tensors.values() for part in (value if isinstance(value, list) else [value])]
        size = sum(part.nbytes for part in parts)
        held = sum(other.stat().st_size for case in self.data if (other := self.cache_file(case)).is_file())
        return held + size <= self.limit * 1e9

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
        """Preprocess all cases now, with a progress bar, rather than inside the first iterations.

        What an earlier run kept is read once and compared with its checksums.
        """
        there = [case for case in self.data if self.cache_file(case).is_file()]
        with tqdm(there, desc="reading the cache", unit="case", leave=False, disable=not there) as bar:
            whole = {path for case in bar if open_case_file(path := self.cache_file(case))}
        missing = [case for case in self.data if self.cache_file(case) not in whole]
        with tqdm(missing, desc="preprocessing", unit="case", disable=not missing) as bar:
            for number, case in enumerate(bar):
                path = self.cache_file(case)
                if not isinstance(self.make(case, path), CaseFile) and self.limit is not None:
                    self.kept = whole
                    logger.warning(
                        "cache_limit: %g GB do not hold all cases; %d of %d are preprocessed whenever they are drawn, "
                        "which takes time",
                        self.limit,
                        len(missing) - number,
                        len(self.data),
                    )
                    return
                whole.add(path)

    def __getitem__(self, draw: Any) -> dict[str, torch.Tensor]:
        index, seed, scale = draw if isinstance(draw, Draw) else Draw(int(draw), (0, int(draw)))
        case, volume = self.data[index], self.volume(index)
        rng = np.random.default_rng(seed)
        partial = not is_full(case, self.vocabulary)
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
        # Always drawn, so that the rate changes which patches are centered and nothing else.
        centered = rng.random() < self.patches.organ_rate
        if partial or not centered:
            return self.patches.draw(shape, rng, occupied)
        present = [voxels for voxels in volume["label_cls_indices"][1:] if len(voxels)]
        if not present:
            return self.patches.draw(shape, rng, occupied)
        voxels = present[rng.integers(len(present))]
        center = np.unravel_index(int(voxels[rng.integers(len(voxels))]), shape)
        return self.patches.draw_around(center, shape, rng)


def full_indices(dataset: PatchDataset) -> list[int]:
    return [index for index, case in enumerate(dataset.data) if is_full(case, dataset.vocabulary)]


def partial_indices(dataset: PatchDataset) -> dict[str, list[int]]:
    """Indices of the partially labelled cases, by cohort."""
    cohorts: dict[str, list[int]] = {}
    for index, case in enumerate(dataset.data):
        if not is_full(case, dataset.vocabulary):
            cohorts.setdefault(case.get("cohort", ""), []).append(index)
    return cohorts
