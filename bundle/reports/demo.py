# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The report of a demo, which is a two-stage training on synthetic cohorts: scores, slices, losses, proportions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bundle.evaluation.summaries import read_scores
from bundle.evaluation.tables import MISSING, Table, number
from bundle.organs import Vocabulary
from bundle.reports.figures import (
    AXES_PER_ROW,
    COLORS,
    GOLD,
    INK,
    PALE,
    add_legend,
    grid_of_axes,
    legend_line,
    plain_axes,
    plain_log_axis,
    records_of,
)
from bundle.reports.pages import Picture, draw_picture, write_page
from bundle.reports.slices import plot_slices
from bundle.training.history import read_history
from bundle.training.prior import Prior

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["STAGES", "plot_before_after", "plot_losses", "plot_proportions", "score_table", "write_demo"]


STAGES = {"stage 1": "warmup", "stage 2": "model"}  # what the report calls a model, and its checkpoint

SHOWN = 4  # cases in the picture of segmentations

BATCHES, TRACKED, EXACT = "#aab4c0", "#1f6feb", "#c1121f"  # colors of predicted proportions

SMALL_CHANGE = 0.005  # of a Dice; not marked as a gain or a loss


# --- The page --------------------------------------------------------------------------------------------------------
def write_demo(folder: Path, supervision: str, seconds: float) -> Path:
    """Write `report.html` and `slices.png` of a demo that has run in ``folder``; returns the report.

    Args:
        folder: of the demo, with the subfolders data, eval, warmup and model.
        supervision: of stage 2.
        seconds: that everything took.
    """
    history, prior = read_history(folder / "eval" / "history.jsonl"), Prior.load(folder / "eval" / "prior.json")
    before, after = (read_scores(folder / checkpoint)[1] for checkpoint in STAGES.values())
    return write_page(
        folder / "report.html",
        "demo.html",
        title="PaNN on synthetic cohorts",
        before=before,
        after=after,
        supervision=supervision,
        full_cases=len(prior.cases),
        minutes=seconds / 60,
        scores=score_table(before, after),
        slices=draw_segmentations(folder, Vocabulary(prior.names[1:])),
        losses=draw_picture(plot_losses(history), "Means over a few iterations each."),
        proportions=draw_proportions(history, prior),
    )


def draw_segmentations(folder: Path, vocabulary: Vocabulary) -> Picture:
    """The first held-out cases: truth, and the segmentations of both stages."""
    rows, _ = read_scores(folder / STAGES["stage 2"])
    names = list(dict.fromkeys(row["case"] for row in rows))[:SHOWN]
    folders = {"truth": folder / "data" / "test" / "labelsTs"}
    folders |= {stage: folder / checkpoint / "segmentations" for stage, checkpoint in STAGES.items()}
    images = [(name, folder / "data" / "test" / "imagesTs" / f"{name}.nii.gz") for name in names]
    columns = {head: [maps / f"{name}.nii.gz" for name in names] for head, maps in folders.items()}
    figure = plot_slices(images, columns, vocabulary)
    return draw_picture(figure, "The axial slice that shows the most organs.", folder / "slices.png")


def draw_proportions(history: Sequence[Mapping[str, Any]], prior: Prior) -> list[Picture]:
    """Figures of the organ proportions; none where pseudo-labels were never refreshed."""
    if not records_of(history, "train", "refresh"):
        return []
    captions = {
        "What the network predicts during stage 2, against the prior.": plot_proportions,
        "Exact proportions relative to the prior, over all partial cases.": plot_before_after,
    }
    return [draw_picture(plot(history, prior), caption) for caption, plot in captions.items()]


def score_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """Dice of two models per organ, their difference, and the distances of the second.

    Args:
        before: summary of the first model's scores.
        after: of the second's.
    """
    rows, kinds = [], []
    entries = [(name, before["organs"][name], row) for name, row in after["organs"].items()]
    for name, old, new in [*entries, ("mean over organs", before["mean"], after["mean"])]:
        known = old["dice"] is not None and new["dice"] is not None
        change = new["dice"] - old["dice"] if known else None
        kind = "" if change is None or abs(change) < SMALL_CHANGE else "up" if change > 0 else "down"
        rows.append([
            name, number(old["dice"]), number(new["dice"]), MISSING if change is None else f"{change:+.3f}",
            number(new["surface_distance"], 1), number(new["hausdorff95"], 1), number(new["surface_dice"]),
        ])  # fmt: skip
        kinds.append(["", "", "", kind, "", "", ""])
    tolerance = f"surface Dice, {after['surface_dice_tolerance_mm']:g} mm"
    head = ["organ", "Dice, stage 1", "Dice, stage 2", "change", "mean surface distance, mm", "HD95, mm", tolerance]
    return Table(head, rows, kinds=kinds, total=True)


# --- Figures ---------------------------------------------------------------------------------------------------------
def plot_losses(history: Sequence[Mapping[str, Any]]) -> Figure:
    """The loss of stage 1, and the parts of the loss of stage 2; of a stage that was replaced nothing."""
    warmup, train = records_of(history, "warmup"), records_of(history, "train")
    figure, axes = grid_of_axes(2 if warmup else 1, 2, 5.2, 3.4)
    if warmup:
        draw_first_loss(axes[0], warmup)
    draw_loss_parts(axes[-1], train)
    return figure


def draw_first_loss(axis: Axes, warmup: Sequence[Mapping[str, Any]]) -> None:
    axis.plot([r["iteration"] for r in warmup], [r["loss"] for r in warmup], color=INK)
    axis.set(title="stage 1: fully labelled cases", xlabel="iteration", ylabel="loss", yscale="log")
    plain_log_axis(axis.yaxis)
    plain_axes(axis)


def draw_loss_parts(axis: Axes, train: Sequence[Mapping[str, Any]]) -> None:
    names = {"labelled": "labelled  J_L", "partial": "partial  λ1 J_P", "prior": "prior  λ2 J_C"}
    for (name, text), color in zip(names.items(), COLORS, strict=False):
        known = [record for record in train if name in record]
        if known:
            axis.plot([r["iteration"] for r in known], [r[name] for r in known], label=text, color=color)
    axis.set(title="stage 2: all cases", xlabel="iteration")
    axis.axhline(0, color="#b8c0cc", linewidth=0.8)
    if train:
        low, high = axis.get_ylim()
        axis.set_ylim(low, high + 0.15 * (high - low))  # room for the legend
        axis.legend(frameon=False, loc="upper center", ncols=3, fontsize=9)
    plain_axes(axis)


def plot_proportions(history: Sequence[Mapping[str, Any]], prior: Prior) -> Figure:
    """Predicted proportion of each organ in the partially labelled data against the prior, over stage 2."""
    train = [record for record in records_of(history, "train") if "proportions" in record]
    refreshes = records_of(history, "train", "refresh")
    figure, axes = grid_of_axes(len(prior.names) - 1, AXES_PER_ROW, 2.5, 2.0)
    for channel, axis in enumerate(axes, start=1):
        draw_proportion(axis, train, refreshes, prior, channel)
    handles = [
        legend_line(GOLD, "prior q (band: spread over cases)"),
        legend_line(BATCHES, "mini-batches"),
        legend_line(TRACKED, "remembered by the duals, −1/ν"),
        legend_line(EXACT, "exact, at a refresh", marker="o", linestyle=""),
    ]
    add_legend(figure, handles)
    figure.supylabel("% of voxels", fontsize=9)
    for axis in axes[-AXES_PER_ROW:]:
        axis.set_xlabel("iteration of stage 2", fontsize=8)
    return figure


def draw_proportion(
    axis: Axes,
    train: Sequence[Mapping[str, Any]],
    refreshes: Sequence[Mapping[str, Any]],
    prior: Prior,
    channel: int,
) -> None:
    """One organ of `plot_proportions`."""
    q, spread = 100 * prior.proportions[channel], 100 * prior.spread[channel]
    axis.axhspan(q - spread, q + spread, color="#f1c40f", alpha=0.18, linewidth=0)
    axis.axhline(q, color=GOLD, linewidth=1.5)
    when = [r["iteration"] for r in train]
    tracked = [100 * r["tracked"][channel] for r in train]
    exact = [100 * r["proportions"][channel] for r in refreshes]
    axis.plot(when, [100 * r["proportions"][channel] for r in train], color=BATCHES, linewidth=0.7)
    axis.plot(when, tracked, color=TRACKED, linewidth=1.5)
    axis.plot([r["iteration"] for r in refreshes], exact, "o", color=EXACT, markersize=4)
    axis.set_ylim(0, 1.25 * max([q + spread, *exact, *tracked]))
    axis.set_title(prior.names[channel], fontsize=9)
    axis.tick_params(labelsize=7)
    plain_axes(axis)


def plot_before_after(history: Sequence[Mapping[str, Any]], prior: Prior) -> Figure:
    """Exact predicted proportions relative to the prior, before and after stage 2."""
    refreshes = records_of(history, "train", "refresh")
    figure, (axis,) = grid_of_axes(1, 1, 8.5, 3.6)
    if not refreshes:
        return figure
    q = np.array(prior.proportions[1:])
    places = np.arange(len(q))
    for record, color, text in ((refreshes[0], PALE, "before stage 2"), (refreshes[-1], TRACKED, "after stage 2")):
        ratio = np.array(record["proportions"][1:]) / np.maximum(q, 1e-12)
        axis.plot(places, np.maximum(ratio, 1e-2), "o", color=color, label=text, markersize=7)
    axis.axhline(1, color=GOLD, linewidth=1.5)
    axis.set(yscale="log", ylabel="predicted ÷ prior")
    axis.set_xticks(places, prior.names[1:], rotation=35, ha="right")
    axis.legend(frameon=False)
    plain_log_axis(axis.yaxis)
    plain_axes(axis)
    return figure
