"""VISCERAL: files called after RadLex numbers become the organs that these number, and nothing else."""

from pathlib import Path

import pytest

from tests.bundle.cohorts.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare, save

RADLEX = {  # from RadLex, as the benchmark's description lists them
    "liver": 58, "spleen": 86, "pancreas": 170, "gallbladder": 187, "aorta": 480, "right kidney": 29662,
    "left kidney": 29663, "right adrenal gland": 30324, "left adrenal gland": 30325,
}  # fmt: skip
AFFINE = affine_for("LPS")
CASE = "10000100_1_CTce_ThAb"


def save_case(root: Path, case: str, organs: list[str]) -> None:
    save(root / "Volumes" / f"{case}.nii.gz", make_ct(AFFINE), AFFINE)
    for organ in organs:
        save(root / "Segmentations" / f"{case}_{RADLEX[organ]}_7.nii.gz", paint({organ: 1}, AFFINE), AFFINE)


def download(root: Path) -> None:
    """A CT with all organs, with structures where no annotated organ is, and with landmarks; an MR."""
    save_case(root, CASE, list(RADLEX))
    for number in (237, 1302):  # the urinary bladder and the right lung
        label = paint({"stomach": 1, "esophagus": 1}, AFFINE)
        save(root / "Segmentations" / f"{CASE}_{number}_7.nii.gz", label, AFFINE)
    (root / "Segmentations" / f"{CASE}_LMAnnotations_4.fcsv").write_text("# landmarks")
    save_case(root, "10000067_3_MRT1_wb", ["liver"])


def test_every_organ_is_where_its_file_says_and_the_rest_is_unknown(tmp_path: Path) -> None:
    download(tmp_path)
    prepared = prepare("visceral", tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert not prepared.notes
    assert [entry["case"] for entry in prepared.entries["training"]] == [CASE]
    assert prepared.entries["training"][0]["patient"] == "10000100"
    assert organs_at_points(prepared, CASE) == {point: point if point in RADLEX else "unknown" for point in POINTS}


def test_the_label_set_is_what_a_case_has_files_of(tmp_path: Path) -> None:
    download(tmp_path)
    save_case(tmp_path, "10000006_1_CT_wb", ["liver", "left kidney"])
    save(tmp_path / "Volumes" / "10000014_1_CT_wb.nii.gz", make_ct(AFFINE), AFFINE)  # nothing of it is annotated
    prepared = prepare("visceral", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["10000006_1_CT_wb", CASE]
    assert prepared.entries["training"][0]["labelled"] == ["left kidney", "liver"]
    found = organs_at_points(prepared, "10000006_1_CT_wb")
    assert found == {point: point if point in ("liver", "left kidney") else "unknown" for point in POINTS}


@pytest.mark.parametrize(("older", "newer"), [(4, 8), (9, 10)])
def test_of_two_annotations_the_one_with_the_higher_number_counts(older: int, newer: int, tmp_path: Path) -> None:
    save_case(tmp_path, CASE, [])
    for version, place in ((older, "stomach"), (newer, "liver")):
        save(tmp_path / "Segmentations" / f"{CASE}_58_{version}.nii.gz", paint({place: 1}, AFFINE), AFFINE)
    prepared = prepare("visceral", tmp_path, tmp_path / "out")
    assert prepared.notes == [f"{CASE}: liver is annotated 2 times; {CASE}_58_{newer}.nii.gz counts"]
    found = organs_at_points(prepared, CASE)
    assert found == {point: "liver" if point == "liver" else "unknown" for point in POINTS}
