# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A volume as a DICOM series, read back by ITK: every HU at its place in the body."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.scans.reading import read_scan
from tests.scan_files import RIGID, SHEARED

pytest.importorskip("pydicom", reason="needs pydicom")
import pydicom

from label.series import write_ct_series, write_phantom_series

VOXELS = (np.arange(7 * 6 * 5).reshape(7, 6, 5) * 9 - 1024).astype(np.int16)


def by_place(voxels: NDArray[np.int16], affine: NDArray[np.float64]) -> dict[tuple[float, ...], int]:
    places = np.argwhere(np.ones(voxels.shape)) @ affine[:3, :3].T + affine[:3, 3]
    return {tuple(place): int(hu) for place, hu in zip(np.round(places, 2) + 0.0, voxels.ravel(), strict=True)}


@pytest.mark.parametrize("axes", RIGID)
def test_every_voxel_is_at_its_place(axes: str, tmp_path: Path) -> None:
    write_ct_series(tmp_path / "ct", VOXELS, RIGID[axes], "A")
    scan = read_scan(tmp_path / "ct")
    assert by_place(scan.voxels, scan.affine) == by_place(VOXELS, RIGID[axes])


def test_headers_say_what_a_viewer_needs(tmp_path: Path) -> None:
    study, series = write_ct_series(tmp_path / "ct", VOXELS, RIGID["RAS"], "A")
    first = pydicom.dcmread(tmp_path / "ct" / "0000.dcm")
    assert (first.StudyInstanceUID, first.SeriesInstanceUID, first.Modality) == (study, series, "CT")
    assert first.ImageOrientationPatient == [1, 0, 0, 0, 1, 0]  # a reader looks from the feet
    assert first.PixelSpacing == [0.8, 0.7]  # between rows, then between columns
    # The voxel (6, 5, 0) of RAS is the first one from the right and from the front: 12.5 + 6 · 0.7, -80.25 + 5 · 0.8.
    np.testing.assert_allclose(first.ImagePositionPatient, [-16.7, 76.25, 300])
    assert first.pixel_array[0, 0] * first.RescaleSlope + first.RescaleIntercept == VOXELS[6, 5, 0]
    assert len({pydicom.dcmread(file).SOPInstanceUID for file in (tmp_path / "ct").iterdir()}) == 5


def test_a_phantom_has_its_true_label_map(tmp_path: Path) -> None:
    _, series, labels, affine = write_phantom_series(tmp_path / "ct", grid=(24, 24, 8))
    scan = read_scan(tmp_path / "ct")
    assert scan.voxels.shape == labels.shape == (24, 24, 8)
    assert pydicom.dcmread(scan.slices[0]).SeriesInstanceUID == series
    hu = by_place(scan.voxels, scan.affine)
    liver = [hu[place] for place, value in by_place(labels.astype(np.int16), affine).items() if value == 6]
    assert 40 < np.median(liver) < 160  # of a liver with contrast


def test_what_dicom_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="perpendicular axes"):
        write_ct_series(tmp_path / "ct", VOXELS, SHEARED, "A")
    with pytest.raises(InputError, match="expected HU from -1024 to 31743, found -1025"):
        write_ct_series(tmp_path / "ct", VOXELS - 1, RIGID["RAS"], "A")
    assert not (tmp_path / "ct").exists()
