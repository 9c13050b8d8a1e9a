# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Preprocessed cases as files that are mapped into memory, and checked: a damaged one is as good as none."""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bundle.errors import InputError
from bundle.files import whole_file

__all__ = ["CaseFile", "open_case_file", "write_case_file"]

logger = logging.getLogger(__name__)

NAME = "name"  # of the entry that says whose file it is
Stamp = tuple[int, int, int]

# Files that this process, or the one it was forked from, has read whole: each is read once, not by every loader.
CHECKED: dict[Path, Stamp] = {}


class CaseFile(NamedTuple):
    """A file, the state it was opened in, and its tensors, mapped into memory."""

    path: Path
    stamp: Stamp
    tensors: dict[str, Any]

    def changed(self) -> bool:
        """Whether somebody has written to the file; one that was deleted stays readable as long as it is mapped."""
        try:
            return stamp(self.path) != self.stamp
        except OSError:
            return False


def stamp(path: Path) -> Stamp:
    """What changes when a file is replaced or written to; without reading it."""
    state = os.stat(path)
    return state.st_ino, state.st_size, state.st_mtime_ns


def write_case_file(path: Path, tensors: Mapping[str, Any]) -> None:
    """Write the tensors; several processes may do so at once, and none sees half a file."""
    with whole_file(path) as unfinished:
        torch.save({**tensors, NAME: path.name}, unfinished)
        CHECKED[path] = stamp(unfinished)


def open_case_file(path: Path) -> CaseFile | None:
    """The file's tensors; None if there is none, or what is there is not what was written, which is logged."""
    try:
        found = stamp(path)
        if CHECKED.get(path) != found:
            check_content(path)
        tensors: dict[str, Any] = torch.load(path, weights_only=True, mmap=True)
        if tensors.pop(NAME, None) != path.name:
            raise ValueError("it belongs to another case or version")
    except FileNotFoundError:
        return None
    except (MemoryError, InputError):
        raise
    except Exception as error:  # a damaged file can make its reader stumble in any way
        reason = str(error).partition("\n")[0]
        logger.warning("%s: the preprocessed case is damaged (%s); it is made again", path, reason)
        return None
    CHECKED[path] = found
    return CaseFile(path, found, tensors)


def check_content(path: Path) -> None:
    """Compare all content with the checksums that torch writes beside it, and does not compare when it maps a file."""
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"the checksum of {damaged} is wrong")
