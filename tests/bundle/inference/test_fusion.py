"""A sum of planes across any axis, in a file of tiles: exact, in order, without the volume in memory."""

import itertools
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from bundle.errors import InputError
from bundle.inference.buffers import DiskBuffers
from bundle.inference.fusion import TiledSum, tiled_bytes
from bundle.inference.windows import background_slabs

SHAPE = (5, 6, 7)


def volume(seed: int, channels: int = 3, shape: tuple[int, ...] = SHAPE) -> Tensor:
    """C×X×Y×Z of small whole numbers, whose sums are exact."""
    return torch.randint(0, 100, (channels, *shape), generator=torch.Generator().manual_seed(seed)).float()


def planes_across(values: Tensor, axis: int) -> Tensor:
    """N×C×U×V of C×X×Y×Z, by numpy."""
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(values.numpy(), 1 + axis, 0)))


def put_together(sums: TiledSum, axis: int) -> Tensor:
    """C×X×Y×Z; slabs must come in order, without gaps."""
    parts, end = [], 0
    for start, planes in sums.slabs(axis):
        assert start == end
        end += len(planes)
        parts.append(planes)
    return torch.cat(parts).movedim(0, 1 + axis)


@pytest.mark.parametrize("edge", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_planes_across_all_axes_are_summed_exactly(edge: int, count: int) -> None:
    sums, expected = TiledSum(SHAPE, 3, DiskBuffers(), edge), torch.zeros(3, *SHAPE)
    for axis in (2, 0, 1):
        values = volume(axis)
        expected += values
        planes = planes_across(values, axis)
        for start in range(0, len(planes), count):
            sums.add(axis, start, planes[start : start + count])
    for axis in range(3):
        assert torch.equal(put_together(sums, axis), expected)


def test_planes_may_come_in_any_order_and_again() -> None:
    sums, values = TiledSum(SHAPE, 3, DiskBuffers(), 4), volume(0)
    planes = planes_across(values, 1)
    for start in (3, 0, 5, 1, 4, 2, 3):
        sums.add(1, start, planes[start : start + 1])
    values[:, :, 3] *= 2
    assert torch.equal(put_together(sums, 2), values)
    sums.add(2, 1, torch.ones(1, 3, 5, 6))  # what was read can be added to
    values[..., 1] += 1
    assert torch.equal(put_together(sums, 0), values)


def test_slabs_lie_between_the_edges_of_tiles() -> None:
    sums = TiledSum(SHAPE, 1, DiskBuffers(), 4)
    assert [(start, tuple(planes.shape)) for start, planes in sums.slabs(2)] == [(0, (4, 1, 5, 6)), (4, (3, 1, 5, 6))]
    assert [(start, tuple(planes.shape)) for start, planes in sums.slabs(0)] == [(0, (4, 1, 6, 7)), (4, (1, 1, 6, 7))]


def test_slabs_are_the_caller_s_own() -> None:
    sums = TiledSum(SHAPE, 2, DiskBuffers(), 4)
    sums.add(0, 0, torch.ones(5, 2, 6, 7))
    for _, planes in sums.slabs(0):
        planes.zero_()
    assert put_together(sums, 1).eq(1).all()


def test_one_channel_and_planes_that_take_no_memory() -> None:
    sums = TiledSum(SHAPE, 1, DiskBuffers(), 4)
    for start, planes in background_slabs(0, 7, 1, (5, 6)):
        assert planes.stride(-1) == 0
        sums.add(2, start, planes)
    assert put_together(sums, 0).eq(1).all()


@pytest.mark.parametrize("axes", itertools.permutations(range(3)))
def test_the_order_of_views_does_not_matter(axes: tuple[int, ...]) -> None:
    sums = TiledSum((9, 3, 10), 2, DiskBuffers())
    for axis in axes:
        sums.add(axis, 0, planes_across(volume(axis, 2, (9, 3, 10)), axis))
    assert torch.equal(put_together(sums, 2), sum(volume(axis, 2, (9, 3, 10)) for axis in range(3)))


def test_a_tile_s_voxels_lie_together() -> None:
    sums = TiledSum((8, 8, 8), 2, DiskBuffers(), 4)
    sums.add(1, 0, torch.ones(1, 2, 8, 8))
    sums.write()
    file = sums.tiles.reshape(8, 2 * 4**3)  # tiles in the order of x, y, z
    assert file.any(1).tolist() == [True, True, False, False, True, True, False, False]


def test_tiles_reach_beyond_the_volume() -> None:
    assert tiled_bytes((512, 512, 200), 14, 8) == 4 * 14 * 512 * 512 * 200
    assert tiled_bytes((5, 8, 9), 3, 4) == 4 * 3 * 8 * 8 * 12


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux tells resident memory")
def mapped_memory() -> int:
    """Resident memory of this process that belongs to files, bytes: what C's allocator keeps does not count."""
    return int(psutil.Process().memory_info().shared)


def test_little_of_the_file_is_in_memory() -> None:
    shape, channels = (128, 128, 128), 24
    sums, before, most = TiledSum(shape, channels, DiskBuffers()), mapped_memory(), 0
    for axis in range(3):
        plane = torch.ones(1, channels, 128, 128)
        for start in range(128):
            sums.add(axis, start, plane)
            most = max(most, mapped_memory() - before)
    for _, planes in sums.slabs(2):
        assert planes.eq(3).all()
        most = max(most, mapped_memory() - before)
    assert tiled_bytes(shape, channels) > 200e6
    assert most < 40e6  # a layer of tiles takes 13 MB


def test_a_folder_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundle.inference.fusion.tempfile.gettempdir", lambda: "/small")
    monkeypatch.setattr(
        "bundle.inference.fusion.shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1_000_000_000})
    )
    with pytest.raises(InputError, match=r"/small: .* file of 2.9 GB, and 1.0 GB are free; set TMPDIR to a folder"):
        TiledSum((512, 512, 200), 14, DiskBuffers())
