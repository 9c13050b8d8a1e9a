# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Whether organs lie where organs lie: sides of the body, and agreement of a label map with its image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bundle.checks.rules import Finding
from bundle.cohorts.agreement import better_flip, fit, thinned
from bundle.cohorts.datalists import Case
from bundle.cohorts.sides import body_middle
from bundle.organs import Vocabulary
from bundle.scans.reading import Scan
from bundle.scans.volumes import SliceCounts

__all__ = ["off_the_organs", "wrong_sides"]


TELLING_ORGANS = 3  # solid ones, of which not all fit better elsewhere by chance

MISPLACED = 0.5  # fit below which a label map hardly lies on organs

SIDE_MM = 20.0  # an organ on the wrong side of the body by more than this

FEW = 20  # voxels: a speck has no side

HOLLOW = {"stomach", "esophagus", "gallbladder"}  # filled with anything

SIDES = {  # organs that lie on one side of the body: 1 right, -1 left
    "liver": 1, "spleen": -1, "right kidney": 1, "left kidney": -1, "right adrenal gland": 1, "left adrenal gland": -1,
}  # fmt: skip

ACCEPT_MIRRORED = 'correct its affine, or give the case "accept": ["mirrored"] if the patient has situs inversus'


def place_of(channel: int, counts: SliceCounts, affine: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """mm to the right, front and head of the center of an organ; None where there is too little of it."""
    total = counts[0][:, channel].sum()
    if total < FEW:
        return None
    center = [float(np.arange(len(count)) @ count[:, channel] / total) for count in counts]
    place: NDArray[np.float64] = affine[:3, :3] @ center + affine[:3, 3]
    return place


def wrong_sides(image: Scan, counts: SliceCounts, case: Case, vocabulary: Vocabulary) -> Iterator[Finding]:
    """The liver lies to the right of the spleen and before the kidneys, right organs to the right of left ones.

    Args:
        image: the scan.
        counts: voxels of each channel by slice, see `bundle.scans.volumes.count_by_slice`.
        case: for its label file.
        vocabulary: the organs.

    >>> from bundle.scans.volumes import count_by_slice
    >>> labels = np.zeros((10, 4, 4), np.uint8)
    >>> labels[1:3], labels[7:9] = 1, 2  # with this affine the first axis runs to the patient's right
    >>> image = Scan(np.zeros(labels.shape), np.eye(4), "ct.nii.gz")
    >>> counts, vocabulary = count_by_slice(labels, channels=3), Vocabulary("right kidney,left kidney")
    >>> [(found.kind, found.error) for found in wrong_sides(image, counts, {"label": "label.nii.gz"}, vocabulary)]
    [('swapped', True)]
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
    """Label maps that do not lie on the organs of their image, judged by the image's values.

    A spleen's label on a mirrored image lies on the liver: with that label alone it is not found. A single organ that
    is patchy by nature (a kidney in an early phase) may fit better elsewhere: that is a warning only.

    >>> voxels, labels = np.full((10, 6, 6), -100), np.zeros((10, 6, 6), np.uint8)
    >>> voxels[:3], labels[-3:] = 50, 1  # a liver in fat, and its label at the other end
    >>> image = Scan(voxels, np.eye(4), "ct.nii.gz")
    >>> [found.kind for found in off_the_organs(image, labels, {"label": "label.nii.gz"}, Vocabulary("liver"))]
    ['flipped']
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
