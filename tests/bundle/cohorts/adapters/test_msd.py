from pathlib import Path

import pytest

from tests.bundle.cohorts.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare, save

# the tumor lies at another organ's point, where it must be read as the organ it belongs to
TASKS = {
    "msd_spleen": ("Task09_Spleen", {"spleen": 1}),
    "msd_liver": ("Task03_Liver", {"liver": 1, "stomach": 2}),
    "msd_pancreas": ("Task07_Pancreas", {"pancreas": 1, "stomach": 2}),
}


def download(root: Path, name: str) -> None:
    folder, values = TASKS[name]
    prefix, affine = next(iter(values)), affine_for("LAS")
    for number in (1, 12):
        file = f"{prefix}_{number}.nii.gz"
        save(root / folder / "imagesTr" / file, make_ct(affine), affine)
        save(root / folder / "labelsTr" / file, paint(values, affine), affine)
        (root / folder / "imagesTr" / f"._{file}").write_bytes(b"Mac OS X")
    save(root / folder / "imagesTs" / f"{prefix}_3.nii.gz", make_ct(affine), affine)


@pytest.mark.parametrize("name", TASKS)
def test_the_organ_and_its_tumor_are_one_and_the_rest_is_unknown(name: str, tmp_path: Path) -> None:
    download(tmp_path, name)
    values = TASKS[name][1]
    organ = next(iter(values))
    prepared = prepare(name, tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == [f"{organ}_1", f"{organ}_12"]
    assert [entry["case"] for entry in prepared.entries["test"]] == [f"{organ}_3"]
    expected = {point: organ if point in values else "unknown" for point in POINTS}
    assert organs_at_points(prepared, f"{organ}_12") == expected
    assert not (tmp_path / "out" / "images").exists()  # referred to, not copied
