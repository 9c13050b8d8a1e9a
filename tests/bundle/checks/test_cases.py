"""Planted faults: each is found, named with its file and what to do, and nothing else is."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.checks.cases import check_cases, check_cohorts
from bundle.cohorts.selection import training_cases
from bundle.errors import InputError
from tests.bundle.checks.planting import change, edit, found, load, look, mirror, path_of, refused
from tests.scan_files import save_series


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
    refused(data, "full/full_000", "expected whole numbers, found", "nearest-neighbor interpolation")


def test_a_series_with_a_missing_slice(data: Path) -> None:
    series = save_series(data / "full" / "series", [(0, 0, 3 * z) for z in range(6) if z != 3])
    edit(data, "full", image=str(series.relative_to(data / "full")), case="full_000")
    refused(data, "full/full_000", "series: slices are missing or uneven", "export the whole series again")


def test_a_constant_image(data: Path) -> None:
    change(path_of(data, "full/full_000"), lambda old: np.zeros_like(old))
    refused(data, "full/full_000", "is empty, all its values are 0")


def test_a_person_may_accept_what_is_odd(data: Path) -> None:
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=mirror)
    edit(data, "full", accept=["mirrored"])
    assert found(data) == {}


def test_all_errors_are_counted_and_the_first_is_named(data: Path) -> None:
    for name in ("full/full_000", "liver/liver_000", "spleen/spleen_000"):
        path_of(data, name, "label").unlink()
    with pytest.raises(
        InputError, match=r"full_000.*no such file.*\(2 more errors: `python -m scripts check` lists all\)"
    ):
        check_cases(load(data), progress=False)


def test_a_huge_value_is_undeclared_and_nothing_more(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: np.where(old == 6, 2_000_000_000, old.astype(np.int32)))
    refused(data, "full/full_000", "holds the value 2000000000")


def test_a_label_map_in_other_axes_differs_from_a_shifted_one(data: Path) -> None:
    path = path_of(data, "full/full_000", "label")
    turned = nib.load(path).as_reoriented([[0, -1], [1, 1], [2, 1]])
    nib.save(nib.Nifti1Image(np.asanyarray(turned.dataobj), turned.affine), path)
    refused(data, "full/full_000", "its axes run LAS, those of its image", "run RAS; store both alike")


def test_all_undeclared_values_are_named(data: Path) -> None:
    change(
        path_of(data, "spleen/spleen_000", "label"), lambda old: (old * (np.indices(old.shape)[2] % 4)).astype(np.uint8)
    )
    refused(data, "spleen/spleen_000", "holds the value 2, 3,")


def test_an_nnunet_folder_without_a_list_passes_the_check(tiny_cohorts: Path, tmp_path: Path) -> None:
    datalist = json.loads((tiny_cohorts / "full" / "dataset.json").read_text())
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / "full" / folder).mkdir(parents=True)
    for entry in datalist["training"]:
        name = Path(entry["image"]).name.removesuffix(".nii.gz")
        shutil.copy(tiny_cohorts / "full" / entry["image"], tmp_path / f"full/imagesTr/{name}_0000.nii.gz")
        shutil.copy(tiny_cohorts / "full" / entry["label"], tmp_path / f"full/labelsTr/{name}.nii.gz")
    labels = {name: int(value) for value, name in datalist["labels"].items()}
    (tmp_path / "full" / "dataset.json").write_text(json.dumps({"labels": labels, "file_ending": ".nii.gz"}))
    check_cohorts(tmp_path)
    assert len(training_cases(tmp_path)) == 3


def test_what_cannot_be_read_cannot_be_accepted(data: Path) -> None:
    path_of(data, "liver/liver_000", "label").unlink()
    cases = [{**case, "accept": ["unreadable"]} for case in load(data)]  # as no dataset.json can say it
    with pytest.raises(InputError, match="liver_000.*no such file"):
        check_cases(cases, progress=False)


@pytest.mark.parametrize("spacing", [0.0, 1e-6, 1e6])
def test_an_absurd_spacing(data: Path, spacing: float) -> None:
    path = path_of(data, "full/full_000")
    image = nib.load(path)
    header = image.header.copy()
    header["sform_code"], header["qform_code"], header["pixdim"][3] = 0, 1, spacing
    written = header.binaryblock + bytes(int(image.dataobj.offset) - 348) + np.asarray(image.dataobj).tobytes(order="F")
    path.write_bytes(gzip.compress(written))
    refused(data, "full/full_000", "full_000.nii.gz: expected voxels of 0.05 to 100 mm, found")


def test_a_path_that_cannot_be_looked_up(data: Path) -> None:
    cases = load(data)
    cases[0]["image"] = str(data / ("x" * 300))
    with pytest.raises(InputError, match="no such file, but the dataset.json of cohort full lists it as image"):
        check_cases(cases, progress=False)
