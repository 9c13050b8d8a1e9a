"""Grids, values and sizes that are odd."""

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.checks.cases import check_cases
from tests.bundle.checks.planting import change, edit, found, load, only, path_of, refused


def test_a_header_without_orientation(data: Path) -> None:
    for key in ("image", "label"):
        path = path_of(data, "full/full_000", key)
        image = nib.load(path)
        image.header["qform_code"] = image.header["sform_code"] = 0
        nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj), None, image.header), path)
    findings = {finding.kind for finding in found(data)["full/full_000"]}
    assert "orientation" in findings


def test_a_header_in_centimeters(data: Path) -> None:
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=lambda old: old / 10)
    kinds = {finding.kind: finding for finding in found(data)["full/full_000"]}
    assert {"field", "volume"} <= set(kinds)
    assert not any(finding.error for finding in kinds.values())


@pytest.mark.parametrize(("factor", "kind"), [(100, "field"), (1000, "unreadable")])
def test_a_header_in_decimeters_or_meters_is_an_error(data: Path, factor: int, kind: str) -> None:
    for key in ("image", "label"):
        change(path_of(data, "full/full_000", key), affine=lambda old: old / factor)
    assert [finding.kind for finding in found(data)["full/full_000"] if finding.error] == [kind]


def test_a_scan_without_its_offset(data: Path) -> None:
    change(path_of(data, "liver/liver_000"), lambda old: (old + 1024).clip(0).astype(np.uint16))
    refused(data, "liver/liver_000", "liver_000.nii.gz: expected Hounsfield units", "subtract 1024")


@pytest.mark.parametrize("high", [1, 255])
def test_a_rescaled_scan(data: Path, high: int) -> None:
    change(path_of(data, "liver/liver_000"), lambda old: ((old.clip(-125, 275) + 125) / 400 * high).astype(np.float32))
    refused(data, "liver/liver_000", "the image was rescaled", "take the original scan")


def test_a_windowed_scan(data: Path) -> None:
    change(path_of(data, "liver/liver_000"), lambda old: old.clip(-160, 240))
    finding = only(data, "liver/liver_000")
    assert (finding.kind, finding.error) == ("windowed", False)
    assert "found values from -160 to 240" in finding.message
    check_cases(load(data), progress=False)  # a warning does not stop training


def test_an_empty_label_map(data: Path) -> None:
    change(path_of(data, "spleen/spleen_000", "label"), lambda old: np.zeros_like(old))
    refused(data, "spleen/spleen_000", "is empty, though spleen should be annotated", '"labelled": []')
    edit(data, "spleen", labelled=[])
    assert found(data) == {}


def test_an_organ_of_an_unusual_size(data: Path) -> None:
    def shrink(label: NDArray[Any]) -> NDArray[Any]:
        places = np.argwhere(label == 6)
        label = np.where(label == 6, 0, label)
        label[tuple(places[np.abs(places - places.mean(0)).sum(1).argmin()])] = 6
        return label.astype(np.uint8)

    change(path_of(data, "full/full_000", "label"), shrink)
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("volume", False)
    assert "400 to 4500 are usual" in finding.message


def test_an_organ_missing_among_others(data: Path) -> None:
    change(path_of(data, "full/full_000", "label"), lambda old: np.where(old == 6, 0, old).astype(np.uint8))
    finding = only(data, "full/full_000")
    assert (finding.kind, finding.error) == ("missing", False)
    assert "does not mark the liver" in finding.message
