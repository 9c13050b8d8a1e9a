"""DICOM: a series gives its values at their places, and what is no whole, even stack of CT slices is refused."""

import math
import shutil
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bundle.errors import InputError
from bundle.scans.dicom import count_of
from bundle.scans.finding import Source, find_scans
from bundle.scans.reading import read_scan
from tests.paths import REAL_DATA
from tests.scan_files import OBLIQUE, refuse, save_multiframe, save_series

EXAMPLE = REAL_DATA / "example_dicom"
needs_example = pytest.mark.skipif(not EXAMPLE.is_dir(), reason=f"the example DICOM series is not at {EXAMPLE}")


@needs_example
def test_a_real_series_lies_where_its_label_map_does(tmp_path: Path) -> None:
    scan = read_scan(EXAMPLE)
    label = nib.load(EXAMPLE.parent / "example_dicom_label.nii.gz")
    np.testing.assert_allclose(scan.affine, label.affine, atol=1e-4)
    assert (scan.voxels.shape, scan.voxels.dtype) == (label.shape, np.int16)
    liver = scan.voxels[np.asanyarray(label.dataobj) == 6]
    assert 80 < np.median(liver) < 140  # HU of liver in the portal phase
    heights = [scan.affine[2] @ [0, 0, index, 1] for index in range(len(scan.slices))]
    pydicom = pytest.importorskip("pydicom")
    assert [float(pydicom.dcmread(file).ImagePositionPatient[2]) for file in scan.slices] == heights
    for index, file in enumerate(sorted(EXAMPLE.iterdir())):  # names in another order, and without an ending
        shutil.copy(file, tmp_path / f"{(index * 7) % 20:02}")
    shuffled = read_scan(tmp_path)
    np.testing.assert_array_equal(shuffled.voxels, scan.voxels)
    np.testing.assert_array_equal(shuffled.affine, scan.affine)
    Path(shuffled.slices[9]).unlink()
    refuse(tmp_path, r"slices are missing or uneven: expected a step of 2.00 mm, found 4.00 mm between -788.50 mm and")


def test_a_series_is_sorted_by_position_and_rescaled(tmp_path: Path) -> None:
    heights = (6, 0, 9, 3)
    scan = read_scan(save_series(tmp_path / "s", [(-10, -20, z) for z in heights]))
    assert scan.voxels.shape == (8, 6, 4)
    assert scan.voxels.dtype == np.int16
    assert scan.voxels[0, 0].tolist() == [1001 - 1024, 1003 - 1024, 1000 - 1024, 1002 - 1024]
    assert np.argwhere(scan.voxels == 2000 - 1024).tolist() == [[5, 1, z] for z in range(4)]
    assert [Path(file).name for file in scan.slices] == ["001.dcm", "003.dcm", "000.dcm", "002.dcm"]
    np.testing.assert_allclose(scan.affine @ [5, 1, 2, 1], [10 - 5 * 0.7, 20 - 0.9, 6, 1])


def test_an_oblique_series_lies_where_dicom_puts_it(tmp_path: Path) -> None:
    row, column, normal = OBLIQUE.T

    def turn(header: Any, index: int) -> None:
        header.ImageOrientationPatient = [*row, *column]

    positions = [np.round(np.array([1, 2, 3]) + 2.5 * z * normal, 5) for z in range(4)]
    scan = read_scan(save_series(tmp_path / "s", positions, turn))
    left, posterior, superior = positions[2] + 5 * 0.7 * row + 1 * 0.9 * column  # DICOM PS3.3 C.7.6.2.1.1
    np.testing.assert_allclose((scan.affine @ [5, 1, 2, 1])[:3], [-left, -posterior, superior], atol=1e-4)


def test_each_slice_has_its_own_rescale(tmp_path: Path) -> None:
    def scale(header: Any, index: int) -> None:
        header.RescaleSlope = [1, 0.5, 40][index]

    scan = read_scan(save_series(tmp_path / "s", [(0, 0, z) for z in range(3)], scale))
    assert scan.voxels.dtype == np.float32
    assert scan.voxels[0, 0].tolist() == [1000 - 1024, 1001 / 2 - 1024, 1002 * 40 - 1024]


def test_large_values_do_not_wrap(tmp_path: Path) -> None:
    def scale(header: Any, index: int) -> None:
        header.RescaleSlope = [1, 40][index]

    scan = read_scan(save_series(tmp_path / "s", [(0, 0, z) for z in range(2)], scale))
    assert scan.voxels.dtype == np.int32
    assert scan.voxels[0, 0].tolist() == [1000 - 1024, 1001 * 40 - 1024]


def test_one_slice_is_as_thick_as_its_header_says(tmp_path: Path) -> None:
    def between(header: Any, index: int) -> None:
        header.SpacingBetweenSlices = 2.5

    def neither(header: Any, index: int) -> None:
        del header.SliceThickness

    assert read_scan(save_series(tmp_path / "a", [(0, 0, 0)])).affine[2, 2] == 4
    assert read_scan(save_series(tmp_path / "b", [(0, 0, 0)], between)).affine[2, 2] == 2.5
    refuse(save_series(tmp_path / "c", [(0, 0, 0)], neither), "c: expected an invertible affine")


@pytest.mark.parametrize("heights", [(0, 2, 4, 6), (6, 4, 2, 0), (2, 0, 6, 4)])
def test_frames_are_sorted_by_position(tmp_path: Path, heights: tuple[int, ...]) -> None:
    path = save_multiframe(tmp_path / "s" / "m.dcm", heights)
    scan = read_scan(path)
    assert scan.voxels.shape == (8, 6, 4)
    assert scan.voxels[0, 0].tolist() == [heights.index(z) - 100 for z in (0, 2, 4, 6)]
    np.testing.assert_allclose(scan.affine, [[-0.7, 0, 0, 10], [0, -0.9, 0, 20], [0, 0, 2, 0], [0, 0, 0, 1]])
    assert scan.slices == (str(path),) * 4
    assert list(find_scans(tmp_path)) == ["s_m"]


def test_frames_are_checked_as_slices_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(save_multiframe(tmp_path / "a.dcm", (0, 2, 4, 8)), "found 4.00 mm between 4.00 mm and 8.00 mm")
    refuse(save_multiframe(tmp_path / "b.dcm", (0, 2, 2, 4)), "two slices lie at 2.00 mm")
    refuse(save_multiframe(tmp_path / "c.dcm", (0, 2, 4), last_intercept=-200), "expected one rescale slope")
    refuse(save_series(tmp_path / "d", [(0, 0, 0)]) / "000.dcm", "000.dcm: is one slice of a DICOM series; give the")
    monkeypatch.setitem(sys.modules, "pydicom", None)
    refuse(tmp_path / "a.dcm", "multi-frame DICOM needs pydicom")


def shifted(z: float, angle: float) -> tuple[float, float, float]:
    return 0, z * math.tan(math.radians(angle)), z


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([(0, 0, z) for z in (0, 3, 6, 12, 15)], r"s: slices are missing.*6.00 mm between 6.00 mm and 12.00 mm \(002"),
        ([(0, 0, z) for z in (0, 3, 6, 9.1, 12)], r"s: slices are missing or uneven: .* found 3.10 mm"),
        ([(0, 0, z) for z in (0, 3, 3, 6)], r"s: two slices lie at 3.00 mm \(001.dcm and 002.dcm\); keep one"),
        ([shifted(z, 12) for z in (0, 3, 6, 9)], r"s: expected slices stacked.*gantry tilt of 12.0°; convert"),
        ([shifted(z, -12) for z in (9, 6, 3, 0)], r"gantry tilt of 12.0°"),
    ],
)
def test_a_series_that_is_no_even_stack_is_refused(
    tmp_path: Path, positions: list[tuple[float, ...]], message: str
) -> None:
    refuse(save_series(tmp_path / "s", positions), message)


def test_rounded_positions_are_no_gap_and_no_tilt(tmp_path: Path) -> None:
    positions = [(0, 0.03 * (z % 2), 3 * z + 0.015 * (z % 2)) for z in range(5)]
    assert read_scan(save_series(tmp_path / "s", positions)).affine[2, 2] == pytest.approx(3)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"Rows": 5}, r"002.dcm: expected slices of one size, found \[8, 5\] here and \[8, 6\] in 000.dcm; keep one"),
        ({"ImageOrientationPatient": [1, 0, 0, 0, 0.8, 0.6]}, r"002.dcm: expected slices of one orientation"),
        ({"PixelSpacing": [0.9, 0.8]}, r"002.dcm: expected slices of one pixel spacing, found \[0.9, 0.8\]"),
        ({"ImagePositionPatient": None}, r"002.dcm: expected 3 finite numbers as ImagePositionPatient, found none"),
        ({"SamplesPerPixel": 3, "PhotometricInterpretation": "RGB"}, r"002.dcm: expected one HU value .* found 3"),
    ],
)
def test_slices_that_differ_are_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    def change(header: Any, index: int) -> None:
        if index == 2:
            for key, value in fields.items():
                setattr(header, key, value)
            header.PixelData = np.ones(header.Rows * 8 * header.SamplesPerPixel, np.uint16).tobytes()
            header.PlanarConfiguration = 0

    refuse(save_series(tmp_path / "s", change=change), message)


def test_a_skewed_orientation_is_refused(tmp_path: Path) -> None:
    def skew(header: Any, index: int) -> None:
        header.ImageOrientationPatient = [1, 0, 0, 0.6, 0.8, 0]

    refuse(save_series(tmp_path / "s", change=skew), "is not two perpendicular unit vectors")


def test_another_modality_is_refused(tmp_path: Path) -> None:
    def magnetic(header: Any, index: int) -> None:
        header.Modality, header.SOPClassUID = "MR", "1.2.840.10008.5.1.4.1.1.4"

    folder = save_series(tmp_path / "mr", change=magnetic)
    refuse(
        folder, r"mr: no CT scan found; expected .nii.gz, .* found only other DICOM \(modality MR\); give the CT series"
    )
    refuse(folder / "000.dcm", r"000.dcm: expected CT, found modality MR; give the CT series")
    refuse(Source(folder, (str(folder / "000.dcm"),)), r"000.dcm: expected CT, found modality MR")


def test_a_truncated_slice_is_not_passed_over(tmp_path: Path) -> None:
    folder = save_series(tmp_path / "s")
    last = folder / "004.dcm"  # at the end it would leave no gap
    last.write_bytes(last.read_bytes()[:-60])
    assert list(find_scans(tmp_path)) == ["s"]
    refuse(folder, r"004.dcm: cannot be read as an image")


# --- Series of strangers ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kept", [0, 2, 60, 94])
@pytest.mark.parametrize("syntax", ["ImplicitVRLittleEndian", "ExplicitVRLittleEndian"])
def test_a_slice_with_too_little_pixel_data_is_refused(tmp_path: Path, kept: int, syntax: str) -> None:
    """GDCM fills up the rest with whatever is in memory: up to 64511 HU were seen."""
    uid = pytest.importorskip("pydicom").uid

    def shorten(header: Any, index: int) -> None:
        header.file_meta.TransferSyntaxUID = getattr(uid, syntax)
        header.ProtocolName = (
            "long " * 12
        )  # else a file without pixels were shorter than the pixels, and GDCM would tell
        if index == 2:
            header.PixelData = header.PixelData[:kept]

    folder = save_series(tmp_path / "s", change=shorten)
    refuse(folder, rf"002.dcm: expected 96 bytes of pixel data, as its header announces, found {kept}; export")


def test_an_icon_is_not_taken_for_the_pixels(tmp_path: Path) -> None:
    dataset = pytest.importorskip("pydicom").Dataset

    def add_icon(header: Any, index: int) -> None:
        icon = dataset()
        icon.Rows, icon.Columns, icon.BitsAllocated, icon.BitsStored, icon.HighBit = 2, 2, 8, 8, 7
        icon.SamplesPerPixel, icon.PhotometricInterpretation, icon.PixelRepresentation = 1, "MONOCHROME2", 0
        icon.PixelData = bytes(4)
        header.IconImageSequence = [icon]

    assert read_scan(save_series(tmp_path / "s", change=add_icon)).voxels.shape == (8, 6, 5)


@pytest.mark.parametrize("spacing", [[0.9, 0], [0.9, -0.7], [1e-6, 1e-6], [1e6, 1e6]])
def test_an_absurd_pixel_spacing_is_refused(tmp_path: Path, spacing: list[float]) -> None:
    def change(header: Any, index: int) -> None:
        header.PixelSpacing = spacing

    message = r"(000.dcm: expected a PixelSpacing above 0 mm|s: expected voxels of 0.05 to 100 mm), found"
    refuse(save_series(tmp_path / "s", change=change), message)


def test_a_slope_of_0_is_refused(tmp_path: Path) -> None:
    def change(header: Any, index: int) -> None:
        header.RescaleSlope = 0

    refuse(save_series(tmp_path / "s", change=change), "000.dcm: expected a RescaleSlope other than 0")


@pytest.mark.parametrize("tag", ["NumberOfFrames", "BitsAllocated", "Rows"])
def test_a_count_that_is_none_is_refused(tmp_path: Path, tag: str) -> None:
    folder = save_series(tmp_path / "s")
    with pytest.raises(InputError, match=f'a.dcm: expected a number from 1 on as {tag}, found "x"'):
        count_of({tag: "x"}, tag, "a.dcm")
    for value in ("0", "-1", "1e9", "999999", ""):
        with pytest.raises(InputError, match="expected a number from 1 on"):
            count_of({tag: value}, tag, folder / "000.dcm")
    assert count_of({tag: "007"}, tag, "a.dcm") == 7


def test_frames_that_pydicom_cannot_read_are_refused(tmp_path: Path) -> None:
    path = save_multiframe(tmp_path / "m.dcm", (0, 2, 4))
    pydicom = pytest.importorskip("pydicom")
    header = pydicom.dcmread(path)
    header.PerFrameFunctionalGroupsSequence[1].PixelValueTransformationSequence = []
    header.save_as(path)
    refuse(path, r"m.dcm: cannot be read as an image \(list index out of range\); replace the file")
