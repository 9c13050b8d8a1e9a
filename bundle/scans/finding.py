# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Find CT scans in files and folders: NIfTI, MetaImage, NRRD and DICOM series."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bundle.errors import InputError
from bundle.scans.dicom import CONVERT, CT_CLASSES, check_modality, dicom_class, frames_of, read_tags
from bundle.untrusted import check_name

__all__ = ["ENDINGS", "NIFTI", "Source", "ending_of", "find_scans", "list_scans", "scan_name"]


NIFTI = (".nii.gz", ".nii")

ITK_READERS = {".mha": "MetaImageIO", ".mhd": "MetaImageIO", ".nrrd": "NrrdImageIO", ".nhdr": "NrrdImageIO"}

ENDINGS = (*NIFTI, *ITK_READERS)  # DICOM files may have any ending


@dataclass(frozen=True)
class Source:
    """Where a scan is.

    Args:
        path: the file, or the folder of the series.
        series: the DICOM files of the scan; empty for other formats.
    """

    path: Path
    series: tuple[str, ...] = ()


def find_scans(path: str | Path) -> dict[str, Source]:
    """The scans in a file, a folder of a DICOM series, or a folder of such files and folders, by name.

    Image files count directly in the folder, DICOM series at any depth. Hidden files are left out, and so are DICOM
    files that are not CT images.

    Raises:
        InputError: when there is no scan, or when two would have one name.
    """
    path = Path(path)
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file or folder; give a CT scan or a folder of CT scans")
    found = [scan_of_file(path)] if os.path.isfile(path) else list(scans_of_folder(path))
    scans: dict[str, Source] = {}
    for name, source in sorted(found, key=lambda pair: pair[0]):
        check_name(name, f"{source.path}: the name of the scan", "rename the file or its folder")
        if name in scans:
            raise InputError(
                f'{source.path}: would have the name "{name}", as {scans[name].path} has; rename one of them'
            )
        scans[name] = source
    if not scans:
        raise InputError(
            f"{path}: no CT scan found; expected {', '.join(ENDINGS)} files or CT series in DICOM{other_modality(path)}"
        )
    return scans


def list_scans(path: str | Path) -> list[dict[str, Any]]:
    """The scans of `find_scans` as MONAI takes them: ``image`` is the source, ``name`` its name."""
    return [{"image": source, "name": name} for name, source in find_scans(path).items()]


def ending_of(path: str | Path) -> str:
    """The ending of a file that names its image format, in lower case; empty for others."""
    name = Path(path).name.lower()
    return next((ending for ending in (*ENDINGS, ".dcm") if name.endswith(ending)), "")


def scan_name(path: str | Path) -> str:
    """The name of a file without the ending of an image format.

    >>> scan_name("scans/patient.1.nii.gz")
    'patient.1'
    """
    name = Path(path).name
    return name[: len(name) - len(ending_of(name))]


def scan_of_file(path: Path) -> tuple[str, Source]:
    """Name and source of a scan in one file; one slice of a DICOM series is refused."""
    if ending_of(path) in ENDINGS:
        return scan_name(path), Source(path)
    if dicom_class(path) is None:
        raise InputError(f"{path}: expected a file ending with {', '.join(ENDINGS)}, or DICOM; convert it to NIfTI")
    tags = read_tags(path)
    check_modality(tags, path)
    if frames_of(tags, path) < 2:
        raise InputError(f"{path}: is one slice of a DICOM series; give the folder of the series")
    return scan_name(path), Source(path, (str(path),))


def scans_of_folder(root: Path) -> Iterator[tuple[str, Source]]:
    """Names and sources of the image files directly in a folder, and of the DICOM series at any depth."""
    for folder, folders, files in os.walk(root, onerror=refuse_folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = [Path(folder, name) for name in sorted(files) if not name.startswith(".")]
        if Path(folder) == root:
            yield from ((scan_name(path), Source(path)) for path in paths if ending_of(path) in ENDINGS)
        parts = Path(folder).relative_to(root).parts
        yield from series_of_folder(Path(folder), [path for path in paths if ending_of(path) not in ENDINGS], parts)


def refuse_folder(error: OSError) -> NoReturn:
    """A folder that cannot be looked into may hold a scan: it is not left out in silence."""
    raise InputError(f"{error.filename}: cannot be looked into ({error.strerror}); allow reading it or move it away")


def series_of_folder(folder: Path, paths: Sequence[Path], parts: Sequence[str]) -> Iterator[tuple[str, Source]]:
    """The CT series among the files of one folder, which is ``parts`` below where the search began."""
    series: dict[tuple[str, str], list[str]] = {}  # of (number, UID): anonymization may have emptied both
    broken: list[str] = []
    for path in paths:
        if dicom_class(path) not in {*CT_CLASSES, ""}:
            continue
        try:
            tags = read_tags(path)
            frames = frames_of(tags, path)
        except InputError:
            broken.append(str(path))
            continue
        if tags["Modality"] != "CT" or "LOCALIZER" in tags["ImageType"]:
            continue
        if frames > 1:
            yield "_".join((*parts, scan_name(path))), Source(path, (str(path),))
        else:
            series.setdefault((tags["SeriesNumber"].zfill(8), tags["SeriesInstanceUID"]), []).append(str(path))
    if broken and not series:
        series["", ""] = []
    name = "_".join(parts) or folder.resolve().name
    for ending, key in zip(name_endings(sorted(series)), sorted(series), strict=True):
        # A broken file belongs to one of the series: none of them can be known to be whole, and read_scan says so.
        yield name + ending, Source(folder, (*series[key], *broken))


def name_endings(series: Sequence[tuple[str, str]]) -> list[str]:
    """What is put behind a folder's name to name its series: nothing for one, their numbers, else 1, 2, ….

    >>> name_endings([("00000002", "1.2.3"), ("00000010", "1.2.4")])
    ['_2', '_10']
    """
    if len(series) == 1:
        return [""]
    found = [number.lstrip("0") for number, _ in series]
    if len(set(found)) < len(found) or not all(number.isascii() and number.isdecimal() for number in found):
        found = [str(index) for index in range(1, len(series) + 1)]
    return [f"_{number}" for number in found]


def other_modality(path: Path) -> str:
    """What the first DICOM file is instead, for the message that there is no CT."""
    for file in sorted(path.rglob("*")):
        if dicom_class(file) is not None:
            try:
                modality = read_tags(file)["Modality"]
            except InputError:
                modality = ""
            return f", found only other DICOM (modality {modality or 'unknown'}); give the CT series"
    return f", found none; give another folder, or {CONVERT}"
