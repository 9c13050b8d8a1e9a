# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The report of a two-stage training: scores, losses, proportions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from bundle.reports.figures import grid_of_axes, steps
from bundle.reports.pages import Page, number
from bundle.training.prior import Prior

__all__ = ["plot_before_after", "plot_losses", "plot_proportions", "score_table"]

matplotlib.use("Agg")


def score_table(page: Page, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Dice of two models per organ, their difference, and the distances of the second."""
    rows, kinds = [], []
    entries = [*((name, before["organs"][name], row) for name, row in after["organs"].items())]
    for name, old, new in [*entries, ("mean over organs", before["mean"], after["mean"])]:
        known = old["dice"] is not None and new["dice"] is not None
        change = new["dice"] - old["dice"] if known else None
        style = "" if change is None or abs(change) < 0.005 else "up" if change > 0 else "down"
        rows.append([
            name, number(old["dice"]), number(new["dice"]), "–" if change is None else f"{change:+.3f}",
            number(new["surface_distance"], 1), number(new["hausdorff95"], 1), number(new["surface_dice"]),
        ])  # fmt: skip
        kinds.append(["", "", "", style, "", "", ""])
    tolerance = f"surface Dice, {after['surface_dice_tolerance_mm']:g} mm"
    head = ["organ", "Dice, stage 1", "Dice, stage 2", "change", "mean surface distance, mm", "HD95, mm", tolerance]
    page.table(head, rows, kinds)


def plot_losses(history: Sequence[Mapping[str, Any]]) -> Figure:
    """The loss of stage 1, and the parts of the loss of stage 2."""
    figure, (first, second) = grid_of_axes(2, 2, 5.2, 3.4)
    warmup, train = steps(history, "warmup"), steps(history, "train")
    first.plot([r["iteration"] for r in warmup], [r["loss"] for r in warmup], color="#1d2733")
    first.set(title="stage 1: fully labelled cases", xlabel="iteration", ylabel="loss", yscale="log")
    names = {"labelled": "labelled  J_L", "partial": "partial  λ1 J_P", "prior": "prior  λ2 J_C"}
    for name, text in names.items():
        known = [record for record in train if name in record]
        if known:
            second.plot([r["iteration"] for r in known], [r[name] for r in known], label=text)
    second.set(title="stage 2: all cases", xlabel="iteration")
    second.axhline(0, color="#b8c0cc", linewidth=0.8)
    if train:
        low, high = second.get_ylim()
        second.set_ylim(low, high + 0.15 * (high - low))  # room for the legend
        second.legend(frameon=False, loc="upper center", ncols=3, fontsize=9)
    return figure


def plot_proportions(history: Sequence[Mapping[str, Any]], prior: Prior) -> Figure:
    """Predicted proportion of each organ in the partially labelled data against the prior, over stage 2."""
    train, refreshes = steps(history, "train"), steps(history, "train", "refresh")
    train = [record for record in train if "proportions" in record]
    figure, axes = grid_of_axes(len(prior.names) - 1, 5, 2.5, 2.0)
    for channel, axis in enumerate(axes, start=1):
        q, spread = 100 * prior.proportions[channel], 100 * prior.spread[channel]
        axis.axhspan(q - spread, q + spread, color="#f1c40f", alpha=0.18, linewidth=0)
        axis.axhline(q, color="#b7950b", linewidth=1.5)
        when = [r["iteration"] for r in train]
        axis.plot(when, [100 * r["proportions"][channel] for r in train], color="#aab4c0", linewidth=0.7)
        axis.plot(when, [100 * r["tracked"][channel] for r in train], color="#1f6feb", linewidth=1.5)
        exact = [100 * r["proportions"][channel] for r in refreshes]
        axis.plot([r["iteration"] for r in refreshes], exact, "o", color="#c1121f", markersize=4)
        top = max([q + spread, *exact, *(100 * r["tracked"][channel] for r in train)])
        axis.set_ylim(0, 1.25 * top)
        axis.set_title(prior.names[channel], fontsize=9)
        axis.tick_params(labelsize=7)
    handles = [
        Line2D([], [], color="#b7950b", label="prior q (band: spread over cases)"),
        Line2D([], [], color="#aab4c0", label="mini-batches"),
        Line2D([], [], color="#1f6feb", label="remembered by the duals, −1/ν"),
        Line2D([], [], color="#c1121f", marker="o", linestyle="", label="exact, at a refresh"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    figure.supylabel("% of voxels", fontsize=9)
    return figure


def plot_before_after(history: Sequence[Mapping[str, Any]], prior: Prior) -> Figure:
    """Exact predicted proportions relative to the prior, before and after stage 2."""
    refreshes = steps(history, "train", "refresh")
    figure, (axis,) = grid_of_axes(1, 1, 8.5, 3.6)
    if not refreshes:
        return figure
    q = np.array(prior.proportions[1:])
    places = np.arange(len(q))
    for record, color, text in (
        (refreshes[0], "#8c96a3", "before stage 2"),
        (refreshes[-1], "#1f6feb", "after stage 2"),
    ):
        ratio = np.array(record["proportions"][1:]) / np.maximum(q, 1e-12)
        axis.plot(places, np.maximum(ratio, 1e-2), "o", color=color, label=text, markersize=7)
    axis.axhline(1, color="#b7950b", linewidth=1.5)
    axis.set(yscale="log", ylabel="predicted ÷ prior")
    axis.set_xticks(places, prior.names[1:], rotation=35, ha="right")
    axis.legend(frameon=False)
    return figure
