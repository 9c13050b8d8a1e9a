# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The report of a finished comparison of methods: the paper's table, statistics, pictures and diagnostics.

It reads what the runs left in a folder and trains nothing:

    scores.csv          the tidy table of `bundle.statistics`
    comparison.json     what was compared (see `Comparison`)
    runs/<network>/<selection>/<method>/<replicate>/
        eval/history.jsonl, eval/prior.json, test/segmentations/<case>.nii.gz

A run that lacks one of its files costs the picture made from it, not the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bundle.evaluation.comparisons import Comparison, mean_dice, organ_table, p_text, paper_table, percent, points
from bundle.evaluation.statistics import Difference, case_means, compare_methods
from bundle.files import whole_file
from bundle.reports.closeups import choose_regions, plot_regions
from bundle.reports.comparison_figures import plot_boxes, plot_gradients, plot_quality, plot_shares
from bundle.reports.pages import Page

__all__ = ["write_comparison"]


def show_differences(page: Page, comparison: Comparison, differences: Sequence[Difference], changes: bool) -> None:
    """The reference and what it is compared with; ``changes`` names the config values that make a variant."""
    name, rows = comparison.methods[comparison.reference].title, []
    own = ["–"] if changes else []
    rows.append([name, *own, percent(mean_dice(comparison.rows, comparison.reference)), "–", "–", "–", "–"])
    for one in differences:
        method = comparison.methods[one.method]
        values = [", ".join(f"{key}: {value}" for key, value in method.values.items()) or "–"] if changes else []
        rows.append([
            method.title, *values, percent(mean_dice(comparison.rows, one.method)), points(one.mean),
            f"{points(one.low)} to {points(one.high)}", p_text(one.p_holm), f"{one.better} of {one.cases}",
        ])  # fmt: skip
    head = ["mean Dice, %", f"{name} better by, points", "95 % interval", "p (Holm)", f"cases won by {name}"]
    page.table(["variant", "changed", *head] if changes else ["method", *head], rows, total=False)


def headline(comparison: Comparison, differences: Sequence[Difference]) -> str:
    """The result in one sentence."""
    name, dice = comparison.methods[comparison.reference].title, mean_dice(comparison.rows, comparison.reference)
    start = f"{name} has a mean Dice of {percent(dice)} % ({comparison.network}, {comparison.selection})"
    parts = []
    for one in differences:
        sign = "<" if one.p_holm < 0.001 else "="
        side = "above" if one.mean > 0 else "below" if one.mean < 0 else "from"
        title, p = comparison.methods[one.method].title, p_text(one.p_holm).removeprefix("< ")
        parts.append(f"{abs(100 * one.mean):.2f} points {side} {title} (p {sign} {p})")
    return start + (": " + ", ".join(parts) if parts else "") + "."


# --- The report ------------------------------------------------------------------------------------------------------
def write_comparison(folder: Path) -> Path:
    """Write report.html, table.md and figures/ of a finished comparison; returns the report.

    Raises:
        InputError: when the folder does not describe a comparison, or the reference has no scores.
    """
    comparison = Comparison.load(Path(folder))
    page = Page(comparison.title)
    keys = comparison.scored(ablations=False)
    show_results(page, comparison, keys)
    show_ablations(page, comparison)
    show_pictures(page, comparison, keys)
    show_diagnostics(page, comparison, keys)
    if comparison.facts:
        page.heading("How it was made")
        page.table(["fact", "value"], [[name, str(text)] for name, text in comparison.facts.items()], total=False)
    return page.save(comparison.folder / "report.html")


def show_results(page: Page, comparison: Comparison, keys: Sequence[str]) -> None:
    """Headline, the paper's table (also as table.md), statistics and scores per organ."""
    rows = comparison.rows
    differences = compare_methods(rows, comparison.reference, comparison.others(ablations=False))
    page.text(headline(comparison, differences), "big")
    table = paper_table(comparison)
    with whole_file(comparison.folder / "table.md") as unfinished:
        unfinished.write_text(f"Mean Dice, %; the best of a row is bold.\n\n{table.markdown()}")
    page.heading("Mean Dice of networks, methods and cohorts, %")
    table.show(page, total=False)
    where = f"{comparison.network}, {comparison.selection}"
    page.heading(f"Statistics: {where}")
    show_differences(page, comparison, differences, changes=False)
    cases, replicates = len(case_means(rows, comparison.reference)), ", ".join(comparison.replicates)
    note = (
        f"{cases} test cases; each counts once: its organs, then its replicates ({replicates}) are averaged. "
        "Wilcoxon's signed-rank test over cases, two-sided, corrected with Holm's method for the number of methods; "
        "interval of the mean difference from 10000 bootstrap samples of the cases."
    )
    smallest = min(2 * 0.5**cases, 1)
    if smallest * len(differences) > 0.05:
        note += (
            f" So few cases cannot give a p below {p_text(smallest)} before the correction, whatever the difference."
        )
    page.text(note, "note")
    short = [key for key in keys if len(case_means(rows, key)) != cases]
    if short:
        page.text(f"Not scored on the same cases: {', '.join(comparison.titles(short))}; pairs are the common ones.")
    page.heading(f"Dice per organ, %: {where}")
    organ_table(comparison, keys).show(page, total=True)
    page.text("The best of a row is shaded. An organ absent from a case and not predicted has no Dice there.", "note")


def show_ablations(page: Page, comparison: Comparison) -> None:
    variants = comparison.others(ablations=True)
    if not variants:
        return
    page.heading(f"What each part is worth: {comparison.network}, {comparison.selection}")
    differences = compare_methods(comparison.rows, comparison.reference, variants)
    show_differences(page, comparison, differences, changes=True)


def show_pictures(page: Page, comparison: Comparison, keys: Sequence[str]) -> None:
    figures = comparison.folder / "figures"
    page.heading("Dice of the test cases")
    boxes = "Dice of each test case (dots), averaged over replicates; box: quartiles, line: median; axes differ."
    page.figure(plot_boxes(comparison, keys), boxes, figures / "boxes.png")
    regions = choose_regions(comparison, keys)
    if regions:
        page.heading("Where the methods differ most")
        caption = (
            f"Cases and organs in which {comparison.methods[comparison.reference].title} is farthest from the mean of "
            "the others, for the better or the worse, in the axial slice of most disagreement. The organ has thick "
            "contours; below each picture is its Dice in the whole scan, %."
        )
        page.figure(plot_regions(comparison, keys, regions), caption, figures / "slices.png")


def show_diagnostics(page: Page, comparison: Comparison, keys: Sequence[str]) -> None:
    """What the runs of the first replicate noted while they trained."""
    titles = dict(zip(keys, comparison.titles(keys), strict=True))
    histories = {titles[key]: comparison.history(key) for key in keys}
    colors = {titles[key]: comparison.color(key) for key in keys}
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
    if any(figure for figure, _ in figures.values()):
        page.heading(f"Inside training ({comparison.replicates[0]})")
    for file, (figure, caption) in figures.items():
        if figure is not None:
            page.figure(figure, caption, comparison.folder / "figures" / f"{file}.png")
