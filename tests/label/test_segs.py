# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""DICOM SEG and back: every voxel at its place under its own name, whatever the order of files, frames and axes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import ORGANS, Vocabulary

pytest.importorskip("highdicom", reason="DICOM SEG needs highdicom")
import pydicom

from label.segs import answer_seg, nifti_to_dicom_seg, read_seg, read_series_grid, seg_of_label
from tests.label.dicom_files import (
    AFFINE,
    SHAPE,
    ct_series,
    points_of_map,
    points_of_seg,
    save_labels,
    segment,
    write_seg_by_hand,
)
from tests.scan_files import RIGID

# Slicer's: all segments in their order, most of them empty.
SENT = [{"name": organ.name, "idx": 13 - place} for place, organ in enumerate(ORGANS)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return ct_series(tmp_path / "ct")


def some_map() -> NDArray[np.uint8]:
    labels = np.zeros(SHAPE, np.uint8)
    labels[1, 2, 0], labels[5:, 0, 1:3], labels[3, 3:, 4], labels[0, 0, 0] = 8, 13, 2, 8
    return labels


@pytest.mark.parametrize("axes", ["as the series", "turned", "swapped"])
def test_voxels_keep_place_and_name(axes: str, folder: Path, tmp_path: Path) -> None:
    image = nib.Nifti1Image(some_map(), AFFINE)
    if axes != "as the series":
        wanted = nib.orientations.axcodes2ornt("RAS" if axes == "turned" else "SPL")
        turn = nib.orientations.ornt_transform(nib.io_orientation(AFFINE), wanted)
        image = image.as_reoriented(turn)
    nib.save(image, tmp_path / "label.nii.gz")
    seg = nifti_to_dicom_seg(folder, tmp_path / "label.nii.gz", SENT)
    # 13 - 8 = 5: the organ at place 5 of the vocabulary counted from 0, and so on
    named = {8: "liver", 13: "spleen", 2: "right adrenal gland"}
    assert points_of_seg(seg) == points_of_map(some_map(), AFFINE, named)
    codes = {
        item.SegmentLabel: item.SegmentedPropertyTypeCodeSequence[0].CodeValue
        for item in pydicom.dcmread(seg).SegmentSequence
    }
    assert codes == {"liver": "10200004", "spleen": "78961009", "right adrenal gland": "29392005"}


@pytest.mark.parametrize("axes", RIGID)
def test_series_of_any_direction(axes: str, tmp_path: Path) -> None:
    folder = ct_series(tmp_path / "ct", RIGID[axes])
    file = save_labels(tmp_path / "label.nii.gz", some_map(), RIGID[axes])
    seg = answer_seg(folder, file)
    named = {8: "aorta", 13: "left adrenal gland", 2: "right kidney"}  # BTCV's values
    expected = points_of_map(some_map(), RIGID[axes], named)
    assert points_of_seg(seg) == expected
    grid = read_series_grid(folder)
    labels, label_info = read_seg(seg, grid)
    assert points_of_map(labels, grid.affine, named) == expected
    assert label_info == [{"name": name, "idx": value} for value, name in sorted(named.items())]


def test_the_channels_of_a_model(folder: Path, tmp_path: Path) -> None:
    labels = np.where(some_map() == 8, 2, some_map() == 13).astype(np.uint8)
    file = save_labels(tmp_path / "label.nii.gz", labels)
    for seg in (
        answer_seg(folder, file, Vocabulary("liver,pancreas")),
        nifti_to_dicom_seg(str(folder), str(file), [], use_itk=True, vocabulary=Vocabulary("liver,pancreas")),
    ):
        assert points_of_seg(seg) == points_of_map(labels, AFFINE, {1: "liver", 2: "pancreas"})
    with pytest.raises(InputError, match="label map of ct: value 2 has no name"):
        answer_seg(folder, file, Vocabulary("liver"))


def test_who_made_it(folder: Path, tmp_path: Path) -> None:
    file = save_labels(tmp_path / "label.nii.gz", some_map())
    for reviewed, kind in ((True, "SEMIAUTOMATIC"), (False, "AUTOMATIC")):
        seg = pydicom.dcmread(seg_of_label(folder, file, SENT, reviewed))
        assert {item.SegmentAlgorithmType for item in seg.SegmentSequence} == {kind}


def test_refusals_leave_nothing(folder: Path, tmp_path: Path) -> None:
    file = save_labels(tmp_path / "label.nii.gz", some_map())
    with pytest.raises(InputError, match="value 2 has no name"):
        nifti_to_dicom_seg(folder, file, SENT[:3])
    with pytest.raises(InputError, match='"tumor", its value 2, is not in the vocabulary'):
        nifti_to_dicom_seg(folder, file, [{"name": "tumor", "idx": 2}, *SENT[:-2]])
    with pytest.raises(InputError, match="label map of ct: has no organ"):
        nifti_to_dicom_seg(folder, save_labels(file, 0 * some_map()), SENT)
    with pytest.raises(InputError, match=r"is not on the grid of its series \(\(7, 6, 4\) voxels, expected"):
        nifti_to_dicom_seg(folder, save_labels(file, some_map()[..., :4]), SENT)
    moved = AFFINE.copy()
    moved[2, 3] += 1
    with pytest.raises(InputError, match="is not on the grid of its series"):
        nifti_to_dicom_seg(folder, save_labels(file, some_map(), moved), SENT)
    assert list((tmp_path / "temporary").iterdir()) == []


# --- SEGs of other writers -------------------------------------------------------------------------------------------
def mask(*pixels: tuple[int, int], value: int = 1) -> NDArray[np.uint8]:
    """Rows × columns."""
    found = np.zeros((SHAPE[1], SHAPE[0]), np.uint8)
    for row, column in pixels:
        found[row, column] = value
    return found


def test_frames_in_any_order_and_names_of_any_kind(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = read_series_grid(folder)
    segments = [segment(1, "Segment 1", "10200004"), segment(2, "tumor"), segment(5, "gall bladder", "T-D0050", "SRT")]
    masks = [(5, 4, mask((0, 6))), (1, 3, mask((2, 1), (5, 0))), (2, 3, mask((2, 1))), (1, 0, mask((4, 4)))]
    labels, label_info = read_seg(write_seg_by_hand(tmp_path / "seg.dcm", grid, segments, masks), grid)
    expected = np.zeros(SHAPE, np.uint8)
    expected[6, 0, 4] = 4  # gallbladder; X is the column, Y the row
    expected[1, 2, 3] = expected[0, 5, 3] = expected[4, 4, 0] = 6
    np.testing.assert_array_equal(labels, expected)
    assert label_info == [{"name": "gallbladder", "idx": 4}, {"name": "liver", "idx": 6}]
    assert caplog.messages == [f'{tmp_path / "seg.dcm"}: segment "tumor" is left out: it is not in the vocabulary']


def test_two_organs_in_one_voxel_are_refused(folder: Path, tmp_path: Path) -> None:
    grid, segments = read_series_grid(folder), [segment(1, "liver"), segment(2, "spleen"), segment(3, "milz")]
    masks = [(1, 1, mask((2, 2), (2, 3))), (2, 1, mask((2, 3)))]
    with pytest.raises(InputError, match="seg.dcm: spleen and liver overlap in 1 voxels or more"):
        read_seg(write_seg_by_hand(tmp_path / "seg.dcm", grid, segments, masks), grid)
    masks = [(2, 1, mask((2, 2), (2, 3))), (3, 1, mask((2, 3)))]  # one organ twice
    labels, _ = read_seg(write_seg_by_hand(tmp_path / "seg.dcm", grid, segments, masks), grid)
    assert labels.sum() == 2


def test_fractions_count_from_one_half_on(folder: Path, tmp_path: Path) -> None:
    grid = read_series_grid(folder)
    fractions = mask((1, 1), value=127) + mask((1, 2), value=128) + mask((1, 3), value=255)
    seg = write_seg_by_hand(tmp_path / "seg.dcm", grid, [segment(1, "aorta")], [(1, 2, fractions)], fractions=True)
    labels, _ = read_seg(seg, grid)
    assert np.argwhere(labels).tolist() == [[2, 1, 2], [3, 1, 2]]


def test_other_grids_and_other_files_are_refused(folder: Path, tmp_path: Path) -> None:
    grid, masks = read_series_grid(folder), [(1, 1, mask((0, 0), (2, 2)))]
    coarse = write_seg_by_hand(tmp_path / "coarse.dcm", grid, [segment(1, "liver")], masks, spacing=(1.6, 1.4))
    with pytest.raises(InputError, match="coarse.dcm: is not on the grid of its CT series"):
        read_seg(coarse, grid)
    for name, content in (("text.dcm", b"text"), ("empty.dcm", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name}: cannot be read as a DICOM SEG"):
            read_seg(tmp_path / name, grid)
    with pytest.raises(InputError, match="cannot be read as a DICOM SEG"):
        read_seg(grid.slices[0], grid)
    with pytest.raises(InputError, match="expected one DICOM series of CT, found 0"):
        read_series_grid(save_labels(tmp_path / "label.nii.gz", some_map()))
