# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Figures of a comparison: box plots, quality of pseudo-labels, proportions, gradients."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bundle.evaluation.comparisons import Comparison
from bundle.evaluation.statistics import case_means, organ_values
from bundle.organs import Vocabulary
from bundle.reports.figures import (
    COLORS,
    GOLD,
    GRAY,
    INK,
    add_legend,
    grid_of_axes,
    legend_line,
    plain_axes,
    records_of,
)
from bundle.training.prior import Prior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

__all__ = ["method_colors", "plot_boxes", "plot_gradients", "plot_quality", "plot_shares"]


AXES_PER_ROW = 5  # of a figure with one axis per organ

BINS = 12  # points of a curve over iterations, each the mean of the steps around it


Records = Sequence[Mapping[str, Any]]  # what a training wrote to history.jsonl


def method_colors(comparison: Comparison) -> dict[str, str]:
    """A color for each method, the same in all figures; the reference has the first, variants the last."""
    keys = sorted(comparison.methods, key=lambda key: (key != comparison.reference, comparison.methods[key].ablation))
    return dict(zip(keys, itertools.cycle(COLORS), strict=False))


# --- Box plots -------------------------------------------------------------------------------------------------------
def plot_boxes(comparison: Comparison, keys: Sequence[str]) -> Figure:
    """Dice of the cases, methods side by side, one axis per organ and one for the means."""
    from matplotlib.patches import Patch

    rows, names = comparison.rows, comparison.vocabulary.names
    groups = {name: [organ_values(rows, key, name).tolist() for key in keys] for name in names}
    groups = {name: group for name, group in groups.items() if any(group)}
    groups["mean over organs"] = [case_means(rows, key).tolist() for key in keys]
    figure, axes = grid_of_axes(len(groups), AXES_PER_ROW, 2.6, 2.4)
    colors = [method_colors(comparison)[key] for key in keys]
    for axis, (name, group) in zip(axes, groups.items(), strict=True):
        draw_boxes(axis, group, colors)
        axis.set_title(name, fontsize=10, fontweight="bold" if name == "mean over organs" else None)
    handles = [
        Patch(facecolor=color, alpha=0.6, edgecolor=color, label=title)
        for color, title in zip(colors, comparison.titles(keys), strict=True)
    ]
    add_legend(figure, handles, size=10)
    figure.supylabel("Dice, %", fontsize=10)
    return figure


def draw_boxes(axis: Axes, group: Sequence[Sequence[float]], colors: Sequence[str]) -> None:
    """One box per method with its cases as dots; a method without cases leaves its place free."""
    spread = np.random.default_rng(0)  # sideways only, so that equal cases do not hide each other
    for place, (values, color) in enumerate(zip(group, colors, strict=True)):
        if not values:
            continue
        dice = 100 * np.array(values)
        axis.boxplot(
            dice, positions=[place], widths=0.65, showfliers=False, patch_artist=True, manage_ticks=False,
            boxprops={"facecolor": color, "alpha": 0.35, "linewidth": 0}, medianprops={"color": color, "linewidth": 2},
            whiskerprops={"color": color}, capprops={"color": color},
        )  # fmt: skip
        axis.plot(place + spread.uniform(-0.18, 0.18, len(dice)), dice, ".", color=color, markersize=4)
    axis.set_xlim(-0.7, len(group) - 0.3)
    axis.set_xticks([])
    axis.tick_params(labelsize=8)
    plain_axes(axis, "y")


# --- Diagnostics -----------------------------------------------------------------------------------------------------
def numbers(values: Any) -> NDArray[np.float64]:
    """Numbers with NaN for null."""
    return np.array(values, dtype=float)


def mean_known(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the first axis without the NaNs; NaN where nothing is known."""
    known = ~np.isnan(rows)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, rows, 0).sum(0) / np.maximum(count, 1), np.nan)


def quality_curves(history: Records, channels: int) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """Iterations of the refreshes, and precision and recall (refreshes × channels), averaged over cohorts."""
    records = [record for record in records_of(history, "train", "refresh") if record.get("quality")]
    nothing = [None] * channels
    curves = {
        kind: np.array([
            mean_known(numbers([cohort.get(kind) or nothing for cohort in record["quality"].values()]))
            for record in records
        ])
        for kind in ("precision", "recall")
    }  # fmt: skip
    return [record["iteration"] for record in records], curves


def plot_quality(histories: Mapping[str, Records], colors: Mapping[str, str], organs: Sequence[str]) -> Figure | None:
    """Precision and recall of the pseudo-labels of each organ at the refreshes; None where no run has noted them.

    Args:
        histories: by title of the method.
        colors: likewise.
        organs: names, background left out.
    """
    curves = {title: quality_curves(history, len(organs) + 1) for title, history in histories.items()}
    curves = {title: curve for title, curve in curves.items() if curve[0]}
    channels = [
        channel for channel in range(1, len(organs) + 1)
        if any(np.isfinite(values[:, channel]).any() for _, found in curves.values() for values in found.values())
    ]  # fmt: skip
    if not channels:
        return None
    figure, axes = grid_of_axes(len(channels), AXES_PER_ROW, 2.6, 2.15)
    for axis, channel in zip(axes, channels, strict=True):
        for title, (when, found) in curves.items():
            for kind, style in (("precision", "o-"), ("recall", "s--")):
                axis.plot(when, 100 * found[kind][:, channel], style, color=colors[title], markersize=3, linewidth=1.4)
        tidy(axis, organs[channel - 1])
    handles = [legend_line(colors[title], title, linewidth=3) for title in curves]
    handles.append(legend_line(GRAY, "precision", marker="o", markersize=4))
    handles.append(legend_line(GRAY, "recall", marker="s", markersize=4, linestyle="--"))
    finish(figure, handles, "% of voxels")
    return figure


def plot_shares(history: Records, prior: Prior) -> Figure | None:
    """p̄ of each organ in each partial cohort over q, at the refreshes; None where there were none."""
    records = [record for record in records_of(history, "train", "refresh") if record.get("by_cohort")]
    cohorts = list(dict.fromkeys(name for record in records for name in record["by_cohort"]))
    channels = [channel for channel in range(1, len(prior.names)) if prior.proportions[channel] > 0]
    if not cohorts or not channels:
        return None
    colors = dict(zip(cohorts, itertools.cycle(COLORS), strict=False))
    figure, axes = grid_of_axes(len(channels), AXES_PER_ROW, 2.6, 2.15)
    for axis, channel in zip(axes, channels, strict=True):
        axis.axhline(1, color=GOLD, linewidth=1.2)
        for cohort in cohorts:
            mine = [record for record in records if cohort in record["by_cohort"]]
            ratio = numbers([record["by_cohort"][cohort][channel] for record in mine]) / prior.proportions[channel]
            when = [record["iteration"] for record in mine]
            axis.plot(when, np.maximum(ratio, 0.01), "o-", color=colors[cohort], markersize=3, linewidth=1.4)
        tidy(axis, prior.names[channel])
        log_scale(axis.yaxis, np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines]))
    handles = [legend_line(color, cohort, linewidth=3) for cohort, color in colors.items()]
    handles.append(legend_line(GOLD, "the prior itself"))
    finish(figure, handles, "p̄ ÷ q")
    return figure


def plot_gradients(history: Records, vocabulary: Vocabulary) -> Figure | None:
    """Size of the prior's gradient over that of the loss on partial samples, per organ; None where it was not noted."""
    from matplotlib.figure import Figure

    records = [record for record in records_of(history, "train") if record.get("gradients")]
    if not records:
        return None
    sizes = {kind: numbers([record["gradients"][kind] for record in records]) for kind in ("partial", "prior")}
    when = np.array([record["iteration"] for record in records])
    figure = Figure(figsize=(12, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    groups = np.array_split(np.arange(len(when)), min(BINS, len(when)))
    curves = np.array([ratio_of({kind: rows[group] for kind, rows in sizes.items()}) for group in groups])
    total = ratio_of(sizes)
    for channel, organ in enumerate(vocabulary, start=1):
        left.plot([1, total[channel]], [channel, channel], color=organ.rgb, linewidth=2)
        left.plot(total[channel], channel, "o", color=organ.rgb, markersize=8)
        right.plot([when[group].mean() for group in groups], curves[:, channel], ".-", color=organ.rgb, linewidth=1.5)
    left.set_yticks(range(1, len(vocabulary) + 1), vocabulary.names)
    left.invert_yaxis()
    left.axvline(1, color=INK, linewidth=1)
    right.axhline(1, color=INK, linewidth=1)
    left.set(title="all steps together", xlabel="prior ÷ partial loss")
    right.set(title="over training", xlabel="iteration of stage 2", ylabel="prior ÷ partial loss")
    log_scale(left.xaxis, total[1:])
    log_scale(right.yaxis, curves[:, 1:])
    for axis in (left, right):
        plain_axes(axis)
    return figure


def ratio_of(sizes: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """Mean size of the prior's gradient over the partial loss's, per channel; NaN where the latter is 0.

    Of the means, not the mean of ratios: a step without the organ has a gradient of that loss next to nothing, and
    would decide alone.
    """
    prior, partial = mean_known(sizes["prior"]), mean_known(sizes["partial"])
    return np.divide(prior, partial, out=np.full_like(prior, np.nan), where=(partial > 0) & (prior > 0))


def tidy(axis: Axes, title: str) -> None:
    axis.set_title(title, fontsize=9.5)
    axis.tick_params(labelsize=7.5)
    plain_axes(axis)
    axis.locator_params(axis="x", nbins=4)


def log_scale(axis: Axis, values: NDArray[np.float64]) -> None:
    """A logarithmic axis that shows 1, at least from a half to two, and reads as plain numbers."""
    known = values[np.isfinite(values)]
    low, high = min(0.45, 0.85 * known.min(initial=1)), max(2.2, 1.18 * known.max(initial=1))
    ticks = [digit * 10.0**power for power in range(-6, 7) for digit in ((1, 2, 5) if high < 50 * low else (1,))]
    ticks = [tick for tick in ticks if low <= tick <= high]
    (axis.axes.set_xscale if axis is axis.axes.xaxis else axis.axes.set_yscale)("log")
    axis.set_view_interval(low, high, ignore=True)
    axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)


def finish(figure: Figure, handles: list[Line2D], along: str) -> None:
    """Legend and labels that all axes of a figure share; each column has the iterations at its foot."""
    add_legend(figure, handles, size=9.5)
    figure.supylabel(along, fontsize=9.5)
    for axis in figure.axes[-AXES_PER_ROW:]:
        axis.set_xlabel("iteration of stage 2", fontsize=8)
