# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is known about a case after it was examined, and a file that remembers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bundle.checks.rules import Finding
from bundle.files import write_text

__all__ = ["CaseCheck", "as_json", "read_memory", "write_memory"]


@dataclass
class CaseCheck:
    """What is known about a case after it was read; numbers are missing where it could not be.

    Args:
        cohort, case, section: names.
        image: its file or folder.
        shape: voxels.
        spacing: mm.
        field_of_view: mm along right, anterior, superior.
        hu: lowest and highest value.
        volumes: ml of the organs that are marked.
        cut: organs at the border of the scan, whose volume is a lower bound.
        content: equal for two images of the same scan, whatever their format, axes and name.
        findings: what is odd about it.
        thumbnail: a PNG, if one was asked for.
    """

    cohort: str
    case: str
    section: str
    image: str
    shape: list[int] = field(default_factory=list)
    spacing: list[float] = field(default_factory=list)
    field_of_view: list[float] = field(default_factory=list)
    hu: list[float] = field(default_factory=list)
    volumes: dict[str, float] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)
    content: str = ""
    findings: list[Finding] = field(default_factory=list)
    thumbnail: bytes = b""

    @property
    def name(self) -> str:
        return f"{self.cohort}/{self.case}"

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.error]

    @property
    def warnings(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.error]


def read_memory(path: str | Path | None) -> dict[str, CaseCheck]:
    """The results that a file remembers, by the key of their case; none where it is missing or damaged."""
    if path is None or not Path(path).is_file():
        return {}
    try:
        stored = json.loads(Path(path).read_text())
        return {
            key: CaseCheck(**{**entry, "findings": [Finding(**one) for one in entry["findings"]]})
            for key, entry in stored.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}  # of another version, or damaged: examine all cases again


def write_memory(path: str | Path | None, checks: Mapping[str, CaseCheck]) -> None:
    """Remember results in a file, if there is to be one."""
    if path is not None:
        write_text(path, json.dumps({key: as_json(check) for key, check in checks.items()}))


def as_json(check: CaseCheck) -> dict[str, Any]:
    """A result without its thumbnail."""
    return {key: value for key, value in asdict(check).items() if key != "thumbnail"}
