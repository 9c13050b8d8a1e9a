# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The inference engine: a volume through a network, in memory that does not grow with classes × volume.

Probabilities come in slabs of planes, and whoever asked reduces them at once: to labels on the scan's own grid, to
labels on the network's, or to pseudo-labels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.inferers import Inferer
from torch import Tensor, nn
from torch.nn import functional as F

from bundle.errors import InputError
from bundle.inference.body import box_around, find_body, touches
from bundle.inference.buffers import DiskBuffers
from bundle.inference.fusion import TiledSum
from bundle.inference.predictors import Predictor, check_backend, device_of
from bundle.inference.windows import Slabs, Windows, background_slabs, only_background, probability_slabs
from bundle.organs import BACKGROUND
from bundle.processes import give_back, watch_memory
from bundle.scans.grids import ScanGrid
from bundle.transforms.resampling import label_planes

__all__ = ["SlabInferer", "ViewInferer", "scan_grid_of"]


WORTH_COMPILING = 10_000_000  # voxels of all windows

WORKING_BYTES = 150_000_000  # planes on their way to labels

WAITING = 32  # planes of labels that are written together


def embed(slabs: Slabs, region: Sequence[slice], shape: Sequence[int], axis: int) -> Slabs:
    """Slabs of a part of a volume as slabs of the volume, background around them."""
    outside = [n for other, n in enumerate(shape) if other != axis]
    inside = [side for other, side in enumerate(region) if other != axis]
    first, end, channels = region[axis].start, region[axis].stop, 0
    whole = all(side == slice(0, n) for side, n in zip(inside, outside, strict=True))
    for start, planes in slabs:
        if not channels:
            channels = planes.shape[1]
            yield from background_slabs(0, first, channels, outside)
        if not whole:
            canvas = only_background(len(planes), channels, outside).clone()
            canvas[(slice(None), slice(None), *inside)] = planes
            planes = canvas
        yield first + start, planes
    yield from background_slabs(end, shape[axis], channels, outside)


def scan_grid_of(image: Tensor) -> ScanGrid:
    """The grids of an image, 1×X×Y×Z, that a reading transform brought to the network's grid."""
    if not isinstance(image, MetaTensor) or "original_affine" not in image.meta:
        raise ValueError('grid "scan": expected a MetaTensor that knows the affine and the shape of its file')
    shape = np.asarray(image.meta["spatial_shape"]).reshape(-1)[-3:]
    affine, network_affine = (
        np.asarray(matrix, np.float64).reshape(-1, 4, 4)[-1] for matrix in (image.meta["original_affine"], image.affine)
    )
    return ScanGrid(shape.tolist(), affine, image.shape[1:], network_affine)


class SlabInferer(Inferer):
    """Sliding windows over a whole volume, reduced to labels slab by slab.

    Called with an image on the network's grid (B×1×X×Y×Z) and the network, it gives labels (B×1×…, uint8) on the grid
    of the file the image came from, or on the network's. Several networks in a ModuleList are averaged.

    Args:
        roi_size: voxels of a window. An axis of size 1 is dropped, for a 2D network on slices; -1 is the whole axis.
        overlap: share of a window that the next one covers again.
        mode: `gaussian` or `constant`: how windows that overlap are weighted.
        sw_batch_size: windows evaluated together; None takes 1 on a CPU and 4 on a GPU.
        air: intensity up to which a voxel is air. Windows then lie over the body only, and none is all air. None
            evaluates the windows that MONAI's SlidingWindowInferer would.
        skip_air: False does as if ``air`` were None.
        grid: `scan` or `network`: the grid of the labels.
        flips: axes to mirror (0 right, 1 anterior, 2 superior), all combinations averaged: for networks that were
            trained with flips.
        scales: factors by which windows are resized, all averaged.
        backend: `torch`, `openvino`, or `auto`, which takes OpenVINO where it is there and the volume is worth the two
            seconds it takes to compile.
        memory: resident memory the process may take, GB. Sums that would exceed it are held in files; a volume that
            cannot be segmented within it is refused. None holds all in memory.
        progress: text before a progress bar over windows; empty for none.
        context: for 2D networks, slices on either side that are further channels of the input.
    """

    def __init__(
        self,
        roi_size: Sequence[int],
        overlap: float = 0.25,
        mode: str = "gaussian",
        sw_batch_size: int | None = 1,
        air: float | None = None,
        skip_air: bool = True,
        grid: str = "network",
        flips: Sequence[int] = (),
        scales: Sequence[float] = (1.0,),
        backend: str = "torch",
        memory: float | None = None,
        progress: str = "",
        context: int = 0,
    ) -> None:
        super().__init__()
        if grid not in ("scan", "network"):
            raise InputError(f'inferer: grid is "scan" or "network", not "{grid}"')
        check_backend(backend)
        if any(axis not in (0, 1, 2) for axis in flips or ()):
            raise InputError(f"flips: expected axes 0, 1 or 2, found {flips}")
        if not all(isinstance(scale, int | float) and scale > 0 for scale in scales or ()):
            raise InputError(f"scales: expected numbers above 0, found {scales}")
        if memory is not None and not (isinstance(memory, int | float) and memory > 0):
            raise InputError(f"memory: expected a number of GB above 0, found {memory}")
        self.roi_size, self.overlap, self.mode = tuple(int(n) for n in roi_size), float(overlap), mode
        self.batch, self.air = sw_batch_size, air if skip_air else None
        self.grid, self.progress = grid, progress
        self.memory, self.context = memory, int(context)
        if self.context < 0 or (self.context and self.roi_size.count(1) != 1):
            raise InputError(
                f"context: is about slices, but windows are {list(roi_size)}; give them one axis of size 1"
            )
        self.asked: dict[str, Any] = {"flips": flips or (), "scales": scales or (1.0,), "backend": backend}
        self.network: nn.Module | None = None  # the last one, and what evaluates it
        self.predictors: dict[str, Predictor] = {}

    def __call__(self, inputs: Tensor, network: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        reduce = self.on_scan if self.grid == "scan" else self.on_network
        if len(inputs) == 1:
            return reduce(inputs[0], network)[None]  # not stacked, which would copy it into another order
        return torch.stack([reduce(image, network) for image in inputs])

    def predictor(self, network: nn.Module, voxels: int) -> Predictor:
        """What evaluates the network in windows that have so many voxels together."""
        backend = self.asked["backend"]
        if backend == "auto" and voxels < WORTH_COMPILING:
            backend = "torch"
        if network is not self.network:
            self.network, self.predictors = network, {}
        if backend not in self.predictors:
            networks = list(network) if isinstance(network, nn.ModuleList) else [network]
            self.predictors[backend] = Predictor(networks, **{**self.asked, "backend": backend})
        return self.predictors[backend]

    def batch_for(self, network: nn.Module) -> int:
        """Windows evaluated together."""
        return int(self.batch or (1 if device_of(network).type == "cpu" else 4))

    def slabs(self, image: Tensor, network: nn.Module) -> tuple[int, Slabs]:
        """Probabilities of a volume (X×Y×Z): the axis they are finished along, and slabs across it.

        A volume of nothing but air has one channel, the background.
        """
        image = image.as_tensor() if isinstance(image, MetaTensor) else image
        image = image.cpu().float()
        shape = image.shape
        size = [n if n > 0 else total for n, total in zip(self.roi_size, shape, strict=True)]
        region: tuple[slice, ...] = tuple(slice(0, n) for n in shape)
        body = None if self.air is None else find_body(image, self.air)
        if body is not None and not body.any():
            return 2, background_slabs(0, shape[2], 1, shape[:2])
        if body is not None:
            region = box_around(body, shape, size)
        padded, inner = self.windowed(image, region, size)
        windows = Windows(padded.shape[1:], size, self.overlap, self.mode)
        offset = [side.start - margin.start for side, margin in zip(region, inner, strict=True)]
        wanted = None if body is None else touches(body, windows, offset)
        predictor = self.predictor(network, math.prod(map(len, windows.starts)) * math.prod(size))
        if self.memory is not None:
            self.keep_within(self.memory * 1e9, windows, predictor, self.batch_for(network))
        slabs = probability_slabs(padded, predictor, windows, wanted, self.batch_for(network), self.progress)
        return windows.axis, embed(crop(slabs, inner, windows.axis), region, shape, windows.axis)

    def windowed(self, image: Tensor, region: Sequence[slice], size: Sequence[int]) -> tuple[Tensor, list[slice]]:
        """A region of a volume as windows see it, C×X×Y×Z, and where it lies in there."""
        if not self.context:
            padded, inner = pad(image[tuple(region)], size)
            return padded[None], inner
        axis = list(size).index(1)
        # across the slices all of the volume: beside the region's last slice lies the volume's next one
        sides = [*region[:axis], slice(None), *region[axis + 1 :]]
        padded, inner = pad(image[tuple(sides)], size)
        count = region[axis].stop - region[axis].start
        inner[axis] = slice(0, count)
        return with_neighbors(padded, axis, self.context).narrow(1 + axis, region[axis].start, count), inner

    def keep_within(self, budget: float, windows: Windows, predictor: Predictor, batch: int) -> None:
        """Hold the windows' sums in files if memory does not suffice.

        Raises:
            InputError: when the network alone takes more.
        """
        with torch.inference_mode(), watch_memory() as most:
            channels = predictor(torch.zeros(batch, 1 + 2 * self.context, *windows.size)).shape[1]
        taken = most() + WORKING_BYTES
        if taken > budget:
            raise InputError(
                f"memory: this scan and network take {taken / 1e9:.1f} GB before anything is held, the budget is "
                f"{budget / 1e9:g} GB; allow more"
            )
        if taken + windows.held_bytes(channels) > budget:
            windows.disk = DiskBuffers()

    @torch.no_grad()
    def on_network(self, image: Tensor, network: nn.Module) -> Tensor:
        """Labels (1×X×Y×Z) on the network's grid."""
        axis, slabs = self.slabs(image[0], network)
        labels = torch.empty(image.shape, dtype=torch.uint8)
        for start, planes in slabs:
            labels[0].narrow(axis, start, len(planes)).copy_(planes.argmax(1).movedim(0, axis))
        return labels

    @torch.no_grad()
    def on_scan(self, image: Tensor, network: nn.Module) -> Tensor:
        """Labels (1×X×Y×Z) on the grid of the file the image came from."""
        grid = scan_grid_of(image)
        axis, slabs = self.slabs(image[0], network)
        labels = np.zeros(grid.shape, np.uint8, order="F")  # the order of a NIfTI file
        planes_of = np.moveaxis(grid.oriented(labels), axis, 0)
        # Several planes at a time: across a file's first axis, one plane's voxels lie far from each other. They wait in
        # one place: planes left where they were made would part the allocator's free memory, and it could grow by GBs.
        waiting = np.empty((WAITING, *planes_of.shape[1:]), np.uint8)
        for number, plane in label_planes(slabs, grid, axis):
            place = number % WAITING
            waiting[place] = plane.numpy()
            if place == WAITING - 1 or number == len(planes_of) - 1:
                planes_of[number - place : number + 1] = waiting[: place + 1]
                give_back()
        return MetaTensor(torch.from_numpy(labels)[None], affine=torch.from_numpy(grid.affine))


class ViewInferer(SlabInferer):
    """Several networks, each with windows of its own, for instance 2D networks on axial, coronal and sagittal slices.

    Their slabs lie across different axes, so the mean of their probabilities exists for the whole volume before the
    first label does: classes × volume, held in a file.

    Args:
        views: one inferer per network.
        memory: as for `SlabInferer`; the file does not count.
        options: as for `SlabInferer`; windows are the views' own.
    """

    def __init__(self, views: Sequence[SlabInferer], **options: Any) -> None:
        super().__init__(views[0].roi_size, **options)
        self.views = list(views)

    def slabs(self, image: Tensor, network: nn.Module) -> tuple[int, Slabs]:
        networks = list(network) if isinstance(network, nn.ModuleList) else [network]
        if len(networks) != len(self.views):
            raise ValueError(f"expected a ModuleList of {len(self.views)} networks, one for each view")
        return 2, self.fused(image, networks)

    def fused(self, image: Tensor, networks: Sequence[nn.Module]) -> Slabs:
        sums: TiledSum | None = None
        only_air = 0  # views that found nothing but air: they have one channel
        for view, network in zip(self.views, networks, strict=True):
            axis, slabs = view.slabs(image, network)
            for start, planes in slabs:
                if planes.shape[1] == 1:
                    only_air += 1
                    break
                if sums is None:
                    sums = TiledSum(image.shape, planes.shape[1], DiskBuffers())
                sums.add(axis, start, planes)
        if sums is None:
            yield from background_slabs(0, image.shape[2], 1, image.shape[:2])
            return
        # Across the last axis: label maps are written in that order.
        for start, planes in sums.slabs(2):
            planes[:, BACKGROUND] += only_air
            yield start, planes.div_(len(networks))


def pad(image: Tensor, size: Sequence[int]) -> tuple[Tensor, list[slice]]:
    """The volume, zeros around it where it is smaller than a window, and where it lies in there; as MONAI pads."""
    missing = [max(0, n - total) for n, total in zip(size, image.shape, strict=True)]
    before = [n // 2 for n in missing]
    sides = [side for n, half in zip(missing[::-1], before[::-1], strict=True) for side in (half, n - half)]
    inner = [slice(half, half + total) for half, total in zip(before, image.shape, strict=True)]
    return F.pad(image, sides) if any(missing) else image, inner


def with_neighbors(image: Tensor, axis: int, context: int) -> Tensor:
    """A volume as C×X×Y×Z: the slices beside each slice are its further channels, in order; a view of one copy.

    Beyond the ends the last slice is repeated, as in training.
    """
    ends = image.narrow(axis, 0, 1), image.narrow(axis, image.shape[axis] - 1, 1)
    longer = torch.cat([*[ends[0]] * context, image, *[ends[1]] * context], axis)
    return longer.unfold(axis, 2 * context + 1, 1).movedim(-1, 0)


def crop(slabs: Slabs, inner: Sequence[slice], axis: int) -> Slabs:
    """What `pad` added, taken away from slabs."""
    across, others = inner[axis], [side for other, side in enumerate(inner) if other != axis]
    for start, planes in slabs:
        low, high = max(start, across.start), min(start + len(planes), across.stop)
        if low < high:
            yield low - across.start, planes[(slice(low - start, high - start), slice(None), *others)]
