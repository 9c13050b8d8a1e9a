# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Files that appear whole or not at all, and short keys that change when files do."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

__all__ = ["digest_files", "fingerprint_files", "remove_unfinished", "whole_file", "write_json", "write_text"]

UNFINISHED = ".unfinished"  # how a file is called while it is written: .unfinished-PROCESS-NAME


# --- Writing ---------------------------------------------------------------------------------------------------------
@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A hidden name beside ``path`` to write to; the file takes its place when the block ends without an exception.

    A reader never sees half a file: Ctrl-C and errors remove the hidden one, `kill -9` leaves it under that name (see
    :func:`remove_unfinished`). The ending stays, since writers such as nibabel choose the format by it. The folder is
    created if it is not there.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{UNFINISHED}-{os.getpid()}-{path.name}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, UTF-8, whole or not at all."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_json(path: str | Path, record: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write a record as indented JSON, whole or not at all.

    Args:
        path: of the file.
        record: anything that JSON can hold.
        default: what becomes of other objects, for instance ``str`` for paths; they are an error if not given.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_json(f"{folder}/run.json", {"model": Path("model.pt")}, default=str)
    ...     json.loads(Path(folder, "run.json").read_text())
    {'model': 'model.pt'}
    """
    # Made before the file is opened: a record that JSON cannot hold leaves no trace.
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False, default=default) + "\n")


def remove_unfinished(folder: str | Path) -> None:
    """Remove the hidden files that writers left in a folder when they were killed; those of living processes stay."""
    for path in Path(folder).glob(f"{UNFINISHED}-*"):
        process = path.name.split("-")[1]
        if process.isdecimal() and not psutil.pid_exists(int(process)):
            path.unlink(missing_ok=True)


# --- Keys ------------------------------------------------------------------------------------------------------------
def fingerprint_files(paths: Sequence[str | Path], *facts: Any, length: int = 16) -> str:
    """A key that changes when a file is replaced or touched, without reading it: path, size and time of change.

    Args:
        paths: files that exist.
        facts: what else counts, as JSON can hold it, for instance how the files are used.
        length: hexadecimal digits of the key.
    """
    files = [(os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    text = json.dumps([files, *facts] if facts else files, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def digest_files(paths: Sequence[str | Path]) -> str:
    """A key that changes when the content of a file does, wherever the files are: for configs and other small files."""
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in paths)).hexdigest()[:16]
