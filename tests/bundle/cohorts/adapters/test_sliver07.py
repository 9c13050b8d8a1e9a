"""SLIVER07: MetaImage with its axes, and test scans that have the names of training scans."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bundle.cohorts.adapters.downloads import POINTS, affine_for, make_ct, organs_at_points, paint, prepare

ONLY_LIVER = {point: "liver" if point == "liver" else "unknown" for point in POINTS}


def save_meta(path: Path, voxels: NDArray, affine: NDArray) -> None:
    """MetaImage as the format is defined: a header in LPS beside the voxels, the first axis running fastest."""
    lps = np.diag([-1.0, -1.0, 1.0, 1.0]) @ affine
    spacing = np.linalg.norm(lps[:3, :3], axis=0)
    lines = {
        "ObjectType": "Image", "NDims": 3, "BinaryData": "True", "BinaryDataByteOrderMSB": "False",
        "TransformMatrix": " ".join(f"{value:g}" for value in (lps[:3, :3] / spacing).T.reshape(-1)),
        "Offset": " ".join(f"{value:g}" for value in lps[:3, 3]),
        "ElementSpacing": " ".join(f"{value:g}" for value in spacing),
        "DimSize": " ".join(map(str, voxels.shape)),
        "ElementType": {"int16": "MET_SHORT", "uint8": "MET_UCHAR"}[voxels.dtype.name],
        "ElementDataFile": f"{path.stem}.raw",
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{key} = {value}\n" for key, value in lines.items()))
    path.with_suffix(".raw").write_bytes(voxels.tobytes(order="F"))


def download(root: Path, axes: str = "LPS", folders: tuple[str, str] = ("training-scans", "training-labels")) -> None:
    affine = affine_for(axes)
    for number in ("001", "002"):
        save_meta(root / folders[0] / f"liver-orig{number}.mhd", make_ct(affine), affine)
        save_meta(root / folders[1] / f"liver-seg{number}.mhd", paint({"liver": 1}, affine), affine)
    save_meta(root / "test-scans" / "liver-orig001.mhd", make_ct(affine), affine)
    save_meta(root / "more" / "liver-orig021.mhd", make_ct(affine), affine)


@pytest.mark.parametrize("axes", ["LPS", "RAS", "LPI"])
@pytest.mark.parametrize("folders", [("training-scans", "training-labels"), ("training/part1", "training/part1")])
def test_the_liver_from_scans_and_labels(axes: str, folders: tuple[str, str], tmp_path: Path) -> None:
    download(tmp_path, axes, folders)
    prepared = prepare("sliver07", tmp_path, tmp_path / "out")
    assert not prepared.failures
    assert [entry["case"] for entry in prepared.entries["training"]] == ["liver-orig001", "liver-orig002"]
    assert [entry["case"] for entry in prepared.entries["test"]] == ["liver-orig021", "test-scans_liver-orig001"]
    assert organs_at_points(prepared, "liver-orig002") == ONLY_LIVER


def test_a_label_map_on_another_grid_is_refused(tmp_path: Path) -> None:
    download(tmp_path)
    shifted = affine_for("LPS")
    shifted[2, 3] += 10
    save_meta(tmp_path / "training-labels" / "liver-seg002.mhd", paint({"liver": 1}, shifted), shifted)
    prepared = prepare("sliver07", tmp_path, tmp_path / "out")
    (failure,) = prepared.failures
    assert "liver-seg002.mhd: is not on the grid" in failure
