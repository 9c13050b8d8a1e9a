# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The sum of what several views say about a volume: classes × volume, in a file, and little of it in memory."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bundle.errors import InputError
from bundle.inference.buffers import DiskBuffers
from bundle.inference.windows import Slabs

__all__ = ["TiledSum", "tiled_bytes"]


EDGE = 8  # of a tile, voxels: as many planes are held in memory until they are added to the file


def tile_counts(shape: Sequence[int], edge: int) -> list[int]:
    return [-(-n // edge) for n in shape]


def tiled_bytes(shape: Sequence[int], channels: int, edge: int = EDGE) -> int:
    """Size of a `TiledSum`'s file; tiles at the volume's far sides reach beyond it.

    >>> tiled_bytes((10, 8, 8), channels=3, edge=8)  # 2 tiles of 8×8×8 voxels, 3 channels, 4 bytes each
    12288
    """
    return 4 * channels * edge**3 * math.prod(tile_counts(shape, edge))


def check_space(needed: int) -> None:
    """See that the folder of temporary files has room: a full disk would end the process without a word.

    Raises:
        InputError: when it has not.
    """
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise InputError(
            f"{folder}: the mean of several views takes a temporary file of {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free; set TMPDIR to a folder with more room"
        )


def add_to(total: Tensor, values: Tensor) -> None:
    """Add in NumPy, in one thread: on a busy machine several wait for each other at every strip."""
    sums = total.numpy()
    np.add(sums, values.numpy(), out=sums)


class TiledSum:
    """A sum of probabilities for each class and voxel, to which planes across any axis can be added.

    In a file of planes across one axis, a plane across another has its voxels everywhere. Here the file is made of
    cubes with all channels of their voxels, so that planes across any axis touch few of them; and planes are collected
    in memory until there is a whole layer of tiles, so that each tile is touched once for all of its planes.

    Args:
        shape: voxels of the volume.
        channels: of every voxel.
        disk: where the file is made.
        edge: voxels of a tile's edge.

    Raises:
        InputError: when the file does not fit into the folder of temporary files.
    """

    def __init__(self, shape: Sequence[int], channels: int, disk: DiskBuffers, edge: int = EDGE) -> None:
        check_space(tiled_bytes(shape, channels, edge))
        self.shape, self.channels, self.disk, self.edge = tuple(shape), channels, disk, edge
        self.counts = tile_counts(shape, edge)
        self.tiles = disk.zeros((*self.counts, channels, edge, edge, edge))
        self.layer: tuple[int, int] | None = None  # axis and number of the tiles that planes are collected for
        self.collected = torch.empty(0)

    def add(self, axis: int, start: int, planes: Tensor) -> None:
        """Add planes (N×C×U×V) across ``axis``, of which ``start`` is the first."""
        for place, plane in enumerate(planes, start):
            number, within = divmod(place, self.edge)
            if self.layer != (axis, number):
                self.write()
                self.layer, self.collected = (axis, number), self.layer_planes(axis).zero_()
            add_to(self.inside(axis, self.collected)[within], plane)

    def slabs(self, axis: int) -> Slabs:
        """The sums, in order, a layer of tiles at a time."""
        self.write()
        for number in range(self.counts[axis]):
            planes = self.layer_planes(axis)
            for tiles, voxels in self.rows(axis, number, planes):
                np.copyto(voxels.numpy(), tiles.numpy())
            start = number * self.edge
            yield start, self.inside(axis, planes)[: self.shape[axis] - start]

    def write(self) -> None:
        """Add what is collected to the file."""
        if self.layer is not None:
            for tiles, voxels in self.rows(*self.layer, self.collected):
                add_to(tiles, voxels)
        self.layer, self.collected = None, torch.empty(0)

    def layer_planes(self, axis: int) -> Tensor:
        """Room for the planes of one layer of tiles."""
        u, v = (self.edge * n for other, n in enumerate(self.counts) if other != axis)
        return torch.empty(self.edge, self.channels, u, v)

    def inside(self, axis: int, planes: Tensor) -> Tensor:
        """The part of a layer's planes that belongs to the volume."""
        u, v = (n for other, n in enumerate(self.shape) if other != axis)
        return planes[:, :, :u, :v]

    def rows(self, axis: int, number: int, planes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Row by row of a layer, its tiles in the file and the same voxels of its planes, both T×C×edge×edge×edge."""
        layer = self.tiles.select(axis, number)
        for row, strip in enumerate(planes.split(self.edge, 2)):
            voxels = strip.unflatten(3, (-1, self.edge)).movedim(3, 0).movedim(1, 2)  # T×C×N×U×V
            yield layer[row], voxels.movedim(2, 2 + axis)
            self.disk.release()
