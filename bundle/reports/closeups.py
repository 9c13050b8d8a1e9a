# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Where the methods of a comparison differ most: zoomed slices side by side."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.labels import LabelValues
from bundle.errors import InputError
from bundle.evaluation.comparisons import Comparison
from bundle.reports.figures import add_legend, grid_of_axes, legend_line
from bundle.reports.numbers import percent
from bundle.reports.slices import AIR, draw_slice, load_canonical, shown_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["choose_closeups", "plot_closeups"]


ROWS = 4  # rows of the qualitative figure

LINE = 26  # characters that fit above or below one of its pictures

ZOOM = 0.5  # side of its pictures, of the body's longer side

SMALLEST_WINDOW = 8  # voxels


# --- Which places ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Closeup:
    """An organ of a case, and how each method segmented it.

    Args:
        case: name of the case.
        organ: the organ in the middle.
        replicate: whose segmentations are shown.
        maps: segmentation of each method that has one.
        dice: of the organ, by method.
    """

    case: str
    organ: str
    replicate: str
    maps: dict[str, Path]
    dice: dict[str, float]


def choose_closeups(comparison: Comparison, keys: Sequence[str], count: int = ROWS) -> list[Closeup]:
    """Organs of different cases where the reference differs most from the others, for the better or the worse.

    Other organs come first while there are some, so that the figure shows more than one.
    """
    found = [closeup for name in comparison.cases for closeup in case_closeups(comparison, keys, name)]
    found.sort(key=lambda closeup: -gap(closeup, comparison.reference))
    chosen: list[Closeup] = []
    for fresh in (True, False):
        for closeup in found:
            used = closeup.case in {one.case for one in chosen}
            known = closeup.organ in {one.organ for one in chosen}
            if len(chosen) < count and not used and not (fresh and known):
                chosen.append(closeup)
    return sorted(chosen, key=lambda closeup: -gap(closeup, comparison.reference))


def case_closeups(comparison: Comparison, keys: Sequence[str], name: str) -> list[Closeup]:
    """Every organ of a case, as the first replicate that segmented it saw it."""
    files = [comparison.cases[name].get(kind) for kind in ("image", "label")]
    if not all(path and (comparison.folder / path).exists() for path in files):
        return []
    replicate, maps = find_maps(comparison, keys, name)
    rows = comparison.rows.dropna(subset=["dice"])
    rows = rows[(rows["case"] == name) & (rows["replicate"] == replicate) & rows["method"].isin(list(maps))]
    closeups = [
        Closeup(name, str(organ), replicate, maps, dict(zip(mine["method"], mine["dice"], strict=True)))
        for organ, mine in rows.groupby("organ", sort=False)
    ]
    return [one for one in closeups if one.organ in comparison.vocabulary.names and comparison.reference in one.dice]


def find_maps(comparison: Comparison, keys: Sequence[str], name: str) -> tuple[str, dict[str, Path]]:
    """The first replicate whose reference segmented a case, and the segmentations of all methods there."""
    for replicate in comparison.replicates:
        paths = {key: comparison.run(key, replicate) / "test" / "segmentations" / f"{name}.nii.gz" for key in keys}
        if comparison.reference in paths and paths[comparison.reference].exists():
            return replicate, {key: path for key, path in paths.items() if path.exists()}
    return "", {}


def gap(closeup: Closeup, reference: str) -> float:
    """Distance of the reference's Dice from the mean of the others'."""
    others = [value for key, value in closeup.dice.items() if key != reference]
    return abs(closeup.dice[reference] - float(np.mean(others))) if others else 0.0


# --- The figure ------------------------------------------------------------------------------------------------------
def plot_closeups(comparison: Comparison, keys: Sequence[str], closeups: Sequence[Closeup]) -> Figure:
    """One row per close-up: the CT, the truth and each method, with the organ's Dice below."""
    keys = [key for key in keys if any(key in closeup.maps for closeup in closeups)]
    heads = ["CT", "truth", *comparison.titles(keys)]
    figure, axes = grid_of_axes(len(closeups) * len(heads), len(heads), 2.1, 2.35)
    shown: set[int] = set()
    for row, closeup in enumerate(closeups):
        line = axes[row * len(heads) : (row + 1) * len(heads)]
        shown |= draw_closeup(line, comparison, keys, closeup)
        if row == 0:
            for axis, head in zip(line, heads, strict=True):
                axis.set_title(textwrap.fill(head, LINE), fontsize=10)
    organs = [organ for channel, organ in enumerate(comparison.vocabulary, start=1) if channel in shown]
    add_legend(figure, [legend_line(organ.rgb, organ.name, linewidth=3) for organ in organs], columns=len(heads))
    return figure


def draw_closeup(axes: Sequence[Axes], comparison: Comparison, keys: Sequence[str], closeup: Closeup) -> set[int]:
    """One row of the figure; returns the channels to be seen in it."""
    organs, files = comparison.vocabulary, comparison.cases[closeup.case]
    image, spacing = load_canonical(comparison.folder / files["image"])
    maps = {"truth": load_map(comparison.folder / files["label"], image.shape, files)}
    maps |= {key: load_map(path, image.shape) for key, path in closeup.maps.items()}
    channel = organs.names.index(closeup.organ) + 1
    window = closeup_window(image, list(maps.values()), channel, spacing)
    views = [None, maps["truth"], *(maps.get(key) for key in keys)]
    dice = [percent(closeup.dice.get(key), 1) for key in keys]
    for axis, label, text in zip(axes, views, [closeup.case, closeup.organ, *dice], strict=True):
        axis.set_axis_off()
        if label is None and axis is not axes[0]:
            continue  # this method has no segmentation of the case
        draw_slice(axis, image[window], None if label is None else label[window], spacing[1] / spacing[0], organs)
        if label is not None and (label[window] == channel).any():  # the organ that matters stands out
            mask = (label[window] == channel)[::-1, ::-1].T
            axis.contour(mask, [0.5], colors=[organs.organs[channel - 1].rgb], linewidths=2.2)
        axis.text(0.5, -0.03, textwrap.fill(text, LINE), transform=axis.transAxes, ha="center", va="top", fontsize=9)
    return {int(value) for label in maps.values() for value in np.unique(label[window])}


def load_map(path: Path, shape: tuple[int, ...], case: Mapping[str, Any] | None = None) -> NDArray[Any]:
    """A label map; of a case of a cohort its values are turned into the vocabulary's."""
    label, _ = load_canonical(path)
    if case is not None and case.get("values") is not None:
        label = LabelValues.of(case, path).map(np.asarray(label, np.int32))
    if label.shape != shape:
        raise InputError(f"{path}: expected a label map of {shape} voxels like its image, found {label.shape}")
    return label


def closeup_window(
    image: NDArray[Any], maps: Sequence[NDArray[Any]], channel: int, spacing: Sequence[float]
) -> tuple[slice, slice, int]:
    """The axial slice where the maps disagree most about an organ, and a square around the organ in it.

    Args:
        image: X×Y×Z in HU.
        maps: the truth, then the segmentations.
        channel: the organ's.
        spacing: voxel size in mm.
    """
    truth = maps[0] == channel
    wrong, area = np.zeros(image.shape[2]), truth.sum((0, 1)).astype(float)
    for label in maps[1:]:  # one at a time: a scan of 512×512×300 voxels is large
        mask = label == channel
        wrong += (mask != truth).sum((0, 1))
        area += mask.sum((0, 1))
    z = int(np.argmax(wrong + area / (area.max() + 1)))  # the organ's area decides between equals
    body = np.asarray(image[..., z]) > AIR
    organ = np.any([label[..., z] == channel for label in maps], axis=0)
    outlines = [ends_of(np.any(body, axis=1 - axis)) for axis in range(2)]
    side = ZOOM * max((stop - start) * step for (start, stop), step in zip(outlines, spacing, strict=False))
    window = []
    for axis, outline in enumerate(outlines):
        size = image.shape[axis]
        length = min(max(round(side / spacing[axis]), SMALLEST_WINDOW), size)
        middle = sum(ends_of(np.any(organ, axis=1 - axis))) // 2
        ends = sorted((outline[0], outline[1] - length))  # as much of the body as fits
        start = int(np.clip(np.clip(middle - length // 2, *ends), 0, size - length))
        window.append(slice(start, start + length))
    return window[0], window[1], z


def ends_of(values: NDArray[np.bool_]) -> tuple[int, int]:
    """Start and stop of what is True; everything when nothing is."""
    start, stop, _ = shown_range(values).indices(len(values))
    return start, stop
