"""CHAOS: PNGs follow the file names, the positions of the slices say where they lie."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bundle.cohorts.adapters.downloads import (
    POINTS,
    SHAPE,
    affine_for,
    make_ct,
    organs_at_points,
    paint,
    prepare,
    save_dicom,
)

AFFINE = affine_for("LPS")
LIVER = paint({"liver": 255}, AFFINE)
ONLY_LIVER = {point: "liver" if point == "liver" else "unknown" for point in POINTS}
HEAD_FIRST = list(range(SHAPE[2] - 1, -1, -1))
MIXED = [3, 0, 7, *range(8, 20), 6, 5, 4, 2, 1]


def save_pictures(folder: Path, label: NDArray[np.uint8], order: list[int], mode: str = "L") -> None:
    """A PNG for each slice, in the order of the DICOM files; rows of the picture are rows of the slice."""
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True)
    for number, k in enumerate(order):
        image.fromarray(np.ascontiguousarray(label[:, :, k].T)).convert(mode).save(folder / f"liver_GT_{number:03}.png")


def download(root: Path, name: str = "i{:04},0000b.dcm", order: list[int] = HEAD_FIRST, mode: str = "1") -> None:
    save_pictures(root / "Train_Sets/CT/1/Ground", LIVER, order, mode)
    for folder in ("Train_Sets/CT/1", "Train_Sets/MR/1/T2SPIR", "Test_Sets/CT/3"):
        save_dicom(root / folder / "DICOM_anon", make_ct(AFFINE), AFFINE, name, order)


@pytest.mark.parametrize(
    ("name", "order", "mode"),
    [
        ("i{:04},0000b.dcm", HEAD_FIRST, "1"),
        ("IMG-0006-{:05}.dcm", list(range(SHAPE[2])), "L"),
        ("i{},0000b.dcm", MIXED, "L"),  # without leading zeros 10 must not come before 2
    ],
)
def test_the_liver_whatever_the_order_of_the_files(name: str, order: list[int], mode: str, tmp_path: Path) -> None:
    download(tmp_path, name, order, mode)
    prepared = prepare("chaos", tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == ["CT_1"]
    assert [entry["case"] for entry in prepared.entries["test"]] == ["CT_3"]
    assert "label" not in prepared.entries["test"][0]
    assert organs_at_points(prepared, "CT_1") == ONLY_LIVER


def test_pictures_that_do_not_fit_the_slices_are_refused(tmp_path: Path) -> None:
    for number in (1, 2, 5):
        folder = tmp_path / f"Train_Sets/CT/{number}"
        save_dicom(folder / "DICOM_anon", make_ct(AFFINE), AFFINE, "i{:04},0000b.dcm", HEAD_FIRST)
        save_pictures(folder / "Ground", LIVER if number != 5 else LIVER.swapaxes(0, 1), HEAD_FIRST)
    (tmp_path / "Train_Sets/CT/2/Ground/liver_GT_019.png").unlink()
    prepared = prepare("chaos", tmp_path, tmp_path / "out")
    assert [entry["case"] for entry in prepared.entries["training"]] == ["CT_1"]
    missing, turned = prepared.failures
    assert "expected a PNG for each of the 20 slices" in missing
    assert "found 19" in missing
    assert "liver_GT_000.png: expected 40×36 pixels as in the CT slices, found 36×40" in turned


def test_slices_that_anonymization_gave_several_series(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    download(tmp_path)
    for path in (tmp_path / "Train_Sets/CT/1/DICOM_anon").iterdir():
        header = pydicom.dcmread(path)
        header.SeriesInstanceUID = pydicom.uid.generate_uid()
        header.save_as(path)
    assert organs_at_points(prepare("chaos", tmp_path, tmp_path / "out"), "CT_1") == ONLY_LIVER
