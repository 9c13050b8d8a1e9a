# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The way between a scan's own grid and the network's, in both directions, a few planes at a time.

It is what MONAI's Orientationd and Spacingd do and Invertd undoes, with the same numbers: axes are swapped and flipped
until they run right, anterior, superior; then every axis is spaced anew by linear interpolation, in float64, rounded to
float32. Those transforms hold several copies of the volume, and on the way back one per organ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from bundle.organs import BACKGROUND
from bundle.scans.grids import ScanGrid

__all__ = ["AxisMap", "label_planes", "lerp", "to_network"]


PLANES = 16  # planes that are resampled at a time


@dataclass(frozen=True)
class AxisMap:
    """Where positions of one grid lie on another, along one axis: between ``low`` and ``high``, at ``weight``."""

    low: Tensor
    high: Tensor
    weight: Tensor

    @classmethod
    def linear(cls, count: int, scale: float, shift: float, size: int) -> AxisMap:
        """``count`` positions ``i·scale + shift`` on an axis of ``size`` voxels, whose end values go on beyond it."""
        place = (torch.arange(count, dtype=torch.float64) * scale + shift).clamp(0, size - 1)
        low = place.floor().long()
        return cls(low, (low + 1).clamp(max=size - 1), place - low)

    def part(self, start: int, stop: int) -> AxisMap:
        return AxisMap(self.low[start:stop], self.high[start:stop], self.weight[start:stop])

    def reach(self, first: int, last: int) -> tuple[int, int]:
        """Range of positions that have a neighbor in ``first … last``."""
        inside = ((self.high >= first) & (self.low <= last)).nonzero()
        return (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)


def to_network_axis(grid: ScanGrid, axis: int) -> AxisMap:
    """Where the network's voxels lie on the oriented scan."""
    return AxisMap.linear(grid.network_shape[axis], grid.scale[axis], grid.shift[axis], grid.oriented_shape[axis])


def to_scan_axis(grid: ScanGrid, axis: int) -> AxisMap:
    """Where the oriented scan's voxels lie on the network's grid."""
    scale = 1 / grid.scale[axis]
    return AxisMap.linear(grid.oriented_shape[axis], scale, -grid.shift[axis] * scale, grid.network_shape[axis])


def lerp(values: Tensor, axis: int, where: AxisMap) -> Tensor:
    """Interpolate float64 ``values`` along one axis.

    >>> values = torch.tensor([0.0, 10.0, 30.0], dtype=torch.float64)
    >>> lerp(values, 0, AxisMap.linear(count=3, scale=0.75, shift=0.25, size=3)).tolist()
    [2.5, 10.0, 25.0]
    """
    if axis == values.ndim - 1:  # where index_select would copy element by element
        shape = (*values.shape[:-1], len(where.low))
        return values.gather(axis, where.low.expand(shape)).lerp_(
            values.gather(axis, where.high.expand(shape)), where.weight
        )
    low, high = values.index_select(axis, where.low), values.index_select(axis, where.high)
    return low.lerp_(high, where.weight.view(-1, *[1] * (values.ndim - axis - 1)))


def to_network(voxels: NDArray[Any], grid: ScanGrid) -> Tensor:
    """A scan on the network's grid, X×Y×Z float32: the values of Orientationd and Spacingd."""
    scan = grid.oriented(voxels)
    if grid.sheared:
        return straightened(scan, grid)
    result = torch.empty(grid.network_shape)
    x, y, z = (to_network_axis(grid, axis) for axis in range(3))
    for start in range(0, grid.network_shape[2], PLANES):
        part = z.part(start, start + PLANES)
        planes, place = torch.unique(torch.cat([part.low, part.high]), return_inverse=True)
        # Z×Y×X is how files store a volume; only the planes that have a part in the result are read.
        slab = torch.from_numpy(np.stack([scan[:, :, k].T for k in planes.tolist()]).astype(np.float32)).double()
        slab = lerp(lerp(slab, 1, y), 2, x)
        low, high = place.split(len(part.low))
        result[:, :, start : start + PLANES] = lerp(slab, 0, AxisMap(low, high, part.weight)).permute(2, 1, 0)
    return result


def candidates(plane: Tensor) -> list[tuple[int, tuple[int, int, int, int]]]:
    """Channels that can be the most probable one somewhere in a plane (C×U×V), each with the box of its voxels there.

    The winner has a probability of at least 1/C. Interpolation never exceeds its neighbors, so that a channel below
    1/C at all of them cannot win between them. Background is left out: it wins wherever nobody else does.
    """
    least = (1 - 1e-6) / len(plane)
    rows, columns = (plane.amax(dim).numpy() >= least for dim in (2, 1))
    found = []
    for channel in range(1, len(plane)):
        if rows[channel].any():
            u, v = rows[channel].nonzero()[0], columns[channel].nonzero()[0]
            found.append((channel, (int(u[0]), int(u[-1]), int(v[0]), int(v[-1]))))
    return found


def label_plane(plane: Tensor, u: AxisMap, v: AxisMap) -> Tensor:
    """The most probable channel on a finer plane: U'×V' uint8 from probabilities C×U×V float64.

    Channel by channel with a running maximum; the first of equals wins, as with argmax.
    """
    labels = torch.full((len(u.low), len(v.low)), BACKGROUND, dtype=torch.uint8)
    boxes = [(channel, (*u.reach(*box[:2]), *v.reach(*box[2:]))) for channel, box in candidates(plane)]
    if not boxes:
        return labels
    u0, v0 = min(box[0] for _, box in boxes), min(box[2] for _, box in boxes)
    u1, v1 = max(box[1] for _, box in boxes), max(box[3] for _, box in boxes)

    def interpolated(channel: int, box: tuple[int, int, int, int]) -> Tensor:
        return lerp(lerp(plane[channel], 1, v.part(box[2], box[3])), 0, u.part(box[0], box[1])).float()

    best = torch.zeros(labels.shape)
    best[u0:u1, v0:v1] = interpolated(BACKGROUND, (u0, u1, v0, v1))
    for channel, box in boxes:
        region = (slice(box[0], box[1]), slice(box[2], box[3]))
        value = interpolated(channel, box)
        labels[region].masked_fill_(value > best[region], channel)
        torch.maximum(best[region], value, out=best[region])
    return labels


def label_planes(slabs: Iterable[tuple[int, Tensor]], grid: ScanGrid, axis: int) -> Iterator[tuple[int, Tensor]]:
    """Number and label map (U×V, uint8) of each plane of the oriented scan across ``axis``, in order.

    Args:
        slabs: consecutive planes of probabilities on the network's grid: number of the first, and N×C×U×V.
        grid: both grids.
        axis: axis of the oriented scan that the planes are stacked along.

    >>> grid = ScanGrid((2, 2, 3), np.eye(4), (2, 2, 2), np.diag([1.0, 1.0, 2.0, 1.0]))  # slices of 1 and of 2 mm
    >>> organ = torch.tensor([0.2, 0.9]).view(2, 1, 1, 1).expand(2, 1, 2, 2)  # its probability in the network's slices
    >>> planes = label_planes([(0, torch.cat([1 - organ, organ], 1))], grid, axis=2)
    >>> [(number, int(labels[0, 0])) for number, labels in planes]  # between them it is 0.55
    [(0, 0), (1, 1), (2, 1)]
    """
    if grid.sheared:
        yield from sheared_label_planes(slabs, grid, axis)
        return
    across = to_scan_axis(grid, axis)
    u, v = (to_scan_axis(grid, other) for other in range(3) if other != axis)
    held: dict[int, Tensor] = {}
    position = 0
    for start, planes in slabs:
        held |= {start + number: plane for number, plane in enumerate(planes)}
        end = start + len(planes)
        while position < len(across.low) and int(across.high[position]) < end:
            low, high = int(across.low[position]), int(across.high[position])
            between = torch.lerp(held[low].double(), held[high].double(), across.weight[position])
            yield position, label_plane(between, u, v)
            position += 1
        if position < len(across.low):
            held = {number: plane for number, plane in held.items() if number >= int(across.low[position])}


# --- Sheared scans: no axis of one grid runs along an axis of the other -----------------------------------------------
def plane_positions(shape: Sequence[int], axis: int, number: int, matrix: NDArray[Any]) -> Tensor:
    """Where the voxels of a plane lie on another grid, U×V×3."""
    sides = [torch.arange(n, dtype=torch.float64) for n in shape]
    sides[axis] = torch.tensor([number], dtype=torch.float64)
    place = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).squeeze(axis)
    turn = torch.as_tensor(matrix)
    return place @ turn[:3, :3].T + turn[:3, 3]


def sample(volume: Tensor, positions: Tensor) -> Tensor:
    """Values of a volume (X×Y×Z) between its voxels, at U×V×3; beyond its ends the end's value holds."""
    sizes = torch.tensor(volume.shape, dtype=torch.float64)
    normalized = 2 * positions / (sizes - 1).clamp(min=1) - 1
    grid = normalized.flip(-1)[None, None]  # grid_sample counts the last axis first
    return F.grid_sample(volume[None, None], grid, padding_mode="border", align_corners=True)[0, 0, 0]


def reached(positions: Tensor, shape: Sequence[int]) -> list[slice]:
    """The part of a volume that has the neighbors of all positions."""
    flat = positions.reshape(-1, 3)
    low, high = flat.amin(0).floor().long(), flat.amax(0).floor().long() + 2
    return [slice(min(max(int(a), 0), n - 1), max(min(int(b), n), 1)) for a, b, n in zip(low, high, shape, strict=True)]


def straightened(scan: NDArray[Any], grid: ScanGrid) -> Tensor:
    """A sheared scan on the network's grid."""
    result = torch.empty(grid.network_shape)
    for number in range(grid.network_shape[2]):
        positions = plane_positions(grid.network_shape, 2, number, grid.between)
        part = reached(positions, scan.shape)
        volume = torch.from_numpy(scan[tuple(part)].astype(np.float32)).double()
        offset = torch.tensor([side.start for side in part], dtype=torch.float64)
        result[:, :, number] = sample(volume, positions - offset)
    return result


def sheared_label_planes(
    slabs: Iterable[tuple[int, Tensor]], grid: ScanGrid, axis: int
) -> Iterator[tuple[int, Tensor]]:
    """`label_planes` for sheared scans."""
    back = np.linalg.inv(grid.between)
    held: dict[int, Tensor] = {}
    count, number = grid.oriented_shape[axis], 0
    # A plane of the scan crosses many of the network's: they are held until the last plane that crosses them is done.
    for start, planes in slabs:
        held |= {start + place: plane for place, plane in enumerate(planes)}
        end = start + len(planes)
        while number < count:
            positions = plane_positions(grid.oriented_shape, axis, number, back)
            part = reached(positions, grid.network_shape)[axis]
            if part.stop > end:
                break
            held = {place: plane for place, plane in held.items() if place >= part.start}
            yield number, sampled_labels(held, part, positions, axis)
            number += 1


def sampled_labels(held: dict[int, Tensor], part: slice, positions: Tensor, axis: int) -> Tensor:
    """The most probable channel at positions on the network's grid; `label_plane` for sheared scans."""
    crossed = [held[place] for place in range(part.start, part.stop)]
    offset = torch.zeros(3, dtype=torch.float64)
    offset[axis] = part.start
    best = torch.zeros(positions.shape[:2])
    labels = torch.full(best.shape, BACKGROUND, dtype=torch.uint8)
    for channel in range(max(len(plane) for plane in crossed)):
        if channel != BACKGROUND and all(float(plane[channel].max()) < 0.5 / len(plane) for plane in crossed):
            continue
        volume = torch.stack([plane[channel] for plane in crossed], axis).double()
        value = sample(volume, positions - offset).float()
        labels.masked_fill_(value > best, channel)
        torch.maximum(best, value, out=best)
    return labels
