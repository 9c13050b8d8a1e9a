"""One scan or one patient in two places."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.checks.cases import check_cohorts
from bundle.cohorts.selection import evaluation_cases
from bundle.errors import InputError
from tests.bundle.checks.planting import edit, found, only, path_of


def copy_case(data: Path, source: str, target: str, axes: str = "RAS") -> None:
    """Put the image of one case in the place of another, without label, turned to other axes and another type."""
    image = nib.load(path_of(data, source))
    turn = nib.orientations.ornt_transform(nib.io_orientation(image.affine), nib.orientations.axcodes2ornt(axes))
    turned = image.as_reoriented(turn)
    cohort, _ = target.split("/")
    nib.save(
        nib.Nifti1Image(np.asanyarray(turned.dataobj).astype(np.float32), turned.affine), data / cohort / "copy.nii.gz"
    )
    edit(data, cohort, image="copy.nii.gz", case="copy")
    path = data / cohort / "dataset.json"
    datalist = json.loads(path.read_text())
    del datalist["training"][0]["label"]
    path.write_text(json.dumps(datalist))


@pytest.mark.parametrize("source", ["test/test_000", "full/full_000"])
def test_a_test_scan_or_a_full_one_in_a_partial_cohort_leaks(data: Path, source: str) -> None:
    copy_case(data, source, "spleen/spleen_000", "PSL")
    (findings,) = found(data).values()
    (finding,) = findings
    assert (finding.kind, finding.error) == ("copy", True)
    assert "copy.nii.gz" in finding.message
    assert source.split("/")[1] in finding.message
    assert "training would see what it is tested on: remove one" in finding.message


def test_a_scan_in_two_partial_cohorts_counts_twice(data: Path) -> None:
    copy_case(data, "liver/liver_000", "spleen/spleen_000")
    finding = only(data, "spleen/copy")
    assert (finding.kind, finding.error) == ("copy", False)


def test_a_full_cohort_twice_leaks(data: Path) -> None:
    """Folds that are not written down are dealt out by cohort and patient: the copies part."""
    path = data / "full" / "dataset.json"
    datalist = json.loads(path.read_text())
    for entry in datalist["training"]:
        entry.pop("fold", None)
    path.write_text(json.dumps(datalist))
    shutil.copytree(data / "full", data / "full_again")
    findings = [finding for some in found(data).values() for finding in some]
    assert {(finding.kind, finding.error) for finding in findings} == {("copy", True)}
    assert len(findings) == 2


def test_a_patient_in_two_folds(data: Path) -> None:
    path = data / "full" / "dataset.json"
    datalist = json.loads(path.read_text())
    for number, entry in enumerate(datalist["training"]):
        entry.update(patient="p1", fold=number)
    path.write_text(json.dumps(datalist))
    finding = only(data, "full/full_001")
    assert (finding.kind, finding.error) == ("patient", True)
    assert "is of patient p1" in finding.message


def test_two_scans_of_one_patient_without_folds_stay_together(data: Path) -> None:
    path = data / "full" / "dataset.json"
    datalist = json.loads(path.read_text())
    for entry in datalist["training"]:
        entry["patient"] = "p1"
        entry.pop("fold", None)
    path.write_text(json.dumps(datalist))
    assert found(data) == {}


def test_a_patient_is_known_by_the_name_of_another_case(data: Path) -> None:
    path = data / "full" / "dataset.json"
    datalist = json.loads(path.read_text())
    datalist["training"][0].update(fold=0)
    datalist["training"][1].update(patient="full_000", fold=1)
    path.write_text(json.dumps(datalist))
    assert only(data, "full/full_001").kind == "patient"


def test_training_refuses_a_scan_that_is_also_tested_on(tiny_cohorts: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(tiny_cohorts, tmp_path / "data"))
    check_cohorts(data, remembered=tmp_path / "checks.json")
    (tested,) = [case["image"] for case in evaluation_cases(data) if case["case"] == "test_001"]
    path = data / "spleen" / "dataset.json"
    datalist = json.loads(path.read_text())
    datalist["training"].append({"image": tested, "case": "copy"})
    path.write_text(json.dumps(datalist))
    with pytest.raises(InputError, match=r"test_001.nii.gz: is the same scan as .*; training would see what it is"):
        check_cohorts(data, remembered=tmp_path / "checks.json")
