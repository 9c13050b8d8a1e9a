# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is known about a case after it was examined, and a file that remembers it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from bundle.checks.rules import Finding
from bundle.cohorts.datalists import KINDS, UNREADABLE
from bundle.errors import InputError
from bundle.files import write_text
from bundle.untrusted import is_number, read_json

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


RESULT_FIELDS = {part.name for part in fields(CaseCheck)} - {"thumbnail"}


def read_memory(path: str | Path | None) -> dict[str, CaseCheck]:
    """The results that a file remembers, by the key of their case; what is missing or damaged is examined again."""
    if path is None or not Path(path).is_file():
        return {}
    try:
        stored = read_json(path)
    except InputError:
        return {}
    entries = stored.items() if isinstance(stored, dict) else ()
    return {key: from_json(entry) for key, entry in entries if is_result(entry)}


def is_result(entry: Any) -> bool:
    """Whether a record of a file is one that `as_json` made."""
    if not isinstance(entry, dict) or set(entry) != RESULT_FIELDS:
        return False
    numbers = [entry[name] for name in ("shape", "spacing", "field_of_view", "hu")]
    return (
        all(isinstance(entry[name], str) for name in ("cohort", "case", "section", "image", "content"))
        and all(isinstance(some, list) and all(map(is_number, some)) for some in numbers)
        and isinstance(entry["volumes"], dict)
        and all(map(is_number, entry["volumes"].values()))
        and isinstance(entry["cut"], list)
        and all(isinstance(name, str) for name in entry["cut"])
        and isinstance(entry["findings"], list)
        and all(map(is_finding, entry["findings"]))
    )


def is_finding(entry: Any) -> bool:
    """Whether a record of a file is that of a finding."""
    return (
        isinstance(entry, dict)
        and set(entry) == {"kind", "error", "message"}
        and entry["kind"] in [*KINDS, UNREADABLE]
        and isinstance(entry["error"], bool)
        and isinstance(entry["message"], str)
    )


def from_json(entry: Mapping[str, Any]) -> CaseCheck:
    """The result of which `as_json` made this."""
    return CaseCheck(**{**entry, "findings": [Finding(**one) for one in entry["findings"]]})


def write_memory(path: str | Path | None, checks: Mapping[str, CaseCheck]) -> None:
    """Remember results in a file, if there is to be one."""
    if path is not None:
        write_text(path, json.dumps({key: as_json(check) for key, check in checks.items()}))


def as_json(check: CaseCheck) -> dict[str, Any]:
    """A result without its thumbnail."""
    return {key: value for key, value in asdict(check).items() if key in RESULT_FIELDS}
