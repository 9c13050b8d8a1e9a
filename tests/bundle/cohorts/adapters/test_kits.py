from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bundle.cohorts.adapters.downloads import (
    POINTS,
    affine_for,
    make_ct,
    organs_at_points,
    paint,
    prepare,
    save,
    voxel_of,
)

# slices come first in KiTS, from the head downwards
SHAPE, SPACING = (20, 36, 40), (10.0, 8.0, 8.0)
AFFINE = affine_for("IPL", SHAPE, SPACING)
KIDNEYS = {"right kidney": 1, "left kidney": 1}
UNKNOWN = dict.fromkeys(POINTS, "unknown")


def save_case(root: Path, name: str, files: dict[str, NDArray], affine: NDArray = AFFINE) -> None:
    save(root / name / "imaging.nii.gz", make_ct(affine, SHAPE), affine)
    for file, label in files.items():
        save(root / name / file, label, affine)


def labels(values: dict[str, int], affine: NDArray = AFFINE) -> NDArray:
    return paint(values, affine, SHAPE)


def download(root: Path, count: int = 2, axes: str = "IPL") -> None:
    """So many labelled cases, and one without a segmentation."""
    affine = affine_for(axes, SHAPE, SPACING)
    for number in range(count):
        save_case(root / "dataset", f"case_{number:05}", {"segmentation.nii.gz": labels(KIDNEYS, affine)}, affine)
    save_case(root / "dataset", "case_00210", {}, affine)


@pytest.mark.parametrize("axes", ["IPL", "SPL", "IAR"])
def test_kidneys_get_their_sides_whatever_the_axes(axes: str, tmp_path: Path) -> None:
    download(tmp_path, axes=axes)
    prepared = prepare("kits", tmp_path, tmp_path / "out")
    assert not prepared.failures + prepared.notes
    expected = {**UNKNOWN, "right kidney": "right kidney", "left kidney": "left kidney"}
    assert organs_at_points(prepared, "case_00000") == expected


def test_tumors_and_cysts_belong_to_the_kidney_of_their_side(tmp_path: Path) -> None:
    # a tumor at the point of the spleen, left; a cyst at that of the gallbladder, right
    label = labels({**KIDNEYS, "spleen": 2, "gallbladder": 3})
    save_case(tmp_path / "dataset", "case_00000", {"segmentation.nii.gz": label})
    prepared = prepare("kits", tmp_path, tmp_path / "out")
    found = organs_at_points(prepared, "case_00000")
    assert [found[point] for point in ("spleen", "gallbladder")] == ["left kidney", "right kidney"]
    assert [found[point] for point in KIDNEYS] == ["right kidney", "left kidney"]


def test_the_only_kidney_of_a_patient_stays_on_its_side(tmp_path: Path) -> None:
    save_case(tmp_path / "data", "case_00003", {"segmentation.nii.gz": labels({"left kidney": 1})})
    prepared = prepare("kits", tmp_path, tmp_path / "out")
    assert organs_at_points(prepared, "case_00003") == {**UNKNOWN, "left kidney": "left kidney"}
    assert "labelled" not in prepared.entries["training"][0]  # that there is no right one was annotated


def test_the_majority_of_kits21_counts(tmp_path: Path) -> None:
    other = labels({"liver": 1})
    files = {"aggregated_OR_seg.nii.gz": other, "aggregated_MAJ_seg.nii.gz": labels(KIDNEYS)}
    save_case(tmp_path / "data", "case_00000", {**files, "segmentation.nii.gz": other})
    prepared = prepare("kits", tmp_path, tmp_path / "out")
    found = organs_at_points(prepared, "case_00000")
    assert [found[point] for point in ("right kidney", "left kidney", "liver")] == [
        "right kidney",
        "left kidney",
        "unknown",
    ]


def test_a_horseshoe_kidney_is_unknown_and_the_rest_is_kept(tmp_path: Path) -> None:
    label = labels(KIDNEYS)
    k, j, i = voxel_of(POINTS["right kidney"], AFFINE)
    label[k, j, i : voxel_of(POINTS["left kidney"], AFFINE)[2]] = 1
    download(tmp_path)
    save(tmp_path / "dataset/case_00000/segmentation.nii.gz", label, AFFINE)
    prepared = prepare("kits", tmp_path, tmp_path / "out")
    (note,) = prepared.notes
    assert note.startswith("case_00000: ")
    assert "kidney" in note
    assert prepared.entries["training"][0]["labelled"] == []
    assert organs_at_points(prepared, "case_00000") == UNKNOWN
    assert organs_at_points(prepared, "case_00001")["left kidney"] == "left kidney"


def test_cases_without_a_segmentation_are_for_tests(tmp_path: Path) -> None:
    download(tmp_path, 1)
    prepared = prepare("kits", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["case_00000"]
    assert [(entry["case"], "label" in entry) for entry in prepared.entries["test"]] == [("case_00210", False)]


def test_a_label_map_of_another_shape_is_reported(tmp_path: Path) -> None:
    download(tmp_path)
    save(tmp_path / "dataset/case_00001/segmentation.nii.gz", np.ones((3, 3, 3), np.uint8), AFFINE)
    prepared = prepare("kits", tmp_path, tmp_path / "out")
    (failure,) = prepared.failures
    assert "case_00001/segmentation.nii.gz: is not on the grid of its image" in failure
