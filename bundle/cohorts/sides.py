# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Left and right: where the middle of the body is, and a label for both sides split into one for each.

It is among the cohorts because adapters split labels with it; `bundle.checks.anatomy` examines cases with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

__all__ = ["body_middle", "split_sides"]


BODY_HU = -300  # the body lies above it

CLEARLY = 0.95  # share of a part's voxels that lie on one side

SPECK = 0.01  # parts below this share of the label may lie anywhere: a stray voxel does not spoil a case

LARGE = 0.25  # parts above this share of the label are an organ each


def right_of(shape: tuple[int, ...], affine: NDArray[np.float64], places: NDArray[np.int64]) -> NDArray[np.float64]:
    """mm towards the patient's right of voxels given as flat indices in C order."""
    index = np.stack(np.unravel_index(places, shape))
    right: NDArray[np.float64] = affine[0, :3] @ index + affine[0, 3]
    return right


def body_middle(voxels: NDArray[Any], affine: NDArray[np.float64], step: int = 4) -> float:
    """mm to the right at which the middle of the body lies: the median over every ``step``-th voxel of it.

    >>> voxels = np.full((40, 8, 8), -1000)
    >>> voxels[8:21] = 40
    >>> body_middle(voxels, np.diag([2.0, 2.0, 2.0, 1.0]))
    28.0
    """
    coarse = voxels[::step, ::step, ::step]
    body = np.flatnonzero(coarse > BODY_HU)
    scaled = affine @ np.diag([step, step, step, 1.0])
    return float(np.median(right_of(coarse.shape, scaled, body))) if len(body) else float(affine[0, 3])


def split_sides(
    mask: NDArray[np.bool_], affine: NDArray[np.float64], middle: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]] | None:
    """The right and the left part of a mask of paired organs; None where it is not clear.

    It is clear where every connected part lies on one side of the body, and no two large ones on the same.

    Args:
        mask: X×Y×Z.
        affine: voxel to RAS in mm.
        middle: of the body, mm to the right.

    >>> mask = np.zeros((10, 4, 4), bool)
    >>> mask[1:3], mask[7:9] = True, True
    >>> right, left = split_sides(mask, np.eye(4), middle=4.5)
    >>> right[:, 0, 0].nonzero()[0].tolist(), left[:, 0, 0].nonzero()[0].tolist()
    ([7, 8], [1, 2])
    """
    boxes = ndimage.find_objects(mask.astype(np.uint8))
    if not boxes:
        return mask.copy(), mask.copy()
    (box,) = boxes  # a small part of the scan
    parts, count = ndimage.label(mask[box], np.ones((3, 3, 3)))
    places = np.flatnonzero(parts)
    numbers = parts.reshape(-1)[places]
    corner = affine.copy()
    corner[:3, 3] += affine[:3, :3] @ [side.start for side in box]
    on_right = right_of(parts.shape, corner, places) > middle
    size = np.bincount(numbers, minlength=count + 1)
    share = np.bincount(numbers, weights=on_right, minlength=count + 1) / np.maximum(size, 1)
    doubtful = (share < CLEARLY) & (share > 1 - CLEARLY) & (size > SPECK * len(places))
    large = size > LARGE * len(places)
    twice = max(np.count_nonzero(large & (share > 0.5)), np.count_nonzero(large[1:] & (share[1:] <= 0.5))) > 1
    if doubtful[1:].any() or twice:
        return None
    right = np.zeros_like(mask)
    right[box] = (share > 0.5)[parts] & mask[box]
    return right, mask & ~right
