# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""SLIVER07: livers in MetaImage; scans for training and for the test have the same file names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from bundle.cohorts.adapters.base import Adapter, Annotation, RawCase, read_pair
from bundle.scans.reading import Scan

__all__ = ["Sliver07"]


class Sliver07(Adapter):
    name = "sliver07"
    title = "SLIVER07"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "liver"}
    cases = 20
    license = "the challenge's rules: only for research on liver segmentation, not to be passed on"
    url = "https://sliver07.grand-challenge.org"
    registration = True
    layout = "training-scans/liver-orig001.mhd and training-labels/liver-seg001.mhd, with their .raw files"
    fixes = (
        "MetaImage is converted. Scans in a folder whose name begins with `test`, and scans without a label map, are "
        "the section `test`; the former are called after their folder, as their numbers are taken."
    )

    def find(self, source: Path) -> list[RawCase]:
        labels = {number_of(path): path for path in files(source, "liver-seg") if not folder_of_test(path, source)}
        return [case_of(path, folder_of_test(path, source), labels) for path in files(source, "liver-orig")]

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        image, label = read_pair(case, read_image)
        return Annotation((label.voxels > 0).astype(np.uint8), image.affine)


def files(source: Path, prefix: str) -> list[Path]:
    return sorted(source.rglob(f"{prefix}[0-9][0-9][0-9].mhd"))


def number_of(path: Path) -> str:
    return path.stem[-3:]


def folder_of_test(path: Path, source: Path) -> str:
    """The folder of the test scans that a file is in; empty for training. Folders above the download do not count."""
    above = path.relative_to(source).parts[:-1]
    return next((part for part in above if part.lower().startswith("test")), "")


def case_of(image: Path, folder: str, labels: dict[str, Path]) -> RawCase:
    if folder:
        return RawCase(f"{folder}_{image.stem}", image, section="test")
    label = labels.get(number_of(image))
    return RawCase(image.stem, image, (label,)) if label else RawCase(image.stem, image, section="test")
