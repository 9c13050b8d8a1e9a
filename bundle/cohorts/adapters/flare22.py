# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""FLARE22: 50 cases with 13 structures, of which 12 are in the vocabulary (no portal and splenic vein)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from bundle.cohorts.adapters.base import Adapter, RawCase, pair_files

__all__ = ["Flare22"]


class Flare22(Adapter):
    name = "flare22"
    title = "MICCAI FLARE 2022, labeled cases"
    labels: ClassVar[dict[int, str]] = {
        0: "background",
        1: "liver",
        2: "right kidney",
        3: "spleen",
        4: "pancreas",
        5: "aorta",
        6: "inferior vena cava",
        7: "right adrenal gland",
        8: "left adrenal gland",
        9: "gallbladder",
        10: "esophagus",
        11: "stomach",
        12: "duodenum",
        13: "left kidney",
    }
    cases = 50
    license = "see the site; the scans are CC BY-SA 4.0, as those of Task07 of the Decathlon"
    url = "https://zenodo.org/records/7860267"
    registration = False
    layout = "images/FLARE22_Tr_0001_0000.nii.gz and labels/FLARE22_Tr_0001.nii.gz"
    fixes = "Its scans are also in Task07 of the Decathlon: never train on one of the two and test on the other."

    def find(self, source: Path) -> list[RawCase]:
        return pair_files(source, r"images/(FLARE22_Tr_\d+)_0000\.nii\.gz", r"labels/(FLARE22_Tr_\d+)\.nii\.gz")
