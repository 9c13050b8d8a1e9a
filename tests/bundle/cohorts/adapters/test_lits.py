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
)

AFFINE = affine_for("LAS")
# the header of segmentation-53.nii in the download, which has nothing to do with that of its volume
STRANGE = np.array([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 0, 1]], float)
EXPECTED = {**dict.fromkeys(POINTS, "unknown"), "liver": "liver", "stomach": "liver"}


def liver_of(affine: NDArray = AFFINE) -> NDArray:
    """A liver of 8×8×8 voxels around its point, and a tumor at the point of the stomach."""
    return paint({"liver": 1}, affine, reach=3) + paint({"stomach": 2}, affine)


def telling_ct(label: NDArray, affine: NDArray = AFFINE) -> NDArray:
    """A body of fat in which only the liver and its tumor are soft tissue."""
    ct = make_ct(affine)
    ct[ct > -500] -= 140
    ct[label > 0] = 100
    return ct


def save_pair(folder: Path, number: int, ct: NDArray, label: NDArray, header: NDArray = AFFINE) -> None:
    save(folder / f"volume-{number}.nii", ct, AFFINE)
    save(folder / f"segmentation-{number}.nii", label, header)


def download(root: Path) -> None:
    save_pair(root / "Training Batch 1", 0, make_ct(AFFINE), liver_of())
    save_pair(root / "Training Batch 2", 100, make_ct(AFFINE), liver_of())
    save(root / "LITS-Challenge-Test-Data/test-volume-0.nii", make_ct(AFFINE), AFFINE)


def test_the_liver_and_its_tumors_are_one_and_the_rest_is_unknown(tmp_path: Path) -> None:
    download(tmp_path)
    prepared = prepare("lits", tmp_path, tmp_path / "out")
    assert not prepared.failures + prepared.notes
    assert [entry["case"] for entry in prepared.entries["training"]] == ["volume-0", "volume-100"]
    assert [(entry["case"], "label" in entry) for entry in prepared.entries["test"]] == [("test-volume-0", False)]
    assert organs_at_points(prepared, "volume-100") == EXPECTED
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dataset.json"]  # all referred to


def test_compressed_files_in_folders_of_their_own(tmp_path: Path) -> None:
    save(tmp_path / "volume_pt1/volume-7.nii.gz", make_ct(AFFINE), AFFINE)
    save(tmp_path / "segmentations/segmentation-7.nii.gz", liver_of(), AFFINE)
    prepared = prepare("lits", tmp_path, tmp_path / "out")
    assert organs_at_points(prepared, "volume-7") == EXPECTED


@pytest.mark.parametrize("header", [STRANGE, affine_for("RPS"), affine_for("LAI"), AFFINE * [[2], [2], [2], [1]]])
def test_a_wrong_header_of_a_segmentation_is_mended_where_the_values_agree(header: NDArray, tmp_path: Path) -> None:
    label = liver_of()
    save_pair(tmp_path, 53, telling_ct(label), label, header)
    prepared = prepare("lits", tmp_path, tmp_path / "out")
    assert not prepared.failures
    (note,) = prepared.notes
    assert note.startswith("volume-53: the header of the segmentation")
    assert organs_at_points(prepared, "volume-53") == EXPECTED


def refusal(tmp_path: Path, ct: NDArray, label: NDArray, header: NDArray = AFFINE, own: NDArray = AFFINE) -> str:
    """Why volume-1 is refused, while volume-0 beside it is taken."""
    save_pair(tmp_path, 0, make_ct(AFFINE), liver_of())
    save(tmp_path / "volume-1.nii", ct, own)
    save(tmp_path / "segmentation-1.nii", label, header)
    prepared = prepare("lits", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["volume-0"]
    (failure,) = prepared.failures
    return failure


def test_a_segmentation_that_really_is_mirrored_is_refused(tmp_path: Path) -> None:
    ct = telling_ct(liver_of())
    header = affine_for("RAS")  # what it says is true: its voxels run the other way
    failure = refusal(tmp_path, ct, np.flip(liver_of(), 0), header)
    assert "segmentation-1.nii: expected the affine of " in failure


def test_values_that_tell_nothing_mend_no_header(tmp_path: Path) -> None:
    same_everywhere = np.full_like(make_ct(AFFINE), 40)
    same_everywhere[0] = 41
    assert "do not show that their voxels agree" in refusal(tmp_path, same_everywhere, liver_of(), affine_for("RAS"))


def test_a_segmentation_on_no_soft_tissue_mends_no_header(tmp_path: Path) -> None:
    ct = make_ct(AFFINE) - 200
    assert "do not show that their voxels agree" in refusal(tmp_path, ct, liver_of(), STRANGE)


def test_a_volume_without_a_voxel_size_is_refused(tmp_path: Path) -> None:
    failure = refusal(tmp_path, make_ct(AFFINE), liver_of(), np.eye(4), np.eye(4))
    assert "volume-1.nii: expected a voxel size, found the identity as affine" in failure


def test_a_segmentation_of_another_shape_is_refused(tmp_path: Path) -> None:
    failure = refusal(tmp_path, make_ct(AFFINE), liver_of()[:-1])
    assert "expected the shape (40, 36, 20)" in failure
    assert "found (39, 36, 20)" in failure
