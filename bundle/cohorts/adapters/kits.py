# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""KiTS19, KiTS21 and KiTS23: the kidneys with their tumors and cysts, as one label for both sides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from bundle.cohorts.adapters.base import ALL_ORGANS, Adapter, Annotation, RawCase, find_files, read_pair
from bundle.cohorts.sides import body_middle, split_sides
from bundle.scans.reading import Scan

__all__ = ["Kits"]

RIGHT, LEFT, BOTH = 2, 3, 14
SEGMENTATIONS = ("aggregated_MAJ_seg.nii.gz", "segmentation.nii.gz")  # KiTS21 has the first: its raters' majority


class Kits(Adapter):
    name = "kits"
    title = "KiTS, Kidney Tumor Segmentation (2019, 2021 or 2023)"
    labels: ClassVar[dict[int, str]] = {
        0: "background",
        RIGHT: ALL_ORGANS[RIGHT],
        LEFT: ALL_ORGANS[LEFT],
        BOTH: "kidney",
    }
    cases = 489  # KiTS23; 300 in KiTS21, 210 in KiTS19
    license = "CC BY-NC-SA 4.0"
    url = "https://kits-challenge.org/kits23/"
    registration = False
    layout = "case_00000/imaging.nii.gz and case_00000/segmentation.nii.gz (KiTS21: aggregated_MAJ_seg.nii.gz)"
    fixes = (
        "Kidney, tumors and cysts are one, split into right and left; a case in which that is not clear counts as "
        "unlabelled. Cases without a segmentation are the section `test`."
    )

    def find(self, source: Path) -> list[RawCase]:
        cases = []
        for name, image in find_files(source, r"(case_\d+)/imaging\.nii\.gz").items():
            labels = [path for file in SEGMENTATIONS if (path := image.parent / file).is_file()]
            cases.append(RawCase(name, image, tuple(labels[:1]), section="training" if labels else "test"))
        return cases

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        image, label = read_pair(case, read_image)
        kidneys = label.voxels > 0
        labels = np.zeros(kidneys.shape, np.uint8, order="F")
        sides = split_sides(kidneys, image.affine, body_middle(image.voxels, image.affine))
        if sides is None:
            labels[kidneys] = BOTH
            return Annotation(
                labels,
                image.affine,
                labelled=[],
                notes=["which kidney is the right one is not clear, both are unknown"],
            )
        labels[sides[0]], labels[sides[1]] = RIGHT, LEFT
        return Annotation(labels, image.affine)
