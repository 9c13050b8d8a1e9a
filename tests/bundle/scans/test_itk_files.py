"""MetaImage and NRRD: voxels are beside their header, all of them, and whole."""

from pathlib import Path

import numpy as np
import pytest

from bundle.scans import headers
from bundle.scans.reading import read_scan
from tests.scan_files import VOXELS, refuse, save_mha


def save_mhd(path: Path, data: str, size: str = "6 5 4", spacing: str = "1 1 1", more: str = "") -> Path:
    path.write_text(
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\n{more}DimSize = {size}\nElementSpacing = {spacing}\n"
        f"ElementType = MET_SHORT\nElementDataFile = {data}\n"
    )
    return path


def save_nhdr(path: Path, data: str, size: str = "6 5 4", spacing: str = "1 1 1", more: str = "") -> Path:
    path.write_text(
        f"NRRD0004\ntype: short\ndimension: 3\nsizes: {size}\nspacings: {spacing}\nendian: little\nencoding: raw\n"
        f"{more}data file: {data}\n"
    )
    return path


SAVE = {".mhd": save_mhd, ".nhdr": save_nhdr}
each_format = pytest.mark.parametrize("ending", list(SAVE))


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    (tmp_path / "scans").mkdir()
    for folder in (tmp_path, tmp_path / "scans"):
        (folder / "voxels.raw").write_bytes(VOXELS.tobytes(order="F"))
    return tmp_path / "scans" / "voxels.raw"


@each_format
def test_voxels_beside_the_header_are_read(raw: Path, ending: str) -> None:
    for data in ("voxels.raw", "./voxels.raw"):
        path = SAVE[ending](raw.parent / f"a{ending}", data)
        np.testing.assert_array_equal(read_scan(path).voxels, VOXELS)


@each_format
@pytest.mark.parametrize("data", ["../voxels.raw", "x/../../voxels.raw", "ABSOLUTE", "../../../../../../etc/passwd"])
def test_voxels_of_another_folder_are_refused(raw: Path, ending: str, data: str) -> None:
    data = data.replace("ABSOLUTE", str(raw))
    path = SAVE[ending](raw.parent / f"a{ending}", data)
    refuse(
        path, rf"a{ending}: expected its voxels in a file beside it, found \"{data[:40]}.*, which is in another folder"
    )


@each_format
@pytest.mark.parametrize("data", ["LIST\nvoxels.raw", "voxels%03d.raw 1 4 1"])
def test_voxels_in_several_files_are_refused(raw: Path, ending: str, data: str) -> None:
    refuse(SAVE[ending](raw.parent / f"a{ending}", data), rf"a{ending}: expected voxels in one file, found .* to NIfTI")


@each_format
def test_a_missing_data_file_is_named(raw: Path, ending: str) -> None:
    path = SAVE[ending](raw.parent / f"a{ending}", "gone.raw")
    refuse(path, rf"a{ending}: its voxels should be in \".*gone.raw\", which is not there; copy it as well")


@each_format
def test_a_data_file_that_is_too_short_is_refused(raw: Path, ending: str) -> None:
    for size in ("6 5 5", "2000 2000 1000"):
        path = SAVE[ending](raw.parent / f"a{ending}", "voxels.raw", size)
        refuse(
            path, rf"a{ending}: expected {size.replace(' ', ' × ')} voxels, \d+ bytes, .*found a file of 240 bytes; rep"
        )


@each_format
def test_what_does_not_fit_into_the_memory_is_refused(raw: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "available_memory", lambda: 239)
    refuse(SAVE[ending](raw.parent / f"a{ending}", "voxels.raw"), r"GB of memory for 6 × 5 × 4 voxels, found 0.0 GB")


@pytest.mark.parametrize("spacing", ["1 -1 1", "1 1e-6 1", "1 1e6 1"])
def test_an_absurd_spacing_is_refused(raw: Path, spacing: str) -> None:
    refuse(save_mhd(raw.parent / "a.mhd", "voxels.raw", spacing=spacing), r"a.mhd: expected voxels of 0.05 to 100 mm")


def test_damaged_packed_voxels_are_refused(raw: Path) -> None:
    """ITK says that it failed, on the terminal, and hands out whatever was in the memory."""
    path = save_mhd(raw.parent / "a.mhd", "voxels.raw", more="CompressedData = True\n")
    refuse(path, r"a.mhd: cannot be read as an image \(.+ while decompressing .+\); replace the file")
    itk = pytest.importorskip("itk")
    for name in ("b.mha", "b.mhd"):
        noise = np.random.default_rng(0).integers(-999, 999, (30, 30, 30)).astype(np.int16)
        itk.imwrite(itk.image_from_array(noise), str(raw.parent / name), compression=True)
        np.testing.assert_array_equal(read_scan(raw.parent / name).voxels, noise.T)
        data = raw.parent / name.replace("mhd", "zraw")
        whole = data.read_bytes()
        data.write_bytes(whole[:-2000])
        refuse(raw.parent / name, rf"{name}: cannot be read as an image \(its packed voxels are \d+ bytes, not what")
        data.write_bytes(whole[:-3000] + bytes(8) + whole[-2992:])
        refuse(raw.parent / name, rf"{name}: cannot be read as an image")


@pytest.mark.parametrize(
    "line", ["elementdatafile = voxels.raw", "ElementDataFile : voxels.raw", "xElementDataFile = a"]
)
def test_a_header_that_two_readers_may_read_in_two_ways_is_refused(raw: Path, line: str) -> None:
    path = save_mhd(raw.parent / "a.mhd", "../voxels.raw", more=f"{line}\n")
    refuse(path, r"a.mhd: cannot be read as an image \(expected ElementDataFile = …\); replace the file")


def test_a_header_without_an_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mha").write_bytes(b"NDims = 3\n" * 200_000)
    refuse(tmp_path / "a.mha", r"a.mha: cannot be read as an image \(its header has no end\)")
    save_mha(tmp_path / "b.mha")
    np.testing.assert_array_equal(read_scan(tmp_path / "b.mha").voxels, VOXELS)
