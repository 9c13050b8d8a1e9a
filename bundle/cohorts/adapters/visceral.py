# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""VISCERAL Anatomy3, the CT part of the gold corpus: a file for each structure, called after its RadLex number."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from bundle.cohorts.adapters.base import Adapter, Annotation, RawCase, find_files, merge_masks
from bundle.organs import ORGANS, find_organ
from bundle.scans.reading import Scan

__all__ = ["Visceral"]

RADLEX = {
    58: "liver",
    86: "spleen",
    170: "pancreas",
    187: "gallbladder",
    480: "aorta",
    29662: "right kidney",
    29663: "left kidney",
    30324: "right adrenal gland",
    30325: "left adrenal gland",
}
VALUES = {number: organ.value for number, name in RADLEX.items() if (organ := find_organ(name))}
VOLUME = r"\d+_\d+_(?:CT_wb|CTce_ThAb)"  # patient, volume, modality and region; MR is called otherwise


class Visceral(Adapter):
    name = "visceral"
    title = "VISCERAL Anatomy3, CT"
    labels: ClassVar[dict[int, str]] = {
        0: "background",
        **{organ.value: organ.name for organ in ORGANS if organ.name in RADLEX.values()},
    }
    cases = 40
    license = "usage agreement, for research only"
    url = "https://visceral.eu"
    registration = True
    layout = "Volumes/10000100_1_CTce_ThAb.nii.gz and Segmentations/10000100_1_CTce_ThAb_58_7.nii.gz"
    fixes = (
        "One file for each structure becomes one label map; structures that are not of the 13 organs are left out, as "
        "is MR. What is annotated differs between cases. Of several annotations of a structure the one with the "
        "highest last number counts."
    )

    def find(self, source: Path) -> list[RawCase]:
        masks: dict[str, list[Path]] = {}
        for key, path in find_files(source, rf"({VOLUME}_\d+_\d+)\.nii\.gz").items():
            masks.setdefault(key.rsplit("_", 2)[0], []).append(path)
        return [
            case_of(name, image, masks.get(name, []))
            for name, image in find_files(source, rf"({VOLUME})\.nii\.gz").items()
        ]

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        versions = versions_of(case.labels)
        annotation = merge_masks({VALUES[number]: found[max(found)] for number, found in versions.items()})
        for number, found in versions.items():
            if len(found) > 1:
                annotation.notes.append(
                    f"{RADLEX[number]} is annotated {len(found)} times; {found[max(found)].name} counts"
                )
        return annotation


def case_of(name: str, image: Path, masks: list[Path]) -> RawCase:
    found = tuple(path for path in masks if numbers_of(path)[0] in RADLEX)
    annotated = {RADLEX[number] for number in versions_of(found)}
    labelled = tuple(organ.name for organ in ORGANS if organ.name in annotated)
    fewer = bool(found) and annotated != set(RADLEX.values())
    return RawCase(name, image, found, patient=name.split("_")[0], labelled=labelled if fewer else None)


def numbers_of(path: Path) -> tuple[int, int]:
    """The RadLex number and the number of the annotation at the end of a file's name."""
    structure, version = re.findall(r"\d+", path.name.removesuffix(".nii.gz"))[-2:]
    return int(structure), int(version)


def versions_of(paths: tuple[Path, ...]) -> dict[int, dict[int, Path]]:
    """The files of each RadLex number, by the number of the annotation."""
    versions: dict[int, dict[int, Path]] = {}
    for path in paths:
        structure, version = numbers_of(path)
        versions.setdefault(structure, {})[version] = path
    return versions
