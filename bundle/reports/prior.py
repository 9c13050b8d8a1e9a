# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The figure of the prior q beside what partial cohorts show."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bundle.organs import Vocabulary
from bundle.reports.figures import grid_of_axes
from bundle.training.prior import Prior

__all__ = ["plot_prior"]

matplotlib.use("Agg")


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
