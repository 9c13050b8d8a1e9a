# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A server on an archive: CT series by DICOMweb, answers and saves as DICOM SEG, and OHIF that shows them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nibabel as nib
import numpy as np
import pydicom
import pytest
from PIL import Image

from bundle.organs import ORGANS
from label.archive import running_orthanc, upload
from label.pictures import show_answer
from label.series import write_phantom_series
from label.viewer import Viewer, draw_organs, running_server
from tests.label.server.commands import run
from tests.label.server.conftest import Scene

pytestmark = [
    pytest.mark.slow,
    pytest.mark.label,
    pytest.mark.skipif(
        not (shutil.which("Orthanc") or Path("/usr/sbin/Orthanc").exists()), reason="Orthanc is not installed"
    ),
]

CODES = {organ.name: organ.snomed for organ in ORGANS}


@dataclass
class Archive:
    """A server on an archive with one study.

    Args:
        viewer: of the server.
        study, series: UIDs.
        dicom: files of the series.
        truth: complete label map.
    """

    viewer: Viewer
    study: str
    series: str
    dicom: Path
    truth: Path


@pytest.fixture(scope="module")
def archive(scene: Scene) -> Iterator[Archive]:
    folder = scene.folder / "archive"
    study, series, labels, affine = write_phantom_series(folder / "ct", grid=(64, 64, 32))
    truth = folder / "truth.nii.gz"
    nib.save(nib.Nifti1Image(labels, affine), truth)
    options = ["--model", scene.model, "--reference", scene.reference, "--overlays", scene.overlay]
    with running_orthanc(folder / "orthanc") as url:
        upload(url, folder / "ct")
        with running_server(url, folder / "state", *options) as viewer:
            yield Archive(viewer, study, series, folder / "ct", truth)


def test_the_series_is_an_image_and_its_answer_that_of_segment(archive: Archive, scene: Scene, tmp_path: Path) -> None:
    listed = archive.viewer.post("/activelearning/first", json={}).json()
    assert listed["id"] == archive.series
    made = run("scripts", "segment", archive.dicom, tmp_path / "segment", "--model", scene.model)
    assert made.returncode == 0, made.stderr
    (path,) = (tmp_path / "segment").glob("*.nii.gz")
    expected, found = nib.load(path), nib.load(archive.viewer.infer(archive.series, tmp_path))
    np.testing.assert_array_equal(np.asanyarray(found.dataobj), np.asanyarray(expected.dataobj))
    np.testing.assert_allclose(found.affine, expected.affine, atol=1e-3)


def test_an_answer_as_seg_has_codes(archive: Archive, tmp_path: Path) -> None:
    sent = {"params": json.dumps({"device": "cpu", "label_info": []})}
    answer = archive.viewer.post(f"/infer/pann?image={archive.series}&output=dicom_seg", data=sent)
    assert answer.status_code == 200, answer.text
    (tmp_path / "answer.dcm").write_bytes(answer.content)
    seg = pydicom.dcmread(tmp_path / "answer.dcm")
    labels = np.asanyarray(nib.load(archive.viewer.infer(archive.series, tmp_path)).dataobj)
    present = {ORGANS[value - 1].name for value in np.unique(labels) if value}
    codes = {
        segment.SegmentLabel: segment.SegmentedPropertyTypeCodeSequence[0].CodeValue for segment in seg.SegmentSequence
    }
    assert codes == {name: CODES[name] for name in present}
    assert seg.ReferencedSeriesSequence[0].SeriesInstanceUID == archive.series


def test_a_save_is_a_seg_in_the_archive_and_is_learned_from(archive: Archive, tmp_path: Path) -> None:
    label, info = draw_organs(archive.truth, ["liver", "spleen"], tmp_path / "label.nii.gz")
    saved = archive.viewer.save(archive.series, label, label_info=info)
    assert saved.status_code == 200, saved.text
    assert saved.json()["label_set"] == ["spleen", "liver"]
    assert archive.viewer.get("/info/").json()["datastore"]["completed"] == 1
    task = archive.viewer.train(max_epochs=2, margin=1.0, values={"epoch_length": 2})
    assert task["status"] == "DONE", task["details"]
    trained = archive.viewer.get("/pann/trainings/").json()[-1]
    assert trained["plan"]["label_sets"] == {archive.series: ["spleen", "liver"]}
    assert archive.viewer.get("/pann/versions").json()["served"] == 2


def test_a_bad_save_is_refused_and_the_archive_unchanged(archive: Archive, tmp_path: Path) -> None:
    label, info = draw_organs(archive.truth, ["liver"], tmp_path / "label.nii.gz")
    answer = archive.viewer.save(archive.series, label, label_info=info[:1])
    assert answer.status_code == 400
    assert "value" in answer.json()["detail"]
    assert archive.viewer.save(archive.series, label, label_info=info, complete="yes").status_code == 400
    assert archive.viewer.save("1.2.3", label, label_info=info).status_code in (400, 404)
    assert archive.viewer.get("/info/").json()["datastore"]["completed"] == 1


@pytest.mark.skipif(not shutil.which("chromedriver"), reason="Chromium and its driver are not installed")
def test_ohif_shows_the_ct_with_the_answer_of_the_model(scene: Scene, tmp_path: Path) -> None:
    path = show_answer(scene.model, tmp_path / "ohif.png", grid=(64, 64, 32))
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    assert (picture.max(2) - picture.min(2) > 60).sum() > 1000  # organs are colored
