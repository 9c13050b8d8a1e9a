from pathlib import Path

from tests.bundle.cohorts.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare, save

VALUES = {  # as the challenge's page lists them
    "spleen": 1, "right kidney": 2, "left kidney": 3, "gallbladder": 4, "esophagus": 5, "liver": 6, "stomach": 7,
    "aorta": 8, "inferior vena cava": 9, "portal and splenic vein": 10, "pancreas": 11, "right adrenal gland": 12,
    "left adrenal gland": 13,
}  # fmt: skip


def download(root: Path, count: int = 2) -> None:
    """So many training cases, and one without labels."""
    affine = affine_for("LAS")
    affine[:3, 3] += (16, -8, 10)
    for number in range(1, count + 1):
        save(root / f"RawData/Training/img/img{number:04}.nii.gz", make_ct(affine), affine)
        save(root / f"RawData/Training/label/label{number:04}.nii.gz", paint(VALUES, affine), affine)
    save(root / "RawData/Testing/img/img0061.nii.gz", make_ct(affine), affine)


def test_every_organ_is_where_it_was_and_nothing_is_copied(tmp_path: Path) -> None:
    download(tmp_path)
    prepared = prepare("btcv", tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == ["img0001", "img0002"]
    assert [(entry["case"], "label" in entry) for entry in prepared.entries["test"]] == [("img0061", False)]
    assert organs_at_points(prepared, "img0002") == {point: point for point in POINTS}
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dataset.json"]


def test_other_folders_of_the_challenge_are_passed_over(tmp_path: Path) -> None:
    affine = affine_for("LAS")
    download(tmp_path, 1)
    # the pairwise registered and the averaged images of the same download
    save(tmp_path / "RegData/Training-Training/img/0001/img0002-0001.nii.gz", make_ct(affine), affine)
    save(tmp_path / "averaged-training-images/DET0000101_avg.nii.gz", make_ct(affine), affine)
    prepared = prepare("btcv", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["img0001"]
    assert [entry["case"] for entry in prepared.entries["test"]] == ["img0061"]
