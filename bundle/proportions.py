# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Organ proportions of cohorts before any training: q, what each partial cohort shows beside it, and where to doubt q.

The numbers are those of `estimate_prior`, but no volume is resampled: the weight of each voxel on the network's grid
is handed to the voxel of the file that a nearest neighbour would take it from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import torch
from monai.networks.layers import AffineTransform
from numpy.typing import NDArray

from bundle.checks import undeclared
from bundle.cohorts import Case, full_cases, is_full, largest_vocabulary
from bundle.errors import InputError
from bundle.grids import ScanGrid
from bundle.label_maps import whole_file
from bundle.organs import BACKGROUND, Vocabulary
from bundle.parallel import run_all
from bundle.priors import Prior, Weights, label_proportions, prior_of_cases
from bundle.sampling import Patches
from bundle.scans import NIFTI, check_header, read_label_map, read_scan

__all__ = ["Cohort", "Footing", "Given", "MeasuredCase", "Survey", "measure_case", "native_weights", "survey_cohorts"]

TILT = 1e-12  # voxels per voxel: less is the rounding of our own sums
VIEW_FACTOR = 1.5  # fields of view that differ by more make q doubtful
SHARE_FACTOR = 2.0  # so do proportions that differ by more, unless q's own spread explains it
SPREADS = 2.0  # standard deviations of q that explain a difference


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
        volume_l: its field of view in litres.
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
    declared = case["values"]
    highest = int(voxels.max())
    if highest > max(declared):
        undeclared(case, [highest])
    tilt = np.abs(grid.between[:3, :3] - np.diag(grid.scale)).max()
    counts = (tilted_counts if tilt > TILT else straight_counts)(voxels, grid, patches, max(declared) + 1)
    extra = [value for value in np.flatnonzero(counts).tolist() if value not in declared]
    if extra:
        undeclared(case, extra)
    mapped = np.zeros(256)
    for value, meaning in declared.items():
        mapped[meaning] += counts[value]
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
    try:
        image = nib.load(path)
    except Exception as error:  # nibabel raises a dozen kinds for a broken file
        raise InputError(f"{path}: cannot be read as an image ({error}); replace the file") from None
    affine = np.asarray(image.affine, np.float64)
    check_header(Path(path), image.shape, affine)
    return tuple(image.shape[:3]), affine


def measure_case(case: Case, vocabulary: Vocabulary, footing: Footing) -> MeasuredCase:
    """Proportions and field of view of a case; of one without a label map the field of view only."""
    label = read_label_map(case["label"]) if "label" in case else None
    shape, affine = image_grid(case["image"]) if label is None else (label.voxels.shape, label.affine)
    grid = ScanGrid.spaced(shape, affine, footing.pixdim)
    full, proportions, cut = is_full(case, vocabulary.names), {}, []
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


# --- Cohorts ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Given:
    """The proportion of an organ that a cohort's annotators marked.

    Args:
        mean: over the cases in which it is annotated.
        spread: standard deviation over them.
        cases: how many they are.
        ratio: mean ÷ q; None where q is 0.
    """

    mean: float
    spread: float
    cases: int
    ratio: float | None


@dataclass(frozen=True)
class Cohort:
    """The full cases, or the partially labelled ones of a cohort; the field of view is the median of each number.

    Args:
        name: of the cohort.
        cases: how many.
        extent_mm: field of view from right to left, back to front, foot to head.
        volume_l: field of view in litres.
        given: of each annotated organ.
    """

    name: str
    cases: int
    extent_mm: tuple[float, ...]
    volume_l: float
    given: dict[str, Given]


def spread_of(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def describe_cohort(name: str, members: Sequence[MeasuredCase], q: Mapping[str, float]) -> Cohort:
    given = {}
    for organ in q:
        shares = [case.proportions[organ] for case in members if organ in case.proportions]
        if shares and organ != "background":
            mean = float(np.mean(shares))
            given[organ] = Given(mean, spread_of(shares), len(shares), mean / q[organ] if q[organ] else None)
    extent = np.median([case.extent_mm for case in members], axis=0)
    return Cohort(name, len(members), tuple(extent.tolist()), float(np.median([c.volume_l for c in members])), given)


@dataclass(frozen=True)
class Survey:
    """Organ proportions of all cohorts.

    Args:
        prior: q, as training would estimate it from these full cases.
        full: the full cases.
        partial: the partially labelled cohorts.
        cut: in how many full cases each organ reaches a side of the scan.
        cases: all cases.
        warnings: sentences on where q is doubtful.
    """

    prior: Prior
    full: Cohort
    partial: list[Cohort]
    cut: dict[str, int]
    cases: list[MeasuredCase]
    warnings: list[str]

    def save(self, folder: str | Path) -> None:
        """Write `prior.json`, which `Prior.load` reads, and `cohorts.json` with all else."""
        self.prior.save(Path(folder) / "prior.json")
        record = {key: value for key, value in asdict(self).items() if key != "prior"}
        with whole_file(Path(folder) / "cohorts.json") as unfinished:
            unfinished.write_text(json.dumps(record, indent=2) + "\n")


def survey_cohorts(cases: Sequence[Case], vocabulary: Vocabulary, footing: Footing) -> Survey:
    """q of the full cases, and what each partially labelled cohort shows beside it.

    Raises:
        InputError: when no case is full, or a file cannot be used.
    """
    if not full_cases(cases, vocabulary.names):
        names = largest_vocabulary(cases)
        raise InputError(
            "no case has all organs of the vocabulary annotated, so that q cannot be estimated; "
            + (f'the largest vocabulary that has one is --organs "{names}"' if names else "add a fully labelled cohort")
        )
    measured = measure_cases(cases, vocabulary, footing)
    full = [case for case in measured if case.full]
    rows = [[case.proportions[name] for name in vocabulary.channel_names] for case in full]
    voxels = sum(case.voxels for case in full)
    prior = prior_of_cases(vocabulary, np.array(rows), [case.case for case in full], footing.patches, voxels)
    q = dict(zip(prior.names, prior.proportions, strict=True))
    cohorts = dict.fromkeys(case.cohort for case in measured if not case.full)
    whole = describe_cohort("full cases", full, q)
    partial = [describe_cohort(name, [c for c in measured if c.cohort == name and not c.full], q) for name in cohorts]
    cut = {name: sum(name in case.cut for case in full) for name in vocabulary.names}
    return Survey(prior, whole, partial, cut, measured, find_doubts(prior, whole, partial, cut))


# --- Where q is doubtful ---------------------------------------------------------------------------------------------
def find_doubts(prior: Prior, full: Cohort, partial: Sequence[Cohort], cut: Mapping[str, int]) -> list[str]:
    """Sentences on what makes q doubtful: fields of view, proportions, organs that are cut off or missing."""
    doubts = [sentence for cohort in partial if (sentence := doubt_view(cohort, full))]
    doubts += [sentence for cohort in partial for sentence in doubt_shares(cohort, prior)]
    often = [f"{name} ({count})" for name, count in cut.items() if 2 * count > full.cases]
    if often:
        doubts.append(
            f"cut off by a side of the scan in more than half of the {full.cases} full cases: {', '.join(often)}; "
            "their q is that of the visible part and would differ in scans that show more of the body, so lower "
            "prior_weight if your cohorts do"
        )
    missing = [name for name, q in zip(prior.names, prior.proportions, strict=True) if q == 0]
    if missing:
        doubts.append(
            f"q is 0, since no full case shows it: {', '.join(missing)}; add a full case that does, or leave it out of "
            "--organs"
        )
    return doubts


def apart(a: float, b: float, factor: float) -> bool:
    """Whether two sizes differ by more than a factor."""
    return max(a, b) > factor * min(a, b)


def doubt_view(cohort: Cohort, full: Cohort) -> str | None:
    height, usual = cohort.extent_mm[2], full.extent_mm[2]
    if not apart(height, usual, VIEW_FACTOR) and not apart(cohort.volume_l, full.volume_l, VIEW_FACTOR):
        return None
    return (
        f"cohort {cohort.name}: its scans show {height:.0f} mm from foot to head and {cohort.volume_l:.1f} l (medians),"
        f" the full cases {usual:.0f} mm and {full.volume_l:.1f} l, so that organs take other shares of them; crop the "
        "larger ones, lower prior_weight, or leave the cohort out"
    )


def doubt_shares(cohort: Cohort, prior: Prior) -> list[str]:
    q = dict(zip(prior.names, zip(prior.proportions, prior.spread, strict=True), strict=True))
    doubts = []
    for organ, given in cohort.given.items():
        share, spread = q[organ]
        if apart(given.mean, share, SHARE_FACTOR) and abs(given.mean - share) > SPREADS * spread:
            times = "" if given.ratio is None else f", {given.ratio:.2g} times as much"
            doubts.append(
                f"cohort {cohort.name}: the {organ} takes {1000 * given.mean:.3g} ‰ of its scans, but q is "
                f"{1000 * share:.3g} ± {1000 * spread:.2g} ‰{times}; compare their fields of view, then crop, lower "
                "prior_weight, or leave the cohort out"
            )
    return doubts
