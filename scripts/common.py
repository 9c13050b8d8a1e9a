# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What several commands share: lists on a command line, output folders, tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bundle.errors import InputError
from bundle.evaluation.tables import Table

__all__ = ["check_numbers", "check_writable", "listed", "print_table"]


def listed(value: Any) -> list[Any]:
    """What Fire makes of `a`, `a,b` and `[a,b]`, as a list."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return list(value) if isinstance(value, list | tuple) else [value]


def check_writable(folder: Path) -> None:
    """The folder is there, or can be made, and takes files."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        reason = "may not be written to" if there.is_dir() else "is a file, where a folder was expected"
        raise InputError(f"{folder}: cannot be written to: {there} {reason}; choose another output")


def check_numbers(**values: Any) -> None:
    """Whole numbers from 0 on, or None."""
    for name, value in values.items():
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise InputError(f"{name}: expected a whole number from 0 on, found {value}")


def print_table(rows: Sequence[Sequence[str]], numbers: bool = False) -> None:
    """Print rows in columns, the head first; ``numbers`` puts all columns but the first to the right."""
    head, *others = rows
    print(Table(head, others, texts=1 if numbers else len(head)).text())
