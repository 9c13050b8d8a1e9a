"""Volumes of organs, in ml."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.organs import Vocabulary, find_organ
from bundle.scans.volumes import count_by_slice, measure_volumes, write_volumes
from tests.paths import ROOT
from tests.scan_files import RIGID, SHEARED, some_labels

EXAMPLE = ROOT.parent / "shared" / "data" / "example_ct"
VOLUMES = EXAMPLE.parent / "organ_volumes_ml.csv"


def three_organs() -> NDArray[np.uint8]:
    labels = np.zeros((6, 7, 8), np.uint8)
    labels[1:3, 1:4, 1:5] = 1  # 24 voxels inside
    labels[4, 3, 7] = 2  # one in the last slice
    labels[5, 6, 0] = 255  # no organ
    return labels


def test_volumes_by_hand() -> None:
    vocabulary = Vocabulary("liver,spleen,aorta")
    volumes = measure_volumes(three_organs(), SHEARED, vocabulary)
    assert volumes.voxel_volume_mm3 == pytest.approx(0.7 * 0.8 * 2.5)  # a shear keeps the volume
    assert [organ.voxels for organ in volumes.organs.values()] == [24, 1, 0]
    assert [organ.touches_border for organ in volumes.organs.values()] == [False, True, False]
    mirrored = measure_volumes(three_organs(), RIGID["mirrored"], vocabulary)
    expected = {"liver": 24 * 1.4e-3, "spleen": 1.4e-3, "aorta": 0.0}
    assert {name: organ.ml for name, organ in mirrored.organs.items()} == pytest.approx(expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("side", [0, -1])
def test_each_of_the_six_sides_is_a_border(axis: int, side: int) -> None:
    labels = np.zeros((5, 6, 7), np.uint8)
    place = [2, 2, 2]
    place[axis] = side
    labels[tuple(place)] = 1
    assert measure_volumes(labels, np.eye(4), Vocabulary("liver")).organs["liver"].touches_border


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, lambda a: a.transpose(1, 0, 2)[::-1]])
def test_slices_are_counted_in_any_memory_layout(layout: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]) -> None:
    labels = layout(some_labels())
    for axis, counts in enumerate(count_by_slice(labels, 14)):
        for place, row in enumerate(counts):
            expected = [(labels.take(place, axis) == value).sum() for value in range(1, 14)]
            assert row[1:].tolist() == expected


def test_volumes_need_little_memory() -> None:
    labels = np.asfortranarray(np.tile(some_labels()[:4, :4, :4], (32, 32, 16)))  # 1 MB, no voxel spared
    tracemalloc.start()
    measure_volumes(labels, np.eye(4), Vocabulary())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * labels.nbytes  # int64 copies take 8 times as much


@pytest.mark.skipif(not VOLUMES.exists(), reason="needs the real CT data of ../shared/data")
def test_volumes_of_a_real_scan() -> None:
    head, *rows = [line.split(",") for line in VOLUMES.read_text().splitlines()]
    row = next(row for row in rows if "example_ct" in row[0])
    image = nib.load(EXAMPLE / "label.nii.gz")
    volumes = measure_volumes(np.asarray(image.dataobj).astype(np.uint8), image.affine, Vocabulary())
    expected = {organ.name: float(value) for name, value in zip(head, row, strict=True) if (organ := find_organ(name))}
    assert len(expected) == 13
    found = {name: organ.ml for name, organ in volumes.organs.items()}
    assert found == pytest.approx(expected, abs=0.006)


def test_the_volumes_file_has_every_organ(tmp_path: Path) -> None:
    volumes = measure_volumes(three_organs(), np.diag([1, 2, 5, 1]), Vocabulary("liver,spleen,aorta"))
    write_volumes(tmp_path / "map.json", tmp_path / "ct.nii.gz", volumes, {"model": "0.1.0"})
    assert json.loads((tmp_path / "map.json").read_text()) == {
        "image": str(tmp_path / "ct.nii.gz"),
        "model": "0.1.0",
        "voxel_volume_mm3": pytest.approx(10.0),
        "organs": {
            "liver": {"value": 1, "voxels": 24, "ml": pytest.approx(0.24), "touches_border": False},
            "spleen": {"value": 2, "voxels": 1, "ml": pytest.approx(0.01), "touches_border": True},
            "aorta": {"value": 3, "voxels": 0, "ml": 0.0, "touches_border": False},
        },
    }
