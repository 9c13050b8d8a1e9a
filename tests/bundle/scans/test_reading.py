"""Scans: every format gives the same values and places, and what is no whole CT volume is refused."""

import gc
import subprocess
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.scans.finding import ENDINGS
from bundle.scans.reading import read_scan
from tests.paths import ROOT
from tests.scan_files import (
    AFFINE,
    MARK,
    SHAPE,
    SPACING,
    VOXELS,
    refuse,
    save_itk,
    save_mha,
    save_nifti,
)


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "A.NII.GZ"])
def test_nifti_is_read_as_stored(tmp_path: Path, name: str) -> None:
    (scan_path := save_nifti(tmp_path / name.lower())).rename(tmp_path / name)
    scan = read_scan(tmp_path / name)
    assert scan.voxels.dtype == np.int16
    np.testing.assert_array_equal(scan.voxels, VOXELS)
    np.testing.assert_allclose(scan.affine, AFFINE, atol=1e-5)
    assert (scan.affine.dtype, scan.path, scan.slices) == (np.float64, scan_path.with_name(name), ())


@pytest.mark.parametrize("name", ["a.mha", "a.mhd", "a.nrrd", "a.nhdr", "A.MHA", "A.NRRD"])
def test_itk_formats_put_every_voxel_where_itk_does(tmp_path: Path, name: str) -> None:
    image = save_itk(tmp_path / name.lower())
    (tmp_path / name.lower()).rename(tmp_path / name)
    scan = read_scan(tmp_path / name)
    assert scan.voxels.dtype == np.int16
    np.testing.assert_array_equal(scan.voxels, VOXELS)
    left, posterior, superior = image.TransformIndexToPhysicalPoint(MARK)
    np.testing.assert_allclose((scan.affine @ [*MARK, 1])[:3], (-left, -posterior, superior), atol=1e-6)


def test_voxels_outlive_what_they_were_read_with(tmp_path: Path) -> None:
    voxels = np.random.default_rng(0).integers(-1000, 1000, (64, 64, 40)).astype(np.int16)
    save_itk(tmp_path / "a.mha", voxels)
    kept = np.asarray(read_scan(tmp_path / "a.mha").voxels)[::1]
    gc.collect()
    others = [np.full_like(voxels, 7) for _ in range(20)]  # would take the place of freed memory
    np.testing.assert_array_equal(kept, voxels)
    assert len(others) == 20


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("ending", ENDINGS)
def test_integers_keep_their_type_and_all_else_is_float32(tmp_path: Path, ending: str, dtype: type) -> None:
    voxels = np.abs(VOXELS).astype(dtype) + dtype(0.3)
    save = save_nifti if ending.startswith(".nii") else save_itk
    save(tmp_path / f"a{ending}", voxels)
    scan = read_scan(tmp_path / f"a{ending}")
    expected = voxels if voxels.dtype.kind in "iu" else voxels.astype(np.float32)
    assert scan.voxels.dtype == expected.dtype
    np.testing.assert_array_equal(scan.voxels, expected)


@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_scaled_nifti_is_rounded_once(tmp_path: Path, ending: str) -> None:
    image = nib.Nifti1Image(VOXELS, AFFINE)
    image.header.set_slope_inter(0.1, -1000.7)
    path = tmp_path / f"a{ending}"
    nib.save(image, path)
    assert nib.load(path).dataobj.slope == pytest.approx(0.1)
    raw = nib.load(path).dataobj.get_unscaled().astype(np.float64)
    slope, inter = nib.load(path).dataobj.slope, nib.load(path).dataobj.inter
    scan = read_scan(path)
    assert scan.voxels.dtype == np.float32
    np.testing.assert_array_equal(scan.voxels, (slope * raw + inter).astype(np.float32))


def test_an_uncompressed_nifti_is_not_copied(tmp_path: Path) -> None:
    assert isinstance(read_scan(save_nifti(tmp_path / "a.nii")).voxels, np.memmap)


def test_a_big_endian_nifti_becomes_native(tmp_path: Path) -> None:
    header = nib.Nifti1Header(endianness=">")
    header.set_data_dtype(np.int16)
    nib.save(nib.Nifti1Image(VOXELS, AFFINE, header), tmp_path / "a.nii")
    assert nib.load(tmp_path / "a.nii").get_data_dtype() == ">i2"
    voxels = read_scan(tmp_path / "a.nii").voxels
    assert voxels.dtype.isnative
    np.testing.assert_array_equal(voxels, VOXELS)


def test_trailing_axes_of_one_are_dropped(tmp_path: Path) -> None:
    nifti = save_nifti(tmp_path / "a.nii.gz", VOXELS[..., None])
    doubles = save_nifti(tmp_path / "b.nii.gz", VOXELS[..., None].astype(np.float64))
    for path in (nifti, doubles, save_mha(tmp_path / "c.mha", (*SHAPE, 1))):
        np.testing.assert_array_equal(read_scan(path).voxels, VOXELS)


def test_a_nifti_without_an_affine_is_taken_as_nibabel_does(tmp_path: Path) -> None:
    image = nib.Nifti1Image(VOXELS, None)
    image.header.set_zooms(SPACING)
    nib.save(image, tmp_path / "a.nii")
    assert int(nib.load(tmp_path / "a.nii").header["sform_code"]) == 0
    np.testing.assert_array_equal(read_scan(tmp_path / "a.nii").affine, nib.load(tmp_path / "a.nii").affine)


def test_importing_the_module_does_not_import_itk() -> None:
    code = "import sys, bundle.scans.reading; sys.exit(bool({'itk', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("ending", ENDINGS)
def test_truncated_and_foreign_files_are_refused(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    voxels = np.random.default_rng(0).integers(-999, 999, (30, 30, 30)).astype(np.int16)
    (save_nifti if ending.startswith(".nii") else save_itk)(path, voxels)
    data = next((tmp_path / name for name in ("a.raw", "a.zraw") if (tmp_path / name).exists()), path)
    data.write_bytes(data.read_bytes()[:20000])
    too_short = r"expected 30 × 30 × 30 voxels, 54000 bytes, as its header announces, found a file of \d+ bytes"
    refuse(path, rf"a{ending}: ({too_short}|cannot be read as an image \(.+\)); replace the file")
    path.write_text("not an image")
    refuse(path, rf"a{ending}: cannot be read as an image \(.+\); replace the file")


def with_value(value: float) -> np.ndarray:
    voxels = VOXELS.astype(np.float32)
    voxels[MARK] = value
    return voxels


@pytest.mark.parametrize(
    ("voxels", "message"),
    [
        (VOXELS[..., 0], r"expected one 3D volume, found an image of shape \(6, 5\); give the whole scan"),
        (
            np.stack([VOXELS, VOXELS], -1),
            r"expected one 3D volume, found an image of shape \(6, 5, 4, 2\); split it into volumes",
        ),
        (VOXELS.astype(np.complex64), r"expected one HU value for each voxel, found complex values"),
        (
            np.zeros(SHAPE, [("R", "u1"), ("G", "u1"), ("B", "u1")]),
            r"expected one HU value for each voxel, found sever",
        ),
        (np.full(SHAPE, -7, np.int16), r"is empty, all its values are -7"),
        (np.full(SHAPE, 0.5), r"is empty, all its values are 0.5"),
        (with_value(np.nan), r"expected finite HU values, found NaN or infinity in slice 3 "),
        (with_value(np.inf), r"expected finite HU values, found NaN or infinity in slice 3 "),
        (with_value(-np.inf).astype(np.float64), r"expected finite HU values, found NaN or infinity in slice 3 "),
    ],
)
def test_what_is_no_volume_of_finite_values_is_refused(tmp_path: Path, voxels: np.ndarray, message: str) -> None:
    refuse(save_nifti(tmp_path / "a.nii.gz", voxels), rf"a.nii.gz: {message}")


@pytest.mark.parametrize(
    ("size", "fields", "message"),
    [
        ((12, 10), {}, r"expected one 3D volume, found an image of shape \(12, 10\)"),
        ((6, 5, 2, 2), {}, r"expected one 3D volume, found an image of shape \(6, 5, 2, 2\); split it into volumes"),
        ((2, 5, 4), {"ElementNumberOfChannels": 3}, r"expected one HU value for each voxel, found 3 \(vector pixels\)"),
        ((6, 0, 4), {}, r"expected voxels, found an image of shape \(6, 0, 4\)"),
        (SHAPE, {"ElementSpacing": "1 0 1"}, r"expected an invertible affine"),
        (SHAPE, {"TransformMatrix": "1 0 0 1 0 0 0 0 1"}, r"expected an invertible affine"),
    ],
)
def test_itk_s_formats_are_held_to_the_same(
    tmp_path: Path, size: tuple[int, ...], fields: dict[str, object], message: str
) -> None:
    refuse(save_mha(tmp_path / "a.mha", size, **fields), rf"a.mha: {message}")


@pytest.mark.parametrize("column", [(0, 0, 0), (0, 1, 0), (np.nan, 0, 1)])
def test_a_nifti_without_a_sound_affine_is_refused(tmp_path: Path, column: tuple[float, ...]) -> None:
    image = nib.Nifti1Image(VOXELS, np.eye(4))
    image.header["srow_x"][2], image.header["srow_y"][2], image.header["srow_z"][2] = column
    image.header["sform_code"], image.header["qform_code"] = 2, 0
    header = image.header.binaryblock + b"\0" * 4
    (tmp_path / "a.nii").write_bytes(header + VOXELS.tobytes(order="F"))
    refuse(tmp_path / "a.nii", r"a.nii: expected an invertible affine, found .*; correct the header")
