# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Volumes of the organs of a label map, in ml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.files import write_json
from bundle.organs import BACKGROUND, Vocabulary

__all__ = [
    "OrganVolume",
    "SliceCounts",
    "Volumes",
    "count_by_slice",
    "measure_volumes",
    "sum_volumes",
    "write_volumes",
]


SliceCounts = list[NDArray[np.int64]]  # voxels of each channel in each slice across each axis, see `count_by_slice`


@dataclass(frozen=True)
class OrganVolume:
    """Size of an organ in a label map.

    Args:
        value: its value in the map.
        voxels: how many have it.
        ml: their volume.
        touches_border: it reaches a side of the scan, so that the volume is a lower bound.
    """

    value: int
    voxels: int
    ml: float
    touches_border: bool


@dataclass(frozen=True)
class Volumes:
    """Size of every organ of the vocabulary, absent ones with zero."""

    voxel_volume_mm3: float
    organs: dict[str, OrganVolume]


def count_by_slice(labels: NDArray[np.uint8], channels: int) -> SliceCounts:
    """Voxels of each value below ``channels`` in each slice across each axis: three arrays, slices × channels.

    One pass over the map, a slab at a time along the axis that lies farthest apart in memory.
    """
    order = np.argsort(labels.strides)[::-1]  # slowest axis first
    counts = [np.zeros((size, channels), np.int64) for size in labels.shape]
    slow, rows, columns = (counts[axis] for axis in order)
    for place, slab in enumerate(labels.transpose(order)):
        flat = np.ascontiguousarray(slab).reshape(-1)  # contiguous already in C and Fortran order: no copy
        found = np.flatnonzero((flat != BACKGROUND) & (flat < channels))
        values = flat[found].astype(np.int64)
        slow[place] = np.bincount(values, minlength=channels)
        for total, index in zip((rows, columns), np.divmod(found, slab.shape[1]), strict=True):
            total += np.bincount(index * channels + values, minlength=total.size).reshape(total.shape)
    return counts


def sum_volumes(counts: SliceCounts, affine: NDArray[np.float64], vocabulary: Vocabulary) -> Volumes:
    """`measure_volumes` of a label map whose voxels are counted.

    >>> labels = np.zeros((10, 10, 10), np.uint8)
    >>> labels[:2, 2:4, 2:4] = 1  # at the first side of the scan
    >>> volumes = sum_volumes(count_by_slice(labels, channels=2), np.diag([5.0, 5.0, 10.0, 1.0]), Vocabulary("liver"))
    >>> round(volumes.voxel_volume_mm3, 6), volumes.organs["liver"].voxels, volumes.organs["liver"].touches_border
    (250.0, 8, True)
    """
    voxel = float(abs(np.linalg.det(affine[:3, :3])))
    voxels = counts[0].sum(0)
    border = np.any([count[[0, -1]].any(0) for count in counts], axis=0)  # the six faces of the scan
    organs = {
        organ.name: OrganVolume(value, int(voxels[value]), float(voxels[value] * voxel / 1000), bool(border[value]))
        for value, organ in enumerate(vocabulary, start=1)
    }
    return Volumes(voxel, organs)


def measure_volumes(labels: NDArray[np.uint8], affine: NDArray[np.float64], vocabulary: Vocabulary) -> Volumes:
    """Voxels and volume of each organ in a label map.

    Args:
        labels: X×Y×Z, values are the vocabulary's channels.
        affine: voxel to mm.
        vocabulary: the organs.

    >>> labels = np.zeros((10, 10, 10), np.uint8)
    >>> labels[2:4, 2:4, 2:4] = 1
    >>> liver = measure_volumes(labels, np.diag([5.0, 5.0, 10.0, 1.0]), Vocabulary("liver")).organs["liver"]
    >>> liver.voxels, round(liver.ml, 6), liver.touches_border
    (8, 2.0, False)
    """
    return sum_volumes(count_by_slice(labels, vocabulary.out_channels), affine, vocabulary)


def write_volumes(
    path: str | Path,
    image: str | Path,
    volumes: Volumes,
    extra: Mapping[str, Any] | None = None,
    remarks: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Write volumes as JSON: the scan, what ``extra`` adds, the volume of a voxel, and an entry for each organ.

    Args:
        path: of the file.
        image: the scan.
        volumes: of its label map.
        extra: further entries.
        remarks: further entries of organs.

    >>> import json
    >>> from tempfile import TemporaryDirectory
    >>> volumes = measure_volumes(np.ones((2, 2, 2), np.uint8), np.eye(4), Vocabulary("liver"))
    >>> with TemporaryDirectory() as folder:
    ...     path, remarks = Path(folder, "volumes.json"), {"liver": {"note": "tiny"}}
    ...     write_volumes(path, "ct.nii.gz", volumes, {"version": "1.0"}, remarks)
    ...     record = json.loads(path.read_text())
    >>> record["image"], record["version"], record["organs"]["liver"]["voxels"], record["organs"]["liver"]["note"]
    ('ct.nii.gz', '1.0', 8, 'tiny')
    """
    record = {"image": str(image), **(extra or {}), **asdict(volumes)}
    for name, more in (remarks or {}).items():
        record["organs"][name] |= more
    write_json(path, record)
