# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A hidden name beside ``path`` to write to; the file takes its place when the block ends without an exception.

    A reader never sees half a file: Ctrl-C and errors remove the hidden one, `kill -9` leaves it under that name. The
    ending stays, since writers such as nibabel choose the format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".unfinished-{os.getpid()}-{path.name}")
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
