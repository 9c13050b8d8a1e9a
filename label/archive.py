# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A DICOM archive of one's own on this machine: Orthanc with DICOMweb, for trials and tests.

Only this machine can reach it, and it asks for no password: it is no archive for patients.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

from bundle.errors import InputError
from bundle.files import make_folder, write_json

__all__ = ["running_orthanc", "upload"]

INSTALL = "install Debian's packages orthanc and orthanc-dicomweb"
PLUGIN = "libOrthancDicomWeb.so"
PLUGIN_FOLDERS = ("/usr/share/orthanc/plugins", "/usr/lib/orthanc", "/usr/local/share/orthanc/plugins")
WAIT = 60.0  # seconds for Orthanc to start, and to answer
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach this machine's servers
BATCH = 16  # files of an upload in one request


@contextlib.contextmanager
def running_orthanc(folder: str | Path) -> Iterator[str]:
    """Run Orthanc while the block runs.

    Args:
        folder: where it keeps its files; what an earlier run left there is there again.

    Yields:
        The URL of its DICOMweb.

    Raises:
        InputError: when it is not installed, or does not start.
    """
    program, plugin = find_orthanc()
    folder = Path(folder).resolve()
    make_folder(folder)
    port = free_port()
    write_json(folder / "orthanc.json", settings(folder, port, plugin))
    with (folder / "orthanc.log").open("w") as log:
        process = subprocess.Popen([program, str(folder / "orthanc.json")], stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/dicom-web"
        wait_for(url, process, folder / "orthanc.log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(WAIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def find_orthanc() -> tuple[str, str]:
    """The program and its DICOMweb plugin."""
    program = shutil.which("Orthanc") or shutil.which("Orthanc", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise InputError(f"Orthanc: is not installed; {INSTALL}")
    plugin = next((path for folder in PLUGIN_FOLDERS if (path := Path(folder, PLUGIN)).exists()), None)
    if plugin is None:
        raise InputError(f"Orthanc: its DICOMweb plugin {PLUGIN} is not installed; {INSTALL}")
    return program, str(plugin)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def settings(folder: Path, port: int, plugin: str) -> dict[str, object]:
    """Orthanc's configuration: no DICOM network, nobody from outside, DICOMweb only."""
    return {
        "Name": "PaNN for MONAI",
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "storage"),
        "HttpPort": port,
        "DicomServerEnabled": False,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": False,
        "Plugins": [plugin],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/", "EnableWado": True},
    }


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        if process.poll() is not None:
            raise InputError(f"Orthanc: ended as it started, with code {process.returncode}; see {log}")
        with contextlib.suppress(OSError), DIRECTLY.open(f"{url}/studies?limit=1", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise InputError(f"Orthanc: did not answer at {url} within {WAIT:.0f} seconds; see {log}")


def upload(url: str, folder: str | Path) -> int:
    """Store all files of a folder, which are DICOM, by STOW-RS.

    Args:
        url: of a DICOMweb server.
        folder: of the files, at any depth.

    Returns:
        How many files there were.

    Raises:
        InputError: when there are none, or the server refuses one.
    """
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    if not files:
        raise InputError(f"{folder}: expected DICOM files to upload, found none; give another folder")
    for start in range(0, len(files), BATCH):
        store(url, files[start : start + BATCH])
    return len(files)


def store(url: str, files: Sequence[Path]) -> None:
    boundary = uuid.uuid4().hex
    head = f"--{boundary}\r\nContent-Type: application/dicom\r\n\r\n".encode()
    body = b"".join(head + file.read_bytes() + b"\r\n" for file in files) + f"--{boundary}--\r\n".encode()
    kind = f'multipart/related; type="application/dicom"; boundary={boundary}'
    headers = {"Content-Type": kind, "Accept": "application/dicom+json"}
    request = urllib.request.Request(f"{url}/studies", body, headers, method="POST")
    try:
        with DIRECTLY.open(request, timeout=WAIT) as answer:
            failed = json.loads(answer.read() or b"{}").get("00081198", {}).get("Value")  # FailedSOPSequence
    except (OSError, ValueError) as error:
        raise InputError(f"{url}: did not store {files[0]} and what follows it ({error}); see that it runs") from None
    if failed:
        raise InputError(f"{url}: refused {len(failed)} of {len(files)} files from {files[0]} on; are they DICOM?")
