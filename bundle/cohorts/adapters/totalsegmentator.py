# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""TotalSegmentator v2: a folder for each subject, a file for each organ, any part of the body."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

from bundle.cohorts.adapters.base import ALL_ORGANS, Adapter, Annotation, LeftOutError, RawCase, find_files, merge_masks
from bundle.errors import InputError
from bundle.organs import ORGANS, find_organ
from bundle.scans.reading import Scan

__all__ = ["TotalSegmentator"]


class TotalSegmentator(Adapter):
    name = "totalsegmentator"
    title = "TotalSegmentator v2"
    labels = ALL_ORGANS
    cases = 1228
    license = "CC BY 4.0"
    url = "https://zenodo.org/records/10047292"
    registration = False
    layout = "s0001/ct.nii.gz and s0001/segmentations/liver.nii.gz"
    seen = True
    fixes = (
        "One file for each organ becomes one label map. Subjects without a CT or without any of the 13 organs (heads, "
        "legs) are left out. The makers' test subjects are the section `test`; meta.csv tells which they are."
    )

    def find(self, source: Path) -> list[RawCase]:
        splits = read_splits(source)
        return [
            RawCase(
                subject,
                image,
                labels=tuple(mask_files(image).values()),
                section="test" if splits.get(subject) == "test" else "training",
            )
            for subject, image in find_files(source, r"(s\d{4})/ct\.nii\.gz").items()
        ]

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        masks = mask_files(case.path)
        missing = [organ.name for organ in ORGANS if organ.value not in masks]
        if missing:
            raise InputError(
                f"{case.path.parent / 'segmentations'}: expected a file for each of the 13 organs, found none for "
                f"{', '.join(missing)}; unpack the download again"
            )
        annotation = merge_masks(masks)
        if not annotation.labels.any():
            raise LeftOutError("none of the 13 organs is in its field of view")
        return annotation


def mask_files(image: Path) -> dict[int, Path]:
    """The files of the 13 organs beside a subject's CT, by the organ's value."""
    files = sorted((image.parent / "segmentations").glob("*.nii.gz"))
    return {organ.value: path for path in files if (organ := find_organ(path.name.removesuffix(".nii.gz")))}


def read_splits(source: Path) -> dict[str, str]:
    """`train`, `val` or `test` of each subject; empty where the download's meta.csv is not there."""
    path = next(
        (path for folder in (source, source.resolve().parent) for path in sorted(folder.glob("meta.csv"))), None
    )
    path = path or next(iter(sorted(source.rglob("meta.csv"))), None)
    if path is None:
        return {}
    with path.open(newline="", encoding="utf-8-sig") as file:
        return {row["image_id"]: row.get("split", "") for row in csv.DictReader(file, delimiter=";")}
