"""Faults planted one at a time in clean cohorts: each is found, named with its file and cure, and nothing else is."""

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.checks import cases as checks
from bundle.checks.cases import check_cases, examine_cases
from bundle.checks.results import CaseCheck
from bundle.checks.rules import Finding
from bundle.cohorts.datalists import SECTIONS, cohort_files, read_cohort
from bundle.errors import InputError
from tests.scan_files import save_series

Change = Callable[[NDArray[Any]], NDArray[Any]]


def load(data: Path) -> list[dict[str, Any]]:
    return [
        case for file in cohort_files([data]) for section in SECTIONS for case in read_cohort(file, section=section)
    ]


def look(data: Path, **options: Any) -> dict[str, CaseCheck]:
    return {check.name: check for check in examine_cases(load(data), progress=False, workers=1, **options)}


def found(data: Path) -> dict[str, list[Finding]]:
    return {name: check.findings for name, check in look(data).items() if check.findings}


def only(data: Path, name: str) -> Finding:
    """The one finding there is, about the case of this name."""
    findings = found(data)
    assert list(findings) == [name], findings
    (finding,) = findings[name]
    return finding


def path_of(data: Path, name: str, key: str = "image") -> Path:
    (case,) = [case for case in load(data) if f"{case['cohort']}/{case['case']}" == name]
    return Path(case[key])


def change(path: Path, voxels: Change = lambda old: old, affine: Change = lambda old: old) -> None:
    image = nib.load(path)
    made = nib.Nifti1Image(voxels(np.asanyarray(image.dataobj)), affine(image.affine.copy()))
    nib.save(made, path)


def edit(data: Path, cohort: str, **fields: Any) -> None:
    """Set fields of the first training case."""
    path = data / cohort / "dataset.json"
    datalist = json.loads(path.read_text())
    datalist["training"][0].update(fields)
    path.write_text(json.dumps(datalist))


def mirror(affine: NDArray[Any]) -> NDArray[Any]:
    return np.diag([-1.0, 1, 1, 1]) @ affine


# --- Clean data ------------------------------------------------------------------------------------------------------
def test_clean_data_has_no_findings(data: Path) -> None:
    assert found(data) == {}
    check_cases(load(data), progress=False)


def test_what_is_measured_is_right(data: Path) -> None:
    check = look(data)["full/full_000"]
    image, label = (nib.load(path_of(data, "full/full_000", key)) for key in ("image", "label"))
    spacing = image.header.get_zooms()
    np.testing.assert_allclose(check.spacing, spacing, rtol=1e-3)
    np.testing.assert_allclose(check.field_of_view, np.array(spacing) * image.shape, rtol=1e-3)
    assert check.hu == [image.dataobj[:].min(), image.dataobj[:].max()]
    liver = np.count_nonzero(label.dataobj[:] == 6) * np.prod(spacing) / 1000
    assert check.volumes["liver"] == pytest.approx(liver, rel=1e-3)


def test_noise_of_a_header_is_no_shift(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), affine=lambda old: old + 1e-8)
    assert found(data) == {}


def test_float_labels_are_read_as_integers(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: old.astype(np.float64))
    assert found(data) == {}


# --- Files and grids -------------------------------------------------------------------------------------------------
def refused(data: Path, name: str, *words: str) -> None:
    finding = only(data, name)
    assert finding.error
    for word in words:
        assert word in finding.message
    with pytest.raises(InputError, match=r"^[^\n]*$"):
        check_cases(load(data), progress=False)


def test_a_missing_file(data: Path) -> None:
    path_of(data, "liver/liver_000", "label").unlink()
    refused(data, "liver/liver_000", "no such file", "liver_000", "correct the path")


def test_a_truncated_file(data: Path) -> None:
    path = path_of(data, "full/full_001")
    path.write_bytes(path.read_bytes()[:-5000])
    refused(data, "full/full_001", "full_001.nii.gz: cannot be read as an image", "replace the file")


def test_a_truncated_stream_in_a_whole_archive(data: Path) -> None:
    path = path_of(data, "full/full_001", "label")
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1000]))
    refused(data, "full/full_001", "full_001.nii.gz: cannot be read as an image", "replace the file")


@pytest.mark.parametrize(
    ("shape", "cure"), [((64, 64), "give the whole scan"), ((64, 64, 32, 2), "split it into volumes")]
)
def test_an_image_that_is_no_volume(data: Path, shape: tuple[int, ...], cure: str) -> None:
    path = path_of(data, "spleen/spleen_000")
    nib.save(nib.Nifti1Image(np.zeros(shape, np.int16), np.eye(4)), path)
    refused(data, "spleen/spleen_000", "spleen_000.nii.gz: expected one 3D volume", cure)


def test_another_shape(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: old[:, :, :-1])
    refused(data, "full/full_000", "its shape (64, 64, 31) is not that of its image", "resample")


def test_a_shifted_affine(data: Path) -> None:
    def shift(affine: NDArray[Any]) -> NDArray[Any]:
        affine[1, 3] += 7
        return affine

    change(path_of(data, "pancreas/pancreas_000", "label"), affine=shift)
    refused(data, "pancreas/pancreas_000", "by up to 7 mm", "copy the image's affine")


def test_an_undeclared_value(data: Path) -> None:
    change(path_of(data, "spleen/spleen_000", "label"), lambda old: np.where(old == 1, 5, old))
    refused(data, "spleen/spleen_000", "holds the value 5", "cohort spleen does not declare", "add it there")


def test_values_between_labels(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: old * 0.5)
    refused(data, "full/full_000", "expected whole numbers, found", "nearest neighbours")


def test_a_series_with_a_missing_slice(data: Path) -> None:
    series = save_series(data / "full" / "series", [(0, 0, 3 * z) for z in range(6) if z != 3])
    edit(data, "full", image=str(series.relative_to(data / "full")), case="full_000")
    refused(data, "full/full_000", "series: slices are missing or uneven", "export the whole series again")


def test_a_header_without_orientation(data: Path) -> None:
    for key in ("image", "label"):
        path = path_of(data, "full/full_000", key)
        image = nib.load(path)
        image.header["qform_code"] = image.header["sform_code"] = 0
        nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj), None, image.header), path)
    findings = {finding.kind for finding in found(data)["full/full_000"]}
    assert "orientation" in findings


def test_a_header_in_centimetres(data: Path) -> None:
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=lambda old: old / 10)
    kinds = {finding.kind: finding for finding in found(data)["full/full_000"]}
    assert {"field", "volume"} <= set(kinds)
    assert not any(finding.error for finding in kinds.values())


# --- Values ----------------------------------------------------------------------------------------------------------
def test_a_scan_without_its_offset(data: Path) -> None:
    change(path_of(data, "liver/liver_000"), lambda old: (old + 1024).clip(0).astype(np.uint16))
    refused(data, "liver/liver_000", "liver_000.nii.gz: expected Hounsfield units", "subtract 1024")


@pytest.mark.parametrize("high", [1, 255])
def test_a_rescaled_scan(data: Path, high: int) -> None:
    change(path_of(data, "liver/liver_000"), lambda old: ((old.clip(-125, 275) + 125) / 400 * high).astype(np.float32))
    refused(data, "liver/liver_000", "the image was rescaled", "take the original scan")


def test_a_windowed_scan(data: Path) -> None:
    change(path_of(data, "liver/liver_000"), lambda old: old.clip(-160, 240))
    finding = only(data, "liver/liver_000")
    assert (finding.kind, finding.error) == ("windowed", False)
    assert "found values from -160 to 240" in finding.message
    check_cases(load(data), progress=False)  # a warning does not stop training


def test_a_constant_image(data: Path) -> None:
    change(path_of(data, "full/full_000"), lambda old: np.zeros_like(old))
    refused(data, "full/full_000", "is empty, all its values are 0")


# --- Sides and places ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["full/full_000", "spleen/spleen_000", "liver/liver_000"])
def test_a_mirrored_scan(data: Path, name: str) -> None:
    """Image and label map agree, but the affine says that left is right."""
    for key in ("image", "label"):
        change(path_of(data, name, key), affine=mirror)
    finding = only(data, name)
    assert (finding.kind, finding.error) == ("mirrored", True)
    assert "the scan is mirrored; correct its affine" in finding.message


@pytest.mark.parametrize("name", ["full/full_000", "liver/liver_000", "pancreas/pancreas_000"])
@pytest.mark.parametrize("key", ["image", "label"])
def test_an_image_mirrored_against_its_label_map(data: Path, name: str, key: str) -> None:
    """The voxels of one are flipped, the headers agree; a label map then has its organs on the wrong sides as well."""
    change(path_of(data, name, key), lambda old: old[::-1])
    findings = {finding.kind: finding for finding in found(data)[name]}
    sides = {"mirrored"} if key == "label" and name != "pancreas/pancreas_000" else set()
    assert set(findings) == {"flipped"} | sides
    assert re.search(r"only when it is flipped \((right–left|left–right)\)", findings["flipped"].message)
    if name != "pancreas/pancreas_000":  # one small organ may be no proof
        assert findings["flipped"].error


def test_swapped_kidneys(data: Path) -> None:
    exchange = np.arange(14)
    exchange[[2, 3]] = 3, 2
    change(path_of(data, "full/full_000", "label"), lambda old: exchange[old].astype(np.uint8))
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("swapped", True)
    assert "the right kidney lies to the left of the left kidney" in finding.message
    assert "exchange the two names" in finding.message


def test_a_person_may_accept_what_is_odd(data: Path) -> None:
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=mirror)
    edit(data, "full", accept=["mirrored"])
    assert found(data) == {}


def test_a_label_map_of_another_patient(data: Path) -> None:
    """Same shape, other organs: nothing in the headers could tell."""
    other = np.asanyarray(nib.load(path_of(data, "full/full_001", "label")).dataobj)
    change(path_of(data, "full/full_000", "label"), lambda old: other)
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("misplaced", False)
    assert "look whether it belongs to this scan" in finding.message


def test_a_label_map_beside_the_organs(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: np.roll(old, 12, 0))  # 70 mm
    assert only(data, "full/full_000").kind == "misplaced"


# --- Sizes -----------------------------------------------------------------------------------------------------------
def test_an_empty_label_map(data: Path) -> None:
    change(path_of(data, "spleen/spleen_000", "label"), lambda old: np.zeros_like(old))
    refused(data, "spleen/spleen_000", "is empty, though spleen should be annotated", '"labelled": []')
    edit(data, "spleen", labelled=[])
    assert found(data) == {}


def test_an_organ_of_an_unusual_size(data: Path) -> None:
    def shrink(label: NDArray[Any]) -> NDArray[Any]:
        places = np.argwhere(label == 6)
        label = np.where(label == 6, 0, label)
        label[tuple(places[np.abs(places - places.mean(0)).sum(1).argmin()])] = 6
        return label.astype(np.uint8)

    change(path_of(data, "full/full_000", "label"), shrink)
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("volume", False)
    assert "400 to 4500 are usual" in finding.message


# --- Copies ----------------------------------------------------------------------------------------------------------
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


def test_a_patient_in_two_folds(data: Path) -> None:
    path = data / "full" / "dataset.json"
    datalist = json.loads(path.read_text())
    for number, entry in enumerate(datalist["training"]):
        entry.update(patient="p1", fold=number)
    path.write_text(json.dumps(datalist))
    finding = only(data, "full/full_001")
    assert (finding.kind, finding.error) == ("patient", True)
    assert "is of patient p1" in finding.message


# --- Remembering -----------------------------------------------------------------------------------------------------
def test_unchanged_cases_are_not_read_again(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = data / "memory.json"
    first = look(data, remembered=memory)
    read = []

    def examine(case: dict[str, Any], **options: Any) -> CaseCheck:
        read.append(case["case"])
        return first[f"{case['cohort']}/{case['case']}"]

    monkeypatch.setattr("bundle.checks.cases.examine_case", examine)
    again = look(data, remembered=memory)
    assert not read
    assert again == first
    change(path_of(data, "liver/liver_000", "label"))
    look(data, remembered=memory)
    assert read == ["liver_000"]
    monkeypatch.undo()
    memory.write_text("{")
    assert look(data, remembered=memory) == first


def test_all_errors_are_counted_and_the_first_is_told(data: Path) -> None:
    for name in ("full/full_000", "liver/liver_000", "spleen/spleen_000"):
        path_of(data, name, "label").unlink()
    with pytest.raises(
        InputError, match=r"full_000.*no such file.*\(2 more errors: `python -m scripts check` lists all\)"
    ):
        check_cases(load(data), progress=False)


# --- What a review asked for -----------------------------------------------------------------------------------------
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


def test_an_organ_missing_among_others(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: np.where(old == 6, 0, old).astype(np.uint8))
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("missing", False)
    assert "does not mark the liver" in finding.message


def test_accepting_situs_inversus_does_not_hide_a_flipped_label_map(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: old[:, :, ::-1])
    edit(data, "full", accept=["mirrored"])
    kinds = {finding.kind for finding in found(data)["full/full_000"] if finding.error}
    assert kinds == {"flipped"}


def test_a_huge_value_is_undeclared_and_nothing_more(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: np.where(old == 6, 2_000_000_000, old.astype(np.int32)))
    refused(data, "full/full_000", "holds the value 2000000000")


def test_voxels_beside_their_header_are_watched(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    itk = pytest.importorskip("itk")
    label = path_of(data, "full/full_000", "label")
    itk.imwrite(itk.imread(str(label)), str(label.parent / "detached.mhd"))
    edit(data, "full", label="labelsTr/detached.mhd")
    memory = data / "memory.json"
    assert not look(data, remembered=memory)["full/full_000"].findings
    raw = label.parent / "detached.raw"
    raw.write_bytes(bytes(raw.stat().st_size))
    assert [finding.kind for finding in look(data, remembered=memory)["full/full_000"].findings] == ["empty"]


@pytest.mark.parametrize("text", ["[]", "null", "\udcff"])
def test_a_damaged_memory_is_not_used(data: Path, text: str) -> None:
    memory = data / "memory.json"
    memory.write_text(text, errors="surrogateescape")
    assert look(data, remembered=memory) == look(data)


def test_what_was_checked_before_an_interruption_is_remembered(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, done = data / "memory.json", []
    real = checks.examine_case

    def interrupted(case: dict[str, Any], **options: Any) -> CaseCheck:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(case["case"])
        return real(case, **options)

    monkeypatch.setattr(checks, "examine_case", interrupted)
    with pytest.raises(KeyboardInterrupt):
        look(data, remembered=memory)
    assert len(json.loads(memory.read_text())) == 2


@pytest.mark.parametrize(("axis", "words"), [(1, "behind the kidneys"), (2, "below the kidneys")])
def test_a_scan_upside_down_or_back_to_front(data: Path, axis: int, words: str) -> None:
    """Image and label map agree; only the anatomy tells."""
    flip = np.diag([-1.0 if row == axis else 1.0 for row in range(3)] + [1.0])
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=lambda old: flip @ old)
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("mirrored", True)
    assert f"the liver lies {words}" in finding.message


def test_a_header_in_metres_is_an_error(data: Path) -> None:
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=lambda old: old / 1000)
    assert [finding.kind for finding in found(data)["full/full_000"] if finding.error] == ["field"]


def test_a_label_map_in_other_axes_is_told_apart_from_a_shifted_one(data: Path) -> None:
    path = path_of(data, "full/full_000", "label")
    turned = nib.load(path).as_reoriented([[0, -1], [1, 1], [2, 1]])
    nib.save(nib.Nifti1Image(np.asanyarray(turned.dataobj), turned.affine), path)
    refused(data, "full/full_000", "its axes run LAS, those of its image", "run RAS; store both alike")


def test_all_undeclared_values_are_told(data: Path) -> None:
    change(
        path_of(data, "spleen/spleen_000", "label"), lambda old: (old * (np.indices(old.shape)[2] % 4)).astype(np.uint8)
    )
    refused(data, "spleen/spleen_000", "holds the value 2, 3,")
