# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Reports people look at: one HTML file with tables and figures inside, nothing to fetch."""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import matplotlib
import nibabel as nib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from bundle.label_maps import count_by_slice, whole_file
from bundle.organs import Vocabulary
from bundle.previews import richest
from bundle.priors import Prior

matplotlib.use("Agg")

__all__ = ["Page", "plot_before_after", "plot_losses", "plot_prior", "plot_proportions", "plot_slices", "score_table"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 1100px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.7em; margin-bottom: .2em } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid #d8dee6 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25em .9em; text-align: right; border-bottom: 1px solid #e6eaf0 }
th:first-child, td:first-child { text-align: left } tr:last-child td { font-weight: 600; border-top: 2px solid #1d2733 }
table.plain tr:last-child td { font-weight: inherit; border-top: 0 }
td.up { color: #1a7f37 } td.down { color: #c1121f } td.best { background: #e3eefc }
figure { margin: 1em 0 } img { max-width: 100%; height: auto } figcaption, .note { color: #5b6775; font-size: .92em }
.big { font-size: 1.15em }
"""


class Page:
    """An HTML page that is written from top to bottom.

    Args:
        title: heading of the page.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, kind: str = "") -> None:
        self.parts.append(f'<p class="{kind}">{escape(text)}</p>')

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        kinds: Sequence[Sequence[str]] = (),
        total: bool = True,
    ) -> None:
        """A table of text.

        Args:
            head: of the columns.
            rows: their cells.
            kinds: a style for each cell, such as `up`, `down` or `best`.
            total: the last row sums up the others, and stands out.
        """
        lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
        for number, row in enumerate(rows):
            styles = kinds[number] if kinds else [""] * len(row)
            cells = (f'<td class="{kind}">{escape(cell)}</td>' for cell, kind in zip(row, styles, strict=True))
            lines.append("<tr>" + "".join(cells) + "</tr>")
        self.parts.append(f'<table class="{"" if total else "plain"}">' + "\n".join(lines) + "</table>")

    def figure(self, figure: Figure, caption: str, path: str | Path | None = None) -> None:
        """A figure inside the page; ``path`` keeps the picture as a file of its own too."""
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110, bbox_inches="tight")
        if path is not None:
            with whole_file(path) as unfinished:
                unfinished.write_bytes(picture.getvalue())
        data = base64.b64encode(picture.getvalue()).decode()
        self.parts.append(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def save(self, path: str | Path) -> Path:
        body = "\n".join(self.parts)
        with whole_file(path) as unfinished:
            unfinished.write_text(
                f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
                f"<style>{STYLE}</style></head><body><h1>{escape(self.title)}</h1>\n{body}\n</body></html>\n"
            )
        return Path(path)


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


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


# --- Curves ----------------------------------------------------------------------------------------------------------
def grid_of_axes(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    lines = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * lines), layout="constrained")
    axes = [figure.add_subplot(lines, columns, place + 1) for place in range(count)]
    return figure, axes


def steps(history: Sequence[Mapping[str, Any]], stage: str, kind: str = "step") -> list[Mapping[str, Any]]:
    return [record for record in history if record["kind"] == kind and record["stage"] == stage]


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


def draw_share(axis: Axes, share: float, spread: float, height: float, line: str, **marker: Any) -> None:
    """A mean with its spread on a logarithmic axis; an arrow where the spread goes on to 0."""
    left, low = axis.get_xlim()[0], share - spread
    axis.plot([max(low, left), share + spread], [height, height], color=line, linewidth=1.2)
    if low < left:
        axis.plot(left, height, "<", color=line, markersize=5, clip_on=False)
    axis.plot(share, height, color=line, markeredgecolor="#1d2733", **marker)


def plot_prior(prior: Prior, given: Mapping[str, Mapping[str, Any]], vocabulary: Vocabulary) -> Figure:
    """q of each organ with its spread over the cases, and below it what the annotators of partial cohorts marked.

    Args:
        prior: q.
        given: for each cohort its annotated organs, each with a `mean` and a `spread`.
        vocabulary: the organs, for their colours.
    """
    q = {name: (1000 * p, 1000 * s) for name, p, s in zip(prior.names, prior.proportions, prior.spread, strict=True)}
    organs = sorted(vocabulary, key=lambda organ: -q[organ.name][0])
    shapes = dict(zip(given, itertools.cycle("sD^vP*Xhp<>"), strict=False))
    marks = {organ.name: [(name, given[name][organ.name]) for name in given if organ.name in given[name]]
             for organ in organs}  # fmt: skip
    # Every cohort has a line of its own, so that nothing overlaps however many there are.
    lines = np.cumsum([0, *(1 + 0.55 * len(marks[organ.name]) for organ in organs)])
    sizes = [q[organ.name][0] for organ in organs] + [1000 * one.mean for row in marks.values() for _, one in row]
    sizes = [size for size in sizes if size > 0] or [1.0]
    figure, (axis,) = grid_of_axes(1, 1, 8.5, 0.9 + 0.34 * lines[-1])
    axis.set(xscale="log", xlim=(0.4 * min(sizes), 4 * max(sizes)), ylim=(lines[-1] - 0.4, -0.7))
    for height, organ in zip(lines, organs, strict=False):
        share, spread = q[organ.name]
        if share > 0:
            draw_share(axis, share, spread, height, "#1d2733", marker="o", markerfacecolor=organ.rgb, markersize=9)
        else:
            axis.annotate("q is 0", (axis.get_xlim()[0], height), (6, 0), textcoords="offset points", va="center")
        for place, (cohort, one) in enumerate(marks[organ.name], start=1):
            draw_mark(axis, cohort, 1000 * one.mean, 1000 * one.spread, height + 0.55 * place, shapes[cohort])
    axis.set_yticks(lines[:-1], [organ.name for organ in organs])
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter("")
    axis.set_xlabel("‰ of the voxels: q (●) and its spread over the cases; below it what a partial cohort has marked")
    axis.grid(axis="x", color="#e6eaf0")
    axis.set_axisbelow(True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    return figure


def draw_mark(axis: Axes, cohort: str, share: float, spread: float, height: float, shape: str) -> None:
    """What a cohort's annotators marked, with the cohort's name beside it."""
    end = max(share + spread, axis.get_xlim()[0])
    if share > 0:
        draw_share(axis, share, spread, height, "#8c96a3", marker=shape, markerfacecolor="white", markersize=6)
    name = cohort if share > 0 else f"{cohort}: 0"
    axis.annotate(name, (end, height), (6, 0), textcoords="offset points", va="center", color="#5b6775", fontsize=8.5)


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
