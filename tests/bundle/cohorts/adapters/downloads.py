"""Miniature copies of official downloads, and what a prepared cohort says about single points of the body.

Every miniature shows one made-up patient: each structure is one small box somewhere in world space, so that its center
(`points`) must come out as its organ whatever the axes, spacings and formats of the files are.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.adapters import find_adapter
from bundle.cohorts.datalists import read_cohort
from bundle.cohorts.preparing import Prepared, prepare_cohort
from bundle.organs import Vocabulary
from bundle.scans.reading import read_label_map, read_scan
from tests.scan_files import save_series

SHAPE = (40, 36, 20)
SPACING = (8.0, 8.0, 10.0)
POINTS = {  # mm, right-anterior-superior; the body's middle is x = 0
    "spleen": (-100.0, -30.0, 20.0), "right kidney": (60.0, -50.0, -20.0), "left kidney": (-60.0, -50.0, -20.0),
    "gallbladder": (50.0, 50.0, 0.0), "esophagus": (-5.0, -20.0, 70.0), "liver": (90.0, 20.0, 30.0),
    "stomach": (-60.0, 50.0, 20.0), "aorta": (-10.0, -60.0, 10.0), "inferior vena cava": (20.0, -50.0, 10.0),
    "portal and splenic vein": (5.0, 10.0, 5.0), "pancreas": (-30.0, 20.0, -10.0),
    "right adrenal gland": (35.0, -45.0, 25.0), "left adrenal gland": (-35.0, -45.0, 25.0),
}  # fmt: skip
SPOT = (40.0, -70.0, -60.0)  # mm: in the body, at none of the points, and mirrored along any axes elsewhere
SPOT_HU = 300


def affine_for(axes: str = "RAS", shape: tuple[int, ...] = SHAPE, spacing: tuple[float, ...] = SPACING) -> NDArray:
    """Affine of a grid centered on the origin whose axes run towards ``axes``."""
    affine = np.eye(4)
    affine[:3, :3] = 0
    for column, letter in enumerate(axes):
        row = ["RL", "AP", "SI"].index(next(pair for pair in ("RL", "AP", "SI") if letter in pair))
        affine[row, column] = spacing[column] * (1 if letter in "RAS" else -1)
    affine[:3, 3] = -affine[:3, :3] @ (np.array(shape) - 1) / 2
    return affine


def voxel_of(point: tuple[float, ...], affine: NDArray) -> tuple[int, ...]:
    return tuple(np.round(np.linalg.solve(affine, [*point, 1.0])[:3]).astype(int))


def paint(values: Mapping[str, int], affine: NDArray, shape: tuple[int, ...] = SHAPE, reach: int = 0) -> NDArray:
    """A label map with a 2×2×2 box from the voxel at each named structure's point on; names as in `POINTS`.

    ``reach`` makes the boxes so many voxels larger on every side.
    """
    label = np.zeros(shape, np.uint8)
    for name, value in values.items():
        box = tuple(slice(start - reach, start + reach + 2) for start in voxel_of(POINTS[name], affine))
        label[box] = value
    return label


def places(affine: NDArray, shape: tuple[int, ...]) -> NDArray:
    """mm to the right, to the front and up of every voxel: 3 × shape."""
    return np.tensordot(affine[:3, :3], np.indices(shape), 1) + affine[:3, 3].reshape(3, 1, 1, 1)


def add_spot(ct: NDArray, affine: NDArray) -> NDArray:
    """Sets a bright box around `SPOT`, about 3×3×3 voxels, by which a mirrored image can be recognized."""
    offset = np.abs(places(affine, ct.shape) - np.reshape(SPOT, (3, 1, 1, 1)))
    ct[(offset < np.reshape((12, 12, 15), (3, 1, 1, 1))).all(0)] = SPOT_HU
    return ct


def make_ct(affine: NDArray, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> NDArray:
    """Air around a body of 40 HU, an ellipse of 150 × 110 mm about the origin, with the bright spot and noise."""
    x, y, _ = places(affine, shape)
    ct = add_spot(np.where((x / 150) ** 2 + (y / 110) ** 2 < 1, 40, -1000), affine)
    return (ct + np.random.default_rng(seed).normal(0, 10, shape)).astype(np.int16)


def save(path: Path, voxels: NDArray, affine: NDArray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(voxels, affine), path)
    return path


def save_dicom(folder: Path, voxels: NDArray, affine: NDArray, name: str, order: Sequence[int]) -> Path:
    """A series whose files, in the order of their names, are the slices ``order``; ``name`` formats their number.

    Voxels are columns × rows × slices, so ``affine``, to RAS, is `affine_for("LPS")` for a patient on the back.
    """
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)

    def fill(header: Any, index: int) -> None:
        header.Columns, header.Rows = voxels.shape[:2]
        header.PixelSpacing, header.SliceThickness = [spacing[1], spacing[0]], spacing[2]
        header.ImageOrientationPatient = [*(lps[:3, 0] / spacing[0]), *(lps[:3, 1] / spacing[1])]
        header.PixelData = (voxels[:, :, order[index]].T + 1024).astype(np.uint16).tobytes()

    return save_series(folder, [list(lps[:3, :3] @ [0, 0, k] + lps[:3, 3]) for k in order], fill, name)


def prepare(name: str, source: Path, output: Path, **options) -> Prepared:
    return prepare_cohort(find_adapter(name), source, output, workers=1, progress=False, **options)


def organs_at_points(prepared: Prepared, case: str, section: str = "training") -> dict[str, str]:
    """What the prepared case says at each of `POINTS`: an organ, "background", or "unknown"; read as training reads it.

    Also asserts that image and label share one grid, and that the image has its bright spot where it was and nowhere
    that it could be mirrored to.
    """
    (found,) = [entry for entry in read_cohort(prepared.path, section=section) if entry["case"] == case]
    label, image = read_label_map(found["label"]), read_scan(found["image"])
    assert label.voxels.shape == image.voxels.shape
    np.testing.assert_allclose(label.affine, image.affine, atol=1e-3)
    assert image.voxels[voxel_of((0, 0, 0), image.affine)] > -200
    right, *mirrored = (
        float(image.voxels[voxel_of(tuple(np.multiply(SPOT, signs)), image.affine)])
        for signs in itertools.product((1, -1), repeat=3)
    )
    assert right > max(mirrored) + 200, "the image is mirrored"
    names = {0: "background", 255: "unknown", 254: "ignored"}
    names |= dict(enumerate(Vocabulary().names, start=1))
    values = {point: label.voxels[voxel_of(POINTS[point], label.affine)] for point in POINTS}
    return {point: names[found["values"][int(value)]] for point, value in values.items()}
