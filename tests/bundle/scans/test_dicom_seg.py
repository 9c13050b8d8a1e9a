"""DICOM SEG: every voxel at its place, organs with their names and codes, and the series it belongs to."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import itk
import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import Vocabulary, find_organ
from bundle.scans.dicom_seg import write_dicom_seg

pytest.importorskip("highdicom", reason="DICOM SEG needs highdicom")
import pydicom
from highdicom.color import CIELabColor
from pydicom.dataset import FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from tests.paths import REAL_DATA

DATA = REAL_DATA
COLUMNS, ROWS, SLICES = 6, 5, 4

# pydicom 2 is what MONAI Label's environment has
WHOLE_FILE = {"enforce_file_format": True} if pydicom.__version_info__[0] >= "3" else {"write_like_original": False}


@dataclass
class Series:
    path: Path
    slices: tuple[Path, ...]


def slice_header(place: int, study: str, series: str) -> pydicom.Dataset:
    header = pydicom.Dataset()
    header.file_meta = FileMetaDataset()
    header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = CTImageStorage
    header.SOPInstanceUID = header.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header.StudyInstanceUID, header.SeriesInstanceUID, header.FrameOfReferenceUID = study, series, "1.2.3"
    header.PatientID, header.PatientName, header.PatientBirthDate, header.PatientSex = "7", "A^B", "", ""
    header.StudyID, header.AccessionNumber, header.StudyDate, header.StudyTime = "", "", "", ""
    header.ReferringPhysicianName, header.Modality, header.InstanceNumber = "", "CT", place + 1
    header.Columns, header.Rows, header.PixelSpacing, header.SliceThickness = COLUMNS, ROWS, [0.5, 0.75], 2
    header.ImageOrientationPatient = [0.8, 0.6, 0, -0.6, 0.8, 0]  # turned about the body's axis
    header.ImagePositionPatient = [-10, -20, 100 + 2 * place]
    return header


@pytest.fixture
def series(tmp_path: Path) -> Series:
    files = []
    for place in range(SLICES):
        files.append(tmp_path / "ct" / f"{place}.dcm")
        files[0].parent.mkdir(exist_ok=True)
        slice_header(place, "1.2.3.4", "1.2.3.5").save_as(files[-1], **WHOLE_FILE)
    return Series(tmp_path / "ct", tuple(files))


def change(series: Series, **values: Any) -> None:
    for file in series.slices:
        header = pydicom.dcmread(file)
        for name, value in values.items():
            setattr(header, name, value)
        header.save_as(file)


def three_organs() -> NDArray[np.uint8]:
    """Channels 1, 6 and 11; the last slice is empty."""
    labels = np.zeros((COLUMNS, ROWS, SLICES), np.uint8)
    labels[0, 0, 0], labels[4:, 1, 0:2], labels[2, 3:, 2] = 6, 11, 1
    return labels


def read_seg(path: Path, sources: tuple[Path, ...]) -> tuple[pydicom.Dataset, NDArray[np.uint8]]:
    """The SEG and, by pydicom alone, its label map X×Y×Z in channels: frames are put where their positions say."""
    seg = pydicom.dcmread(path)
    headers = [pydicom.dcmread(file, stop_before_pixels=True) for file in sources]
    places = {tuple(map(float, header.ImagePositionPatient)): place for place, header in enumerate(headers)}
    names = {item.SegmentNumber: item.SegmentLabel for item in seg.SegmentSequence}
    labels = np.zeros((seg.Columns, seg.Rows, len(sources)), np.uint8)
    frames = seg.pixel_array.reshape(-1, seg.Rows, seg.Columns)
    for frame, groups in zip(frames, seg.PerFrameFunctionalGroupsSequence, strict=True):
        assert frame.any()  # empty frames are left out
        place = places[tuple(map(float, groups.PlanePositionSequence[0].ImagePositionPatient))]
        source = groups.DerivationImageSequence[0].SourceImageSequence[0]
        assert source.ReferencedSOPInstanceUID == headers[place].file_meta.MediaStorageSOPInstanceUID
        number = groups.SegmentIdentificationSequence[0].ReferencedSegmentNumber
        labels[..., place][frame.T > 0] = Vocabulary().channel(names[number])
    return seg, labels


@pytest.mark.parametrize("step", [1, -1])
def test_voxels_come_back_at_their_place(series: Series, tmp_path: Path, step: int) -> None:
    series, labels = Series(series.path, series.slices[::step]), three_organs()
    assert write_dicom_seg(tmp_path / "organs.dcm", series, labels, Vocabulary(), "1.2.3")
    seg, read = read_seg(tmp_path / "organs.dcm", series.slices)
    np.testing.assert_array_equal(read, labels)
    assert seg.NumberOfFrames == 4  # organ 11 in two slices, the others in one
    shared = seg.SharedFunctionalGroupsSequence[0]
    assert shared.PlaneOrientationSequence[0].ImageOrientationPatient == [0.8, 0.6, 0, -0.6, 0.8, 0]
    assert shared.PixelMeasuresSequence[0].PixelSpacing == [0.5, 0.75]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["ct", "organs.dcm"]


def test_segments_say_what_they_are(series: Series, tmp_path: Path) -> None:
    write_dicom_seg(tmp_path / "organs.dcm", series, three_organs(), Vocabulary(), "1.2.3")
    seg = pydicom.dcmread(tmp_path / "organs.dcm")
    assert seg.SegmentationType == "BINARY"
    found = [
        (item.SegmentNumber, item.SegmentLabel, code.CodeValue, code.CodingSchemeDesignator)
        for item in seg.SegmentSequence
        for code in item.SegmentedPropertyTypeCodeSequence
    ]
    assert found == [
        (1, "spleen", "78961009", "SCT"),
        (2, "liver", "10200004", "SCT"),
        (3, "pancreas", "15776009", "SCT"),
    ]
    liver = seg.SegmentSequence[1]
    assert liver.SegmentAlgorithmType == "AUTOMATIC"
    assert liver.SegmentationAlgorithmIdentificationSequence[0].AlgorithmName == "PaNN for MONAI"
    assert liver.SegmentationAlgorithmIdentificationSequence[0].AlgorithmVersion == seg.SoftwareVersions == "1.2.3"
    assert liver.SegmentedPropertyCategoryCodeSequence[0].CodeValue == "91723000"  # anatomical structure, CID 7150


def test_a_segment_has_the_color_of_its_organ(series: Series, tmp_path: Path) -> None:
    if not hasattr(CIELabColor, "from_dicom_value"):
        pytest.skip("highdicom 0.22 cannot read colors")
    write_dicom_seg(tmp_path / "organs.dcm", series, three_organs(), Vocabulary(), "1.2.3")
    liver = pydicom.dcmread(tmp_path / "organs.dcm").SegmentSequence[1]
    color = CIELabColor.from_dicom_value(list(liver.RecommendedDisplayCIELabValue)).to_rgb(clip=True)
    np.testing.assert_allclose(color, (193, 18, 31), atol=1)


def test_what_a_person_reviewed_is_not_called_automatic(series: Series, tmp_path: Path) -> None:
    write_dicom_seg(tmp_path / "organs.dcm", series, three_organs(), Vocabulary(), "1.2.3", reviewed=True)
    kinds = {item.SegmentAlgorithmType for item in pydicom.dcmread(tmp_path / "organs.dcm").SegmentSequence}
    assert kinds == {"SEMIAUTOMATIC"}


def test_a_seg_belongs_to_its_series(series: Series, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_dicom_seg(tmp_path / "organs.dcm", series, three_organs(), Vocabulary(), "1.2.3")
    seg = pydicom.dcmread(tmp_path / "organs.dcm")
    assert (seg.StudyInstanceUID, seg.FrameOfReferenceUID, seg.PatientID) == ("1.2.3.4", "1.2.3", "7")
    assert seg.ReferencedSeriesSequence[0].SeriesInstanceUID == "1.2.3.5"
    assert seg.SeriesInstanceUID != "1.2.3.5"
    assert caplog.messages == []


def test_blanked_uids_are_filled_in(series: Series, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    change(series, SOPInstanceUID="", SOPClassUID="", StudyInstanceUID="", SeriesInstanceUID="")
    studies = []
    for name in ("a.dcm", "b.dcm"):
        write_dicom_seg(tmp_path / name, series, three_organs(), Vocabulary(), "1.2.3")
        studies.append(read_seg(tmp_path / name, series.slices)[0].StudyInstanceUID)  # checks the instances
    assert studies[0] == studies[1] != ""
    assert "ct: the series has no StudyInstanceUID and no SeriesInstanceUID" in caplog.messages[0]


def test_segments_are_numbered_without_gaps(series: Series, tmp_path: Path) -> None:
    labels = np.where(three_organs() == 6, 0, three_organs()).astype(np.uint8)
    write_dicom_seg(tmp_path / "organs.dcm", series, labels, Vocabulary(), "1.2.3")
    seg, read = read_seg(tmp_path / "organs.dcm", series.slices)
    assert [(item.SegmentNumber, item.SegmentLabel) for item in seg.SegmentSequence] == [(1, "spleen"), (2, "pancreas")]
    np.testing.assert_array_equal(read, labels)


def test_no_organ_no_file(series: Series, tmp_path: Path) -> None:
    (tmp_path / "organs.dcm").write_text("of an earlier run")
    assert not write_dicom_seg(tmp_path / "organs.dcm", series, 0 * three_organs(), Vocabulary(), "1.2.3")
    assert [file.name for file in tmp_path.iterdir()] == ["ct"]


def test_errors_name_the_scan(series: Series, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, labels, vocabulary = tmp_path / "organs.dcm", three_organs(), Vocabulary()
    with pytest.raises(InputError, match=r"ct: the series has \(6, 5, 4\) columns, rows and slices"):
        write_dicom_seg(path, series, labels[..., :3], vocabulary, "1.2.3")
    with pytest.raises(InputError, match="ct.nii.gz: a DICOM SEG is written for a DICOM series only"):
        write_dicom_seg(path, Series(Path("ct.nii.gz"), ()), labels, vocabulary, "1.2.3")
    with pytest.raises(InputError, match="ct: a DICOM SEG needs one file a slice"):
        write_dicom_seg(path, Series(series.path, series.slices[:1] * SLICES), labels, vocabulary, "1.2.3")
    for file in series.slices:  # one file lacks it at first, in the end all do
        header = pydicom.dcmread(file)
        del header.FrameOfReferenceUID
        header.save_as(file)
        with pytest.raises(InputError, match="ct: highdicom cannot write a DICOM SEG for this series"):
            write_dicom_seg(path, series, labels, vocabulary, "1.2.3")
    monkeypatch.setitem(sys.modules, "highdicom", None)
    with pytest.raises(InputError, match="pip install highdicom"):
        write_dicom_seg(path, series, labels, vocabulary, "1.2.3")
    assert not path.exists()


@pytest.mark.skipif(not (DATA / "example_dicom").exists(), reason="needs the real CT data of ../shared/data")
def test_a_real_series(tmp_path: Path) -> None:
    files = itk.GDCMSeriesFileNames.New(Directory=str(DATA / "example_dicom")).GetInputFileNames()
    series = Series(DATA / "example_dicom", tuple(map(Path, files)))
    labels = np.asarray(nib.load(DATA / "example_dicom_label.nii.gz").dataobj).astype(np.uint8)
    write_dicom_seg(tmp_path / "organs.dcm", series, labels, Vocabulary(), "1.2.3")
    seg, read = read_seg(tmp_path / "organs.dcm", series.slices)
    np.testing.assert_array_equal(read, labels)
    segments = {item.SegmentLabel: item.SegmentedPropertyTypeCodeSequence[0].CodeValue for item in seg.SegmentSequence}
    assert len(segments) == 8
    assert all(find_organ(name).snomed == code for name, code in segments.items())  # type: ignore[union-attr]
