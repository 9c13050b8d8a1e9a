# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The datastore with a real Orthanc: names stay right, what is new shows, and nothing half is stored."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("monailabel", reason="needs the environment of MONAI Label; see make test-label")
pytest.importorskip("pydicom_seg", reason="needs the environment of MONAI Label")
import pydicom
import pydicom_seg
import SimpleITK

from bundle.errors import InputError
from bundle.organs import ORGANS
from label.archive import free_port, running_orthanc, upload
from label.client import connect, store_seg
from label.dicomweb import OrganDatastore, open_archive
from label.segs import nifti_to_dicom_seg, read_series_grid
from tests.label.dicom_files import AFFINE, SHAPE, ct_series, points_of_map, save_labels, segment, write_seg_by_hand
from tests.paths import REAL_DATA

pytestmark = [
    pytest.mark.slow,
    pytest.mark.label,
    pytest.mark.skipif(
        not (shutil.which("Orthanc") or Path("/usr/sbin/Orthanc").exists()), reason="Orthanc is not installed"
    ),
]

SENT = {"label_info": [{"name": organ.name, "idx": place} for place, organ in enumerate(reversed(ORGANS), 1)]}
NAMED = {8: "liver", 13: "spleen", 3: "pancreas"}  # Slicer's numbers, counted from the last organ


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with running_orthanc(tmp_path / "orthanc") as url:
        yield url


@pytest.fixture
def store(url: str, tmp_path: Path) -> OrganDatastore:
    return open_archive(f"{url}/", str(tmp_path / "cache"))


@pytest.fixture
def image(url: str, tmp_path: Path) -> str:
    upload(url, ct_series(tmp_path / "ct"))
    return str(pydicom.dcmread(tmp_path / "ct" / "q.dcm").SeriesInstanceUID)


def some_map() -> NDArray[np.uint8]:
    labels = np.zeros(SHAPE, np.uint8)
    labels[1, 2, 0], labels[5:, 0, 1:3], labels[3, 3:, 4] = 8, 13, 3
    return labels


def labels_file(tmp_path: Path, labels: NDArray[np.uint8] | None = None) -> str:
    return str(save_labels(tmp_path / "label.nii.gz", some_map() if labels is None else labels))


def search(url: str, modality: str) -> list[Any]:
    with urllib.request.urlopen(f"{url}/series?Modality={modality}&includefield=00081190") as answer:
        return list(json.loads(answer.read() or b"[]"))


def segs_of(url: str, tmp_path: Path) -> list[pydicom.Dataset]:
    """The SEGs of the archive, by Orthanc's own interface."""
    root = url.removesuffix("/dicom-web")
    found = []
    with urllib.request.urlopen(f"{root}/instances?expand") as answer:
        for instance in json.loads(answer.read()):
            with urllib.request.urlopen(f"{root}/instances/{instance['ID']}/file") as file:
                (tmp_path / "one.dcm").write_bytes(file.read())
            dataset = pydicom.dcmread(tmp_path / "one.dcm")
            found += [dataset] if dataset.Modality == "SEG" else []
    return found


def points_by_pydicom_seg(seg: pydicom.Dataset) -> dict[str, set[tuple[float, ...]]]:
    """Places of each segment's voxels, LPS in mm, as the reader of another project sees them."""
    read = pydicom_seg.SegmentReader().read(seg)
    names = {item.SegmentNumber: item.SegmentLabel for item in seg.SegmentSequence}
    found = {}
    for number in read.available_segments:
        image = read.segment_image(number)
        voxels = np.argwhere(SimpleITK.GetArrayFromImage(image).T)
        points = [image.TransformIndexToPhysicalPoint([int(index) for index in voxel]) for voxel in voxels]
        found[names[number]] = {tuple(np.round(point, 2) + 0.0) for point in points}
    return found


# --- Saving ----------------------------------------------------------------------------------------------------------
def test_a_final_label_becomes_a_seg_with_right_names(
    url: str, store: OrganDatastore, image: str, tmp_path: Path
) -> None:
    assert store.save_label(image, labels_file(tmp_path), "final", dict(SENT)) == image
    (seg,) = segs_of(url, tmp_path)
    assert points_by_pydicom_seg(seg) == points_of_map(some_map(), AFFINE, NAMED)
    codes = {item.SegmentLabel: item.SegmentedPropertyTypeCodeSequence[0].CodeValue for item in seg.SegmentSequence}
    assert codes == {"liver": "10200004", "spleen": "78961009", "pancreas": "15776009"}
    assert seg.ReferencedSeriesSequence[0].SeriesInstanceUID == image
    kept = store.get_label_info(image, "final")
    assert kept["label_info"] == SENT["label_info"]
    assert kept["SeriesInstanceUID"] == seg.SeriesInstanceUID
    local = nib.load(store.get_label_uri(image, "final"))  # as the annotator's client sent it
    np.testing.assert_array_equal(np.asarray(local.dataobj), some_map())
    assert store.status() == {"total": 1, "completed": 1, "label_tags": {"final": 1}}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({}, "value 3 has no name"),
        ({"label_info": SENT["label_info"][:5]}, "value 8 has no name"),
        ({"label_info": [{"name": "tumor", "idx": 3}, *SENT["label_info"][3:]]}, '"tumor", its value 3, is not in'),
    ],
)
def test_nothing_is_stored_of_what_has_no_name(
    sent: dict[str, Any], said: str, url: str, store: OrganDatastore, image: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        store.save_label(image, labels_file(tmp_path), "final", sent)
    assert search(url, "SEG") == []
    assert store.get_label_uri(image, "final") == ""
    assert store.get_unlabeled_images() == [image]


def test_other_tags_stay_here(url: str, store: OrganDatastore, image: str, tmp_path: Path) -> None:
    store.save_label(image, labels_file(tmp_path), "original", {"model": "pann"})
    assert search(url, "SEG") == []
    assert store.get_labels_by_image_id(image) == {"original": image}
    assert store.get_label_info(image, "original")["model"] == "pann"
    store.remove_label(image, "original")
    assert not list(tmp_path.glob("cache/*/labels/original/*"))


def test_labels_as_ohif_sends_them(url: str, store: OrganDatastore, image: str, tmp_path: Path) -> None:
    """Bare bytes of the voxels, the first axis fastest."""
    grid = read_series_grid(tmp_path / "ct")
    labels = np.zeros(grid.shape, np.uint8)
    labels[4, 1, 2] = 8
    (tmp_path / "label.bin").write_bytes(labels.tobytes(order="F"))
    store.save_label(image, str(tmp_path / "label.bin"), "final", dict(SENT))
    (seg,) = segs_of(url, tmp_path)
    assert points_by_pydicom_seg(seg) == points_of_map(labels, grid.affine, {8: "liver"})


@pytest.mark.skipif(not (REAL_DATA / "example_dicom").exists(), reason="needs the real CT data of ../shared/data")
def test_a_real_series_in_jpeg_2000(url: str, store: OrganDatastore, tmp_path: Path) -> None:
    """Orthanc cannot decompress it, so it has to come as it is stored. Its UIDs are blanked, so it gets some."""
    (tmp_path / "ct").mkdir()
    for file in (REAL_DATA / "example_dicom").iterdir():
        header = pydicom.dcmread(file)
        header.StudyInstanceUID, header.SeriesInstanceUID = "1.2.3.4", "1.2.3.5"
        header.SOPInstanceUID = header.file_meta.MediaStorageSOPInstanceUID
        header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID
        header.save_as(tmp_path / "ct" / file.name)
    upload(url, tmp_path / "ct")
    truth = nib.load(REAL_DATA / "example_dicom_label.nii.gz")
    sent = {"label_info": [{"name": organ.name, "idx": organ.value} for organ in ORGANS]}
    store.save_label("1.2.3.5", str(REAL_DATA / "example_dicom_label.nii.gz"), "final", sent)
    (pair,) = open_archive(url, str(tmp_path / "other")).datalist()
    back = nib.load(pair["label"])
    turned = nib.as_closest_canonical(back), nib.as_closest_canonical(truth)
    np.testing.assert_array_equal(np.asarray(turned[0].dataobj), np.asarray(turned[1].dataobj))
    np.testing.assert_allclose(turned[0].affine, turned[1].affine, atol=0.01)
    assert nib.load(pair["image"]).shape == back.shape


# --- What the archive has --------------------------------------------------------------------------------------------
def test_what_is_new_shows_at_once(url: str, store: OrganDatastore, tmp_path: Path) -> None:
    assert store.status() == {"total": 0, "completed": 0, "label_tags": {}}
    upload(url, ct_series(tmp_path / "ct"))
    (image,) = store.list_images()
    assert store.get_unlabeled_images() == [image]
    assert store.get_labels_by_image_id(image) == {}
    other = open_archive(url, str(tmp_path / "other"))
    other.save_label(image, labels_file(tmp_path), "final", dict(SENT))
    assert (store.get_unlabeled_images(), store.get_labeled_images()) == ([], [image])
    assert store.get_labels_by_image_id(image) == {"final": image}
    other.save_label(image, labels_file(tmp_path), "final", dict(SENT))
    assert store.get_labeled_images() == [image]  # once, though there are two SEGs


def test_a_label_of_another_server(url: str, store: OrganDatastore, image: str, tmp_path: Path) -> None:
    open_archive(url, str(tmp_path / "other")).save_label(image, labels_file(tmp_path), "final", dict(SENT))
    (pair,) = store.datalist()
    assert pair["image"] == store.get_image_uri(image)
    label, scan = nib.load(pair["label"]), nib.load(pair["image"])
    assert label.shape == scan.shape
    np.testing.assert_allclose(label.affine, scan.affine, atol=1e-4)
    found = points_of_map(np.asarray(label.dataobj), label.affine, {6: "liver", 1: "spleen", 11: "pancreas"})
    assert found == points_of_map(some_map(), AFFINE, NAMED)  # the vocabulary's values
    info = store.get_label_info(image, "final")["label_info"]
    assert info == [{"name": "spleen", "idx": 1}, {"name": "liver", "idx": 6}, {"name": "pancreas", "idx": 11}]
    (seg,) = segs_of(url, tmp_path)
    assert store.get_label_uri(seg.SeriesInstanceUID, "final") == pair["label"]  # as the stock server asks


def test_two_processes_share_a_folder(url: str, store: OrganDatastore, image: str, tmp_path: Path) -> None:
    """As a server and its training do."""
    training = open_archive(url, str(tmp_path / "cache"))
    store.save_label(image, labels_file(tmp_path), "original", {"model": "pann"})
    store.save_label(image, labels_file(tmp_path), "final", dict(SENT))
    assert len(training.datalist()) == 1
    assert training.get_label_info(image, "final")["label_info"] == SENT["label_info"]  # not read from the SEG
    training.save_label(image, labels_file(tmp_path), "checked", {})
    assert set(store.get_labels_by_image_id(image)) == {"original", "final", "checked"}


def test_the_newest_seg_counts_and_deleted_ones_do_not(
    url: str, store: OrganDatastore, image: str, tmp_path: Path
) -> None:
    store.save_label(image, labels_file(tmp_path), "final", dict(SENT))
    other = open_archive(url, str(tmp_path / "other"))
    other.save_label(
        image, labels_file(tmp_path, np.where(some_map() == 8, 8, 0).astype(np.uint8)), "final", dict(SENT)
    )
    assert store.get_label_info(image, "final")["label_info"] == [{"name": "liver", "idx": 6}]
    newest = store.get_label_info(image, "final")["SeriesInstanceUID"]
    delete_series(url, newest)
    assert store.get_label_info(image, "final")["SeriesInstanceUID"] != newest
    delete_series(url, store.get_label_info(image, "final")["SeriesInstanceUID"])
    assert (store.datalist(), store.get_label_uri(image, "final")) == ([], "")


def delete_series(url: str, uid: str) -> None:
    root = url.removesuffix("/dicom-web")
    lookup = urllib.request.Request(f"{root}/tools/lookup", uid.encode(), method="POST")
    with urllib.request.urlopen(lookup) as answer:
        (found,) = json.loads(answer.read())
    with urllib.request.urlopen(urllib.request.Request(f"{root}{found['Path']}", method="DELETE")):
        pass


def test_segs_of_other_writers(
    url: str, store: OrganDatastore, image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = read_series_grid(tmp_path / "ct")
    mask = np.zeros((grid.shape[1], grid.shape[0]), bool)
    mask[2, 3] = True
    segments = [segment(1, "liver", "78961009", algorithm="MONAILABEL"), segment(2, "tumor")]
    store_seg(connect(url), write_seg_by_hand(tmp_path / "a.dcm", grid, segments, [(1, 4, mask), (2, 4, mask)]))
    with caplog.at_level(logging.WARNING, "label"):
        labels = np.asarray(nib.load(store.get_label_uri(image, "final")).dataobj)
    assert np.argwhere(labels).tolist() == [[3, 2, 4]]
    assert labels[3, 2, 4] == 6
    assert store.get_label_info(image, "final")["label_info"] == [{"name": "liver", "idx": 6}]
    assert any('segment "tumor" is left out' in message for message in caplog.messages)


def test_overlapping_organs_are_not_learned_from(
    url: str, store: OrganDatastore, image: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = read_series_grid(tmp_path / "ct")
    mask = np.ones((grid.shape[1], grid.shape[0]), bool)
    segments = [segment(1, "liver"), segment(2, "spleen")]
    store_seg(connect(url), write_seg_by_hand(tmp_path / "a.dcm", grid, segments, [(1, 4, mask), (2, 4, mask)]))
    with pytest.raises(InputError, match="spleen and liver overlap in 42 voxels or more"):
        store.get_label_uri(image, "final")
    with caplog.at_level(logging.WARNING, "label"):
        assert store.datalist() == []
    assert any("its SEG is left out" in message for message in caplog.messages)


# --- Answers ---------------------------------------------------------------------------------------------------------
def test_the_answer_of_a_model(store: OrganDatastore, image: str, tmp_path: Path) -> None:
    """With what MONAI Label's endpoint hands over."""
    folder = store.get_image_uri(image).replace(".nii.gz", "")
    seg = nifti_to_dicom_seg(folder, labels_file(tmp_path), SENT["label_info"], use_itk=True)
    assert points_by_pydicom_seg(pydicom.dcmread(seg)) == points_of_map(some_map(), AFFINE, NAMED)
    Path(seg).unlink()


# --- Bad archives ----------------------------------------------------------------------------------------------------
def test_no_dicomweb_server(url: str, tmp_path: Path) -> None:
    for address, said in (
        (f"http://127.0.0.1:{free_port()}/dicom-web", "but it cannot be reached; start it"),
        (url.removesuffix("/dicom-web"), "but it answers with HTTP 400; give the whole address"),
        (url.replace("dicom-web", "app/explorer.html?"), "but its answer is not DICOM's JSON|but it answers with HTTP"),
        ("archive", "expected the address of a DICOMweb server"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            open_archive(address, str(tmp_path / "cache"))
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "cache").exists()


def test_an_archive_that_goes_away(tmp_path: Path) -> None:
    with running_orthanc(tmp_path / "orthanc") as url:
        store = open_archive(url, str(tmp_path / "cache"))
    for ask in (store.list_images, store.datalist, store.status, lambda: store.get_image_uri("1.2.3")):
        with pytest.raises(InputError, match="cannot be reached"):
            ask()


def test_names_that_are_no_series(store: OrganDatastore, image: str) -> None:
    with pytest.raises(InputError, match="has no series 1.2.3; choose one that is there"):
        store.get_image_uri("1.2.3")
    for name in ("../../etc", "", "1.2/../..", "1" * 65):
        with pytest.raises(InputError, match="image: expected the UID of a DICOM series"):
            store.get_image_uri(name)
    with pytest.raises(InputError, match="delete series"):
        store.remove_image(image)
    with pytest.raises(InputError, match="delete SEG series of this image there"):
        store.remove_label(image, "final")


def test_only_the_archive_is_asked(url: str, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[Any] = set()
    connect_to, port = socket.socket.connect, int(url.split(":")[2].split("/")[0])

    def note(self: socket.socket, address: Any) -> Any:
        asked.add(address)
        return connect_to(self, address)

    monkeypatch.setattr(socket.socket, "connect", note)
    store = open_archive(url, str(tmp_path / "cache"))
    store.save_label(image, labels_file(tmp_path), "final", dict(SENT))
    store.datalist()
    assert asked == {("127.0.0.1", port)}


def test_no_temporary_files_stay(
    url: str, store: OrganDatastore, image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    store.save_label(image, labels_file(tmp_path), "final", dict(SENT))
    open_archive(url, str(tmp_path / "other")).datalist()
    assert list((tmp_path / "temporary").iterdir()) == []
