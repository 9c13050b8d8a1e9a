# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Synthetic abdominal CT cohorts: patients with all 13 organs, scanned under a protocol per cohort, written as NIfTI.

Not a simulator of X-rays: it makes data hard in the ways that matter here (organs of overlapping HU, anatomy that
varies from patient to patient, cohorts that differ in noise, contrast phase and field of view), at no cost and under
no license. The patients themselves are in `phantom_anatomy`.
Coordinates are millimeters, RAS+: x to the patient's right, y to the front, z to the head.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from bundle.cohorts import preparing
from bundle.cohorts.datalists import Entry, write_datalist
from bundle.cohorts.phantom_anatomy import Canvas, Floats, Patient, smooth_field
from bundle.errors import InputError
from bundle.organs import ORGANS, WHOLE_VOCABULARY
from bundle.processes import run_all
from bundle.scans.writing import write_nifti

__all__ = ["PROTOCOLS", "ScanProtocol", "make_patient", "make_phantoms"]


# --- How a cohort is scanned -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ScanProtocol:
    """How a cohort's scans are acquired, and which organs its annotators marked.

    Args:
        annotated: names of the annotated organs.
        phase: range of the contrast phase, 0 arterial to 1 portal venous.
        noise: range of the noise in HU.
        blur: range of the in-plane blur in mm.
        width: range of the in-plane field of view in mm.
        height: lowest and highest z in mm.
        thickness: slice distance as a multiple of the grid's own.
        axes: orientation in which the files are written.
    """

    annotated: tuple[str, ...]
    phase: tuple[float, float]
    noise: tuple[float, float]
    blur: tuple[float, float]
    width: tuple[float, float]
    height: tuple[float, float]
    thickness: float
    axes: str

    def harder(self, difficulty: float) -> ScanProtocol:
        """The same protocol with so many times the noise and the blur."""
        noise, blur = ((difficulty * low, difficulty * high) for low, high in (self.noise, self.blur))
        return replace(self, noise=noise, blur=blur)


ALL_ORGANS = tuple(WHOLE_VOCABULARY.names)

PROTOCOLS: dict[str, ScanProtocol] = {
    "full": ScanProtocol(ALL_ORGANS, (0.6, 1.0), (12, 20), (2.0, 3.0), (370, 390), (-120, 120), 1.0, "RAS"),
    "spleen": ScanProtocol(("spleen",), (0.8, 1.0), (20, 30), (2.0, 3.5), (350, 380), (-85, 120), 0.85, "LAS"),
    "pancreas": ScanProtocol(("pancreas",), (0.2, 0.6), (10, 18), (1.5, 2.5), (360, 400), (-115, 100), 1.0, "LPS"),
    "liver": ScanProtocol(("liver",), (0.4, 1.0), (15, 25), (2.5, 4.0), (370, 420), (-60, 120), 1.2, "LAS"),
    "test": ScanProtocol(ALL_ORGANS, (0.4, 1.0), (10, 25), (1.5, 3.5), (360, 400), (-120, 120), 1.0, "RAS"),
    "validation": ScanProtocol(ALL_ORGANS, (0.4, 1.0), (10, 25), (1.5, 3.5), (360, 400), (-120, 120), 1.0, "RAS"),
}

GRID = (96, 96, 40)  # voxels of a scan with the full height; other heights keep the slice distance

FINE_MM = 3.0  # patients are rendered on voxels of at most this size, then averaged down: partial volume for free


def block_mean(values: Floats, factor: Sequence[int]) -> Floats:
    """The mean of each block of ``factor`` voxels."""
    a, b, c = (n // f for n, f in zip(values.shape, factor, strict=True))
    return np.asarray(values.reshape(a, factor[0], b, factor[1], c, factor[2]).mean((1, 3, 5)), np.float32)


def block_majority(labels: NDArray[np.uint8], factor: Sequence[int]) -> NDArray[np.uint8]:
    """The label with the largest share of each block."""
    best = block_mean((labels == 0).astype(np.float32), factor)
    winner = np.zeros(best.shape, np.uint8)
    for value in range(1, len(ORGANS) + 1):
        share = block_mean((labels == value).astype(np.float32), factor)
        better = share > best
        best[better], winner[better] = share[better], value
    return winner


def make_patient(
    seed: Sequence[int], protocol: ScanProtocol, grid: Sequence[int] = GRID
) -> tuple[NDArray[np.int16], NDArray[np.uint8], NDArray[np.float64]]:
    """A scan in RAS+: HU (int16), labels of all organs with the vocabulary's values (uint8), 4×4 affine.

    Args:
        seed: integers that identify the patient; the same ones give the same scan.
        protocol: how the patient is scanned.
        grid: voxels of a scan of full height; the protocol's height and thickness change the last one.

    >>> image, labels, affine = make_patient((0, 1), PROTOCOLS["liver"], grid=(16, 16, 8))
    >>> image.shape, str(image.dtype), float(affine[2, 2])  # 180 mm of height in slices of 36 mm
    ((16, 16, 5), 'int16', 36.0)
    """
    rng = np.random.default_rng(list(seed))
    width, blur, noise = rng.uniform(*protocol.width), rng.uniform(*protocol.blur), rng.uniform(*protocol.noise)
    thickness = 240 / grid[2] * protocol.thickness
    slices = max(1, round((protocol.height[1] - protocol.height[0]) / thickness))
    spacing = np.array([width / grid[0], width / grid[1], thickness])
    factor = [max(1, int(np.ceil(step / FINE_MM))) for step in spacing]
    shape = [grid[0], grid[1], slices]
    fine = [n * f for n, f in zip(shape, factor, strict=True)]

    patient = Patient(rng, rng.uniform(*protocol.phase))
    low = np.array([-width / 2, -width / 2, protocol.height[0]])
    high = low + spacing * shape
    bend = np.stack([smooth_field(rng, fine, (7, 7, 6), spread) for spread in (5, 5, 6)])
    canvas = Canvas(fine, low - patient.shift, high - patient.shift, bend)
    patient.paint(canvas)

    hu = canvas.hu + smooth_field(rng, fine, (24, 24, 16), 6) * (canvas.hu > -200)
    image = block_mean(hu, factor)
    sigma = [blur / step for step in spacing[:2]]
    image = gaussian_filter(image, (*sigma, 0.3))
    grain = gaussian_filter(rng.normal(0, 1, shape).astype(np.float32), (0.6, 0.6, 0.2))
    image += noise * grain / grain.std()
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = low + spacing / 2
    return np.clip(image, -1024, 3000).astype(np.int16), block_majority(canvas.label, factor), affine


# --- Cohorts on disk -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PhantomCase:
    """A case to be made: its cohort and its number there."""

    cohort: str
    number: int

    @property
    def file(self) -> str:
        return f"{self.cohort}_{self.number:03d}.nii.gz"

    @property
    def part(self) -> str:
        """What the Decathlon's folders `images…` and `labels…` end with."""
        return {"test": "Ts", "validation": "Va"}.get(self.cohort, "Tr")


def in_orientation(
    volume: NDArray[np.generic], affine: NDArray[np.float64], axes: str
) -> tuple[NDArray[np.generic], NDArray[np.float64]]:
    """A RAS+ volume and its affine in the orientation ``axes``."""
    turn = nib.orientations.ornt_transform(nib.io_orientation(affine), nib.orientations.axcodes2ornt(axes))
    turned = nib.orientations.apply_orientation(volume, turn)
    return turned, affine @ nib.orientations.inv_ornt_aff(turn, volume.shape)


def write_case(case: PhantomCase, output: Path, seed: int, grid: Sequence[int], difficulty: float) -> None:
    """Make a patient and write image, label map and, where that shows less than all organs, the truth."""
    protocol, folder = PROTOCOLS[case.cohort].harder(difficulty), output / case.cohort
    # The cohort's place in the table, not a hash of its name: hashes of strings differ from process to process.
    image, truth, affine = make_patient((seed, list(PROTOCOLS).index(case.cohort), case.number), protocol, grid)
    files: dict[Path, NDArray[np.generic]] = {
        folder / f"images{case.part}" / case.file: image,
        folder / f"labels{case.part}" / case.file: annotation(truth, protocol),
    }
    if set(protocol.annotated) != set(ALL_ORGANS):
        files[output / "truth" / case.cohort / case.file] = truth
    for path, volume in files.items():
        write_nifti(path, *in_orientation(volume, affine, protocol.axes))


def annotation(truth: NDArray[np.uint8], protocol: ScanProtocol) -> NDArray[np.uint8]:
    """What the cohort's annotators marked: the cohort's own values 1, 2, … in the order of its label set."""
    marked = np.zeros_like(truth)
    for value, name in enumerate(protocol.annotated, start=1):
        marked[truth == WHOLE_VOCABULARY.channel(name)] = value
    return marked


def entries_of(cases: Sequence[PhantomCase], folds: int) -> list[Entry]:
    """The cases of a cohort as its dataset.json lists them; those of the fully labelled one have folds."""
    entries: list[Entry] = [
        {"image": f"./images{case.part}/{case.file}", "label": f"./labels{case.part}/{case.file}"} for case in cases
    ]
    for case, entry in zip(cases, entries, strict=True):
        if case.cohort == "full":
            entry["fold"] = case.number % folds
    return entries


def write_cohort(output: Path, cohort: str, entries: Sequence[Entry], seed: int, difficulty: float) -> None:
    """Write the dataset.json of a cohort whose images and label maps are there."""
    protocol = PROTOCOLS[cohort].harder(difficulty)
    about = {
        "name": cohort,
        "description": f"synthetic abdominal CT, seed {seed}",
        "tensorImageSize": "3D",
        "protocol": asdict(protocol),
    }
    labels = {0: "background", **dict(enumerate(protocol.annotated, start=1))}
    section = cohort if cohort in ("test", "validation") else "training"
    write_datalist(output / cohort / "dataset.json", about, labels, {section: entries})


def make_phantoms(
    output: str,
    seed: int = 0,
    full: int = 6,
    partial: int = 8,
    test: int = 8,
    grid: Sequence[int] = GRID,
    folds: int = 5,
    difficulty: float = 1.0,
    drop_labels: int = 0,
    fraction: float = 0.2,
    workers: int | None = None,
    validation: int = 0,
) -> Path:
    """Write one full, three partial (spleen, pancreas, liver), a test and a validation cohort of synthetic CTs.

    The complete labels of the partial cohorts go to ``truth/``, which no dataset.json mentions: training never sees
    them.

    Args:
        output: folder to create the cohorts in.
        seed: the same seed gives the same voxels.
        full: cases of the fully labelled cohort.
        partial: cases of each partially labelled cohort.
        test: cases of the test cohort.
        grid: voxels of a scan, for instance 96,96,40 or 512,512,100.
        folds: folds of the fully labelled cohort.
        difficulty: so many times the noise and the blur of every protocol.
        drop_labels: organs whose labels are forgotten in some fully labelled cases (the paper's PaNN*: 8).
        fraction: share of those cases.
        workers: processes; default one per core.
        validation: cases of the validation cohort.
    """
    if isinstance(grid, str) or len(grid) != 3 or not all(isinstance(n, int) and n >= 8 for n in grid):
        raise InputError(f"grid: expected three numbers of at least 8 such as 96,96,40, found {grid}")
    if not isinstance(difficulty, int | float) or difficulty <= 0:
        raise InputError(f"difficulty: expected a number above 0 such as 1.5, found {difficulty}")
    if drop_labels >= len(ALL_ORGANS):
        raise InputError(f"drop_labels: expected fewer than the {len(ALL_ORGANS)} organs, found {drop_labels}")
    counts = {"full": full, "spleen": partial, "pancreas": partial, "liver": partial, "test": test}
    counts["validation"] = validation
    cohorts = {name: [PhantomCase(name, number) for number in range(count)] for name, count in counts.items() if count}
    write = functools.partial(write_case, output=Path(output), seed=seed, grid=tuple(grid), difficulty=difficulty)
    for _ in run_all(write, [case for cases in cohorts.values() for case in cases], "phantoms", workers):
        pass
    for cohort, cases in cohorts.items():
        entries = entries_of(cases, folds)
        if cohort == "full" and drop_labels:
            preparing.drop_labels(entries, ALL_ORGANS, drop_labels, fraction, seed)
        write_cohort(Path(output), cohort, entries, seed, difficulty)
    return Path(output)
