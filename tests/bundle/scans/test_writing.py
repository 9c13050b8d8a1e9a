"""What a segmentation leaves on disk: whole files, the right place in space, names, colours, volumes."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import itk
import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.files import whole_file
from bundle.organs import Vocabulary, find_organ
from bundle.scans.volumes import count_by_slice, measure_volumes, organ_volumes, write_volumes
from bundle.scans.writing import read_label_names, write_color_table, write_label_map
from tests.paths import ROOT

EXAMPLE = ROOT.parent / "shared" / "data" / "example_ct"
VOLUMES = EXAMPLE.parent / "organ_volumes_ml.csv"
TURN = np.array([[0.8, -0.6, 0.0], [0.6, 0.8, 0.0], [0.0, 0.0, 1.0]]) @ np.array(
    [[1.0, 0.0, 0.0], [0.0, 0.6, -0.8], [0.0, 0.8, 0.6]]
)


def affine_of(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = matrix, (12.5, -80.25, 300.0)
    return affine


RIGID = {
    "RAS": affine_of(np.diag([0.7, 0.8, 2.5])),
    "LPS": affine_of(np.diag([-0.7, -0.8, 2.5])),
    "mirrored": affine_of(np.diag([-0.7, 0.8, 2.5])),
    "permuted": affine_of(np.array([[0, 0, -2.5], [0.7, 0, 0], [0, 0.8, 0]])),
    "oblique": affine_of(TURN @ np.diag([-0.7, -0.8, 2.5])),
}
SHEARED = affine_of(np.array([[0.7, 0.0, 0.0], [0.0, 0.8, 0.5], [0.0, 0.0, 2.5]]))  # a tilted gantry


def some_labels() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 14, (5, 6, 7)).astype(np.uint8)


# --- Whole files -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "map.nii.gz"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as unfinished:
            unfinished.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_finished_write_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "map.nii.gz"
    with whole_file(path) as unfinished:
        unfinished.write_text("new")
        assert unfinished.parent == path.parent  # a move across disks is not one step
        assert unfinished.name.startswith(".")
        assert unfinished.name.endswith(".nii.gz")
        assert not path.exists()
        written = unfinished.stat().st_ino
    assert path.read_text() == "new"
    assert path.stat().st_ino == written  # moved, not copied: a copy can be seen half done
    assert list(path.parent.iterdir()) == [path]


def test_a_killed_writer_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "map.nii.gz"
    path.write_text("old")
    program = (
        "import os, signal, sys; from bundle.files import whole_file\n"
        "with whole_file(sys.argv[1]) as file: file.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, timeout=60)
    assert ended.returncode == -9
    assert path.read_text() == "old"


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


# --- NIfTI -----------------------------------------------------------------------------------------------------------
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


@pytest.mark.parametrize(("sform", "qform", "expected"), [(4, 1, 4), (0, 2, 2), (0, 0, 1)])
def test_the_meaning_of_the_coordinates_is_the_scan_s(tmp_path: Path, sform: int, qform: int, expected: int) -> None:
    scan = nib.Nifti1Header()
    scan["sform_code"], scan["qform_code"] = sform, qform
    write_label_map(tmp_path / "map.nii.gz", some_labels(), RIGID["LPS"], Vocabulary(), like=scan)
    header = nib.load(tmp_path / "map.nii.gz").header
    assert (int(header["sform_code"]), int(header["qform_code"])) == (expected, expected)


def test_names_and_colors_travel_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "map.nii.gz"
    write_label_map(path, some_labels(), np.eye(4), Vocabulary("liver,spleen,left kidney"))
    assert read_label_names(path) == {1: "liver", 2: "spleen", 3: "left kidney"}
    (extension,) = nib.load(path).header.extensions
    assert extension.get_code() == 0
    root = ElementTree.fromstring(extension.get_content().rstrip(b"\0"))
    assert root.tag == "CaretExtension"
    spleen = root.findall("VolumeInformation[@Index='0']/LabelTable/Label")[1]
    color = [float(spleen.attrib[part]) for part in ("Red", "Green", "Blue", "Alpha")]
    np.testing.assert_allclose(color, [157 / 255, 78 / 255, 221 / 255, 1], atol=1e-4)


def test_other_values_are_named_by_the_caller(tmp_path: Path) -> None:
    labels = np.full((2, 2, 2), 6, np.uint8)
    write_label_map(tmp_path / "map.nii", labels, np.eye(4), Vocabulary("liver,spleen"), {"liver": 6})
    assert read_label_names(tmp_path / "map.nii") == {6: "liver"}
    assert (np.asarray(nib.load(tmp_path / "map.nii").dataobj) == 6).all()


def test_a_foreign_label_table_is_read(tmp_path: Path) -> None:
    xml = (
        '<?xml version="1.0" encoding="UTF-8"?> <CaretExtension>  <Date><![CDATA[2013-07-14T05:45:09]]></Date>   '
        '<VolumeInformation Index="0">   <LabelTable>\n<Label Key="7" Red="0.2" Green="0.9" Blue="0.1" Alpha="1">'
        "<![CDATA[kidney_left]]></Label>\n  </LabelTable>  </VolumeInformation></CaretExtension>\n              "
    )  # as TotalSegmentator writes it
    for name, text in (("good", xml), ("bad", xml[:-60]), ("none", "")):
        image = nib.Nifti1Image(some_labels(), np.eye(4))
        if text:
            image.header.extensions.append(nib.nifti1.Nifti1Extension(0, text.encode()))
        nib.save(image, tmp_path / f"{name}.nii.gz")
    assert read_label_names(tmp_path / "good.nii.gz") == {7: "kidney_left"}
    assert read_label_names(tmp_path / "none.nii.gz") == {}
    with pytest.raises(InputError, match="bad.nii.gz: the label names in its header are damaged"):
        read_label_names(tmp_path / "bad.nii.gz")
    (tmp_path / "text.nii.gz").write_text("no scan")
    with pytest.raises(InputError, match="text.nii.gz: expected a NIfTI label map"):
        read_label_names(tmp_path / "text.nii.gz")


def test_equal_maps_are_equal_files(tmp_path: Path) -> None:
    for name, order in (("a", "C"), ("b", "F")):
        labels = np.array(some_labels(), order=order)  # type: ignore[call-overload]
        write_label_map(tmp_path / f"{name}.nii.gz", labels, np.eye(4), Vocabulary())
    assert (tmp_path / "a.nii.gz").read_bytes() == (tmp_path / "b.nii.gz").read_bytes()


def test_another_ending_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="map.mha: a label map's name ends with .nii.gz or .nii"):
        write_label_map(tmp_path / "map.mha", some_labels(), np.eye(4), Vocabulary())


def test_a_color_table_has_five_numbers_and_a_word_in_each_line(tmp_path: Path) -> None:
    write_color_table(tmp_path / "map.ctbl", Vocabulary("spleen,inferior vena cava"))
    lines = [line for line in (tmp_path / "map.ctbl").read_text().splitlines() if not line.startswith("#")]
    assert lines == ["0 background 0 0 0 0", "1 spleen 157 78 221 255", "2 inferior_vena_cava 58 134 255 255"]


# --- Volumes ---------------------------------------------------------------------------------------------------------
def three_organs() -> NDArray[np.uint8]:
    labels = np.zeros((6, 7, 8), np.uint8)
    labels[1:3, 1:4, 1:5] = 1  # 24 voxels inside
    labels[4, 3, 7] = 2  # one in the last slice
    labels[5, 6, 0] = 255  # no organ
    return labels


def test_volumes_by_hand() -> None:
    vocabulary = Vocabulary("liver,spleen,aorta")
    volumes = measure_volumes(three_organs(), SHEARED, vocabulary)
    assert volumes.voxel_volume_mm3 == pytest.approx(0.7 * 0.8 * 2.5)  # a shear keeps the volume
    assert [organ.voxels for organ in volumes.organs.values()] == [24, 1, 0]
    assert [organ.touches_border for organ in volumes.organs.values()] == [False, True, False]
    assert organ_volumes(three_organs(), RIGID["mirrored"], vocabulary) == pytest.approx(
        {"liver": 24 * 1.4e-3, "spleen": 1.4e-3, "aorta": 0.0}
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("side", [0, -1])
def test_each_of_the_six_sides_is_a_border(axis: int, side: int) -> None:
    labels = np.zeros((5, 6, 7), np.uint8)
    place = [2, 2, 2]
    place[axis] = side
    labels[tuple(place)] = 1
    assert measure_volumes(labels, np.eye(4), Vocabulary("liver")).organs["liver"].touches_border


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, lambda a: a.transpose(1, 0, 2)[::-1]])
def test_slices_are_counted_in_any_memory_layout(layout: Callable[[NDArray[np.uint8]], NDArray[np.uint8]]) -> None:
    labels = layout(some_labels())
    for axis, counts in enumerate(count_by_slice(labels, 14)):
        for place, row in enumerate(counts):
            expected = [(labels.take(place, axis) == value).sum() for value in range(1, 14)]
            assert row[1:].tolist() == expected


def test_volumes_need_little_memory() -> None:
    labels = np.asfortranarray(np.tile(some_labels()[:4, :4, :4], (32, 32, 16)))  # 1 MB, no voxel spared
    tracemalloc.start()
    measure_volumes(labels, np.eye(4), Vocabulary())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * labels.nbytes  # int64 copies take 8 times as much


@pytest.mark.skipif(not VOLUMES.exists(), reason="needs the real CT data of ../shared/data")
def test_volumes_of_a_real_scan() -> None:
    head, *rows = [line.split(",") for line in VOLUMES.read_text().splitlines()]
    row = next(row for row in rows if "example_ct" in row[0])
    image = nib.load(EXAMPLE / "label.nii.gz")
    volumes = organ_volumes(np.asarray(image.dataobj).astype(np.uint8), image.affine, Vocabulary())
    expected = {organ.name: float(value) for name, value in zip(head, row, strict=True) if (organ := find_organ(name))}
    assert len(expected) == 13
    assert volumes == pytest.approx(expected, abs=0.006)


def test_the_volumes_file_has_every_organ(tmp_path: Path) -> None:
    volumes = measure_volumes(three_organs(), np.diag([1, 2, 5, 1]), Vocabulary("liver,spleen,aorta"))
    write_volumes(tmp_path / "map.json", tmp_path / "ct.nii.gz", volumes, {"model": "0.1.0"})
    assert json.loads((tmp_path / "map.json").read_text()) == {
        "image": str(tmp_path / "ct.nii.gz"),
        "model": "0.1.0",
        "voxel_volume_mm3": pytest.approx(10.0),
        "organs": {
            "liver": {"value": 1, "voxels": 24, "ml": pytest.approx(0.24), "touches_border": False},
            "spleen": {"value": 2, "voxels": 1, "ml": pytest.approx(0.01), "touches_border": True},
            "aorta": {"value": 3, "voxels": 0, "ml": 0.0, "touches_border": False},
        },
    }
