# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A CT volume as a DICOM series, so that an archive can be tried with phantoms or with scans that are NIfTI.

Not for patients: names, dates and the protocol of the scanner are not there to be kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.phantoms import GRID, PROTOCOLS, make_patient
from bundle.errors import InputError
from bundle.files import make_folder
from bundle.scans.reading import LPS_TO_RAS

__all__ = ["write_ct_series", "write_phantom_series"]

INTERCEPT = -1024  # HU of a stored 0, as scanners have it
WINDOW = (40, 400)  # center and width in HU: soft tissue


def write_ct_series(
    folder: str | Path, voxels: NDArray[Any], affine: NDArray[np.float64], name: str, study: str = "", series: str = ""
) -> tuple[str, str]:
    """Write a CT as DICOM, a file for each slice.

    Its axes are turned so that rows run to the patient's left and columns to the back, as viewers show slices.

    Args:
        folder: where the files go; created.
        voxels: X×Y×Z in HU, from -1024 to 31743.
        affine: voxel to RAS in mm; its axes are perpendicular, in any direction.
        name: of the patient; identity as well.
        study: UID; a new one where it is empty.
        series: UID; a new one where it is empty.

    Returns:
        UIDs of the study and of the series.
    """
    from pydicom.uid import generate_uid

    check_volume(folder, voxels, affine)
    study, series = study or str(generate_uid()), series or str(generate_uid())
    voxels, to_lps = turn_to_lps(voxels, affine)
    folder = Path(folder)
    make_folder(folder)
    frame_of_reference = str(generate_uid())
    for index in range(voxels.shape[2]):
        header = slice_header(to_lps, index)
        header.PatientName, header.PatientID = f"{name}^", name
        header.StudyInstanceUID, header.SeriesInstanceUID = study, series
        header.FrameOfReferenceUID = frame_of_reference
        stored = (voxels[:, :, index].T - np.float64(INTERCEPT)).round().astype("<u2")  # rows × columns
        header.Rows, header.Columns, header.PixelData = *stored.shape, stored.tobytes()
        save(header, folder / f"{index:04d}.dcm")
    return study, series


def write_phantom_series(
    folder: str | Path, number: int = 0, grid: tuple[int, int, int] = GRID
) -> tuple[str, str, NDArray[np.uint8], NDArray[np.float64]]:
    """Write a synthetic patient as a DICOM series.

    Returns:
        UIDs of the study and of the series, the true label map (X×Y×Z, values of the vocabulary) and its affine.
    """
    voxels, labels, affine = make_patient((number, 7), PROTOCOLS["full"], grid)
    study, series = write_ct_series(folder, voxels, affine, f"PHANTOM-{number}")
    return study, series, labels, affine


def check_volume(folder: str | Path, voxels: NDArray[Any], affine: NDArray[np.float64]) -> None:
    axes = affine[:3, :3] / np.linalg.norm(affine[:3, :3], axis=0)
    if voxels.ndim != 3 or not np.allclose(axes.T @ axes, np.eye(3), atol=1e-4):
        raise InputError(f"{folder}: a DICOM series needs a volume with perpendicular axes; resample the scan first")
    low, high = float(voxels.min()), float(voxels.max())
    if low < INTERCEPT or high > 0x7FFF + INTERCEPT:
        raise InputError(
            f"{folder}: expected HU from {INTERCEPT} to {0x7FFF + INTERCEPT}, found {low:g} to {high:g}; clip the scan"
        )


def turn_to_lps(voxels: NDArray[Any], affine: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The volume with its axes closest to left, back and head, and its affine to LPS."""
    turn = nib.orientations.ornt_transform(nib.io_orientation(affine), nib.orientations.axcodes2ornt("LPS"))
    turned: NDArray[np.float64] = LPS_TO_RAS @ affine @ nib.orientations.inv_ornt_aff(turn, voxels.shape)
    return nib.orientations.apply_orientation(voxels, turn), turned


def slice_header(to_lps: NDArray[np.float64], index: int) -> Any:
    """What a slice of CT needs to be shown and measured, all but its pixels and whose it is."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    spacing = np.linalg.norm(to_lps[:3, :3], axis=0)
    header = Dataset()
    header.file_meta = FileMetaDataset()
    header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header.SOPClassUID = header.file_meta.MediaStorageSOPClassUID = CTImageStorage
    header.SOPInstanceUID = header.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    header.Modality, header.SeriesNumber, header.InstanceNumber = "CT", 1, index + 1
    header.ImageType = ["DERIVED", "PRIMARY", "AXIAL"]
    header.StudyDate, header.StudyTime, header.StudyID, header.AccessionNumber = "20240101", "120000", "1", ""
    header.StudyDescription, header.SeriesDescription = "Abdomen", "CT"
    header.PatientBirthDate, header.PatientSex, header.ReferringPhysicianName = "", "", ""
    header.ImagePositionPatient = decimals(to_lps[:3, :3] @ [0, 0, index] + to_lps[:3, 3])
    header.ImageOrientationPatient = decimals((to_lps[:3, :2] / spacing[:2]).T.ravel())
    header.PixelSpacing, header.SliceThickness = decimals(spacing[[1, 0]]), decimals(spacing[2:])[0]
    header.RescaleIntercept, header.RescaleSlope, header.RescaleType = INTERCEPT, 1, "HU"
    header.WindowCenter, header.WindowWidth = WINDOW
    header.SamplesPerPixel, header.PhotometricInterpretation, header.PixelRepresentation = 1, "MONOCHROME2", 0
    header.BitsAllocated, header.BitsStored, header.HighBit = 16, 16, 15
    return header


def decimals(numbers: NDArray[Any]) -> list[str]:
    """Numbers as DICOM's decimal strings, which have up to 16 characters.

    >>> decimals(np.array([-1 / 3, 0.0]))
    ['-0.3333333333', '0']
    """
    return [f"{round(float(number), 10) + 0.0:.10g}" for number in numbers]


def save(header: Any, path: Path) -> None:
    """As a whole DICOM file; pydicom 3 has another word for it."""
    import pydicom

    if int(pydicom.__version_info__[0]) >= 3:
        header.save_as(path, enforce_file_format=True)
    else:
        header.is_little_endian, header.is_implicit_VR = True, False
        header.save_as(path, write_like_original=False)
