# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Medical Segmentation Decathlon: spleen, liver and pancreas. Tumours belong to their organ."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from bundle.cohorts.adapters.base import Adapter, RawCase, pair_files

__all__ = ["MsdLiver", "MsdPancreas", "MsdSpleen"]


class Decathlon(Adapter):
    """A task of the Decathlon, whose files are called after its organ."""

    prefix: ClassVar[str]
    license = "CC BY-SA 4.0"
    url = "http://medicaldecathlon.com"
    registration = False
    fixes = "The `._` twins of every file in the archive are passed over."

    def find(self, source: Path) -> list[RawCase]:
        name = rf"({self.prefix}_\d+)\.nii\.gz"
        training = pair_files(source, f"imagesTr/{name}", f"labelsTr/{name}")
        return training + pair_files(source, f"imagesTs/{name}", section="test")


class MsdSpleen(Decathlon):
    name = "msd_spleen"
    title = "Medical Segmentation Decathlon, Task09 Spleen"
    prefix = "spleen"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "spleen"}
    cases = 41
    layout = "Task09_Spleen/imagesTr/spleen_2.nii.gz and labelsTr/spleen_2.nii.gz"


class MsdLiver(Decathlon):
    name = "msd_liver"
    title = "Medical Segmentation Decathlon, Task03 Liver"
    prefix = "liver"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "liver", 2: "liver tumor"}
    cases = 131
    layout = "Task03_Liver/imagesTr/liver_0.nii.gz and labelsTr/liver_0.nii.gz"
    fixes = f"{Decathlon.fixes} Tumors belong to the liver. LiTS has the same scans: take one of the two."


class MsdPancreas(Decathlon):
    name = "msd_pancreas"
    title = "Medical Segmentation Decathlon, Task07 Pancreas"
    prefix = "pancreas"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "pancreas", 2: "pancreatic tumor"}
    cases = 281
    layout = "Task07_Pancreas/imagesTr/pancreas_001.nii.gz and labelsTr/pancreas_001.nii.gz"
    fixes = f"{Decathlon.fixes} Tumors belong to the pancreas."
