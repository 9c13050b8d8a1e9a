"""NIfTI headers that nibabel would correct in silence, or that announce what is not there, are refused."""

import gzip
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bundle.scans import headers
from bundle.scans.reading import read_scan
from tests.scan_files import AFFINE, VOXELS, refuse, save_nifti


def save_raw(path: Path, content: bytes | None = None, **fields: Any) -> Path:
    """A file whose header is as given, whatever nibabel thinks of it; its spacing is that of pixdim alone."""
    header = nib.Nifti1Image(VOXELS, np.eye(4)).header
    header["sform_code"], header["qform_code"], header["vox_offset"], header["magic"] = 0, 1, 352, b"n+1"
    for name, value in fields.items():
        header[name] = value
    written = header.binaryblock + b"\0" * 4 + (VOXELS.tobytes(order="F") if content is None else content)
    path.write_bytes(gzip.compress(written) if path.suffix == ".gz" else written)
    return path


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
@pytest.mark.parametrize(
    ("spacing", "found"), [(0, "0"), (-2, "-2"), (np.nan, "nan"), (1e-6, "1e-06"), (1e6, r"1e\+06")]
)
def test_an_absurd_spacing_is_refused(tmp_path: Path, name: str, spacing: float, found: str) -> None:
    path = save_raw(tmp_path / name, pixdim=[1, 1, spacing, 1, 0, 0, 0, 0])
    refuse(path, rf"{name}: expected voxels of 0.05 to 100 mm, found 1 × {found} × 1 mm; correct the header")


@pytest.mark.parametrize("factor", [1e-5, 1e4])
def test_an_absurd_affine_is_refused(tmp_path: Path, factor: float) -> None:
    affine = AFFINE @ np.diag([factor, factor, factor, 1])
    refuse(save_nifti(tmp_path / "a.nii.gz", affine=affine), r"a.nii.gz: expected voxels of 0.05 to 100 mm, found")


def test_a_spacing_that_nothing_reads_does_not_matter(tmp_path: Path) -> None:
    path = save_raw(tmp_path / "a.nii", sform_code=1, pixdim=[1, 0, 0, 0, 0, 0, 0, 0],
                    srow_x=[2, 0, 0, 0], srow_y=[0, 3, 0, 0], srow_z=[0, 0, 4, 0])  # fmt: skip
    np.testing.assert_array_equal(read_scan(path).affine, np.diag([2, 3, 4, 1]))


def test_a_scan_longer_than_any_person_is_refused(tmp_path: Path) -> None:
    path = save_raw(tmp_path / "a.nii", dim=[3, 6, 5, 200, 1, 1, 1, 1], pixdim=[1, 1, 1, 50, 0, 0, 0, 0])
    refuse(path, r"a.nii: expected a scan of at most 5000 mm along each axis, found 6 × 5 × 10000 mm; correct")


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_a_huge_size_is_refused_before_anything_is_read(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bundle.scans.nifti.nifti_voxels", lambda *_: pytest.fail("voxels are read"))
    path = save_raw(tmp_path / name, dim=[3, 30000, 30000, 30000, 1, 1, 1, 1], pixdim=[1, 0.1, 0.1, 0.1, 0, 0, 0, 0])
    refuse(path, rf"{name}: expected 30000 × 30000 × 30000 voxels, {2 * 30000**3} bytes, .* found a file of \d+ bytes")


def test_a_bomb_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_raw(tmp_path / "a.nii.gz", bytes(2 * 500**2 * 40), dim=[3, 500, 500, 40, 1, 1, 1, 1])
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(headers, "available_memory", lambda: 2 * 500**2 * 40 - 1)
    refuse(path, r"a.nii.gz: needs 0.0 GB of memory for 500 × 500 × 40 voxels, found 0.0 GB; correct its header if")


def test_extensions_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    for offset in (1e9, np.nan):
        path = save_raw(tmp_path / "a.nii", vox_offset=offset)
        refuse(path, r"a.nii: cannot be read as an image \(its voxels begin at byte .*\); replace the file")


@pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
def test_too_little_data_is_refused(tmp_path: Path, name: str) -> None:
    refuse(save_raw(tmp_path / name, VOXELS.tobytes()[:-2]), rf"{name}: cannot be read as an image \(.+\); replace")
    refuse(save_raw(tmp_path / name, b""), rf"{name}: cannot be read as an image \(.+\); replace")


def test_sizes_below_one_are_refused(tmp_path: Path) -> None:
    path = save_raw(tmp_path / "a.nii", dim=[3, -6, 5, 4, 1, 1, 1, 1])
    refuse(path, r"a.nii: expected voxels, found an image of shape \(-6, 5, 4\)")


def test_an_infinite_scale_is_refused(tmp_path: Path) -> None:
    path = save_raw(tmp_path / "a.nii", scl_slope=np.inf, scl_inter=0)
    refuse(path, r"a.nii: cannot be read as an image \(its values are scaled by inf and 0\)")
