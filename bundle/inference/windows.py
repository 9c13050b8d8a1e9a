# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Windows over a volume, and the sum of what a network says in them, finished slab by slab.

The windows are those of MONAI's sliding_window_inference, and so are the numbers. What differs is what is held: MONAI
keeps classes × volume, here planes leave as soon as no later window touches them.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from monai.data.utils import compute_importance_map, dense_patch_slices
from torch import Tensor
from tqdm import tqdm

from bundle.inference.buffers import DiskBuffers
from bundle.organs import BACKGROUND
from bundle.processes import give_back

__all__ = ["Index", "Slabs", "Windows", "background_slabs", "only_background", "probability_slabs"]


Index = tuple[int, ...]  # number of a window along each axis; MONAI's order of windows is the order of these

Predict = Callable[[Tensor], Tensor]  # B×1×window to logits, B×C×window

Slabs = Iterator[tuple[int, Tensor]]  # consecutive planes: number of the first one, and probabilities, N×C×U×V

PLANES = 8  # planes that leave at a time

LAYER = 0.3  # share of a window by which positions of one layer may differ


class Windows:
    """Where the windows over a volume lie, and the axis along which it is finished.

    Args:
        shape: voxels of the volume, at least ``size`` along every axis.
        size: voxels of a window.
        overlap: share of a window that the next one covers again.
        mode: `gaussian` or `constant`: how windows that overlap are weighted.
    """

    def __init__(self, shape: Sequence[int], size: Sequence[int], overlap: float, mode: str) -> None:
        self.shape, self.size = tuple(shape), tuple(size)
        steps = [n if n == total else max(1, int(n * (1 - overlap))) for n, total in zip(size, shape, strict=True)]
        slices = dense_patch_slices(self.shape, self.size, steps)
        self.starts = [sorted({window[axis].start for window in slices}) for axis in range(len(self.shape))]
        self.weights = compute_importance_map(self.size, mode, sigma_scale=0.125, dtype=torch.float32)
        # The planes that wait for further windows are fewest along this axis.
        self.axis = int(np.argmin([n / total for n, total in zip(self.size, self.shape, strict=True)]))
        self.layer_of = layer_numbers(self.starts[self.axis], self.size[self.axis])
        self.disk: DiskBuffers | None = None  # where sums are held instead of in memory

    def zeros(self, *shape: int) -> Tensor:
        return torch.zeros(shape) if self.disk is None else self.disk.zeros(shape)

    def held_bytes(self, channels: int) -> int:
        """What is held at most while slabs are under way: the sums of a layer, and what waits for the next ones."""
        window = math.prod(n for axis, n in enumerate(self.size) if axis != self.axis)
        windows = math.prod(len(starts) for axis, starts in enumerate(self.starts) if axis != self.axis)
        starts, depth = self.starts[self.axis], self.size[self.axis]
        sums, waiting = [0], [0]
        for layer, places in itertools.groupby(starts, key=lambda start: self.layer_of[starts.index(start)]):
            span = list(places)
            following = [start for start, number in zip(starts, self.layer_of, strict=True) if number > layer]
            sums.append(math.prod(self.plane_shape) * (span[-1] + depth - span[0]))
            waiting.append(sum(max(0, start + depth - following[0]) for start in span) if following else 0)
        return 4 * (channels + 1) * (max(sums) + windows * window * max(map(sum, itertools.pairwise(waiting))))

    def region(self, index: Index) -> tuple[slice, ...]:
        corner = [starts[i] for starts, i in zip(self.starts, index, strict=True)]
        return tuple(slice(start, start + n) for start, n in zip(corner, self.size, strict=True))

    def layers(self) -> list[list[Index]]:
        """All windows, layer by layer, each layer in MONAI's order."""
        counts = [range(len(starts)) for starts in self.starts]
        before, after = counts[: self.axis], counts[self.axis + 1 :]
        groups = itertools.groupby(counts[self.axis], key=self.layer_of.__getitem__)
        return [list(itertools.product(*before, list(places), *after)) for _, places in groups]

    @property
    def plane_shape(self) -> tuple[int, ...]:
        return tuple(n for axis, n in enumerate(self.shape) if axis != self.axis)

    def zones(self) -> list[Zone]:
        """The volume, cut into ranges of planes that the same layers of windows cover."""
        starts = self.starts[self.axis]
        ends = [start + self.size[self.axis] for start in starts]
        return [
            Zone(self, low, high, max(self.layer_of[n] for n, start in enumerate(starts) if start <= low < ends[n]))
            for low, high in itertools.pairwise(sorted({*starts, *ends}))
        ]


def layer_numbers(starts: Sequence[int], size: int) -> list[int]:
    """For each position of windows along an axis, its layer: positions close to each other are one.

    The last windows are moved back until they end where the volume ends, which may be right upon those before them.
    Evaluated together they need little more than one of them; one after the other, all of the first would wait.
    """
    numbers: list[int] = []
    first = 0
    for start in starts:
        if numbers and start - first <= LAYER * size:
            numbers.append(numbers[-1])
        else:
            first = start
            numbers.append(len(set(numbers)))
    return numbers


@dataclass
class Zone:
    """Planes under way.

    Floating-point sums depend on their order, and labels should not: additions are made in MONAI's order of windows,
    whatever the order of evaluation. A window that is evaluated before the zone's last layer therefore waits.

    Args:
        windows: all windows.
        first: number of the first plane.
        end: number after the last plane.
        last_layer: number of the last layer of windows that covers it.
        waiting: what windows of earlier layers said, weighted.
        total: sums over windows, C+1 × planes; the last channel is the sum of the weights.
    """

    windows: Windows
    first: int
    end: int
    last_layer: int
    waiting: dict[Index, Tensor] = field(default_factory=dict)
    total: Tensor | None = None

    def part(self, index: Index, volume: Tensor) -> Tensor:
        """The part of a window's … × window that lies in this zone."""
        axis = self.windows.axis
        start = self.windows.starts[axis][index[axis]]
        return volume.narrow(axis - len(self.windows.shape), self.first - start, self.end - self.first)

    def covers(self, index: Index) -> bool:
        side = self.windows.region(index)[self.windows.axis]
        return side.start <= self.first < side.stop

    def add(self, index: Index, weighted: Tensor) -> None:
        """Take what a window says, C×window, already weighted."""
        piece = self.part(index, weighted)
        if self.windows.layer_of[index[self.windows.axis]] < self.last_layer:
            self.waiting[index] = self.windows.zeros(*piece.shape).copy_(piece)
            return
        self.sum_waiting(index)
        self.sum(index, piece)

    def sum_waiting(self, before: Index | None = None) -> None:
        for index in sorted(index for index in self.waiting if before is None or index < before):
            self.sum(index, self.waiting.pop(index))

    def sum(self, index: Index, piece: Tensor) -> None:
        axis = self.windows.axis
        if self.total is None:
            shape = list(self.windows.shape)
            shape[axis] = self.end - self.first
            self.total = self.windows.zeros(len(piece) + 1, *shape)
        region: list[Any] = list(self.windows.region(index))
        region[axis] = slice(None)
        self.total[(slice(-1), *region)] += piece
        self.total[(-1, *region)] += self.part(index, self.windows.weights)

    def finish(self, channels: int) -> Slabs:
        """Probabilities of the planes; where no window was evaluated there is background."""
        self.sum_waiting()
        axis = self.windows.axis
        for start in range(self.first, self.end, PLANES):
            count = min(PLANES, self.end - start)
            if self.total is None:
                yield (
                    start,
                    only_background(count, channels, self.windows.plane_shape),
                )
                continue
            sums = self.total.narrow(1 + axis, start - self.first, count).movedim(1 + axis, 0).contiguous()
            logits, weights = sums[:, :-1], sums[:, -1]
            probabilities = logits.div_(weights[:, None]).softmax(1)
            empty = weights == 0
            if empty.any():
                probabilities.masked_fill_(empty[:, None], 0)
                probabilities[:, BACKGROUND].masked_fill_(empty, 1)
            if self.windows.disk is not None:
                self.windows.disk.release()
            yield start, probabilities
        self.total = None


def background_slabs(start: int, end: int, channels: int, shape: Sequence[int]) -> Slabs:
    """Planes without any organ from ``start`` to ``end``.

    >>> [(first, tuple(planes.shape)) for first, planes in background_slabs(4, 15, channels=3, shape=(5, 6))]
    [(4, (8, 3, 5, 6)), (12, (3, 3, 5, 6))]
    """
    for first in range(start, end, PLANES):
        yield first, only_background(min(PLANES, end - first), channels, shape)


def only_background(count: int, channels: int, shape: Sequence[int]) -> Tensor:
    """Planes without any organ, N×C×U×V, that take no memory.

    >>> only_background(2, channels=3, shape=(1, 1)).flatten(1).tolist()
    [[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """
    plane = torch.zeros(1, channels, 1, 1)
    plane[:, BACKGROUND] = 1
    return plane.expand(count, channels, *shape)


def evaluate(
    image: Tensor, predict: Predict, windows: Windows, indices: Sequence[Index], batch: int
) -> Iterator[tuple[Index, Tensor]]:
    """What ``predict`` says in each window, C×window, in order, a batch at a time."""
    for start in range(0, len(indices), batch):
        group = indices[start : start + batch]
        logits = predict(torch.stack([image[(slice(None), *windows.region(index))] for index in group]))
        yield from zip(group, logits, strict=True)


def probability_slabs(
    image: Tensor,
    predict: Predict,
    windows: Windows,
    wanted: Callable[[Index], bool] | None = None,
    batch: int = 1,
    progress: str = "",
) -> Slabs:
    """Probabilities of a volume in slabs across the windows' axis.

    Args:
        image: the volume, C×X×Y×Z.
        predict: the network.
        windows: where to evaluate it.
        wanted: which windows to evaluate; None evaluates all.
        batch: windows evaluated together.
        progress: text before a progress bar; empty for none.

    >>> image = torch.tensor([0.0, 0.0, 0.0, 0.0, 2.0, 2.0]).expand(1, 4, 4, 6)
    >>> windows = Windows((4, 4, 6), (4, 4, 4), overlap=0.5, mode="constant")
    >>> slabs = probability_slabs(image, lambda window: torch.cat([torch.ones_like(window), window], 1), windows)
    >>> torch.cat([planes for _, planes in slabs]).argmax(1)[:, 0, 0].tolist()  # 2.0 wins against the background's 1.0
    [0, 0, 0, 0, 1, 1]
    """
    layers = [[index for index in layer if wanted is None or wanted(index)] for layer in windows.layers()]
    indices = [index for layer in layers for index in layer]
    stream = evaluate(image, predict, windows, indices, batch)
    first = list(itertools.islice(stream, 1))
    channels = len(first[0][1]) if first else 1
    stream, zones = itertools.chain(iter(first), stream), deque(windows.zones())
    del first  # it holds the first windows' logits
    with tqdm(total=len(indices), desc=progress, unit="window", disable=not progress, leave=False) as bar:
        for number, layer in enumerate(layers):
            for index, logits in itertools.islice(stream, len(layer)):
                weighted = logits.mul_(windows.weights)
                end = windows.region(index)[windows.axis].stop
                for zone in itertools.takewhile(lambda zone: zone.first < end, zones):  # noqa: B023
                    if zone.covers(index):
                        zone.add(index, weighted)
                if windows.disk is not None:
                    windows.disk.release()
                bar.update()
            while zones and zones[0].last_layer <= number:
                yield from zones.popleft().finish(channels)
            if number % 8 == 7:
                give_back()
