"""What a segmentation leaves on disk: the right place in space, names, colors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import itk
import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import Vocabulary
from bundle.scans.volumes import measure_volumes, write_volumes
from bundle.scans.writing import write_color_table, write_label_map
from tests.paths import ROOT
from tests.scan_files import RIGID, SHEARED, label_names, some_labels


def test_writers_leave_no_other_files(tmp_path: Path) -> None:
    labels, vocabulary = some_labels(), Vocabulary()
    write_label_map(tmp_path / "map.nii.gz", labels, np.eye(4), vocabulary)
    write_color_table(tmp_path / "map.ctbl", vocabulary)
    write_volumes(tmp_path / "map.json", "ct.nii.gz", measure_volumes(labels, np.eye(4), vocabulary))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["map.ctbl", "map.json", "map.nii.gz"]


def test_importing_the_writers_is_cheap() -> None:
    program = (
        "import sys, bundle.scans.writing, bundle.reports.preview, bundle.scans.dicom_seg\n"
        "sys.exit(' '.join({'torch', 'monai', 'matplotlib', 'highdicom', 'itk'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.stderr.strip() == ""


def affine_by_itk(path: Path) -> NDArray[np.float64]:
    image = itk.imread(str(path))
    affine = np.eye(4)
    affine[:3, :3] = itk.array_from_matrix(image.GetDirection()) @ np.diag(image.GetSpacing())
    affine[:3, 3] = image.GetOrigin()
    return np.diag([-1, -1, 1, 1]) @ affine  # ITK's world is LPS


@pytest.mark.parametrize("orientation", RIGID)
@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
def test_nibabel_and_itk_read_the_same_map_at_the_same_place(tmp_path: Path, orientation: str, ending: str) -> None:
    path, affine, labels = tmp_path / f"map{ending}", RIGID[orientation], some_labels()
    write_label_map(path, labels, affine, Vocabulary())
    image = nib.load(path)
    assert image.get_data_dtype() == np.uint8
    assert image.header.get_xyzt_units()[0] == "mm"
    np.testing.assert_array_equal(np.asarray(image.dataobj), labels)
    np.testing.assert_array_equal(itk.array_from_image(itk.imread(str(path))), labels.T)
    for read in (image.get_sform(coded=True), image.get_qform(coded=True)):
        assert read[1] == 1
        np.testing.assert_allclose(read[0], affine, atol=1e-4)
    np.testing.assert_allclose(affine_by_itk(path), affine, atol=1e-4)


def test_a_shear_is_kept_in_the_sform_alone(tmp_path: Path) -> None:
    path = tmp_path / "map.nii.gz"
    write_label_map(path, some_labels(), SHEARED, Vocabulary())
    image = nib.load(path)
    np.testing.assert_allclose(image.affine, SHEARED, atol=1e-5)
    assert int(image.header["qform_code"]) == 0
    np.testing.assert_allclose(image.header.get_zooms(), [0.7, 0.8, np.hypot(0.5, 2.5)], atol=1e-5)


def test_float_noise_is_no_shear(tmp_path: Path) -> None:
    noisy = RIGID["oblique"].astype(np.float32).astype(np.float64)
    noisy[:3, :3] *= 1 + 1e-5 * np.arange(9).reshape(3, 3)
    write_label_map(tmp_path / "map.nii.gz", some_labels(), noisy, Vocabulary())
    assert int(nib.load(tmp_path / "map.nii.gz").header["qform_code"]) == 1


def test_names_and_colors_travel_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "map.nii.gz"
    write_label_map(path, some_labels(), np.eye(4), Vocabulary("liver,spleen,left kidney"))
    assert label_names(path) == {1: "liver", 2: "spleen", 3: "left kidney"}
    (extension,) = nib.load(path).header.extensions
    assert extension.get_code() == 0
    root = ElementTree.fromstring(extension.get_content().rstrip(b"\0"))
    assert root.tag == "CaretExtension"
    spleen = root.findall("VolumeInformation[@Index='0']/LabelTable/Label")[1]
    color = [float(spleen.attrib[part]) for part in ("Red", "Green", "Blue", "Alpha")]
    np.testing.assert_allclose(color, [157 / 255, 78 / 255, 221 / 255, 1], atol=1e-4)


def test_equal_maps_are_equal_files(tmp_path: Path) -> None:
    for name, order in (("a", "C"), ("b", "F")):
        labels = np.array(some_labels(), order=order)  # type: ignore[call-overload]
        write_label_map(tmp_path / f"{name}.nii.gz", labels, np.eye(4), Vocabulary())
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="map.mha: expected a name ending with .nii.gz or .nii for a label map"):
        write_label_map(tmp_path / "map.mha", some_labels(), np.eye(4), Vocabulary())


def test_a_color_table_has_five_numbers_and_a_word_in_each_line(tmp_path: Path) -> None:
    write_color_table(tmp_path / "map.ctbl", Vocabulary("spleen,inferior vena cava"))
    lines = [line for line in (tmp_path / "map.ctbl").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["0 background 0 0 0 0", "1 spleen 157 78 221 255", "2 inferior_vena_cava 58 134 255 255"]
