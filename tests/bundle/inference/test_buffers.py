"""Buffers in files: they keep what is in them, take no memory and leave nothing behind."""

import tempfile
from pathlib import Path

import pytest
import torch

from bundle.inference.buffers import DiskBuffers
from bundle.processes import resident_memory


def test_buffers_keep_their_content_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    disk = DiskBuffers()
    first, second = disk.zeros((3, 4)), disk.zeros((2,))
    assert first.dtype == torch.float32
    first += 7
    disk.release()
    assert first.unique().tolist() == [7]
    assert second.unique().tolist() == [0]
    assert not list(tmp_path.iterdir())  # a file without a name


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="only Linux releases them")
def test_released_buffers_take_no_memory() -> None:
    disk = DiskBuffers()
    before = resident_memory()
    buffer = disk.zeros((50_000_000,))
    buffer += 1
    assert resident_memory() - before > 150e6
    disk.release()
    assert resident_memory() - before < 50e6
    assert float(buffer[-1]) == 1
