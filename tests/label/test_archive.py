# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is said where Orthanc, a browser or a server is missing; that they work is tested in `server`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import InputError
from label import archive
from label.screenshot import take_screenshot


def test_without_orthanc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *args, **options: None)
    with pytest.raises(InputError, match="Orthanc: is not installed; install Debian's packages orthanc and"):
        archive.running_orthanc(tmp_path / "archive").__enter__()
    monkeypatch.setattr(shutil, "which", lambda *args, **options: "/usr/sbin/Orthanc")
    monkeypatch.setattr(archive, "PLUGIN_FOLDERS", (str(tmp_path),))
    with pytest.raises(InputError, match="its DICOMweb plugin libOrthancDicomWeb.so is not installed"):
        archive.running_orthanc(tmp_path / "archive").__enter__()
    assert not (tmp_path / "archive").exists()


def test_a_program_that_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "find_orthanc", lambda: ("/bin/false", "plugin.so"))
    with pytest.raises(InputError, match="Orthanc: ended as it started, with code 1; see .*orthanc.log"):
        archive.running_orthanc(tmp_path).__enter__()


def test_nothing_to_upload_and_nobody_to_upload_to(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{archive.free_port()}/dicom-web"
    with pytest.raises(InputError, match="expected DICOM files to upload, found none"):
        archive.upload(nobody, tmp_path)
    (tmp_path / "a.dcm").write_bytes(b"")
    with pytest.raises(InputError, match=f"{nobody}: did not store .*a.dcm"):
        archive.upload(nobody, tmp_path)


def test_a_picture_needs_a_server(tmp_path: Path) -> None:
    nobody: Any = f"http://127.0.0.1:{archive.free_port()}"
    with pytest.raises(InputError, match=f"{nobody}: expected a running MONAI Label server with OHIF"):
        take_screenshot(nobody, "1.2.3", tmp_path / "ohif.png")
    assert list(tmp_path.iterdir()) == []
