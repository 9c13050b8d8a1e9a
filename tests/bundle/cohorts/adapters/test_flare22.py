from pathlib import Path

import pytest

from tests.bundle.cohorts.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare, save

VALUES = {
    "liver": 1, "right kidney": 2, "spleen": 3, "pancreas": 4, "aorta": 5, "inferior vena cava": 6,
    "right adrenal gland": 7, "left adrenal gland": 8, "gallbladder": 9, "esophagus": 10, "stomach": 11,
    "left kidney": 13,
}  # fmt: skip


def download(root: Path, folder: str = "Training/FLARE22_LabeledCase50") -> None:
    affine = affine_for("LPS")
    save(root / folder / "images/FLARE22_Tr_0001_0000.nii.gz", make_ct(affine), affine)
    save(root / folder / "labels/FLARE22_Tr_0001.nii.gz", paint(VALUES, affine), affine)
    save(root / "Training/Unlabeled/Case_00001_0000.nii.gz", make_ct(affine), affine)


@pytest.mark.parametrize("folder", ["Training/FLARE22_LabeledCase50", "FLARE22Train"])
def test_twelve_organs_are_known_and_the_veins_are_not(folder: str, tmp_path: Path) -> None:
    download(tmp_path, folder)
    prepared = prepare("flare22", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["FLARE22_Tr_0001"]
    assert "fold" not in prepared.entries["training"][0]
    assert organs_at_points(prepared, "FLARE22_Tr_0001") == {
        **{point: point for point in POINTS},
        "portal and splenic vein": "unknown",
    }
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dataset.json"]


def test_the_duodenum_is_known_to_be_no_organ_of_the_vocabulary(tmp_path: Path) -> None:
    affine = affine_for("LPS")
    save(tmp_path / "images/FLARE22_Tr_0050_0000.nii.gz", make_ct(affine), affine)
    save(tmp_path / "labels/FLARE22_Tr_0050.nii.gz", paint({"portal and splenic vein": 12}, affine), affine)
    prepared = prepare("flare22", tmp_path, tmp_path / "out")
    assert organs_at_points(prepared, "FLARE22_Tr_0050")["portal and splenic vein"] == "background"
