# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Which case enters which mini-batch. Every draw follows from (seed, iteration, slot) alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from bundle.errors import InputError
from bundle.training.dataset import Draw, PatchDataset, full_indices, partial_indices

__all__ = ["MixedBatches"]


SCALE_SLOT = 2**16  # beyond the places in a batch: its randomness is its own


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
    whole batch is fully labelled, and where there is no fully labelled one it is partially labelled. Batch ``i``
    depends on the seed and on ``i`` alone; set ``start`` to begin there.

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
        self.full, self.partial = full, partial
        if not self.cohorts:
            self.full, self.partial = full + partial, 0
        elif not self.full_cases:
            self.full, self.partial = 0, full + partial
        self.seed, self.stage, self.start = int(seed), int(stage), int(start)
        scales = [scales] if isinstance(scales, int | float) else list(scales)
        if not scales or not all(isinstance(scale, int | float) and scale > 0 for scale in scales):
            raise InputError(f"train_scales: expected numbers above 0, found {scales}")
        self.scales = tuple(float(scale) for scale in scales)

    def batch(self, iteration: int) -> list[Draw]:
        """The draws of a mini-batch.

        Raises:
            InputError: when there is no case; a stage that other weights replace is built without any.
        """
        if not self.full_cases and not self.cohorts:
            raise InputError(f"stage {self.stage}: there is no case to draw a mini-batch from; add cases")
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
