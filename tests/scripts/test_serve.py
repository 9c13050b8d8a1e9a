# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What `serve` says before a server starts; the server itself is tested in tests/label/server."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from bundle.errors import InputError
from scripts.serve import check_environment, check_port, check_studies, welcome


def test_scans_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        check_studies(str(tmp_path / "gone"))
    with pytest.raises(InputError, match="holds no scan"):
        check_studies(str(tmp_path))
    assert not (tmp_path / "gone").exists()
    (tmp_path / "a.nii.gz").touch()
    check_studies(str(tmp_path))
    check_studies("http://127.0.0.1:8042/dicom-web")


def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="choose another --port"):
            check_port("127.0.0.1", taken.getsockname()[1])


def test_without_monai_label_it_names_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match="make serve"):
        check_environment()


def test_the_page_says_how_to_connect() -> None:
    page = welcome("scans", Path("state"), "http://127.0.0.1:8000", 2)
    assert "version 2" in page
    assert "http://127.0.0.1:8000" in page
    assert "needs a DICOMweb server" in page
    page = welcome("http://127.0.0.1:8042/dicom-web", Path("state"), "http://127.0.0.1:8000", None)
    assert "http://127.0.0.1:8000/ohif/" in page
    assert "none yet" in page
