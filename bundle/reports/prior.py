# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The report of a survey: q, its figure, and beside it what partial cohorts show."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bundle.evaluation.tables import MISSING, Table
from bundle.organs import Vocabulary
from bundle.reports.figures import GRAY, INK, PALE, grid_of_axes, plain_axes
from bundle.reports.pages import draw_picture, write_page
from bundle.training.prior import Prior
from bundle.training.survey import Cohort, Given, Survey

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_prior", "share_table", "view_table", "write_prior_page"]


LINE = 0.55  # height of a cohort's line in the figure; an organ's is 1

MARKERS = "sD^vP*Xhp<>"  # of the cohorts


# --- The page --------------------------------------------------------------------------------------------------------
def write_prior_page(folder: Path, survey: Survey, vocabulary: Vocabulary) -> Path:
    """Write `prior.html`, and its figure as `prior.png`; returns the page.

    Args:
        folder: where to.
        survey: of the cohorts.
        vocabulary: the organs.
    """
    figure = plot_prior(survey.prior, {cohort.name: cohort.given for cohort in survey.partial}, vocabulary)
    caption = "Bars: one standard deviation over the cases. An arrow goes on to 0."
    return write_page(
        folder / "prior.html",
        "prior.html",
        title="Organ proportions",
        survey=survey,
        patch="×".join(str(size) for size in survey.prior.sampling["patch"]),
        figure=draw_picture(figure, caption, folder / "prior.png"),
        shares=share_table(survey),
        views=view_table(survey),
    )


def share_table(survey: Survey) -> Table:
    """Organ, q and spread, then a column for each partial cohort; the background comes last."""
    head = ["organ", "q ‰", "spread", *(f"{cohort.name} ({cohort.cases})" for cohort in survey.partial)]
    q = list(zip(survey.prior.names, survey.prior.proportions, survey.prior.spread, strict=True))
    rows = [
        [name, per_mille(share), per_mille(spread), *(given_share(cohort, name) for cohort in survey.partial)]
        for name, share, spread in [*q[1:], q[0]]
    ]
    return Table(head, rows)


def given_share(cohort: Cohort, organ: str) -> str:
    """What a cohort's annotators marked, with its spread and how often q it is."""
    given = cohort.given.get(organ)
    if given is None:
        return MISSING
    times = "" if given.ratio is None else f"  ×{given.ratio:.2f}"
    return f"{per_mille(given.mean)} ± {per_mille(given.spread)}{times}"


def per_mille(share: float) -> str:
    return f"{1000 * share:.3f}"


def view_table(survey: Survey) -> Table:
    """Field of view of each partial cohort and of the full cases."""
    head = ["field of view", "cases", "right-left mm", "back-front mm", "foot-head mm", "liters"]
    rows = [
        [cohort.name, str(cohort.cases), *(f"{side:.0f}" for side in cohort.extent_mm), f"{cohort.volume_l:.1f}"]
        for cohort in [*survey.partial, survey.full]
    ]
    return Table(head, rows)


# --- The figure ------------------------------------------------------------------------------------------------------
def plot_prior(prior: Prior, given: Mapping[str, Mapping[str, Given]], vocabulary: Vocabulary) -> Figure:
    """q of each organ with its spread over the cases, and below it what the annotators of partial cohorts marked.

    Args:
        prior: q.
        given: for each cohort its annotated organs.
        vocabulary: the organs, for their colors.
    """
    q = {name: (1000 * p, 1000 * s) for name, p, s in zip(prior.names, prior.proportions, prior.spread, strict=True)}
    organs = sorted(vocabulary, key=lambda organ: -q[organ.name][0])
    shapes = dict(zip(given, itertools.cycle(MARKERS), strict=False))
    marks = {organ.name: [(name, given[name][organ.name]) for name in given if organ.name in given[name]]
             for organ in organs}  # fmt: skip
    # Every cohort has a line of its own, so that nothing overlaps however many there are.
    lines = np.cumsum([0, *(1 + LINE * len(marks[organ.name]) for organ in organs)])
    sizes = [q[organ.name][0] for organ in organs] + [1000 * one.mean for row in marks.values() for _, one in row]
    sizes = [size for size in sizes if size > 0] or [1.0]
    figure, (axis,) = grid_of_axes(1, 1, 8.5, 0.9 + 0.34 * lines[-1])
    axis.set(xscale="log", xlim=(0.4 * min(sizes), 4 * max(sizes)), ylim=(lines[-1] - 0.4, -0.7))
    for height, organ in zip(lines, organs, strict=False):
        draw_q(axis, *q[organ.name], height, organ.rgb)
        for place, (cohort, one) in enumerate(marks[organ.name], start=1):
            draw_mark(axis, cohort, one, height + LINE * place, shapes[cohort])
    axis.set_yticks(lines[:-1], [organ.name for organ in organs])
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.xaxis.set_minor_formatter("")
    axis.set_xlabel("‰ of the voxels: q (●) and its spread over the cases; below it what a partial cohort has marked")
    plain_axes(axis, "x")
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    return figure


def draw_q(axis: Axes, share: float, spread: float, height: float, color: Any) -> None:
    """q of an organ in ‰, or the words that it is 0, which a logarithmic axis cannot show."""
    if share > 0:
        draw_share(axis, share, spread, height, INK, marker="o", markerfacecolor=color, markersize=9)
    else:
        axis.annotate("q is 0", (axis.get_xlim()[0], height), (6, 0), textcoords="offset points", va="center")


def draw_mark(axis: Axes, cohort: str, given: Given, height: float, shape: str) -> None:
    """What a cohort's annotators marked, with the cohort's name beside it."""
    share, spread = 1000 * given.mean, 1000 * given.spread
    end = max(share + spread, axis.get_xlim()[0])
    if share > 0:
        draw_share(axis, share, spread, height, PALE, marker=shape, markerfacecolor="white", markersize=6)
    name = cohort if share > 0 else f"{cohort}: 0"
    axis.annotate(name, (end, height), (6, 0), textcoords="offset points", va="center", color=GRAY, fontsize=8.5)


def draw_share(axis: Axes, share: float, spread: float, height: float, line: str, **marker: Any) -> None:
    """A mean with its spread on a logarithmic axis; an arrow where the spread goes on to 0."""
    left, low = axis.get_xlim()[0], share - spread
    axis.plot([max(low, left), share + spread], [height, height], color=line, linewidth=1.2)
    if low < left:
        axis.plot(left, height, "<", color=line, markersize=5, clip_on=False)
    axis.plot(share, height, color=line, markeredgecolor=INK, **marker)
