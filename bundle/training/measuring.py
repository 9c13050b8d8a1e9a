# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Organ proportions of a case as patches would see it, without resampling a volume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.networks.layers import AffineTransform
from numpy.typing import NDArray

from bundle.cohorts.datalists import Case
from bundle.cohorts.labels import LabelValues
from bundle.cohorts.selection import is_full
from bundle.organs import BACKGROUND, Vocabulary
from bundle.processes import run_all
from bundle.scans.finding import NIFTI
from bundle.scans.grids import ScanGrid
from bundle.scans.nifti import open_nifti
from bundle.scans.reading import read_label_map, read_scan
from bundle.training.patches import Patches
from bundle.training.prior import Weights, label_proportions

__all__ = ["Footing", "MeasuredCase", "measure_case", "native_weights"]


TILT = 1e-12  # voxels per voxel: less is the rounding of our own sums


@dataclass(frozen=True)
class Footing:
    """How training looks at a scan.

    Args:
        patches: how patches are cut; the volume is padded to at least what they read.
        pixdim: voxel size of the network's grid, mm.
    """

    patches: Patches
    pixdim: tuple[float, ...]


# --- One case --------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class MeasuredCase:
    """What a case shows.

    Args:
        case: its name.
        cohort: name of its cohort.
        full: whether every organ of the vocabulary is annotated.
        proportions: share of each annotated organ; of a full case the background's too, and they add up to 1.
        extent_mm: its field of view from right to left, back to front, foot to head.
        volume_l: its field of view in liters.
        cut: annotated organs that reach a side of the scan.
        voxels: voxels of the network's grid, padding included.
    """

    case: str
    cohort: str
    full: bool
    proportions: dict[str, float]
    extent_mm: tuple[float, float, float]
    volume_l: float
    cut: tuple[str, ...]
    voxels: int


def padded_shape(grid: ScanGrid, patches: Patches) -> list[int]:
    """Voxels of the network's grid after SpatialPadd: a patch fits in."""
    return [max(n, size) for n, size in zip(grid.network_shape, patches.read_size, strict=True)]


def network_weights(grid: ScanGrid, patches: Patches) -> Weights:
    """Per axis the coverage of the voxels of the network's grid; in all it is below 1 where the scan is padded."""
    padded = padded_shape(grid, patches)
    starts = [(total - n) // 2 for total, n in zip(padded, grid.network_shape, strict=True)]  # as SpatialPadd does
    parts = zip(patches.coverage(padded), starts, grid.network_shape, strict=True)
    return [weights[start : start + n] for weights, start, n in parts]


def nearest_voxels(grid: ScanGrid, axis: int) -> NDArray[np.intp]:
    """For each voxel of the network's grid the voxel of the oriented scan that it is a copy of, along one axis.

    MONAI itself says it, about a ramp: half-way between two voxels, where every other slice may lie (4 mm on 2 mm), its
    rounding decides, and that is no simple rule.
    """
    size, count = grid.oriented_shape[axis], grid.network_shape[axis]
    ramp = torch.arange(size, dtype=torch.float64).view(1, 1, size, 1, 1)
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[0, 0], matrix[0, 3] = float(grid.scale[axis]), float(grid.shift[axis])
    resample = AffineTransform(mode="nearest", padding_mode="border", align_corners=False, reverse_indexing=True)
    places: NDArray[np.intp] = resample(ramp, matrix, spatial_size=(count, 1, 1)).flatten().numpy().astype(np.intp)
    return places


def native_weights(grid: ScanGrid, patches: Patches) -> Weights:
    """Per axis of the file how often a draw shows each of its voxels, however often it is repeated or left out.

    Args:
        grid: both grids, not tilted.
        patches: how patches are cut.
    """
    weights: list[NDArray[np.float64]] = [np.empty(0)] * 3
    for axis, coverage in enumerate(network_weights(grid, patches)):
        size = grid.oriented_shape[axis]
        weight = np.bincount(nearest_voxels(grid, axis), weights=coverage, minlength=size).astype(np.float64)
        weights[grid.axes[axis]] = weight[::-1] if grid.flipped[axis] else weight
    return weights


def straight_counts(voxels: NDArray[Any], grid: ScanGrid, patches: Patches, values: int) -> NDArray[np.float64]:
    """Weight of each value of a label map."""
    weights = native_weights(grid, patches)
    seen = [np.flatnonzero(weight) for weight in weights]  # a coarse grid leaves most voxels out
    chosen = voxels[np.ix_(*seen)].astype(np.min_scalar_type(values))
    parts = [weight[places] for weight, places in zip(weights, seen, strict=True)]
    if voxels.flags.f_contiguous:  # slabs that lie together in memory
        chosen, parts = chosen.T, parts[::-1]
    return label_proportions(chosen, parts, values)


def tilted_counts(voxels: NDArray[Any], grid: ScanGrid, patches: Patches, values: int) -> NDArray[np.float64]:
    """`straight_counts` for sheared and oblique scans: voxel by voxel of the network's grid, a plane at a time.

    The axes of a sheared scan do not come apart. Nor quite do those of an oblique one: its header is rounded, and where
    a plane lies half-way between two others, that decides for each of its voxels.
    """
    scan, (u, v, w) = grid.oriented(voxels), network_weights(grid, patches)
    plane = np.multiply.outer(u, v)
    i, j = np.ogrid[: len(u), : len(v)]
    counts = np.zeros(values)
    for k, weight in enumerate(w):
        places = [i * row[0] + j * row[1] + (k * row[2] + row[3]) for row in grid.between[:3]]
        inside = (np.rint(place).clip(0, size - 1) for place, size in zip(places, scan.shape, strict=True))
        shown = scan[tuple(place.astype(np.intp) for place in inside)]
        counts += weight * np.bincount(shown.ravel().astype(np.intp), weights=plane.ravel(), minlength=values)
    return counts


def count_channels(voxels: NDArray[Any], case: Case, grid: ScanGrid, patches: Patches) -> NDArray[np.float64]:
    """Weight of each of the 256 values a loaded label map may have; all together they are 1.

    Values are counted as the file has them and mapped afterwards: 256 numbers instead of millions.
    """
    values = LabelValues.of(case)
    values.check([int(voxels.max())])  # before anything of that size is counted
    tilt = np.abs(grid.between[:3, :3] - np.diag(grid.scale)).max()
    counts = (tilted_counts if tilt > TILT else straight_counts)(voxels, grid, patches, values.highest + 1)
    mapped = values.sum_counts(counts)
    mapped[BACKGROUND] += max(0.0, 1 - counts.sum())  # the padding
    return mapped


def border_values(voxels: NDArray[Any]) -> set[int]:
    """The values on the six faces of a label map."""
    faces = [np.moveaxis(voxels, axis, 0)[place] for axis in range(3) for place in (0, -1)]
    return {int(value) for face in faces for value in np.unique(face)}


def image_grid(path: str) -> tuple[tuple[int, ...], NDArray[np.float64]]:
    """Shape and affine of an image; of NIfTI the header alone is read."""
    if not path.endswith(NIFTI):
        scan = read_scan(path)
        return scan.voxels.shape, scan.affine
    image, affine = open_nifti(Path(path))
    return tuple(image.shape[:3]), affine


def measure_case(case: Case, vocabulary: Vocabulary, footing: Footing) -> MeasuredCase:
    """Proportions and field of view of a case; of one without a label map the field of view only.

    >>> import nibabel as nib
    >>> from tempfile import TemporaryDirectory
    >>> labels, case = np.zeros((8, 8, 8), np.uint8), {"case": "a", "cohort": "livers", "labelled": ["liver"]}
    >>> labels[:2] = 1  # a quarter of the scan, at its first side
    >>> with TemporaryDirectory() as folder:
    ...     case |= {"label": f"{folder}/label.nii.gz", "values": {0: 255, 1: 1}}
    ...     nib.save(nib.Nifti1Image(labels, np.diag([2.0, 2.0, 2.0, 1.0])), case["label"])
    ...     shown = measure_case(case, Vocabulary("liver,spleen"), Footing(Patches((8, 8, 8)), (2.0, 2.0, 2.0)))
    >>> shown.proportions, shown.cut, shown.extent_mm
    ({'liver': 0.25}, ('liver',), (16.0, 16.0, 16.0))
    """
    label = read_label_map(case["label"]) if "label" in case else None
    shape, affine = image_grid(case["image"]) if label is None else (label.voxels.shape, label.affine)
    grid = ScanGrid.spaced(shape, affine, footing.pixdim)
    full, proportions, cut = is_full(case, vocabulary), {}, []
    if label is not None:
        counts = count_channels(label.voxels, case, grid, footing.patches)[: vocabulary.out_channels]
        # As `estimate_prior` does, ignored voxels of full cases are left out of the whole.
        counts = counts / counts.sum() if full else counts
        annotated = [name for name in vocabulary.channel_names if full or name in case["labelled"]]
        proportions = {name: float(counts[vocabulary.channel(name) or BACKGROUND]) for name in annotated}
        outer = {case["values"].get(value) for value in border_values(label.voxels)}
        cut = [name for name in case["labelled"] if vocabulary.channel(name) in outer]
    steps = np.linalg.norm(affine[:3, :3], axis=0)
    right, front, head = (float(shape[axis] * steps[axis]) for axis in grid.axes)
    return MeasuredCase(
        case["case"],
        case["cohort"],
        full,
        proportions,
        (right, front, head),
        float(abs(np.linalg.det(affine[:3, :3])) * np.prod(shape) / 1e6),
        tuple(cut),
        int(np.prod(padded_shape(grid, footing.patches))),
    )


def measure_cases(cases: Sequence[Case], vocabulary: Vocabulary, footing: Footing) -> list[MeasuredCase]:
    """All cases, in order, on all cores."""
    measure = partial(measure_alone, vocabulary=vocabulary, footing=footing)
    return list(run_all(measure, cases, "organ proportions"))


def measure_alone(case: Case, vocabulary: Vocabulary, footing: Footing) -> MeasuredCase:
    """`measure_case` on one thread: there are as many processes as cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return measure_case(case, vocabulary, footing)
    finally:
        torch.set_num_threads(threads)
