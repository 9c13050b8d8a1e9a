from pathlib import Path

import pytest

from tests.bundle.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare, save

TASKS = {
    "msd_spleen": ("Task09_Spleen", "spleen", "spleen"),
    "msd_liver": ("Task03_Liver", "liver", "liver"),
    "msd_pancreas": ("Task07_Pancreas", "pancreas", "pancreas"),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_organ_and_its_tumor_are_one_and_the_rest_is_unknown(name: str, tmp_path: Path) -> None:
    folder, prefix, organ = TASKS[name]
    root, affine = tmp_path / folder, affine_for("LAS")
    # the tumour lies at another organ's point, where it must be read as the organ it belongs to
    tumor = "stomach" if name != "msd_spleen" else None
    label = paint({organ: 1, **({tumor: 2} if tumor else {})}, affine)
    for number in (1, 12):
        save(root / "imagesTr" / f"{prefix}_{number}.nii.gz", make_ct(affine, seed=number), affine)
        save(root / "labelsTr" / f"{prefix}_{number}.nii.gz", label, affine)
        (root / "imagesTr" / f"._{prefix}_{number}.nii.gz").write_bytes(b"Mac OS X")
    save(root / "imagesTs" / f"{prefix}_3.nii.gz", make_ct(affine), affine)
    prepared = prepare(name, tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == [f"{prefix}_1", f"{prefix}_12"]
    assert [entry["case"] for entry in prepared.entries["test"]] == [f"{prefix}_3"]
    expected = {point: organ if point in (organ, tumor) else "unknown" for point in POINTS}
    assert organs_at_points(prepared, f"{prefix}_12") == expected
    assert not (tmp_path / "out" / "images").exists()  # referred to, not copied
