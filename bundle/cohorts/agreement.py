# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Whether a label map lies on the organs of its image, judged by the image's values alone.

It is among the cohorts because adapters turn label maps with it; `bundle.checks.anatomy` examines cases with it.

An organ is of one kind of soft tissue: under its label most values lie close to their median. Under a label map that is
mirrored against its image lie fat, air and bones as well. Organs need no names for this.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["CLEARLY", "better_flip", "fit", "thinned"]


SOFT_TISSUE = (-40.0, 300.0)  # HU of an organ's median, from without to with contrast

NEAR = 60.0  # HU around the median: noise and texture

CLEARLY = 0.15  # by which another orientation must fit better

PLAUSIBLE = 0.6  # of an orientation that is right: 0.88 to 0.98 in real scans and phantoms

FEW = 30  # voxels: fewer say nothing

MANY = 500_000  # voxels that are examined

FLIPS = [axes for count in (1, 2, 3) for axes in itertools.combinations(range(3), count)]


def thinned(voxels: NDArray[Any], labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Every n-th voxel along each axis, so that about `MANY` are left. A short axis keeps all of its slices."""
    step = max(1, round((labels.size / MANY) ** 0.5 if min(labels.shape) < 50 else (labels.size / MANY) ** (1 / 3)))
    every = tuple(slice(None, None, 1 if size < 50 else step) for size in labels.shape)
    return voxels[every], labels[every]


def fit(voxels: NDArray[Any], labels: NDArray[Any]) -> float:
    """Share of the labelled voxels whose value is near the median of its organ, where that is soft tissue: 0 to 1.

    Args:
        voxels: X×Y×Z in HU.
        labels: X×Y×Z, 0 is no organ.
    """
    return fit_of(*thinned(voxels, labels))


def fit_of(voxels: NDArray[Any], labels: NDArray[Any]) -> float:
    places = np.flatnonzero(labels)
    found, values = voxels.reshape(-1)[places], labels.reshape(-1)[places]
    near = total = 0
    for value in np.unique(values):
        inside = found[values == value]
        if len(inside) < FEW:
            continue
        total += len(inside)
        middle = float(np.median(inside))
        if SOFT_TISSUE[0] < middle < SOFT_TISSUE[1]:
            near += int(np.count_nonzero(np.abs(inside - middle) <= NEAR))
    return near / total if total else 1.0


def better_flip(voxels: NDArray[Any], labels: NDArray[Any]) -> tuple[int, ...]:
    """The axes along which the label map must be flipped to fit its image clearly better; none if it fits as it is."""
    voxels, labels = thinned(voxels, labels)
    as_it_is = fit_of(voxels, labels)
    if as_it_is > 1 - CLEARLY:
        return ()
    fits = {axes: fit_of(voxels, np.flip(labels, axes)) for axes in FLIPS}
    best = max(fits, key=lambda axes: fits[axes])
    return best if fits[best] > max(as_it_is + CLEARLY, PLAUSIBLE) else ()
