# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Talk to a DICOMweb server: which series and SEGs it has, fetch and store them, with one sentence where it fails.

Knows nothing of MONAI Label's datastore, which is in `dicomweb`.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import retrying
from dicomweb_client import DICOMwebClient
from monailabel.config import settings
from monailabel.datastore.dicom import DICOMwebClientX
from monailabel.datastore.utils.dicom import dicom_web_download_series
from pydicom import dcmread
from pydicom.dataset import Dataset

from bundle.errors import InputError
from bundle.untrusted import shown

__all__ = ["StoredSeg", "asking", "check_uid", "connect", "download", "find_segs", "find_series", "store_seg"]

logger = logging.getLogger(__name__)

CONNECT_SECONDS, ANSWER_SECONDS = 5, 120
ATTEMPTS, FIRST_WAIT_MS = 3, 200  # where a server says that it is too busy

AS_STORED = (("application/dicom", "*"),)

CURE = "start it, or give the address of another one"


@dataclass(frozen=True)
class StoredSeg:
    """A DICOM SEG of the archive: its UIDs, the CT series it belongs to, and when it was written."""

    study: str
    series: str
    image: str
    written: str


def connect(url: str) -> DICOMwebClient:
    """A client of MONAI Label's kind for a server that answers; user, password and prefixes are MONAI Label's settings.

    Raises:
        InputError: when there is no DICOMweb server.
    """
    if not re.match(r"https?://[^/]", url):
        raise InputError(f"{shown(url)}: expected the address of a DICOMweb server, such as http://HOST:8042/dicom-web")
    session = requests.Session()
    if settings.MONAI_LABEL_DICOMWEB_USERNAME and settings.MONAI_LABEL_DICOMWEB_PASSWORD:
        session.auth = (settings.MONAI_LABEL_DICOMWEB_USERNAME, settings.MONAI_LABEL_DICOMWEB_PASSWORD)
    limited = functools.partial(session.request, timeout=(CONNECT_SECONDS, ANSWER_SECONDS))
    session.request = limited  # type: ignore[method-assign]  # the client sets no limit, and would wait for ever
    with asking(url):
        client = DICOMwebClientX(
            url=url,
            session=session,
            qido_url_prefix=settings.MONAI_LABEL_QIDO_PREFIX,
            wado_url_prefix=settings.MONAI_LABEL_WADO_PREFIX,
            stow_url_prefix=settings.MONAI_LABEL_STOW_PREFIX,
        )
        client.set_http_retry_params(max_attempts=ATTEMPTS, wait_exponential_multiplier=FIRST_WAIT_MS)
        [uid_of(found) for found in client.search_for_series(limit=1)]
    return client


@contextmanager
def asking(url: str) -> Iterator[None]:
    """One sentence for whatever goes wrong between here and the server."""
    try:
        yield
    except InputError:
        raise
    except (requests.RequestException, retrying.RetryError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{url}: expected a DICOMweb server, but {reason(error)}") from error


def reason(error: Exception) -> str:
    if isinstance(error, requests.HTTPError) and error.response is not None:
        if error.response.status_code in (401, 403):
            return "it asks for a password; set MONAI_LABEL_DICOMWEB_USERNAME and MONAI_LABEL_DICOMWEB_PASSWORD"
        if error.response.status_code >= 500:
            return f"it fails with HTTP {error.response.status_code}; see its log"
        return f"it answers with HTTP {error.response.status_code}; give the whole address, such as …/dicom-web"
    if isinstance(error, requests.Timeout):
        return f"it does not answer; {CURE}"
    if isinstance(error, requests.ConnectionError):
        return f"it cannot be reached; {CURE}"
    if isinstance(error, retrying.RetryError):
        return f"it is too busy to answer; wait, or {CURE}"
    return f"its answer is not DICOM's JSON ({type(error).__name__}); give the whole address, such as …/dicom-web"


def check_uid(uid: str) -> str:
    """The UID; what is none is refused, as it becomes a part of paths and addresses."""
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", uid) or len(uid) > 64:
        raise InputError(f"image: expected the UID of a DICOM series, found {shown(uid)}; choose one from the archive")
    return uid


def uid_of(found: dict[str, Any]) -> str:
    return str(Dataset.from_json(found).SeriesInstanceUID)


# --- What there is ---------------------------------------------------------------------------------------------------
def find_series(client: DICOMwebClient, study: str | None = None, **filters: str) -> list[Dataset]:
    """The series that match, all pages of them; a server that ignores a filter is not believed."""
    with asking(client.base_url):
        found = [
            Dataset.from_json(one)
            for one in client.search_for_series(study, search_filters=dict(filters), get_remaining=True)
        ]
        return [
            one
            for one in found
            if all(str(one.get(name, wanted)) == wanted for name, wanted in filters.items() if "*" not in wanted)
        ]


def find_segs(client: DICOMwebClient, known: dict[str, StoredSeg | None], study: str | None = None) -> list[StoredSeg]:
    """The SEGs of the archive, or of a study.

    Args:
        client: of the archive.
        known: what was found before, by series, so that each SEG is asked for once; it is updated.
        study: UID.
    """
    segs: list[StoredSeg] = []
    for found in find_series(client, study, Modality="SEG"):
        series, owner = str(found.SeriesInstanceUID), str(found.get("StudyInstanceUID", study))
        if series not in known:
            known[series] = describe(client, owner, series)
        seg = known[series]
        if seg is not None:
            segs.append(seg)
    return segs


def describe(client: DICOMwebClient, study: str, series: str) -> StoredSeg | None:
    with asking(client.base_url):
        instances = [Dataset.from_json(one) for one in client.retrieve_series_metadata(study, series)]
    for seg in sorted(instances, key=written, reverse=True):
        for image in seg.get("ReferencedSeriesSequence") or []:
            return StoredSeg(study, series, str(image.SeriesInstanceUID), written(seg))
    logger.warning("%s: SEG series %s is left out: it does not say to which CT it belongs", client.base_url, series)
    return None


def written(seg: Dataset) -> str:
    """Date and time, to be compared."""
    for kind in ("Content", "InstanceCreation", "Series"):
        if seg.get(f"{kind}Date"):
            return f"{seg.get(f'{kind}Date')} {seg.get(f'{kind}Time') or ''}"
    return ""


# --- There and back --------------------------------------------------------------------------------------------------
def download(client: DICOMwebClient, study: str, series: str, folder: Path, by_frame: bool = False) -> Path:
    """The files of a series in a folder that appears whole or not at all."""
    if folder.is_dir() and any(folder.iterdir()):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".download-") as unfinished:
        whole = Path(unfinished, "series")
        with asking(client.base_url):
            if by_frame:
                dicom_web_download_series(study, series, str(whole), client, True)
            else:
                fetch_as_stored(client, study, series, whole)
        if not any(whole.iterdir()):
            raise InputError(f"{client.base_url}: series {series} has no files; store it again")
        os.replace(whole, folder)
    return folder


def fetch_as_stored(client: DICOMwebClient, study: str, series: str, folder: Path) -> None:
    """Whole files, compressed as they are: Orthanc fails where it is asked to decompress JPEG 2000."""
    folder.mkdir()
    for index, found in enumerate(client.retrieve_series(study, series, media_types=AS_STORED)):
        found.save_as(folder / f"{index:05d}.dcm")


def store_seg(client: DICOMwebClient, file: str | Path) -> str:
    """Store a SEG; returns the UID of its series.

    Raises:
        InputError: when the archive does not take it.
    """
    seg = dcmread(file)
    with asking(client.base_url):
        answer = client.store_instances([seg])
    if answer.get("FailedSOPSequence"):
        raise InputError(f"{client.base_url}: the archive did not take the DICOM SEG; see its log, and save again")
    return str(seg.SeriesInstanceUID)
