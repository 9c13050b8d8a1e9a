"""Previews: the views are radiological however the scan is stored, and drawing them needs little memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from matplotlib.image import imread
from numpy.typing import NDArray

from bundle.organs import Vocabulary
from bundle.reports.preview import write_preview
from bundle.reports.slices import cut_panels
from bundle.scans.volumes import count_by_slice


def scan_with_a_liver() -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    """A body of water with one organ at the right, the front and the top; RAS."""
    voxels = np.full((40, 30, 20), 0, np.int16)
    labels = np.zeros(voxels.shape, np.uint8)
    labels[28:36, 20:26, 15:18] = 1
    return voxels, labels


def turned(array: NDArray[np.generic], codes: str) -> nib.Nifti1Image:
    image = nib.Nifti1Image(array, np.diag([1.0, 1.0, 3.0, 1.0]))
    target = nib.orientations.axcodes2ornt(codes)
    return image.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(image.affine), target))


@pytest.mark.parametrize("codes", ["RAS", "LPS", "SLP", "AIR"])
def test_views_are_radiological_for_every_orientation(codes: str) -> None:
    voxels, labels = (turned(array, codes) for array in scan_with_a_liver())
    arrays = np.asarray(voxels.dataobj), np.asarray(labels.dataobj)
    panels = cut_panels(*arrays, labels.affine, count_by_slice(arrays[1], 2))
    assert [panel.letters for panel in panels] == ["RLAP", "RLSI", "APSI"]
    # mm across and down: 40 mm below the organ's three slices are 13 more, above it the scan ends after two
    assert [panel.size for panel in panels] == [(40, 30), (40, 18 * 3), (30, 18 * 3)]
    boxes = [(np.argwhere(p.labels).min(0).tolist(), np.argwhere(p.labels).max(0).tolist()) for p in panels]
    # Rows from the top, columns from the left: the organ's right edge is 4 voxels from the right side of the patient.
    assert boxes == [([4, 4], [9, 11]), ([2, 4], [4, 11]), ([2, 4], [4, 9])]


def test_the_picture_does_not_depend_on_how_the_scan_is_stored(tmp_path: Path) -> None:
    pictures = []
    for codes in ("RAS", "PIL"):
        voxels, labels = (turned(array, codes) for array in scan_with_a_liver())
        arrays = np.asarray(voxels.dataobj), np.asarray(labels.dataobj)
        write_preview(tmp_path / f"{codes}.png", *arrays, labels.affine, Vocabulary("liver"))
        pictures.append(imread(tmp_path / f"{codes}.png"))
    np.testing.assert_array_equal(pictures[0], pictures[1])
    red = (pictures[0][..., 0] > pictures[0][..., 1] + 0.2).mean()
    assert 0.005 < red < 0.2  # the organ is there in its color, and does not cover the picture


def test_an_oblique_scan_is_shown_in_its_true_proportions() -> None:
    voxels, labels = scan_with_a_liver()
    slightly = np.eye(4)
    slightly[:3, :3] = np.array([[0.96, -0.28, 0], [0.28, 0.96, 0], [0, 0, 1]]) @ np.diag([2.0, 1.0, 3.0])
    panels = cut_panels(voxels, labels, slightly, count_by_slice(labels, 2))
    np.testing.assert_allclose([panel.size for panel in panels], [(80, 30), (80, 54), (30, 54)])


@pytest.mark.parametrize("shape", [(20, 30, 10), (20, 30, 1)])
@pytest.mark.parametrize("value", [0, 1])
def test_a_scan_without_organs_or_with_one_slice_has_a_picture(
    tmp_path: Path, shape: tuple[int, ...], value: int
) -> None:
    labels = np.full(shape, value, np.uint8)
    write_preview(tmp_path / "map.png", np.full(shape, -1000, np.int16), labels, np.eye(4), Vocabulary("liver"))
    assert [file.name for file in tmp_path.iterdir()] == ["map.png"]
    picture = imread(tmp_path / "map.png")
    assert min(picture.shape[:2]) > 50
    assert ((picture[..., 0] > picture[..., 1] + 0.2).mean() > 0.05) == bool(value)


def test_a_picture_reads_slices_not_the_volume(tmp_path: Path) -> None:
    voxels = np.zeros((320, 320, 320), np.int16, order="F")  # 65 MB
    labels = np.zeros(voxels.shape, np.uint8, order="F")
    labels[100:200, 100:200, 100:200] = 1
    tracemalloc.start()
    write_preview(tmp_path / "map.png", voxels, labels, np.eye(4), Vocabulary("liver"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.6 * voxels.nbytes  # the canvas takes most of it; floats of the volume take twice its size
