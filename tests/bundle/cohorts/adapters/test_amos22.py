from pathlib import Path

from tests.bundle.cohorts.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare, save

VALUES = {
    "spleen": 1, "right kidney": 2, "left kidney": 3, "gallbladder": 4, "esophagus": 5, "liver": 6, "stomach": 7,
    "aorta": 8, "inferior vena cava": 9, "pancreas": 10, "right adrenal gland": 11, "left adrenal gland": 12,
}  # fmt: skip


def save_case(root: Path, part: str, name: str, values: dict[str, int] | None = None) -> None:
    affine = affine_for("RAS")
    affine[:3, 3] += (-8, 8, -20)
    save(root / f"images{part}/{name}.nii.gz", make_ct(affine), affine)
    if values is not None:
        save(root / f"labels{part}/{name}.nii.gz", paint(values, affine), affine)


def download(root: Path) -> None:
    for part, numbers in {"Tr": ("0001", "0499", "0500"), "Va": ("0008", "0540"), "Ts": ("0007", "0511")}.items():
        for number in numbers:
            save_case(root / "amos22", part, f"amos_{number}", VALUES if part != "Ts" else None)


def test_ct_is_taken_with_its_organs_and_mri_is_not(tmp_path: Path) -> None:
    download(tmp_path)
    prepared = prepare("amos22", tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == ["amos_0001", "amos_0499"]
    assert [(entry["case"], "label" in entry) for entry in prepared.entries["test"]] == [
        ("amos_0007", False),
        ("amos_0008", True),
    ]
    expected = {**{point: point for point in POINTS}, "portal and splenic vein": "unknown"}
    assert organs_at_points(prepared, "amos_0001") == expected
    assert organs_at_points(prepared, "amos_0008", "test") == expected
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["dataset.json"]


def test_other_structures_are_known_to_be_background(tmp_path: Path) -> None:
    # duodenum, bladder and prostate or uterus, at the points of three organs
    save_case(tmp_path, "Tr", "amos_0004", {"aorta": 13, "liver": 14, "spleen": 15, "portal and splenic vein": 8})
    prepared = prepare("amos22", tmp_path, tmp_path / "out")
    found = organs_at_points(prepared, "amos_0004")
    assert [found[point] for point in ("aorta", "liver", "spleen")] == ["background"] * 3
    assert found["portal and splenic vein"] == "aorta"
