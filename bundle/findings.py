# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What can be odd about a case that was read: its grid, its values, the size of its organs and where they lie.

Every rule is a generator of findings over numbers that `bundle.checks` has gathered; the limits stand at the top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.agreement import better_flip, fit, thinned
from bundle.label_maps import Volumes
from bundle.organs import ORGANS, Vocabulary
from bundle.scans import NIFTI, Scan, ending_of
from bundle.sides import body_middle

__all__ = [
    "HISTOGRAM",
    "KINDS",
    "NO_HU",
    "Counts",
    "Finding",
    "odd_grid",
    "odd_header",
    "odd_values",
    "odd_volumes",
    "off_the_organs",
    "wrong_sides",
]

SPACING_MM = (0.2, 10.0)
FIELD_MM = (100.0, 1000.0)
ABSURD_MM = (20.0, 3000.0)  # beyond it the unit is wrong
HISTOGRAM = (-200, 300)  # HU that are counted: soft tissue, and no value that padding or clipping makes
SOFT_SHARE = 0.02  # of the voxels at least are soft tissue
DENSE_SHARE = 0.15  # of the voxels at most are bone
OFFSET = 1024  # of CT values stored without their sign
AIR_HU = -500  # a whole CT has some below it: air around the body, lungs or gas
TELLING_ORGANS = 3  # solid ones, of which not all fit better elsewhere by chance
MISPLACED = 0.5  # fit below which a label map hardly lies on organs
SIDE_MM = 20.0  # an organ on the wrong side of the body by more than this
FEW = 20  # voxels: a speck has no side
ALWAYS_THERE = {"liver", "spleen", "right kidney", "left kidney", "aorta"}  # in all but few people
MOST = 0.75  # share of the annotated organs
HOLLOW = {"stomach", "esophagus", "gallbladder"}  # filled with anything
SIDES = {  # organs that lie on one side of the body: 1 right, -1 left
    "liver": 1, "spleen": -1, "right kidney": 1, "left kidney": -1, "right adrenal gland": 1, "left adrenal gland": -1,
}  # fmt: skip
KINDS = {
    "unreadable", "orientation", "spacing", "field", "rescaled", "offset", "values", "windowed", "empty", "missing",
    "volume", "mirrored", "swapped", "flipped", "misplaced", "copy", "patient",
}  # fmt: skip
NO_HU = {"rescaled", "offset", "values"}  # kinds that say that an image is not in Hounsfield units
ACCEPT_MIRRORED = 'correct its affine, or give the case "accept": ["mirrored"] if the patient has situs inversus'

Case = dict[str, Any]
Counts = list[NDArray[np.int64]]  # see `label_maps.count_by_slice`


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


def place_of(channel: int, counts: Counts, affine: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """mm to the right, front and head of the centre of an organ; None where there is too little of it."""
    total = counts[0][:, channel].sum()
    if total < FEW:
        return None
    centre = [float(np.arange(len(count)) @ count[:, channel] / total) for count in counts]
    place: NDArray[np.float64] = affine[:3, :3] @ centre + affine[:3, 3]
    return place


def wrong_sides(image: Scan, counts: Counts, case: Case, vocabulary: Vocabulary) -> Iterator[Finding]:
    """The liver lies to the right of the spleen and before the kidneys, right organs to the right of left ones.

    Args:
        image: the scan.
        counts: voxels of each channel by slice, see `label_maps.count_by_slice`.
        case: for its label file.
        vocabulary: the organs.
    """
    found = {name: place_of(channel, counts, image.affine) for channel, name in enumerate(vocabulary.names, start=1)}
    places = {name: place for name, place in found.items() if place is not None}
    right = {name: float(place[0]) for name, place in places.items()}
    mirrored = side_of_liver_and_spleen(right, image) or upside_down(places)
    if mirrored:
        yield Finding("mirrored", True, f"{case['label']}: {mirrored}: the scan is mirrored; {ACCEPT_MIRRORED}")
        return  # pairs would only repeat it
    for organ in ("kidney", "adrenal gland"):
        one, other = f"right {organ}", f"left {organ}"
        if {one, other} <= set(right) and right[one] < right[other]:
            message = (
                f"{case['label']}: the {one} lies to the left of the {other}: their values are swapped, or the scan "
                'is mirrored; exchange the two names in "labels", or correct the affine'
            )
            yield Finding("swapped", True, message)


def upside_down(places: Mapping[str, NDArray[np.float64]]) -> str:
    """What is wrong between front and back, head and feet; empty if nothing is."""
    if not {"liver", "right kidney", "left kidney"} <= set(places):
        return ""
    kidneys = (places["right kidney"] + places["left kidney"]) / 2
    if places["liver"][1] < kidneys[1]:
        return "the liver lies behind the kidneys"
    # kidneys may lie high, but adrenal glands lie on them
    glands = [places[name] for name in ("right adrenal gland", "left adrenal gland") if name in places]
    if places["liver"][2] < kidneys[2] and all(gland[2] < kidneys[2] for gland in glands):
        return "the liver lies below the kidneys"
    return ""


def side_of_liver_and_spleen(places: Mapping[str, float], image: Scan) -> str:
    """What is wrong with it; empty if nothing is. Of one of them alone the middle of the body decides."""
    if {"liver", "spleen"} <= set(places):
        return "the liver lies to the left of the spleen" if places["liver"] < places["spleen"] else ""
    for name in {"liver", "spleen"} & set(places):
        middle = body_middle(image.voxels, image.affine)
        if (places[name] - middle) * SIDES[name] < -SIDE_MM:
            return f"the {name} lies on the {'left' if SIDES[name] > 0 else 'right'} side of the body"
    return ""


def off_the_organs(image: Scan, labels: NDArray[np.uint8], case: Case, vocabulary: Vocabulary) -> Iterator[Finding]:
    """Label maps that do not lie on the organs of their image, told by the image's values.

    A spleen's label on a mirrored image lies on the liver: that alone cannot be told. A single organ that is patchy by
    nature (a kidney in an early phase) may fit better elsewhere: that is a warning only.
    """
    hollow = [channel for channel, name in enumerate(vocabulary.names, start=1) if name in HOLLOW]
    keep = np.arange(256, dtype=np.uint8)
    keep[hollow] = 0
    voxels, labels = thinned(image.voxels, labels)
    labels, path = keep[labels], case["label"]
    axes = better_flip(voxels, labels)
    if axes:
        along = nib.aff2axcodes(image.affine, (("right–left", "left–right"), ("front–back",) * 2, ("head–feet",) * 2))
        message = (
            f"{path}: lies on the organs of {image.path} only when it is flipped "
            f"({' and '.join(along[axis] for axis in axes)}): one of the two is mirrored or shifted; convert both "
            "again from their source"
        )
        organs = {vocabulary.names[value - 1] for value in np.unique(labels) if value}
        yield Finding("flipped", "liver" in organs or len(organs) >= TELLING_ORGANS, message)
    elif (share := fit(voxels, labels)) < MISPLACED:
        message = (
            f"{path}: only {share:.0%} of what it marks has the values of one organ in {image.path}; look whether it "
            "belongs to this scan"
        )
        yield Finding("misplaced", False, message)
