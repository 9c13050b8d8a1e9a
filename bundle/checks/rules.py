# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What can be odd about a case that was read: its grid, its values, the size of its organs and where they lie.

Every rule is a generator of findings over numbers that `bundle.checks` has gathered; the limits stand at the top.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import nibabel as nib
import numpy as np

from bundle.cohorts.datalists import Case
from bundle.organs import ORGANS
from bundle.scans.finding import NIFTI, ending_of
from bundle.scans.reading import Scan
from bundle.scans.volumes import Volumes

__all__ = ["HISTOGRAM", "NO_HU", "Finding", "odd_grid", "odd_header", "odd_values", "odd_volumes"]


SPACING_MM = (0.2, 10.0)

FIELD_MM = (100.0, 1000.0)

ABSURD_MM = (20.0, 3000.0)  # beyond it the unit is wrong

HISTOGRAM = (-200, 300)  # HU that are counted: soft tissue, and no value that padding or clipping makes

SOFT_SHARE = 0.02  # of the voxels at least are soft tissue

DENSE_SHARE = 0.15  # of the voxels at most are bone

OFFSET = 1024  # of CT values stored without their sign

AIR_HU = -500  # a whole CT has some below it: air around the body, lungs or gas

ALWAYS_THERE = {"liver", "spleen", "right kidney", "left kidney", "aorta"}  # in all but few people

MOST = 0.75  # share of the annotated organs

NO_HU = {"rescaled", "offset", "values"}  # kinds that say that an image is not in Hounsfield units


@dataclass(frozen=True)
class Finding:
    """Something about a case.

    Args:
        kind: one word, as `"accept"` names it.
        error: whether training on it would do harm; else it is a warning.
        message: what was expected, what was found, in which file, what to do.
    """

    kind: str
    error: bool
    message: str


# --- The image -------------------------------------------------------------------------------------------------------
def odd_header(image: Scan) -> Iterator[Finding]:
    if ending_of(image.path) not in NIFTI:
        return
    header = nib.load(image.path).header
    if not header["qform_code"] and not header["sform_code"]:
        message = (
            f"{image.path}: its header does not say where left and right are (qform_code and sform_code are 0); "
            "convert the scan again from its source"
        )
        yield Finding("orientation", False, message)
    elif np.array_equal(image.affine[:3, :3], np.eye(3)):
        message = (
            f"{image.path}: its affine is the identity, so that neither the size of its voxels nor left and right are "
            "known; convert the scan again from its source"
        )
        yield Finding("orientation", False, message)


def odd_grid(path: str, spacing: Sequence[float], field_of_view: Sequence[float]) -> Iterator[Finding]:
    low, high = SPACING_MM
    if not all(low <= step <= high for step in spacing):
        message = (
            f"{path}: expected voxels of {low:g} to {high:g} mm, found {lengths(spacing)}; correct the header if its "
            "unit is not mm"
        )
        yield Finding("spacing", False, message)
    low, high = FIELD_MM
    if not all(low <= length <= high for length in field_of_view):
        message = (
            f"{path}: expected a field of view of {low:g} to {high:g} mm, found {lengths(field_of_view)}; correct the "
            "header if its unit is not mm; the prior expects scans that show the whole abdomen"
        )
        absurd = not all(ABSURD_MM[0] <= length <= ABSURD_MM[1] for length in field_of_view)
        yield Finding("field", absurd, message)


def lengths(values: Sequence[float]) -> str:
    return " × ".join(f"{value:g}" for value in values) + " mm"


def odd_values(path: str, low: float, high: float, soft: float, dense: float) -> Iterator[Finding]:
    """Values that are no Hounsfield units.

    Args:
        path: of the image.
        low: lowest value.
        high: highest value.
        soft: share of the voxels from -200 to 300 HU, where soft tissue lies.
        dense: share of the voxels above that, where only bone lies.
    """
    found = f"found values from {low:g} to {high:g}"
    if low >= 0 and high <= 255:
        message = f"{path}: expected Hounsfield units, {found}: the image was rescaled; take the original scan"
        yield Finding("rescaled", True, message)
    elif low > -OFFSET / 4 and dense > DENSE_SHARE:
        message = (
            f"{path}: expected Hounsfield units with air at -1000, {found}: a CT stored without its offset, or no CT; "
            f"of a CT subtract {OFFSET}, or set the header's intercept to -{OFFSET}"
        )
        yield Finding("offset", True, message)
    elif soft < SOFT_SHARE:
        message = (
            f"{path}: expected Hounsfield units, {found} and only {soft:.1%} of the voxels from {HISTOGRAM[0]} to "
            f"{HISTOGRAM[1]}, where soft tissue lies; take the original scan"
        )
        yield Finding("values", True, message)
    elif low > AIR_HU:
        message = (
            f"{path}: expected Hounsfield units with air at -1000, {found}: the scan was windowed, or cut to the body; "
            "take the original scan if there is one"
        )
        yield Finding("windowed", False, message)


# --- The label map ---------------------------------------------------------------------------------------------------
def odd_volumes(case: Case, volumes: Volumes) -> Iterator[Finding]:
    if case["labelled"] and not any(organ.voxels for organ in volumes.organs.values()):
        message = (
            f"{case['label']}: is empty, though {', '.join(case['labelled'])} should be annotated; mark them, or give "
            'the case "labelled": [] if nobody has marked them, "accept": ["empty"] if they are not in the scan'
        )
        yield Finding("empty", True, message)
    present = [name for name in case["labelled"] if volumes.organs[name].voxels]
    missing = [name for name in case["labelled"] if name in ALWAYS_THERE and name not in present]
    if missing and len(present) >= MOST * len(case["labelled"]):
        message = (
            f"{case['label']}: does not mark the {' and the '.join(missing)}, though most other organs are there; look "
            f'whether nobody marked it: the case then needs "labelled" with the organs that were'
        )
        yield Finding("missing", False, message)
    for organ in ORGANS:
        found = volumes.organs.get(organ.name)
        if found is None or not found.voxels:
            continue
        low, high = organ.volume_ml
        if found.ml > high or (found.ml < low and not found.touches_border):
            message = (
                f"{case['label']}: the {organ.name} has {found.ml:.3g} ml, where {low:g} to {high:g} are usual; look "
                "whether it is marked as it should be"
            )
            yield Finding("volume", False, message)
