# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The report of a finished comparison of methods: the paper's table, statistics, pictures and diagnostics.

It reads what the runs left in a folder and trains nothing:

    scores.csv          the tidy table of `bundle.evaluation.statistics`
    comparison.json     what was compared (see `bundle.evaluation.comparisons`)
    runs/<network>/<selection>/<method>/<replicate>/
        eval/history.jsonl, eval/prior.json, test/segmentations/<case>.nii.gz

A run that lacks one of its files costs the picture made from it, not the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bundle.evaluation.comparisons import Comparison, mean_dice, organ_table, paper_table
from bundle.evaluation.statistics import RESAMPLES, Difference, case_means, compare_methods
from bundle.evaluation.tables import MISSING, Table
from bundle.files import write_text
from bundle.reports.closeups import choose_closeups, plot_closeups
from bundle.reports.comparison_figures import method_colors, plot_boxes, plot_gradients, plot_quality, plot_shares
from bundle.reports.numbers import format_p, percent, points
from bundle.reports.pages import Picture, draw_picture, write_page

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["dice_table", "write_comparison"]


LEVEL = 0.05  # a corrected p that cannot get below it is mentioned


# --- The page --------------------------------------------------------------------------------------------------------
def write_comparison(folder: str | Path) -> Path:
    """Write report.html, table.md and figures/ of a finished comparison; returns the report.

    Raises:
        InputError: when the folder does not describe a comparison, or the reference has no scores.
    """
    comparison = Comparison.load(Path(folder))
    keys, variants = comparison.scored(ablations=False), comparison.others(ablations=True)
    differences = compare_methods(comparison.rows, comparison.reference, comparison.others(ablations=False))
    cases = len(case_means(comparison.rows, comparison.reference))
    paper = dice_table("network", paper_table(comparison))
    write_text(comparison.folder / "table.md", f"Mean Dice, %; the best of a row is bold.\n\n{paper.markdown()}")
    return write_page(
        comparison.folder / "report.html",
        "comparison.html",
        title=comparison.title,
        comparison=comparison,
        headline=headline(comparison, differences),
        paper=paper,
        differences=difference_table(comparison, differences),
        cases=cases,
        resamples=RESAMPLES,
        smallest_p=smallest_p(cases, len(differences)),
        unpaired=comparison.titles([key for key in keys if len(case_means(comparison.rows, key)) != cases]),
        organs=dice_table("organ", organ_table(comparison, keys), digits=1, total=True),
        variants=variant_table(comparison, variants) if variants else None,
        boxes=draw_boxes_of_cases(comparison, keys),
        closeups=draw_closeups(comparison, keys),
        diagnostics=draw_diagnostics(comparison, keys),
        facts=Table(["fact", "value"], [[name, str(text)] for name, text in comparison.facts.items()], texts=2),
    )


# --- Words -----------------------------------------------------------------------------------------------------------
def headline(comparison: Comparison, differences: Sequence[Difference]) -> str:
    """The result in one sentence."""
    name, dice = comparison.methods[comparison.reference].title, mean_dice(comparison.rows, comparison.reference)
    start = f"{name} has a mean Dice of {percent(dice)} % ({comparison.network}, {comparison.selection})"
    parts = []
    for one in differences:
        sign = "" if one.p_holm < 0.001 else "= "
        side = "above" if one.mean > 0 else "below" if one.mean < 0 else "from"
        title = comparison.methods[one.method].title
        parts.append(f"{abs(100 * one.mean):.2f} points {side} {title} (p {sign}{format_p(one.p_holm)})")
    return start + (": " + ", ".join(parts) if parts else "") + "."


def smallest_p(cases: int, methods: int) -> str | None:
    """The smallest p of Wilcoxon's test over so many cases, where no corrected one can be below the usual level."""
    smallest = min(2 * 0.5**cases, 1)
    return format_p(smallest) if smallest * methods > LEVEL else None


# --- Tables ----------------------------------------------------------------------------------------------------------
def dice_table(corner: str, means: pd.DataFrame, digits: int = 2, total: bool = False) -> Table:
    """Mean Dice in percent; the best of each row is marked.

    Args:
        corner: head of the first column.
        means: from 0 to 1, NaN where there is none.
        digits: after the point.
        total: the last row sums up the others.

    Example:
        >>> import pandas as pd
        >>> means = pd.DataFrame({"Full": [0.6], "PaNN": [0.75]}, index=["liver"])
        >>> print(dice_table("organ", means, digits=1).markdown(), end="")
        | organ | Full | PaNN |
        | --- | ---: | ---: |
        | liver | 60.0 | **75.0** |
    """
    values = means.to_numpy().tolist()
    rows = [
        [str(name), *(percent(dice, digits) for dice in row)] for name, row in zip(means.index, values, strict=True)
    ]
    kinds = [["", *("best" if best else "" for best in best_of(row, digits))] for row in values]
    return Table([corner, *map(str, means.columns)], rows, kinds=kinds, total=total)


def best_of(values: Sequence[float], digits: int) -> list[bool]:
    """Which values are the largest as they are shown: a lead that nobody can read is none."""
    shown = np.round(100 * np.asarray(values), digits)
    known = np.isfinite(shown)
    return [bool(known.sum() > 1 and value == shown[known].max()) for value in shown]


def difference_table(comparison: Comparison, differences: Sequence[Difference]) -> Table:
    """The reference, then each method it is compared with."""
    own = [comparison.methods[comparison.reference].title, *reference_cells(comparison)]
    rows = [[comparison.methods[one.method].title, *difference_cells(comparison, one)] for one in differences]
    return Table(["method", *difference_heads(comparison)], [own, *rows])


def variant_table(comparison: Comparison, variants: Sequence[str]) -> Table:
    """The same for variants of the reference, with the config values that make them."""
    own = [comparison.methods[comparison.reference].title, MISSING, *reference_cells(comparison)]
    rows = []
    for one in compare_methods(comparison.rows, comparison.reference, variants):
        method = comparison.methods[one.method]
        changed = ", ".join(f"{key}: {value}" for key, value in method.values.items()) or MISSING
        rows.append([method.title, changed, *difference_cells(comparison, one)])
    return Table(["variant", "changed", *difference_heads(comparison)], [own, *rows], texts=2)


def difference_heads(comparison: Comparison) -> list[str]:
    name = comparison.methods[comparison.reference].title
    return ["mean Dice, %", f"{name} better by, points", "95 % interval", "p (Holm)", f"cases won by {name}"]


def reference_cells(comparison: Comparison) -> list[str]:
    return [percent(mean_dice(comparison.rows, comparison.reference)), *[MISSING] * 4]


def difference_cells(comparison: Comparison, one: Difference) -> list[str]:
    return [
        percent(mean_dice(comparison.rows, one.method)),
        points(one.mean),
        f"{points(one.low)} to {points(one.high)}",
        format_p(one.p_holm),
        f"{one.better} of {one.cases}",
    ]


# --- Pictures --------------------------------------------------------------------------------------------------------
def draw_boxes_of_cases(comparison: Comparison, keys: Sequence[str]) -> Picture:
    caption = "Dice of each test case (dots), averaged over replicates; box: quartiles, line: median; axes differ."
    return draw_picture(plot_boxes(comparison, keys), caption, comparison.folder / "figures" / "boxes.png")


def draw_closeups(comparison: Comparison, keys: Sequence[str]) -> Picture | None:
    """None where no case has segmentations."""
    closeups = choose_closeups(comparison, keys)
    if not closeups:
        return None
    caption = (
        f"Cases and organs in which {comparison.methods[comparison.reference].title} is farthest from the mean of "
        "the others, for the better or the worse, in the axial slice of most disagreement. The organ has thick "
        "contours; below each picture is its Dice in the whole scan, %."
    )
    figure = plot_closeups(comparison, keys, closeups)
    return draw_picture(figure, caption, comparison.folder / "figures" / "slices.png")


def draw_diagnostics(comparison: Comparison, keys: Sequence[str]) -> list[Picture]:
    """What the runs of the first replicate recorded while they trained."""
    titles = dict(zip(keys, comparison.titles(keys), strict=True))
    histories = {titles[key]: comparison.history(key) for key in keys}
    colors = {titles[key]: color for key, color in method_colors(comparison).items() if key in titles}
    name, prior = titles[comparison.reference], comparison.prior(comparison.reference)
    own = histories[name]
    figures = {
        "pseudo_labels": (
            plot_quality(histories, colors, comparison.vocabulary.names),
            "Precision and recall of the pseudo-labels in the partially labelled cohorts, mean over cohorts, at each "
            "refresh.",
        ),
        "proportions": (
            plot_shares(own, prior) if prior else None,
            f"{name}: predicted proportion p̄ of each organ in each cohort relative to the prior q, at each refresh; "
            "below 0.01 shown as 0.01.",
        ),
        "gradients": (
            plot_gradients(own, comparison.vocabulary),
            f"{name}: mean size of the prior's gradient relative to that of the loss on partial samples, per organ.",
        ),
    }
    return [
        draw_picture(figure, caption, comparison.folder / "figures" / f"{file}.png")
        for file, (figure, caption) in figures.items()
        if figure is not None
    ]
