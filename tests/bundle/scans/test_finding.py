"""Scans in files and folders, by name."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import InputError
from bundle.scans.finding import Source, find_scans, list_scans, name_endings
from bundle.scans.reading import read_scan
from tests.scan_files import SHAPE, refuse, save_itk, save_nifti, save_series


def test_a_mixed_folder(tmp_path: Path) -> None:
    for name in ("b.nii.gz", "a.NII", "deep.er/hidden.nii", ".c.nii"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save_nifti(tmp_path / name.lower()).rename(tmp_path / name)
    save_itk(tmp_path / "c.mhd")
    save_itk(tmp_path / "d.nrrd")
    (tmp_path / "notes.txt").write_text("not a scan")
    (tmp_path / "fake.dcm").write_text("not DICOM")

    def number(count: int) -> Callable[[Any, int], None]:
        return lambda header, index: setattr(header, "SeriesNumber", count)

    def structures(header: Any, index: int) -> None:
        header.Modality, header.SOPClassUID = "RTSTRUCT", "1.2.840.10008.5.1.4.1.1.481.3"
        del header.PixelData, header.Rows, header.Columns

    def segmentation(header: Any, index: int) -> None:
        header.Modality, header.SOPClassUID = "SEG", "1.2.840.10008.5.1.4.1.1.66.4"

    def localizer(header: Any, index: int) -> None:
        header.ImageType = ["ORIGINAL", "PRIMARY", "LOCALIZER"]
        header.Rows, header.PixelData = 4, header.PixelData[: 4 * 8 * 2]

    def anonymous(header: Any, index: int) -> None:
        header.SeriesInstanceUID = header.SeriesNumber = None

    one = [(0, 0, 0)]
    patient = save_series(tmp_path / "p1" / "ct", name="IM{}")
    save_series(patient, one, structures, "rtstruct")
    save_series(patient, one, segmentation, "seg")
    save_series(patient, one, localizer, "scout")
    save_series(patient, one, lambda header, index: setattr(header, "Modality", "PT"), "pet")
    save_series(tmp_path / "p1" / ".old")
    save_series(tmp_path / "p2", change=number(2), name="a{}")
    save_series(tmp_path / "p2", change=number(10), name="b{}")
    save_series(tmp_path / "p3", change=anonymous)
    found = find_scans(tmp_path)
    assert list(found) == ["a", "b", "c", "d", "p1_ct", "p2_10", "p2_2", "p3"]
    assert found["a"] == Source(tmp_path / "a.NII")
    assert found["p1_ct"] == Source(patient, tuple(str(patient / f"IM{index}") for index in range(5)))
    assert [Path(file).name[0] for file in found["p2_10"].series] == ["b"] * 5
    assert {name: read_scan(source).voxels.shape for name, source in found.items()} == {
        **dict.fromkeys("abcd", SHAPE),
        **dict.fromkeys(("p1_ct", "p2_2", "p2_10", "p3"), (8, 6, 5)),
    }
    assert list(find_scans(patient)) == ["ct"]
    refuse(tmp_path / "p2", r"p2: expected one scan, found 2 \(p2_10, p2_2\); give one of them")


def test_scans_are_listed_as_monai_takes_them(tmp_path: Path) -> None:
    paths = [save_nifti(tmp_path / name) for name in ("b.nii", "a.nii.gz")]
    assert list_scans(tmp_path) == [
        {"image": Source(paths[1]), "name": "a"},
        {"image": Source(paths[0]), "name": "b"},
    ]


def test_series_of_one_number_are_counted(tmp_path: Path) -> None:
    save_series(tmp_path / "s", name="a{}")
    save_series(tmp_path / "s", name="b{}")
    assert list(find_scans(tmp_path)) == ["s_1", "s_2"]


def test_scans_of_one_name_are_refused(tmp_path: Path) -> None:
    save_nifti(tmp_path / "ct.nii.gz")
    save_itk(tmp_path / "ct.nrrd")
    with pytest.raises(InputError, match=r'would have the name "ct", as .*ct.n.* has; rename one of them'):
        find_scans(tmp_path)


def test_a_file_is_a_scan_by_its_ending(tmp_path: Path) -> None:
    path = save_nifti(tmp_path / "my.scan.nii.gz")
    assert find_scans(str(path)) == {"my.scan": Source(path)}
    (tmp_path / "a.raw").write_bytes(b"\0" * 400)
    with pytest.raises(InputError, match=r"a.raw: expected a file ending with .nii.gz, .*, or DICOM"):
        find_scans(tmp_path / "a.raw")


def test_nothing_found_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: no such file or folder; give a CT scan"):
        find_scans(tmp_path / "nowhere")
    (tmp_path / "a.img").write_bytes(b"\0" * 400)
    with pytest.raises(InputError, match=r"no CT scan found; expected .nii.gz, .*, found none; give another folder"):
        find_scans(tmp_path)


# --- Names of strangers ----------------------------------------------------------------------------------------------
def test_a_series_number_never_becomes_a_path(tmp_path: Path) -> None:
    """It is text in the file, whatever the standard says, and results are named after it."""
    assert name_endings([("../../../x", "1.2"), ("00000007", "1.3")]) == ["_1", "_2"]
    assert name_endings([("²", "1.2"), ("00000007", "1.3")]) == ["_1", "_2"]


def test_names_that_results_cannot_have_are_refused(tmp_path: Path) -> None:
    long = save_nifti(tmp_path / f"{'x' * 220}.nii.gz")
    bare = save_nifti(tmp_path / ".nii.gz")
    for path, reason in ((long, "at most 200 bytes"), (bare, "a name, found")):
        with pytest.raises(InputError, match=rf"the name of the scan: expected .*{reason}.*; rename the file"):
            find_scans(path)
        assert read_scan(path).voxels.shape == SHAPE  # which writes nothing
    with pytest.raises(InputError, match="no such file or folder"):
        find_scans(tmp_path / ("x" * 300))


def test_a_folder_that_must_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_nifti(tmp_path / "a.nii")
    (tmp_path / "secret").mkdir()
    scandir = os.scandir

    def forbidden(path: Any) -> Any:
        if Path(path).name == "secret":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    with pytest.raises(
        InputError, match=r"secret: cannot be looked into \(Permission denied\); allow reading it or move"
    ):
        find_scans(tmp_path)
