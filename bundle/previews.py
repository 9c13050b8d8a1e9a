# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A picture of a segmentation to look at: three slices with the organs in their colours, and the volumes beside them.

matplotlib is loaded by the functions that draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nibabel as nib
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bundle.label_maps import Volumes, count_by_slice, sum_volumes, whole_file
from bundle.organs import Vocabulary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["richest", "write_preview"]

WINDOW = (-125, 275)  # HU, as in training
AIR = -300  # HU; above it is the body
INK, PAPER = "#e8ecf1", "#0d1117"
# Across which axis of RAS, and the letters at the left, right, top and bottom: the radiological convention.
VIEWS = ((2, "RLAP"), (1, "RLSI"), (0, "APSI"))
MARGIN_MM = 40.0  # shown above and below the organs
PANELS_INCHES, LEGEND_INCHES, TOP_INCHES, LINE_INCHES, GAP_INCHES = (12.0, 6.5), 3.1, 0.3, 0.27, 0.12


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


def draw_panel(axis: Axes, panel: Panel, vocabulary: Vocabulary) -> None:
    low, high = WINDOW
    axis.imshow(panel.image, cmap="gray", vmin=low, vmax=high, aspect="auto", interpolation="antialiased")
    colors = np.zeros((256, 4), np.uint8)
    for channel, organ in enumerate(vocabulary, start=1):
        colors[channel] = (*organ.color, 95)
        mask = panel.labels == channel
        if mask.any() and min(mask.shape) > 1:  # contour wants two rows and columns
            axis.contour(mask, [0.5], colors=[organ.rgb], linewidths=1.1)
    axis.imshow(colors[panel.labels], aspect="auto", interpolation="nearest")
    axis.set_axis_off()
    places = ((0.0, 0.5, "left", "center"), (1.0, 0.5, "right", "center"),
              (0.5, 1.0, "center", "top"), (0.5, 0.0, "center", "bottom"))  # fmt: skip
    for letter, (x, y, across, along) in zip(panel.letters, places, strict=True):
        if x == 0.5 and panel.size[1] < 0.2 * panel.size[0]:
            continue  # few slices make a strip too low for two letters
        shift = (4 if x == 0 else -4 if x == 1 else 0, 4 if y == 0 else -4 if y == 1 else 0)
        axis.annotate(
            letter, (x, y), shift, "axes fraction", "offset points", ha=across, va=along, color=INK, fontsize=10,
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": PAPER, "edgecolor": "none", "alpha": 0.65},
        )  # fmt: skip


def draw_legend(figure: Figure, left: float, volumes: Volumes, vocabulary: Vocabulary) -> None:
    """Names and volumes of the organs that are there, from the top; ``left`` in inches."""
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    present = [organ for organ in vocabulary if volumes.organs[organ.name].voxels]
    cut = any(volumes.organs[organ.name].touches_border for organ in present)
    y = height - TOP_INCHES - LINE_INCHES / 2

    def write(x: float, text: str, **style: Any) -> None:
        figure.text(x / width, y / height, text, **{"color": INK, "fontsize": 10, "va": "center", **style})

    for organ in present:
        volume = volumes.organs[organ.name]
        corner = (left / width, (y - 0.07) / height)
        figure.add_artist(Rectangle(corner, 0.14 / width, 0.14 / height, facecolor=organ.rgb, linewidth=0))
        write(left + 0.24, organ.name)
        amount = f"{volume.ml:.{1 if volume.ml < 10 else 0}f} ml"
        write(left + LEGEND_INCHES - 0.2, ("≥ " if volume.touches_border else "") + amount, ha="right")
        y -= LINE_INCHES
    if cut or not present:
        write(left, "≥ reaches the edge of the scan" if cut else "no organ found", fontsize=9, color="#a3adba")


def write_preview(
    path: str | Path,
    voxels: NDArray[Any],
    labels: NDArray[np.uint8],
    affine: NDArray[np.float64],
    vocabulary: Vocabulary,
) -> None:
    """Draw axial, coronal and sagittal slices with the organs in their colours, and the volumes beside them, as a PNG.

    Args:
        path: the PNG.
        voxels: X×Y×Z in HU, in any orientation; only three slices of it are read.
        labels: X×Y×Z, values are the vocabulary's channels.
        affine: voxel to RAS in mm.
        vocabulary: the organs.
    """
    from matplotlib.figure import Figure

    counts = count_by_slice(labels, vocabulary.out_channels)
    volumes = sum_volumes(counts, affine, vocabulary)
    panels = cut_panels(voxels, labels, affine, counts)
    across, tall = sum(panel.size[0] for panel in panels), max(panel.size[1] for panel in panels)
    scale = min(PANELS_INCHES[0] / across, PANELS_INCHES[1] / tall)  # inches for a mm, one for all views
    lines = sum(organ.voxels > 0 for organ in volumes.organs.values()) + 1
    width = scale * across + 4 * GAP_INCHES + LEGEND_INCHES
    height = max(scale * tall + 2 * GAP_INCHES, lines * LINE_INCHES + 2 * TOP_INCHES)
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    left = GAP_INCHES
    for panel in panels:
        wide, high = (scale * length for length in panel.size)
        box = (left / width, (height - high) / 2 / height, wide / width, high / height)
        draw_panel(figure.add_axes(box), panel, vocabulary)
        left += wide + GAP_INCHES
    draw_legend(figure, left + GAP_INCHES, volumes, vocabulary)
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=100, facecolor=PAPER)
