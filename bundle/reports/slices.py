# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Slices of a scan to look at: which one, what part of it, and the organs' contours on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel as nib
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bundle.organs import Vocabulary
from bundle.reports.figures import add_legend, grid_of_axes, legend_line
from bundle.scans.volumes import count_by_slice

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

WINDOW = (-125, 275)  # HU, as in training

AIR = -300  # HU; above it is the body

# Across which axis of RAS, and the letters at the left, right, top and bottom: the radiological convention.
VIEWS = ((2, "RLAP"), (1, "RLSI"), (0, "APSI"))

MARGIN_MM = 40.0  # shown above and below the organs


# --- One slice of many -----------------------------------------------------------------------------------------------
def load_canonical(path: str | Path) -> tuple[NDArray[Any], tuple[float, ...]]:
    """Voxels with axes towards right, front and head, and the voxel size in mm."""
    image = nib.as_closest_canonical(nib.load(path))
    return np.asanyarray(image.dataobj), tuple(float(step) for step in image.header.get_zooms()[:3])


def richest(counts: NDArray[np.int64]) -> int:
    """The slice with the most organs, the larger area of them deciding between equals; the middle one without any.

    Args:
        counts: slices × channels, how many voxels of each organ a slice shows.
    """
    area = counts.sum(1)
    return int(np.argmax((counts > 0).sum(1) + area / (area.max() + 1))) if area.any() else len(counts) // 2


def shown_range(values: ArrayLike, margin: int = 0) -> slice:
    """From the first to the last True and ``margin`` more on both sides; everything when there is none."""
    found = np.flatnonzero(values)
    return slice(max(found[0] - margin, 0), found[-1] + margin + 1) if len(found) else slice(None)


def draw_slice(axis: Axes, image: NDArray[Any], label: NDArray[Any] | None, aspect: float, organs: Vocabulary) -> None:
    """An axial slice with the organs' contours in the radiological view: the patient's right is left, the front is up.

    Args:
        axis: where to draw.
        image: X×Y in HU, axes towards right and front.
        label: X×Y, channels of the vocabulary; None for the CT alone.
        aspect: a voxel's height divided by its width.
        organs: the vocabulary.

    Example:
        >>> figure, (axis,) = grid_of_axes(1, columns=1, width=2.0, height=2.0)
        >>> image = np.array([[0, 0, 0], [0, 0, 100]])  # the brightest voxel lies right and in front
        >>> draw_slice(axis, image, None, 1.0, Vocabulary("liver"))
        >>> axis.images[0].get_array().tolist()  # so it is shown on the left, at the top
        [[100, 0], [0, 0], [0, 0]]
    """
    low, high = WINDOW
    axis.imshow(image[::-1, ::-1].T, cmap="gray", vmin=low, vmax=high, aspect=aspect, interpolation="nearest")
    axis.set_axis_off()
    if label is None:
        return
    for channel, organ in enumerate(organs, start=1):
        mask = (label[::-1, ::-1] == channel).T
        if mask.any():
            axis.contour(mask, [0.5], colors=[organ.rgb], linewidths=1.3)


# --- Cases side by side ----------------------------------------------------------------------------------------------
def plot_slices(
    cases: Sequence[tuple[str, str | Path]], columns: Mapping[str, Sequence[str | Path]], vocabulary: Vocabulary
) -> Figure:
    """One row per case: the CT, then the contours of each label map.

    Args:
        cases: name and image of each case.
        columns: heading and label maps, one per case; the first column is the truth and chooses the slice.
        vocabulary: the organs.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> labels = np.zeros((8, 8, 4), np.uint8)
        >>> labels[2:5, 2:5, 1:3] = 1
        >>> with TemporaryDirectory() as folder:
        ...     path = f"{folder}/a.nii.gz"  # stands for the image as well
        ...     nib.save(nib.Nifti1Image(labels, np.eye(4)), path)
        ...     figure = plot_slices([("a", path)], {"truth": [path]}, Vocabulary("liver"))
        >>> [axis.get_title() for axis in figure.axes]
        ['CT', 'truth']
    """
    heads = ["CT", *columns]
    figure, axes = grid_of_axes(len(cases) * len(heads), len(heads), 2.9, 2.75)
    for row, (name, path) in enumerate(cases):
        line = axes[row * len(heads) : (row + 1) * len(heads)]
        draw_case(line, path, [files[row] for files in columns.values()], vocabulary)
        line[0].text(0.01, 0.99, name, transform=line[0].transAxes, color="white", fontsize=8, va="top")
    for axis, head in zip(axes, heads, strict=False):
        axis.set_title(head, fontsize=11)
    add_legend(figure, [legend_line(organ.rgb, organ.name, linewidth=3) for organ in vocabulary], columns=5)
    return figure


def draw_case(axes: Sequence[Axes], path: str | Path, maps: Sequence[str | Path], vocabulary: Vocabulary) -> None:
    """The CT in the first axis, the contours of a label map in each of the others."""
    image, spacing = load_canonical(path)
    labels = [load_canonical(file)[0] for file in maps]
    z = richest(count_by_slice(labels[0], vocabulary.out_channels)[2])
    body = image[..., z] > AIR
    window = (shown_range(body.any(1)), shown_range(body.any(0)), z)
    for axis, label in zip(axes, [None, *labels], strict=True):
        shown = None if label is None else label[window]
        draw_slice(axis, image[window], shown, spacing[1] / spacing[0], vocabulary)


# --- Three views of a scan -------------------------------------------------------------------------------------------
@dataclass
class Panel:
    """One view: pixels with row 0 at the top, their labels, the size in mm and the letters at the edges."""

    image: NDArray[Any]
    labels: NDArray[np.uint8]
    size: tuple[float, float]
    letters: str


def cut_panels(
    voxels: NDArray[Any], labels: NDArray[np.uint8], affine: NDArray[np.float64], counts: list[NDArray[np.int64]]
) -> list[Panel]:
    """The three views through the richest slices, cut to the body, and to the organs from top to bottom.

    Args:
        voxels: X×Y×Z in HU, in any orientation.
        labels: X×Y×Z, channels of the vocabulary.
        affine: voxel to RAS in mm.
        counts: of the labels, from `count_by_slice`.

    Example:
        >>> voxels, labels = np.zeros((40, 30, 20), np.int16), np.zeros((40, 30, 20), np.uint8)
        >>> labels[28:36, 20:26, 15:18] = 1
        >>> axial, _, _ = cut_panels(voxels, labels, np.diag([1.0, 1.0, 3.0, 1.0]), count_by_slice(labels, 2))
        >>> axial.letters, axial.image.shape  # right, left, front, back; rows and columns
        ('RLAP', (30, 40))
    """
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
