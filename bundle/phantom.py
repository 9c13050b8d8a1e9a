# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Synthetic abdominal CT cohorts: patients with all 13 organs, scanned under a protocol per cohort, written as NIfTI.

Not a simulator of X-rays: it makes data hard in the ways that matter here (organs of overlapping HU, anatomy that
varies from patient to patient, cohorts that differ in noise, contrast phase and field of view), at no cost and under
no licence.
Coordinates are millimetres, RAS+: x to the patient's right, y to the front, z to the head.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.ndimage import gaussian_filter
from tqdm import tqdm

from bundle.adapters import preparing
from bundle.errors import InputError
from bundle.organs import ORGANS, Vocabulary

__all__ = ["PROTOCOLS", "Protocol", "make_patient", "make_phantoms"]

Array = NDArray[np.float32]
Point = Sequence[float] | NDArray[np.float64]
Radii = Sequence[float] | NDArray[np.float64]
HU = float | Callable[[Array, Array, Array], Array]


# --- How a cohort is scanned -----------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Protocol:
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

    def harder(self, difficulty: float) -> Protocol:
        """The same protocol with so many times the noise and the blur."""
        noise, blur = ((difficulty * low, difficulty * high) for low, high in (self.noise, self.blur))
        return replace(self, noise=noise, blur=blur)


ALL_ORGANS = tuple(Vocabulary().names)
PROTOCOLS: dict[str, Protocol] = {
    "full": Protocol(ALL_ORGANS, (0.6, 1.0), (12, 20), (2.0, 3.0), (370, 390), (-120, 120), 1.0, "RAS"),
    "spleen": Protocol(("spleen",), (0.8, 1.0), (20, 30), (2.0, 3.5), (350, 380), (-85, 120), 0.85, "LAS"),
    "pancreas": Protocol(("pancreas",), (0.2, 0.6), (10, 18), (1.5, 2.5), (360, 400), (-115, 100), 1.0, "LPS"),
    "liver": Protocol(("liver",), (0.4, 1.0), (15, 25), (2.5, 4.0), (370, 420), (-60, 120), 1.2, "LAS"),
    "test": Protocol(ALL_ORGANS, (0.4, 1.0), (10, 25), (1.5, 3.5), (360, 400), (-120, 120), 1.0, "RAS"),
}
GRID = (96, 96, 40)  # voxels of a scan with the full height; other heights keep the slice distance
FINE_MM = 3.0  # patients are rendered on voxels of at most this size, then averaged down: partial volume for free


# --- Painting shapes on a grid ---------------------------------------------------------------------------------------
class Canvas:
    """A grid of HU and labels on which shapes are painted, later ones over earlier ones.

    Args:
        shape: voxels per axis.
        low: world position of the grid's lower corner, mm.
        high: world position of its upper corner, mm.
        bend: displacement (3×shape, mm) added to every position: the patient's own deformation.
    """

    def __init__(self, shape: Sequence[int], low: Point, high: Point, bend: Array) -> None:
        self.low, self.step = np.array(low, float), (np.array(high, float) - np.array(low, float)) / np.array(shape)
        axes = [low[i] + self.step[i] * (np.arange(shape[i], dtype=np.float32) + 0.5) for i in range(3)]
        grid = np.meshgrid(*axes, indexing="ij", sparse=True)
        self.x, self.y, self.z = (np.asarray(grid[i] + bend[i], dtype=np.float32) for i in range(3))
        self.reach = float(np.abs(bend).max())
        self.hu: Array = np.full(shape, -1000, np.float32)
        self.label = np.zeros(shape, np.uint8)
        self.inner: NDArray[np.bool_] = np.ones(shape, bool)  # where organs may be

    def window(self, center: Point, radius: float) -> tuple[slice, ...]:
        """The part of the grid that a ball can touch, whatever the deformation."""
        middle = np.asarray(center, float)
        size = radius + self.reach + self.step
        first = np.clip(np.floor((middle - size - self.low) / self.step), 0, self.hu.shape).astype(int)
        last = np.clip(np.ceil((middle + size - self.low) / self.step), 0, self.hu.shape).astype(int)
        return tuple(slice(a, b) for a, b in zip(first, last, strict=True))

    def fill(self, window: tuple[slice, ...], inside: NDArray[np.bool_], hu: HU, label: int | None) -> None:
        inside = inside & self.inner[window]
        values = hu(self.x[window], self.y[window], self.z[window])[inside] if callable(hu) else hu
        self.hu[window][inside] = values
        if label is not None:
            self.label[window][inside] = label

    def ellipsoid(
        self, center: Point, radii: Point, hu: HU, label: int | None = 0, turn: float = 0.0, hollow: Point | None = None
    ) -> None:
        """An ellipsoid turned about z by ``turn`` radians; ``hollow`` is the centre of a ball cut out of it."""
        window = self.window(center, max(radii))
        x, y, z = self.x[window] - center[0], self.y[window] - center[1], self.z[window] - center[2]
        u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
        inside = (u / radii[0]) ** 2 + (v / radii[1]) ** 2 + (z / radii[2]) ** 2 <= 1
        if hollow is not None:
            dx, dy, dz = (a[window] - b for a, b in zip((self.x, self.y, self.z), hollow, strict=True))
            inside &= dx**2 + dy**2 + (0.7 * dz) ** 2 > (0.75 * max(radii)) ** 2
        self.fill(window, inside, hu, label)

    def tube(self, points: Sequence[Point], radii: Radii, hu: HU, label: int | None = 0) -> None:
        """A tube along a smooth curve through ``points``, its radius interpolated between ``radii``."""
        knots = np.array(points, float)
        length = np.r_[0, np.cumsum(np.linalg.norm(np.diff(knots, axis=0), axis=1))]
        count = max(2, int(length[-1] / (0.5 * min(radii))))
        at = np.linspace(0, length[-1], count)
        curve = CubicSpline(length, knots)(at)
        thickness = np.interp(at, np.linspace(0, length[-1], len(radii)), radii)
        for center, radius in zip(curve, thickness, strict=True):
            window = self.window(center, radius)
            if 0 in self.hu[window].shape:
                continue
            x, y, z = self.x[window] - center[0], self.y[window] - center[1], self.z[window] - center[2]
            self.fill(window, x * x + y * y + z * z <= radius * radius, hu, label)


# --- A patient -------------------------------------------------------------------------------------------------------
class Patient:
    """One patient's anatomy: landmarks, sizes and HU drawn from ``rng``, painted organ by organ."""

    def __init__(self, rng: np.random.Generator, phase: float) -> None:
        self.rng, self.phase = rng, phase
        self.size = float(np.clip(rng.normal(1.0, 0.06), 0.88, 1.12))
        self.half_width = 150 * self.size * rng.uniform(0.95, 1.15)
        self.half_depth = 112 * self.size * rng.uniform(0.92, 1.15)
        self.back = -0.55 * self.half_depth  # y of the vertebral bodies
        self.shift = rng.normal(0, [6, 6, 10])  # the patient on the table

    def near(self, *point: float, by: float = 7.0) -> NDArray[np.float64]:
        """A landmark, moved a little: patients differ."""
        return np.array(point) * self.size + self.rng.normal(0, by, 3)

    def radii(self, milliliters: tuple[float, float], *ratio: float) -> NDArray[np.float64]:
        """Radii of an ellipsoid with a volume drawn from a range and proportions near ``ratio``."""
        shape = np.array(ratio) * self.rng.lognormal(0, 0.1, 3)
        volume = 1000 * np.exp(self.rng.uniform(*np.log(milliliters)))
        return shape * (volume / (4 / 3 * np.pi * shape.prod())) ** (1 / 3)

    def enhanced(self, arterial: float, portal: float, spread: float = 9.0) -> float:
        """HU of a tissue in this patient's contrast phase."""
        return float((1 - self.phase) * arterial + self.phase * portal + self.rng.normal(0, spread))

    def paint(self, canvas: Canvas) -> None:
        self.body(canvas)
        self.bones(canvas)
        canvas.inner = self.inside_ribs
        for part in (self.bowel, self.solid_organs, self.stomach_and_esophagus, self.glands, self.vessels, self.lungs):
            part(canvas)

    def body(self, canvas: Canvas) -> None:
        x, y = canvas.x, canvas.y
        fat, wall = self.rng.uniform(10, 26), self.rng.uniform(9, 14)

        rim = np.abs(x / self.half_width) ** 2.3 + np.abs(y / self.half_depth) ** 2.3
        everything = (slice(None),) * 3

        def inset(depth: float) -> NDArray[np.bool_]:
            return np.asarray(rim <= (1 - depth / (0.5 * (self.half_width + self.half_depth))) ** 2.3)

        canvas.fill(everything, inset(0), self.rng.normal(-105, 5), 0)
        canvas.fill(everything, inset(fat), self.rng.normal(55, 6), 0)
        self.cavity = inset(fat + wall)
        canvas.fill(everything, self.cavity, self.rng.normal(-100, 6), 0)
        self.inside_ribs = inset(fat + 0.4 * wall)
        for side in (-1, 1):
            muscle = self.rng.normal(57, 6)
            canvas.tube([(side * 42, self.back - 12, z) for z in (-160, 0, 160)], (24, 22), muscle)
            psoas = [(side * 38, self.back + 8, z) for z in (-160, -60, 10)]
            canvas.tube(psoas, (24, 18, 8), muscle)

    def bones(self, canvas: Canvas) -> None:
        spongy, disc = self.rng.uniform(160, 240), self.rng.uniform(60, 90)
        gap, phase = 33 * self.size, self.rng.uniform(0, 33)

        def vertebra(x: Array, y: Array, z: Array) -> Array:
            inside_disc = np.mod(z + phase, gap) < 7
            return np.broadcast_to(np.where(inside_disc, disc, spongy), np.broadcast_shapes(x.shape, y.shape, z.shape))

        canvas.tube([(0, self.back, z) for z in (-170, 0, 170)], (19, 18), vertebra)
        canvas.tube([(0, self.back - 24, z) for z in (-170, 0, 170)], (7, 7), 35)
        canvas.tube([(0, self.back - 38, z) for z in (-170, 0, 170)], (6, 6), self.rng.uniform(250, 400))
        hard = self.rng.uniform(300, 450)
        for top in np.arange(170, -10, -28):
            for side in (-1, 1):
                angle = np.linspace(-2.2, 0.7, 9)
                rib = [
                    (
                        side * (self.half_width - 24) * np.cos(a),
                        (self.half_depth - 22) * np.sin(a),
                        top - 26 * (a + 2.2),
                    )
                    for a in angle
                ]
                canvas.tube(rib, (4.5, 4.0), hard)

    def bowel(self, canvas: Canvas) -> None:
        def content() -> float:
            kind = self.rng.uniform()  # fluid and wall, oral contrast, gas
            return float(self.rng.normal(50, 30) if kind < 0.75 else self.rng.uniform(100, 200) if kind < 0.9 else -700)

        side = 0.62 * self.half_width
        colon = [
            self.near(side, -5, -130), self.near(side, 0, -50), self.near(0.7 * side, 45, -25), self.near(0, 58, -40),
            self.near(-0.8 * side, 40, -5), self.near(-1.05 * side, -5, -30), self.near(-side, -10, -130),
        ]  # fmt: skip
        canvas.tube(colon, self.rng.uniform(14, 23, 7), float(self.rng.normal(25, 20)))
        for _ in range(26):
            start = self.near(self.rng.uniform(-80, 80), self.rng.uniform(-15, 62), self.rng.uniform(-140, 10))
            loop = start + np.cumsum(self.rng.normal(0, 17, (4, 3)), axis=0)
            canvas.tube(list(loop), self.rng.uniform(8, 13, 4), content())
        self.head = self.near(27, 2, -5)  # of the pancreas; the duodenum runs around it
        ring = [(18, 12, 22), (30, 0, 8), (28, -2, -16), (6, -6, -24), (-25, -2, -20)]
        canvas.tube([self.head + offset for offset in ring], (12, 11, 12, 10), content())

    def solid_organs(self, canvas: Canvas) -> None:
        liver = self.enhanced(68, 112, 10)
        right_lobe, left_lobe = self.near(74, 6, 48, by=9), self.near(8, 42, 52, by=9)
        canvas.ellipsoid(right_lobe, self.radii((650, 1100), 1.0, 0.95, 1.1), liver, 6, turn=self.rng.normal(0, 0.2))
        canvas.ellipsoid(left_lobe, self.radii((130, 320), 1.6, 0.75, 0.95), liver, 6, turn=self.rng.normal(0.2, 0.2))
        self.hilum = right_lobe + np.array([-38, 4, -14])
        spleen = self.near(-94, -32, 50, by=10)
        self.splenic_hilum = spleen + np.array([24, 6, -4])
        canvas.ellipsoid(
            spleen, self.radii((110, 420), 0.72, 1.25, 1.15), self.enhanced(118, 122, 12), 1,
            turn=self.rng.normal(-0.4, 0.25), hollow=spleen + np.array([58, 30, 0]),
        )  # fmt: skip
        kidney = self.enhanced(165, 175, 18)
        for side, value, height in ((1, 2, -28), (-1, 3, -14)):
            center = self.near(side * 62, -38, height, by=8)
            radii = self.radii((100, 155), 0.9, 0.95, 1.75)
            canvas.ellipsoid(center, radii, kidney, value, turn=side * self.rng.normal(0.4, 0.15))
            canvas.ellipsoid(center + np.array([-side * 20, 5, 0]), radii * 0.42, self.rng.normal(-60, 20), 0)
        gallbladder = right_lobe + self.rng.normal((-22, 34, -52), (9, 7, 9))
        canvas.ellipsoid(
            gallbladder, self.radii((12, 48), 0.75, 1.1, 1.4), self.rng.normal(12, 7), 4, turn=self.rng.normal(0, 0.4)
        )

    def stomach_and_esophagus(self, canvas: Canvas) -> None:
        junction = self.near(-14, -6, 66, by=5)
        gullet = [self.near(-3, self.back + 50, 175, by=3), self.near(-5, self.back + 50, 110, by=3), junction]
        canvas.tube(gullet, (9.5, 9, 10), self.rng.normal(48, 8), 5)
        fluid, gas_level = self.rng.normal(40, 22), self.rng.uniform(20, 60)

        def content(x: Array, y: Array, z: Array) -> Array:
            return np.where(np.broadcast_to(y, np.broadcast_shapes(x.shape, y.shape, z.shape)) > gas_level, -750, fluid)

        fundus, body, antrum = self.near(-58, -8, 72, by=9), self.near(-52, 26, 30, by=10), self.near(-8, 44, 2, by=10)
        width = self.rng.uniform(15, 24)
        course = [junction, fundus, body, antrum, self.near(22, 30, 12)]
        canvas.tube(course, (12, width + 4, width, 0.75 * width, 10), content, 7)

    def glands(self, canvas: Canvas) -> None:
        pancreas = self.enhanced(105, 92, 9)
        neck, body = self.near(-6, 8, 14, by=5), self.near(-36, -4, 24, by=6)
        tail = 0.35 * body + 0.65 * self.splenic_hilum
        thick = self.rng.uniform(8.5, 12.5)
        canvas.tube([self.head, neck, body, tail], (1.25 * thick, 0.8 * thick, thick, 0.9 * thick), pancreas, 11)
        self.neck, self.body_of_pancreas = neck, body
        adrenal = self.enhanced(80, 74, 9)
        for side, value, place in ((1, 12, (35, -36, 36)), (-1, 13, (-34, -32, 32))):
            top = self.near(*place, by=6)
            thin = self.rng.uniform(3.7, 4.4)
            for limb in ((-side * 4, -17, -18), (side * 9, -16, -18)):
                canvas.tube(
                    [top, top + 0.5 * np.array(limb) + 1, top + np.array(limb)], (thin + 0.9, thin), adrenal, value
                )

    def vessels(self, canvas: Canvas) -> None:
        blood = self.enhanced(290, 160, 14)
        aorta = [self.near(-9, self.back + 29, z, by=3) for z in (-180, -70, 40, 180)]
        canvas.tube(aorta, self.rng.uniform(8.5, 11) * np.array([0.9, 1, 1.15]), blood, 8)
        cava = [self.near(20, self.back + 28, -180, by=3), self.near(20, self.back + 29, -40, by=3),
                self.near(27, self.back + 36, 50, by=4), self.near(22, self.back + 44, 112, by=3)]  # fmt: skip
        canvas.tube(cava, self.rng.uniform(8, 10.5) * np.array([0.95, 1, 1.1]), self.enhanced(75, 142, 12), 9)
        portal = self.enhanced(100, 168, 12)
        back = np.array([0, -9, 2])
        splenic = [self.splenic_hilum, self.body_of_pancreas + back, self.neck + back, self.hilum]
        canvas.tube(splenic, (4.2, 4.8, 7.0, 6.0), portal, 10)
        mesenteric = [self.neck + np.array(offset) for offset in (back, (4, -4, -25), (2, 4, -60))]
        canvas.tube(mesenteric, (6, 5), portal, 0)

    def lungs(self, canvas: Canvas) -> None:
        for side, top in ((1, 108), (-1, 104)):
            x0, z0 = side * 0.48 * self.half_width, top * self.size + self.rng.normal(0, 8)
            dome = z0 - ((canvas.x - x0) ** 2 + (canvas.y + 10) ** 2) / 110
            inside = (canvas.z > dome) & self.cavity & (np.sign(canvas.x) == side) & (canvas.label == 0)
            inside &= (np.abs(canvas.x) > 22) & (canvas.hu < 130)  # not the mediastinum, not the ribs
            canvas.fill((slice(None),) * 3, inside, self.rng.normal(-830, 25), 0)


# --- A scan of a patient ---------------------------------------------------------------------------------------------
def smooth_field(rng: np.random.Generator, shape: Sequence[int], knots: Sequence[int], spread: float) -> Array:
    """Smooth random values: Gaussian noise on a few knots, interpolated by cubic splines along each axis."""
    field = rng.normal(0, spread, knots)
    for size, count in zip(shape, knots, strict=True):  # each pass moves the next axis to the front of the queue
        spline = CubicSpline(np.linspace(0, 1, count), np.eye(count))(np.linspace(0, 1, size))
        field = np.tensordot(field, spline.astype(np.float32), axes=(0, 1))
    return np.asarray(field, np.float32)


def block_mean(values: Array, factor: Sequence[int]) -> Array:
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
    seed: Sequence[int], protocol: Protocol, grid: Sequence[int] = GRID
) -> tuple[NDArray[np.int16], NDArray[np.uint8], NDArray[np.float64]]:
    """A scan in RAS+: HU (int16), labels of all organs with the vocabulary's values (uint8), 4×4 affine.

    Args:
        seed: integers that identify the patient; the same ones give the same scan.
        protocol: how the patient is scanned.
        grid: voxels of a scan of full height; the protocol's height and thickness change the last one.
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
def save_volume(path: Path, volume: NDArray[np.generic], affine: NDArray[np.float64], axes: str) -> None:
    """Write a RAS+ volume as NIfTI in the orientation ``axes``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(volume, affine)
    turn = nib.orientations.ornt_transform(nib.io_orientation(affine), nib.orientations.axcodes2ornt(axes))
    nib.save(image.as_reoriented(turn), path)


def write_case(
    output: str, cohort: str, index: int, seed: int, grid: tuple[int, int, int], difficulty: float = 1.0
) -> None:
    protocol, folder = PROTOCOLS[cohort].harder(difficulty), Path(output) / cohort
    # The cohort's place in the table, not a hash of its name: hashes of strings differ from process to process.
    image, truth, affine = make_patient((seed, list(PROTOCOLS).index(cohort), index), protocol, grid)
    part = "Ts" if cohort == "test" else "Tr"
    name = f"{cohort}_{index:03d}.nii.gz"
    save_volume(folder / f"images{part}" / name, image, affine, protocol.axes)
    save_volume(folder / f"labels{part}" / name, annotation(truth, protocol), affine, protocol.axes)
    if set(protocol.annotated) != set(ALL_ORGANS):
        save_volume(Path(output) / "truth" / cohort / name, truth, affine, protocol.axes)


def annotation(truth: NDArray[np.uint8], protocol: Protocol) -> NDArray[np.uint8]:
    """What the cohort's annotators marked: the cohort's own values 1, 2, … in the order of its label set."""
    marked = np.zeros_like(truth)
    vocabulary = Vocabulary()
    for value, name in enumerate(protocol.annotated, start=1):
        marked[truth == vocabulary.channel(name)] = value
    return marked


def write_datalist(
    output: Path,
    cohort: str,
    count: int,
    seed: int,
    folds: int,
    difficulty: float = 1.0,
    dropped: int = 0,
    fraction: float = 0.0,
) -> None:
    protocol = PROTOCOLS[cohort].harder(difficulty)
    part, section = ("Ts", "test") if cohort == "test" else ("Tr", "training")
    cases: list[dict[str, object]] = [
        {"image": f"./images{part}/{cohort}_{i:03d}.nii.gz", "label": f"./labels{part}/{cohort}_{i:03d}.nii.gz"}
        for i in range(count)
    ]
    if cohort == "full":
        for index, case in enumerate(cases):
            case["fold"] = index % folds
        if dropped:
            preparing.drop_labels(cases, protocol.annotated, dropped, fraction, seed)
    datalist = {
        "name": cohort,
        "description": f"synthetic abdominal CT, seed {seed}",
        "tensorImageSize": "3D",
        "modality": {"0": "CT"},
        "labels": {"0": "background", **{str(i): name for i, name in enumerate(protocol.annotated, start=1)}},
        "numTraining": count if section == "training" else 0,
        "numTest": count if section == "test" else 0,
        "training": [],
        "test": [],
        "protocol": asdict(protocol),
        section: cases,
    }
    (output / cohort / "dataset.json").write_text(json.dumps(datalist, indent=2) + "\n")


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
) -> Path:
    """Write one full, three partial (spleen, pancreas, liver) and one test cohort of synthetic abdominal CTs.

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
    """
    if isinstance(grid, str) or len(grid) != 3 or not all(isinstance(n, int) and n >= 8 for n in grid):
        raise InputError(f"grid: expected three numbers of at least 8 such as 96,96,40, found {grid}")
    if not isinstance(difficulty, int | float) or difficulty <= 0:
        raise InputError(f"difficulty: expected a number above 0 such as 1.5, found {difficulty}")
    voxels = (grid[0], grid[1], grid[2])
    counts = {"full": full, "spleen": partial, "pancreas": partial, "liver": partial, "test": test}
    jobs = [
        (str(output), cohort, index, seed, voxels, difficulty)
        for cohort, count in counts.items()
        for index in range(count)
    ]
    with ProcessPoolExecutor(workers or os.cpu_count()) as pool:
        running = [pool.submit(write_case, *job) for job in jobs]
        for done in tqdm(running, desc="phantoms", unit="case"):
            done.result()
    for cohort, count in counts.items():
        if count:
            write_datalist(Path(output), cohort, count, seed, folds, difficulty, drop_labels, fraction)
    return Path(output)
