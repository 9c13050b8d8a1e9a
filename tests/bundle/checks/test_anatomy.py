"""Organs on the wrong side, and label maps beside the organs of their images."""

import re
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from tests.bundle.checks.planting import change, edit, found, mirror, only, path_of


@pytest.mark.parametrize("name", ["full/full_000", "spleen/spleen_000", "liver/liver_000"])
def test_a_mirrored_scan(data: Path, name: str) -> None:
    """Image and label map agree, but the affine says that left is right."""
    for key in ("image", "label"):
        change(path_of(data, name, key), affine=mirror)
    finding = only(data, name)
    assert (finding.kind, finding.error) == ("mirrored", True)
    assert "the scan is mirrored; correct its affine" in finding.message


@pytest.mark.parametrize("name", ["full/full_000", "liver/liver_000", "pancreas/pancreas_000"])
@pytest.mark.parametrize("key", ["image", "label"])
def test_an_image_mirrored_against_its_label_map(data: Path, name: str, key: str) -> None:
    """The voxels of one are flipped, the headers agree; a label map then has its organs on the wrong sides as well."""
    change(path_of(data, name, key), lambda old: old[::-1])
    findings = {finding.kind: finding for finding in found(data)[name]}
    sides = {"mirrored"} if key == "label" and name != "pancreas/pancreas_000" else set()
    assert set(findings) == {"flipped"} | sides
    assert re.search(r"only when it is flipped \((right–left|left–right)\)", findings["flipped"].message)
    if name != "pancreas/pancreas_000":  # one small organ may be no proof
        assert findings["flipped"].error


def test_swapped_kidneys(data: Path) -> None:
    exchange = np.arange(14)
    exchange[[2, 3]] = 3, 2
    change(path_of(data, "full/full_000", "label"), lambda old: exchange[old].astype(np.uint8))
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("swapped", True)
    assert "the right kidney lies to the left of the left kidney" in finding.message
    assert "exchange the two names" in finding.message


@pytest.mark.parametrize(("axis", "words"), [(1, "behind the kidneys"), (2, "below the kidneys")])
def test_a_scan_upside_down_or_back_to_front(data: Path, axis: int, words: str) -> None:
    """Image and label map agree; only the anatomy tells."""
    flip = np.diag([-1.0 if row == axis else 1.0 for row in range(3)] + [1.0])
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=lambda old: flip @ old)
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("mirrored", True)
    assert f"the liver lies {words}" in finding.message


def test_accepting_situs_inversus_does_not_hide_a_flipped_label_map(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: old[:, :, ::-1])
    edit(data, "full", accept=["mirrored"])
    kinds = {finding.kind for finding in found(data)["full/full_000"] if finding.error}
    assert kinds == {"flipped"}


def test_a_label_map_of_another_patient(data: Path) -> None:
    """Same shape, other organs: nothing in the headers could tell."""
    other = np.asanyarray(nib.load(path_of(data, "full/full_001", "label")).dataobj)
    change(path_of(data, "full/full_000", "label"), lambda old: other)
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("misplaced", False)
    assert "look whether it belongs to this scan" in finding.message


def test_a_label_map_beside_the_organs(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: np.roll(old, 12, 0))  # 70 mm
    assert only(data, "full/full_000").kind == "misplaced"
