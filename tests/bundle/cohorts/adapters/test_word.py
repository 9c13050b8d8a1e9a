from pathlib import Path

import nibabel as nib

from bundle.cohorts.adapters import find_adapter
from bundle.cohorts.datalists import read_cohort
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

AFFINE = affine_for("LAS")
VALUES = {
    "liver": 1, "spleen": 2, "left kidney": 3, "right kidney": 4, "stomach": 5, "gallbladder": 6, "esophagus": 7,
    "pancreas": 8, "right adrenal gland": 12, "left adrenal gland": 12,
}  # fmt: skip
EXPECTED = {
    **{point: point for point in POINTS},
    "aorta": "unknown",
    "inferior vena cava": "unknown",
    "portal and splenic vein": "unknown",
}


def save_case(root: Path, part: str, name: str, label: object = None) -> None:
    save(root / f"WORD-V0.1.0/images{part}/{name}.nii.gz", make_ct(AFFINE), AFFINE)
    save(root / f"WORD-V0.1.0/labels{part}/{name}.nii.gz", paint(VALUES, AFFINE) if label is None else label, AFFINE)


def download(root: Path) -> None:
    for part, name in (("Tr", "word_0002"), ("Val", "word_0001"), ("Ts", "word_0014")):
        save_case(root, part, name)


def test_adrenal_glands_get_their_sides_in_every_section(tmp_path: Path) -> None:
    download(tmp_path)
    prepared = prepare("word", tmp_path, tmp_path / "out")
    assert not prepared.failures + prepared.notes
    assert [entry["case"] for entry in prepared.entries["training"]] == ["word_0001", "word_0002"]
    assert [entry["case"] for entry in prepared.entries["test"]] == ["word_0014"]
    assert organs_at_points(prepared, "word_0002") == EXPECTED
    assert organs_at_points(prepared, "word_0001") == EXPECTED
    assert organs_at_points(prepared, "word_0014", "test") == EXPECTED


def test_other_structures_are_background_and_keep_their_names(tmp_path: Path) -> None:
    # duodenum, colon, intestine, rectum, bladder and the heads of the femurs, at the points of seven organs
    others = dict(zip(("liver", "spleen", "aorta", "pancreas", "stomach", "left kidney", "right kidney"),
                      (9, 10, 11, 13, 14, 15, 16), strict=True))  # fmt: skip
    save_case(tmp_path, "Tr", "word_0003", paint(others, AFFINE))
    prepared = prepare("word", tmp_path, tmp_path / "out")
    found = organs_at_points(prepared, "word_0003")
    assert {point: found[point] for point in others} == dict.fromkeys(others, "background")
    written = nib.load(tmp_path / "out" / prepared.entries["training"][0]["label"])
    names = find_adapter("word").labels
    assert names[int(written.dataobj[voxel_of(POINTS["left kidney"], AFFINE)])] == "head of left femur"
    assert names[int(written.dataobj[voxel_of(POINTS["pancreas"], AFFINE)])] == "rectum"


def test_adrenal_glands_that_cannot_be_told_apart_are_unknown(tmp_path: Path) -> None:
    label = paint(VALUES, AFFINE)
    i, j, k = voxel_of(POINTS["right adrenal gland"], AFFINE)
    end = voxel_of(POINTS["left adrenal gland"], AFFINE)[0]
    label[min(i, end) : max(i, end), j, k] = 12  # they touch, in the middle of the body
    save_case(tmp_path, "Tr", "word_0004", label)
    prepared = prepare("word", tmp_path, tmp_path / "out")
    (note,) = prepared.notes
    assert note.startswith("word_0004: ")
    assert "adrenal" in note
    assert organs_at_points(prepared, "word_0004") == {
        **EXPECTED,
        "right adrenal gland": "unknown",
        "left adrenal gland": "unknown",
    }
    (case,) = read_cohort(prepared.path)
    assert sorted(case["labelled"]) == sorted(set(VALUES) - {"right adrenal gland", "left adrenal gland"})


def test_a_label_map_of_another_grid_is_reported(tmp_path: Path) -> None:
    save_case(tmp_path, "Tr", "word_0002")
    save_case(tmp_path, "Tr", "word_0005")
    save(tmp_path / "WORD-V0.1.0/labelsTr/word_0005.nii.gz", paint(VALUES, AFFINE), affine_for("RAS"))
    prepared = prepare("word", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["word_0002"]
    (failure,) = prepared.failures
    assert "labelsTr/word_0005.nii.gz: is not on the grid of its image" in failure
