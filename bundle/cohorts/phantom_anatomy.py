# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A synthetic patient: shapes painted organ by organ on a grid of HU and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

__all__ = ["Canvas", "Floats", "Patient", "smooth_field"]


Floats = NDArray[np.float32]

Point = Sequence[float] | NDArray[np.float64]

Radii = Sequence[float] | NDArray[np.float64]

HU = float | Callable[[Floats, Floats, Floats], Floats]


# --- Painting shapes on a grid ---------------------------------------------------------------------------------------
class Canvas:
    """A grid of HU and labels on which shapes are painted, later ones over earlier ones.

    Args:
        shape: voxels per axis.
        low: world position of the grid's lower corner, mm.
        high: world position of its upper corner, mm.
        bend: displacement (3×shape, mm) added to every position: the patient's own deformation.
    """

    def __init__(self, shape: Sequence[int], low: Point, high: Point, bend: Floats) -> None:
        self.low, self.step = np.array(low, float), (np.array(high, float) - np.array(low, float)) / np.array(shape)
        axes = [low[i] + self.step[i] * (np.arange(shape[i], dtype=np.float32) + 0.5) for i in range(3)]
        grid = np.meshgrid(*axes, indexing="ij", sparse=True)
        self.x, self.y, self.z = (np.asarray(grid[i] + bend[i], dtype=np.float32) for i in range(3))
        self.reach = float(np.abs(bend).max())
        self.hu: Floats = np.full(shape, -1000, np.float32)
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
        """An ellipsoid turned about z by ``turn`` radians; ``hollow`` is the center of a ball cut out of it."""
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

        def vertebra(x: Floats, y: Floats, z: Floats) -> Floats:
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

        def content(x: Floats, y: Floats, z: Floats) -> Floats:
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
def smooth_field(rng: np.random.Generator, shape: Sequence[int], knots: Sequence[int], spread: float) -> Floats:
    """Smooth random values: Gaussian noise on a few knots, interpolated by cubic splines along each axis."""
    field = rng.normal(0, spread, knots)
    for size, count in zip(shape, knots, strict=True):  # each pass moves the next axis to the front of the queue
        spline = CubicSpline(np.linspace(0, 1, count), np.eye(count))(np.linspace(0, 1, size))
        field = np.tensordot(field, spline.astype(np.float32), axes=(0, 1))
    return np.asarray(field, np.float32)
