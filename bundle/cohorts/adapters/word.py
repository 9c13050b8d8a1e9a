# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""WORD: 16 structures of the whole abdomen: eight organs of the vocabulary, and both adrenal glands as one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from bundle.cohorts.adapters.base import Adapter, Annotation, RawCase, as_bytes, pair_files, read_pair
from bundle.cohorts.sides import body_middle, split_sides
from bundle.organs import ORGANS
from bundle.scans.reading import Scan

__all__ = ["Word"]

BOTH, RIGHT, LEFT = 12, 17, 18  # the adrenal glands: WORD's own value, and two new ones


class Word(Adapter):
    name = "word"
    title = "WORD, Whole abdominal ORgan Dataset"
    labels: ClassVar[dict[int, str]] = {
        0: "background",
        1: "liver",
        2: "spleen",
        3: "left kidney",
        4: "right kidney",
        5: "stomach",
        6: "gallbladder",
        7: "esophagus",
        8: "pancreas",
        9: "duodenum",
        10: "colon",
        11: "intestine",
        BOTH: "adrenal gland",
        13: "rectum",
        14: "bladder",
        15: "head of left femur",
        16: "head of right femur",
        RIGHT: "right adrenal gland",
        LEFT: "left adrenal gland",
    }
    cases = 150  # 100 in imagesTr, 20 in imagesVal, 30 in imagesTs
    license = "GPL 3.0, for academic research only, see the site"
    url = "https://github.com/HiLab-git/WORD"
    registration = True
    layout = "WORD-V0.1.0/imagesTr/word_0002.nii.gz and WORD-V0.1.0/labelsTr/word_0002.nii.gz"
    fixes = (
        "The adrenal glands, one label in WORD, are split into right and left; where that is not clear they are "
        "unknown. The makers' validation cases are training cases as well."
    )

    def find(self, source: Path) -> list[RawCase]:
        name = r"(word_\d+)\.nii\.gz"
        sections = {"Tr": "training", "Val": "training", "Ts": "test"}
        return [
            case
            for part, section in sections.items()
            for case in pair_files(source, f"images{part}/{name}", f"labels{part}/{name}", section)
        ]

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        image, label = read_pair(case, read_image)
        labels = as_bytes(label)
        sides = split_sides(labels == BOTH, image.affine, body_middle(image.voxels, image.affine))
        if sides is None:
            others = set(self.labels.values()) - {self.labels[RIGHT], self.labels[LEFT]}
            return Annotation(
                labels,
                image.affine,
                labelled=[organ.name for organ in ORGANS if organ.name in others],
                notes=["which adrenal gland is the right one is not clear, both are unknown"],
            )
        labels[sides[0]], labels[sides[1]] = RIGHT, LEFT
        return Annotation(labels, image.affine)
