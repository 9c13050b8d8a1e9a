import csv
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.checks.cases import examine_cases
from bundle.cohorts.datalists import read_cohort
from tests.bundle.cohorts.adapters.downloads import (
    POINTS,
    SHAPE,
    affine_for,
    make_ct,
    organs_at_points,
    paint,
    prepare,
    save,
)
from tests.paths import REAL_DATA

REAL = REAL_DATA
AFFINE = affine_for("RAS")
FILES = {
    "spleen": "spleen", "right kidney": "kidney_right", "left kidney": "kidney_left", "gallbladder": "gallbladder",
    "esophagus": "esophagus", "liver": "liver", "stomach": "stomach", "aorta": "aorta",
    "inferior vena cava": "inferior_vena_cava", "portal and splenic vein": "portal_vein_and_splenic_vein",
    "pancreas": "pancreas", "right adrenal gland": "adrenal_gland_right", "left adrenal gland": "adrenal_gland_left",
}  # fmt: skip


def save_subject(root: Path, name: str, organs: dict[str, str] = FILES, ct: bool = True) -> Path:
    """A subject in whose masks every organ is at its point; beside them one of a structure that is no organ of ours."""
    folder = root / name
    if ct:
        save(folder / "ct.nii.gz", make_ct(AFFINE, seed=int(name[1:])), AFFINE)
    for organ, file in organs.items():
        label = paint({organ: 1}, AFFINE, reach=2 if organ in ("liver", "spleen") else 0)
        save(folder / "segmentations" / f"{file}.nii.gz", label, AFFINE)
    save(folder / "segmentations" / "urinary_bladder.nii.gz", np.ones(SHAPE, np.uint8), AFFINE)
    return folder


def download(root: Path) -> None:
    for name in ("s0000", "s0001", "s0002"):
        save_subject(root, name)
    rows = "image_id;age;gender;institute;study_type;split\ns0000;60;m;A;ct abdomen;train\n"
    (root / "meta.csv").write_text(f"\ufeff{rows}s0001;61;f;A;ct abdomen;test\ns0002;;f;A;ct abdomen;val\n")


def test_the_files_of_all_organs_become_one_label_map(tmp_path: Path) -> None:
    save_subject(tmp_path, "s0000")
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    assert not prepared.failures + prepared.notes
    assert organs_at_points(prepared, "s0000") == {point: point for point in POINTS}


def test_where_two_organs_overlap_the_greater_value_stays(tmp_path: Path) -> None:
    folder = save_subject(tmp_path, "s0000")
    both = paint({"liver": 1, "stomach": 1}, AFFINE)
    save(folder / "segmentations/liver.nii.gz", both, AFFINE)  # 6; the stomach is 7
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    found = organs_at_points(prepared, "s0000")
    assert (found["liver"], found["stomach"]) == ("liver", "stomach")


def test_a_missing_organ_is_reported_and_other_subjects_are_kept(tmp_path: Path) -> None:
    save_subject(tmp_path, "s0000")
    folder = save_subject(tmp_path, "s0001")
    (folder / "segmentations/spleen.nii.gz").unlink()
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["s0000"]
    (failure,) = prepared.failures
    assert "s0001/segmentations: expected a file for each of the 13 organs, found none for spleen" in failure


def test_masks_on_different_grids_are_reported(tmp_path: Path) -> None:
    save_subject(tmp_path, "s0000")
    folder = save_subject(tmp_path, "s0001")
    save(folder / "segmentations/liver.nii.gz", paint({"liver": 1}, AFFINE), affine_for("LAS"))
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    (failure,) = prepared.failures
    assert "s0001/segmentations/liver.nii.gz: is not on the grid of" in failure


def test_the_makers_test_subjects_are_the_test_section(tmp_path: Path) -> None:
    download(tmp_path)
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["s0000", "s0002"]
    assert [entry["case"] for entry in prepared.entries["test"]] == ["s0001"]
    assert organs_at_points(prepared, "s0001", "test")["left kidney"] == "left kidney"


def test_the_check_finds_no_fault_with_the_cohort(tmp_path: Path) -> None:
    download(tmp_path)
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    for one in examine_cases(read_cohort(prepared.path), progress=False, workers=1):
        assert {"liver", "spleen"} <= set(one.volumes)
        assert not one.errors


def test_a_subject_without_ct_is_left_out(tmp_path: Path) -> None:
    save_subject(tmp_path, "s0000")
    save_subject(tmp_path, "s0001", ct=False)
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["s0000"]
    assert not prepared.failures


def test_a_subject_without_any_of_the_organs_is_left_out(tmp_path: Path) -> None:
    save_subject(tmp_path, "s0001")
    folder = save_subject(tmp_path, "s0000")
    for file in FILES.values():
        save(folder / "segmentations" / f"{file}.nii.gz", np.zeros(SHAPE, np.uint8), AFFINE)
    prepared = prepare("totalsegmentator", tmp_path, tmp_path / "out")
    assert prepared.notes == ["s0000: none of the 13 organs is in its field of view, left out"]
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == ["s0001"]


@pytest.mark.skipif(
    not (REAL / "totalsegmentator").is_dir(), reason="needs subjects of TotalSegmentator: no ../shared/data"
)
def test_volumes_of_real_subjects(tmp_path: Path) -> None:
    with (REAL / "organ_volumes_ml.csv").open() as file:
        known = {row.pop("case").removeprefix("totalsegmentator/"): row for row in csv.DictReader(file)}
    prepared = prepare("totalsegmentator", REAL / "totalsegmentator", tmp_path)
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == ["s0002", "s0003", "s0009"]
    for entry in prepared.entries["training"]:
        label = nib.load(tmp_path / entry["label"])
        counts = np.bincount(np.asarray(label.dataobj).ravel(), minlength=14)
        found = counts[1:] * abs(np.linalg.det(label.affine[:3, :3])) / 1000
        # the table's columns are in the order of the values 1 to 13; volumes are rounded to 0.01 ml
        expected = [float(volume) for name, volume in known[entry["case"]].items() if name != "spacing"]
        np.testing.assert_allclose(found, expected, atol=0.02)
