"""NIH Pancreas-CT: label maps whose headers are wrong end on the pancreas, or nowhere."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import InputError
from tests.bundle.cohorts.adapters.downloads import (
    POINTS,
    add_spot,
    affine_for,
    organs_at_points,
    prepare,
    save,
    save_dicom,
    voxel_of,
)

SHAPE = (36, 36, 20)
AFFINE = affine_for("LPS", SHAPE)
ONLY_PANCREAS = {point: "pancreas" if point == "pancreas" else "unknown" for point in POINTS}
FEET_FIRST, HEAD_FIRST = list(range(20)), list(range(19, -1, -1))


def box(point: tuple[float, ...]) -> NDArray[np.uint8]:
    """5×3×3 voxels about a point, columns × rows × slices from the feet up."""
    label = np.zeros(SHAPE, np.uint8)
    i, j, k = voxel_of(point, AFFINE)
    label[i - 2 : i + 3, j - 1 : j + 2, k - 1 : k + 2] = 1
    return label


PANCREAS = box(POINTS["pancreas"])


def save_case(root: Path, number: str, label: NDArray[np.uint8], order: list[int] = HEAD_FIRST) -> None:
    """A pancreas of 100 HU in nothing but fat, and the bright spot; the label map has the header of another grid."""
    noise = np.random.default_rng(0).normal(0, 10, SHAPE)
    ct = add_spot(np.where(PANCREAS, 100, -100), AFFINE) + noise.astype(np.int16)
    series = root / "Pancreas-CT" / f"PANCREAS_{number}" / "11-24-2015-Pancreas-18957" / "Pancreas-99667"
    save_dicom(series, ct, AFFINE, "1-{:03}.dcm", order)
    header = np.diag([0.86, 0.86, 1.0, 1.0])
    save(root / "TCIA_pancreas_labels-02-05-2017" / f"label{number}.nii.gz", label, header)


def download(root: Path, order: list[int] = HEAD_FIRST) -> None:
    save_case(root, "0001", PANCREAS, order)
    save(root / "TCIA_pancreas_labels-02-05-2017" / "label0025.nii.gz", PANCREAS, AFFINE)  # its scan is withdrawn


@pytest.mark.parametrize("order", [FEET_FIRST, HEAD_FIRST, [7, *range(7), *range(8, 20)]])
def test_documented_orientation_wherever_the_file_names_begin(order: list[int], tmp_path: Path) -> None:
    download(tmp_path, order)
    prepared = prepare("nih_pancreas", tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert not prepared.notes
    assert [entry["case"] for entry in prepared.entries["training"]] == ["PANCREAS_0001"]
    assert organs_at_points(prepared, "PANCREAS_0001") == ONLY_PANCREAS


@pytest.mark.parametrize(
    ("stored", "note"),
    [
        (PANCREAS[:, ::-1], "with rows reversed"),
        (PANCREAS[:, :, ::-1], "with slices reversed"),
        (PANCREAS[::-1, ::-1], "with columns reversed, rows reversed"),
        (PANCREAS.swapaxes(0, 1), "with rows and columns swapped;"),
        (PANCREAS.swapaxes(0, 1)[::-1], "with rows and columns swapped, rows reversed"),
    ],
)
def test_another_orientation_is_seen_in_the_image(stored: NDArray[np.uint8], note: str, tmp_path: Path) -> None:
    save_case(tmp_path, "0002", stored)
    prepared = prepare("nih_pancreas", tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert organs_at_points(prepared, "PANCREAS_0002") == ONLY_PANCREAS
    (said,) = prepared.notes
    assert said.startswith("PANCREAS_0002: ")
    assert note in said


def test_a_label_map_that_fits_nowhere_is_refused(tmp_path: Path) -> None:
    save_case(tmp_path, "0001", PANCREAS)
    save_case(tmp_path, "0002", box((-90.0, 60.0, 60.0)))  # in fat, whichever way it is turned
    save_case(tmp_path, "0003", np.zeros(SHAPE, np.uint8))
    save_case(tmp_path, "0004", PANCREAS[:, :, 1:])
    prepared = prepare("nih_pancreas", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["PANCREAS_0001"]
    elsewhere, empty, short = prepared.failures
    for number, failure in (("0002", elsewhere), ("0003", empty)):
        assert f"label{number}.nii.gz: expected a label map that lies on the pancreas" in failure
    assert "label0004.nii.gz: expected a label map of 36×36×20 voxels as its CT, found 36×36×19" in short


def test_two_scans_of_one_person_are_one_patient(tmp_path: Path) -> None:
    for number in ("0002", "0025"):
        save_case(tmp_path, number, PANCREAS)
    entries = prepare("nih_pancreas", tmp_path, tmp_path / "out").entries["training"]
    assert [entry.get("patient", entry["case"]) for entry in entries] == ["PANCREAS_0002", "PANCREAS_0002"]


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"PANCREAS_0001.*label0001\.nii\.gz, found no labelled case"):
        prepare("nih_pancreas", tmp_path, tmp_path / "out")
