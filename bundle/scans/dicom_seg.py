# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Label maps as DICOM Segmentation objects, which a PACS stores beside the series they belong to.

highdicom writes them; it is an optional package, loaded only when a SEG is asked for.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.files import whole_file
from bundle.organs import Organ, Vocabulary

__all__ = ["write_dicom_seg"]


logger = logging.getLogger(__name__)

ALGORITHM = "PaNN for MONAI"

# CID 7150; by its number, as pydicom 2 knows two codes by this name
ANATOMICAL_STRUCTURE = ("91723000", "SCT", "Anatomical Structure")

SRGB_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])  # IEC 61966-2-1

SERIES_NUMBER = 300  # behind the scanner's own in a viewer's list


class DicomScan(Protocol):
    """What a SEG needs of a scan: where it was read from, and its DICOM files in the order of the last axis."""

    @property
    def path(self) -> str | Path: ...

    @property
    def slices(self) -> Sequence[str | Path]: ...


def load_highdicom() -> Any:
    try:
        highdicom = importlib.import_module("highdicom")
    except ModuleNotFoundError as error:
        if error.name not in ("highdicom", "pydicom"):
            raise
        raise InputError("DICOM SEG needs the package highdicom; install it with: pip install highdicom") from None
    if highdicom.__version__.startswith("0.22.") and not hasattr(np, "float_"):
        np.float_ = np.float64  # type: ignore[attr-defined]  # the last version for pydicom 2 is older than NumPy 2
    return highdicom


def read_sources(scan: DicomScan, shape: tuple[int, ...]) -> list[Any]:
    """Headers of the series, one per slice; an error when they do not fit a label map of this shape (X×Y×Z)."""
    from pydicom import dcmread

    if not scan.slices:
        raise InputError(f"{scan.path}: a DICOM SEG is written for a DICOM series only; choose NIfTI for this scan")
    if len(set(scan.slices)) < len(scan.slices):
        raise InputError(f"{scan.path}: a DICOM SEG needs one file a slice, found several slices in one; choose NIfTI")
    sources = [dcmread(file, stop_before_pixels=True) for file in scan.slices]
    found = (int(sources[0].Columns), int(sources[0].Rows), len(sources))
    if found != tuple(shape):
        raise InputError(f"{scan.path}: the series has {found} columns, rows and slices, its label map has {shape}")
    complete_uids(scan, sources)
    return sources


def complete_uids(scan: DicomScan, sources: list[Any]) -> None:
    """Fill in what anonymizers blank: a SEG has to name its study, series and source images.

    Class and instance stand in the file's own header too. Study and series do not: made up from the first instance,
    they are the same in every SEG of the scan.
    """
    from pydicom.uid import generate_uid

    for source in sources:
        for name in ("SOPClassUID", "SOPInstanceUID"):
            if not source.get(name):
                setattr(source, name, source.file_meta.get(f"MediaStorage{name}", ""))
    missing = [name for name in ("StudyInstanceUID", "SeriesInstanceUID") if not sources[0].get(name)]
    for name in missing:
        uid = generate_uid(entropy_srcs=[name, str(sources[0].SOPInstanceUID)])
        for source in sources:
            setattr(source, name, uid)
    if missing:
        logger.warning(
            "%s: the series has no %s; its DICOM SEG gets new ones, and an archive will not show it with the series",
            scan.path,
            " and no ".join(missing),
        )


def describe_segment(number: int, organ: Organ, version: str, reviewed: bool) -> Any:
    import highdicom as hd
    from pydicom.sr.codedict import codes
    from pydicom.sr.coding import Code

    kinds = hd.seg.SegmentAlgorithmTypeValues
    description = hd.seg.SegmentDescription(
        segment_number=number,
        segment_label=organ.name,
        segmented_property_category=Code(*ANATOMICAL_STRUCTURE),
        segmented_property_type=Code(organ.snomed, "SCT", organ.name),
        algorithm_type=kinds.SEMIAUTOMATIC if reviewed else kinds.AUTOMATIC,
        algorithm_identification=hd.AlgorithmIdentificationSequence(
            name=ALGORITHM, family=codes.DCM.ArtificialIntelligence, version=version
        ),
    )
    description.RecommendedDisplayCIELabValue = cielab(organ.color)  # highdicom 0.22, for pydicom 2, does not take one
    return description


def cielab(color: tuple[int, int, int]) -> list[int]:
    """An sRGB color as DICOM stores it: L*, a* and b* for the white of D65, each over the range of 16 bits.

    >>> cielab((255, 255, 255)), cielab((0, 0, 0))
    ([65535, 32896, 32896], [0, 32896, 32896])
    """
    part = np.array(color) / 255
    linear = np.where(part > 0.04045, ((part + 0.055) / 1.055) ** 2.4, part / 12.92)
    xyz = SRGB_TO_XYZ @ linear / SRGB_TO_XYZ.sum(1)  # all ones for white
    x, y, z = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz * (29 / 6) ** 2 / 3 + 4 / 29)
    lab = np.array([(116 * y - 16) / 100, (500 * (x - y) + 128) / 255, (200 * (y - z) + 128) / 255])
    return [int(value) for value in np.round(lab.clip(0, 1) * 0xFFFF)]


def number_segments(labels: NDArray[np.uint8], vocabulary: Vocabulary) -> tuple[list[Organ], NDArray[np.uint8]]:
    """The organs that are there, and the map as slice × row × column whose values are their numbers 1, 2, …

    A SEG numbers its segments without gaps, and an organ that is not there has no frame to show.
    """
    there = np.zeros(256, bool)
    for piece in labels.T:
        there[piece] = True
    table, found = np.zeros(256, np.uint8), []
    for channel, organ in enumerate(vocabulary, start=1):
        if there[channel]:
            found.append(organ)
            table[channel] = len(found)
    return found, table[labels.T]  # X is the column and Y the row of a slice


def write_dicom_seg(
    path: str | Path,
    scan: DicomScan,
    labels: NDArray[np.uint8],
    vocabulary: Vocabulary,
    version: str,
    reviewed: bool = False,
) -> bool:
    """Write the organs of a label map as a binary DICOM SEG, one segment for each organ that is there.

    Without any organ there is no file, as a SEG must have a segment; one left there by an earlier run is removed.

    Args:
        path: the file, usually `.dcm`.
        scan: the scan, read from a DICOM series.
        labels: X×Y×Z on the grid of the scan, values are the vocabulary's channels.
        vocabulary: the organs.
        version: of the bundle, which the file names as the software that made it.
        reviewed: whether a person drew or corrected it; the file then calls it semiautomatic.

    Returns:
        Whether there was an organ to write.

    Raises:
        InputError: without highdicom, for a scan that is no DICOM series or cannot have a SEG.
    """
    hd = load_highdicom()
    sources = read_sources(scan, labels.shape)
    found, frames = number_segments(labels, vocabulary)
    if not found:
        Path(path).unlink(missing_ok=True)
        return False
    try:
        segmentation = hd.seg.Segmentation(
            source_images=sources,
            pixel_array=frames,
            segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[describe_segment(n, organ, version, reviewed) for n, organ in enumerate(found, 1)],
            series_instance_uid=hd.UID(),
            series_number=SERIES_NUMBER,
            sop_instance_uid=hd.UID(),
            instance_number=1,
            manufacturer=ALGORITHM,
            manufacturer_model_name=ALGORITHM,
            software_versions=version,
            device_serial_number="1",  # the standard wants one, software has none
            series_description=f"Organs by {ALGORITHM}",
            omit_empty_frames=True,
        )
    except (AttributeError, KeyError, ValueError) as error:  # it copies patient, study and frame of reference
        raise InputError(f"{scan.path}: highdicom cannot write a DICOM SEG for this series ({error!r})") from error
    with whole_file(path) as unfinished:
        segmentation.save_as(unfinished)
    return True
