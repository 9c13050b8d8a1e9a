# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Slices of a scan to look at: which one, what part of it, and the organs' contours on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import nibabel as nib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

from bundle.organs import Vocabulary
from bundle.reports.figures import grid_of_axes
from bundle.scans.volumes import count_by_slice

__all__ = [
    "AIR",
    "WINDOW",
    "Panel",
    "cut_panels",
    "draw_slice",
    "load_canonical",
    "plot_slices",
    "richest",
    "shown_range",
]

matplotlib.use("Agg")


# --- Pictures of segmentations ---------------------------------------------------------------------------------------
def load_canonical(path: str | Path) -> tuple[NDArray[Any], tuple[float, ...]]:
    image = nib.as_closest_canonical(nib.load(path))
    return np.asanyarray(image.dataobj), tuple(float(step) for step in image.header.get_zooms()[:3])


def draw_slice(axis: Axes, image: NDArray[Any], label: NDArray[Any] | None, aspect: float, organs: Vocabulary) -> None:
    # Radiological view: the patient's right is on the left, the front is up.
    axis.imshow(image[::-1, ::-1].T, cmap="gray", vmin=-125, vmax=275, aspect=aspect, interpolation="nearest")
    axis.set_axis_off()
    for channel, organ in enumerate(organs, start=1):
        mask = np.zeros(image.T.shape, bool) if label is None else (label[::-1, ::-1] == channel).T
        if mask.any():
            axis.contour(mask, [0.5], colors=[organ.rgb], linewidths=1.3)


def plot_slices(
    cases: Sequence[tuple[str, str | Path]], columns: Mapping[str, Sequence[str | Path]], vocabulary: Vocabulary
) -> Figure:
    """One row per case: the CT, then the contours of each label map.

    Args:
        cases: name and image of each case.
        columns: heading and label maps, one per case; the first column is the truth and chooses the slice.
        vocabulary: the organs.
    """
    figure, axes = grid_of_axes(len(cases) * (1 + len(columns)), 1 + len(columns), 2.9, 2.75)
    for row, (name, path) in enumerate(cases):
        image, spacing = load_canonical(path)
        maps = [load_canonical(files[row])[0] for files in columns.values()]
        z = richest(count_by_slice(maps[0], vocabulary.out_channels)[2])
        body = np.argwhere(image[..., z] > -300)
        low, high = (body.min(0), body.max(0) + 1) if len(body) else (np.zeros(2, int), np.array(image.shape[:2]))
        window = (slice(low[0], high[0]), slice(low[1], high[1]), z)
        for place, label in enumerate([None, *maps]):
            axis = axes[row * (1 + len(columns)) + place]
            shown = None if label is None else label[window]
            draw_slice(axis, image[window], shown, spacing[1] / spacing[0], vocabulary)
            if row == 0:
                axis.set_title(["CT", *columns][place], fontsize=11)
        axes[row * (1 + len(columns))].text(0.01, 0.99, name, transform=axes[row * (1 + len(columns))].transAxes,
                                            color="white", fontsize=8, va="top")  # fmt: skip
    handles = [Line2D([], [], color=organ.rgb, linewidth=3, label=organ.name) for organ in vocabulary]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return figure


WINDOW = (-125, 275)  # HU, as in training

AIR = -300  # HU; above it is the body

# Across which axis of RAS, and the letters at the left, right, top and bottom: the radiological convention.
VIEWS = ((2, "RLAP"), (1, "RLSI"), (0, "APSI"))

MARGIN_MM = 40.0  # shown above and below the organs


@dataclass
class Panel:
    """One view: pixels with row 0 at the top, their labels, the size in mm and the letters at the edges."""

    image: NDArray[Any]
    labels: NDArray[np.uint8]
    size: tuple[float, float]
    letters: str


def richest(counts: NDArray[np.int64]) -> int:
    """The slice with the most organs, the larger area of them deciding between equals; the middle one without any."""
    area = counts.sum(1)
    return int(np.argmax((counts > 0).sum(1) + area / (area.max() + 1))) if area.any() else len(counts) // 2


def shown_range(values: ArrayLike, margin: int = 0) -> slice:
    """From the first to the last True and ``margin`` more on both sides; everything when there is none."""
    found = np.flatnonzero(values)
    return slice(max(found[0] - margin, 0), found[-1] + margin + 1) if len(found) else slice(None)


def cut_panels(
    voxels: NDArray[Any], labels: NDArray[np.uint8], affine: NDArray[np.float64], counts: list[NDArray[np.int64]]
) -> list[Panel]:
    """The three views through the richest slices, cut to the body, and to the organs from top to bottom."""
    turn = nib.io_orientation(affine)  # the axes nearest to R, A, S: an oblique scan is shown on its own grid
    voxels, labels = (nib.orientations.apply_orientation(array, turn) for array in (voxels, labels))  # views
    axes = np.argsort(turn[:, 0])
    counts = [counts[axis][:: int(turn[axis, 1])] for axis in axes]
    spacing = np.linalg.norm(affine[:3, :3], axis=0)[axes]
    height = shown_range(counts[2].any(1), round(MARGIN_MM / spacing[2]))
    panels = []
    for across, letters in VIEWS:
        place: tuple[Any, ...] = tuple(richest(counts[axis]) if axis == across else slice(None) for axis in range(3))
        if across != 2:
            place = (*place[:2], height)
        image, label = voxels[place], labels[place]
        body: NDArray[np.bool_] = (image > AIR) | (label > 0)
        inner = (shown_range(np.any(body, 1)), shown_range(np.any(body, 0)) if across == 2 else slice(None))
        image, label = image[inner], label[inner]
        steps = np.delete(spacing, across) * image.shape
        # Towards R and A is left, towards A and S is up: both axes run against the pixels'.
        panels.append(Panel(image[::-1, ::-1].T, label[::-1, ::-1].T, (steps[0], steps[1]), letters))
    return panels
