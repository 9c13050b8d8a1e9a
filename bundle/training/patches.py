# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Patches: how they are drawn, and how often a draw covers each voxel.

The prior q and the predicted proportions are estimated on the footing of the mini-batches by that coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import BACKGROUND, IGNORED

__all__ = ["VIEWS", "Patches", "Region", "occupied_slices", "slice_patch_size"]


Region = tuple[slice, ...]

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
        organ_rate: share of the draws in *fully labelled* cases that are centered on a voxel of a random organ. Draws
            in partially labelled cases are never: the prior is about them.
        empty_rate: how often a slice without any organ is drawn, compared with one that shows one. In partially
            labelled cases the completed labels decide: both kinds of cases are on one footing.
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

        A voxel at the rim of the volume is covered by fewer positions than one in the middle. ``occupied`` says which
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
