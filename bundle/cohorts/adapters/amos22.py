# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""AMOS22: CT and MRI with 15 structures; the CT scans of it, with 12 organs of the vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from bundle.cohorts.adapters.base import Adapter, RawCase, pair_files

__all__ = ["Amos22"]


class Amos22(Adapter):
    name = "amos22"
    title = "AMOS 2022, CT"
    labels: ClassVar[dict[int, str]] = {
        0: "background",
        1: "spleen",
        2: "right kidney",
        3: "left kidney",
        4: "gallbladder",
        5: "esophagus",
        6: "liver",
        7: "stomach",
        8: "aorta",
        9: "inferior vena cava",
        10: "pancreas",
        11: "right adrenal gland",
        12: "left adrenal gland",
        13: "duodenum",
        14: "bladder",
        15: "prostate/uterus",
    }
    cases = 300  # 200 in imagesTr, 100 in imagesVa
    license = "CC BY 4.0, see the site"
    url = "https://zenodo.org/records/7262581"
    registration = False
    layout = "amos22/imagesTr/amos_0001.nii.gz and amos22/labelsTr/amos_0001.nii.gz"
    fixes = "MRI (numbers from 500 on) is left out. The validation cases are the section `test`, with their labels."

    def find(self, source: Path) -> list[RawCase]:
        name = r"(amos_0[0-4]\d\d)\.nii\.gz"  # from amos_0500 on it is MRI
        return [
            *pair_files(source, f"imagesTr/{name}", f"labelsTr/{name}"),
            *pair_files(source, f"imagesVa/{name}", f"labelsVa/{name}", section="test"),
            *pair_files(source, f"imagesTs/{name}", section="test"),
        ]
