# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""LiTS: the liver and its tumors, which belong to it. The headers of several files are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np

from bundle.cohorts.adapters.base import Adapter, Annotation, RawCase, as_bytes, pair_files
from bundle.cohorts.agreement import CLEARLY, better_flip, fit
from bundle.errors import InputError
from bundle.scans.grids import same_grid
from bundle.scans.reading import Scan, read_label_map

__all__ = ["Lits"]

FITS = 0.7  # share of a liver's voxels near its median: a label map that lies well on its image has more


class Lits(Adapter):
    name = "lits"
    title = "LiTS, Liver Tumor Segmentation Benchmark"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "liver", 2: "liver tumor"}
    cases = 131
    license = "CC BY-NC-ND 4.0"
    url = "https://competitions.codalab.org/competitions/17094"
    registration = True
    layout = "volume-0.nii and segmentation-0.nii"
    fixes = (
        "A segmentation whose header is not that of its volume gets the volume's, if the values under it show that "
        "their voxels agree. Volumes without a voxel size (the identity as affine: known of volume-28 to volume-47) "
        "are refused. Its scans are also in Task03 of the Decathlon: take one of the two."
    )

    def find(self, source: Path) -> list[RawCase]:
        volume, segmentation = (rf"{name}-(\d+)\.nii(?:\.gz)?" for name in ("volume", "segmentation"))
        return [
            *pair_files(source, volume, segmentation, prefix="volume-"),
            *pair_files(source, f"test-{volume}", section="test", prefix="test-volume-"),
        ]

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        image, label = read_image(), read_label_map(case.labels[0])
        if np.array_equal(image.affine[:3, :3], np.eye(3)):
            raise InputError(
                f"{image.path}: expected a voxel size, found the identity as affine, so neither size nor orientation "
                "are known; leave it out, or mend the header"
            )
        if image.voxels.shape != label.voxels.shape:
            raise InputError(
                f"{label.path}: expected the shape {image.voxels.shape} of {image.path}, found {label.voxels.shape}; "
                "unpack the download again"
            )
        if same_grid(image, label):
            return None
        if not voxels_agree(image, label):
            raise InputError(
                f"{label.path}: expected the affine of {image.path}, found another, and the values under it do not "
                "show that their voxels agree; leave it out, or mend the header"
            )
        note = "the header of the segmentation is not that of the volume; their voxels agree, so the volume's counts"
        return Annotation(as_bytes(label), image.affine, notes=[note])


def voxels_agree(image: Scan, label: Scan) -> bool:
    """Whether the values show that both files have their voxels in one order, against what their headers say."""
    as_stored = fit(image.voxels, label.voxels)
    if as_stored < FITS or better_flip(image.voxels, label.voxels):
        return False
    opposite = tuple(axis for axis in range(3) if image.affine[:3, axis] @ label.affine[:3, axis] < 0)
    return not opposite or fit(image.voxels, np.flip(label.voxels, opposite)) < as_stored - CLEARLY
