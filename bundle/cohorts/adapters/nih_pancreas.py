# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""NIH Pancreas-CT: a DICOM series for each patient, label maps in NIfTI whose headers do not say where they lie."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.adapters.base import Adapter, Annotation, RawCase, find_files
from bundle.cohorts.agreement import CLEARLY, better_flip, fit
from bundle.errors import InputError
from bundle.scans.reading import Scan, read_label_map

__all__ = ["NihPancreas"]

POOR = 0.6  # below it nothing fits: two real pancreases have 0.93 and 0.98, mirrored ones 0 to 0.74
AXES = ("columns", "rows", "slices")


class NihPancreas(Adapter):
    name = "nih_pancreas"
    title = "NIH Pancreas-CT"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "pancreas"}
    cases = 80
    license = "CC BY 3.0"
    url = "https://www.cancerimagingarchive.net/collection/pancreas-ct/"
    registration = False
    layout = "Pancreas-CT/PANCREAS_0001/*/*/*.dcm and TCIA_pancreas_labels-02-05-2017/label0001.nii.gz"
    fixes = (
        "DICOM is converted. The label maps are columns × rows × slices from the feet up, whatever their headers say; "
        "each is checked against its CT, and turned with a note where another orientation clearly fits better. "
        "Cases 25 and 70, which are scan 2 again, count as the same patient where an old download has them."
    )

    def find(self, source: Path) -> list[RawCase]:
        labels = find_files(source, r"label(\d{4})\.nii\.gz")
        return [
            RawCase(
                f"PANCREAS_{number}",
                folder,
                labels=(labels[number],) if number in labels else (),
                patient="PANCREAS_0002" if number in {"0025", "0070"} else "",
            )
            for number, folder in find_files(source, r"PANCREAS_(\d{4})").items()
        ]

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        image, stored = read_image(), read_label_map(case.labels[0])
        labels, how = turned_to_fit(image.voxels, (stored.voxels > 0).astype(np.uint8), case.labels[0])
        notes = (
            [f"its label map is not stored as documented but with {how}; it was turned to fit the CT"] if how else []
        )
        return Annotation(labels, image.affine, notes=notes)


def turned_to_fit(voxels: NDArray[Any], labels: NDArray[np.uint8], path: Path) -> tuple[NDArray[np.uint8], str]:
    """The label map in the orientation that fits the image, and how it was stored; empty if as documented."""
    options = {"": labels}
    for how, candidate in {"": labels, "rows and columns swapped": labels.swapaxes(0, 1)}.items():
        if candidate.shape == voxels.shape:
            axes = better_flip(voxels, candidate)
            reversed_axes = [f"{AXES[axis]} reversed" for axis in axes]
            options[", ".join([how, *reversed_axes] if how else reversed_axes)] = np.flip(candidate, axes)
    fits = {how: fit(voxels, turned) for how, turned in options.items() if turned.shape == voxels.shape}
    if not fits:
        raise InputError(
            f"{path}: expected a label map of {'×'.join(map(str, voxels.shape))} voxels as its CT, found "
            f"{'×'.join(map(str, labels.shape))}; download both again"
        )
    best = max(fits, key=lambda how: fits[how])
    if "" in fits and fits[best] <= fits[""] + CLEARLY:
        best = ""
    if fits[best] < POOR or not labels.any():
        raise InputError(
            f"{path}: expected a label map that lies on the pancreas of its CT, found that it does not in any "
            f"orientation (at best {fits[best]:.0%} of it is one soft tissue); download both again"
        )
    return options[best], best
