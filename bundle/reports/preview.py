# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A picture of a segmentation to look at: three slices with the organs in their colors, and the volumes beside them.

matplotlib is loaded by the functions that draw.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.files import whole_file
from bundle.organs import Vocabulary
from bundle.reports.slices import WINDOW, Panel, cut_panels
from bundle.scans.volumes import Volumes, count_by_slice, sum_volumes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["write_preview"]


BRIGHT, DARK = "#e8ecf1", "#0d1117"

PANELS_INCHES, LEGEND_INCHES, TOP_INCHES, LINE_INCHES, GAP_INCHES = (12.0, 6.5), 3.1, 0.3, 0.27, 0.12


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
            letter, (x, y), shift, "axes fraction", "offset points", ha=across, va=along, color=BRIGHT, fontsize=10,
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": DARK, "edgecolor": "none", "alpha": 0.65},
        )  # fmt: skip


def draw_legend(figure: Figure, left: float, volumes: Volumes, vocabulary: Vocabulary) -> None:
    """Names and volumes of the organs that are there, from the top; ``left`` in inches."""
    from matplotlib.patches import Rectangle

    width, height = figure.get_size_inches()
    present = [organ for organ in vocabulary if volumes.organs[organ.name].voxels]
    cut = any(volumes.organs[organ.name].touches_border for organ in present)
    y = height - TOP_INCHES - LINE_INCHES / 2

    def write(x: float, text: str, **style: Any) -> None:
        figure.text(x / width, y / height, text, **{"color": BRIGHT, "fontsize": 10, "va": "center", **style})

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
    """Draw axial, coronal and sagittal slices with the organs in their colors, and the volumes beside them, as a PNG.

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
    figure = Figure(figsize=(width, height), facecolor=DARK)
    left = GAP_INCHES
    for panel in panels:
        wide, high = (scale * length for length in panel.size)
        box = (left / width, (height - high) / 2 / height, wide / width, high / height)
        draw_panel(figure.add_axes(box), panel, vocabulary)
        left += wide + GAP_INCHES
    draw_legend(figure, left + GAP_INCHES, volumes, vocabulary)
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, format="png", dpi=100, facecolor=DARK)
