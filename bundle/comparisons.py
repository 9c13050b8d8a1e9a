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

import itertools
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.evaluation import Row
from bundle.handlers import read_history
from bundle.label_maps import whole_file
from bundle.organs import Vocabulary
from bundle.previews import AIR, shown_range
from bundle.priors import Prior
from bundle.reports import Page, draw_slice, grid_of_axes, load_canonical, steps
from bundle.statistics import Difference, case_means, cell, compare_methods, organ_values, read_table

__all__ = [
    "Comparison",
    "choose_regions",
    "paper_table",
    "plot_boxes",
    "plot_gradients",
    "plot_quality",
    "plot_regions",
    "plot_shares",
    "write_comparison",
]

# Okabe and Ito's colours, told apart by the colour-blind too; the reference has the first.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f", "#b8a800", "#1d2733")
COLUMNS = 5  # of a figure with one axis per organ
REGIONS = 4  # rows of the qualitative figure
LINE = 26  # characters that fit above or below one of its pictures
ZOOM = 0.5  # side of its pictures, of the body's longer side
SMALLEST_WINDOW = 8  # voxels
BINS = 12  # points of a curve over iterations, each the mean of the steps around it

History = list[dict[str, Any]]
Case = tuple[str, str]  # cohort, case


# --- What was compared -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Method:
    """A method of the comparison.

    Args:
        key: its name in scores.csv and in the folders.
        title: what a reader calls it.
        values: config values that make it.
        ablation: a variant of the reference, not a competitor.
    """

    key: str
    title: str
    values: Mapping[str, Any]
    ablation: bool


@dataclass(frozen=True)
class Comparison:
    """A finished comparison, as comparison.json and scores.csv describe it.

    Args:
        folder: where it is.
        title: heading of the report.
        reference: key of the method that is compared with all others.
        methods: all of them by key, in the order to show.
        replicates: seeds or folds.
        networks: rows of the paper's table.
        selections: of cohorts, columns of the paper's table.
        network: the one for which statistics and pictures are shown.
        selection: likewise.
        vocabulary: the organs.
        cases: image and true label map of each test case, relative to ``folder`` or absolute.
        facts: machine, versions and so on.
        table: all rows of scores.csv.
    """

    folder: Path
    title: str
    reference: str
    methods: dict[str, Method]
    replicates: list[str]
    networks: list[str]
    selections: list[str]
    network: str
    selection: str
    vocabulary: Vocabulary
    cases: dict[str, dict[str, Any]]
    facts: dict[str, str]
    table: list[Row]

    @classmethod
    def load(cls, folder: Path) -> Comparison:
        path = folder / "comparison.json"
        try:
            given = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: expected the description of a comparison, found none ({error})") from None
        try:
            methods = {
                key: Method(key, one["title"], one.get("values", {}), bool(one.get("ablation", False)))
                for key, one in given["methods"].items()
            }
            main, names = given["main"], ("title", "reference", "replicates", "networks", "cases", "facts")
            result = cls(
                folder, **{name: given[name] for name in names}, methods=methods, selections=list(given["selections"]),
                network=main["network"], selection=main["selection"], vocabulary=Vocabulary(given["organs"]),
                table=read_table(folder / "scores.csv"),
            )  # fmt: skip
        except KeyError as error:
            raise InputError(f"{path}: expected an entry {error}, found none") from None
        except (AttributeError, TypeError) as error:
            raise InputError(f"{path}: expected the description of a comparison, found another ({error})") from None
        result.check(path)
        return result

    def check(self, path: Path) -> None:
        compared = [key for key, one in self.methods.items() if not one.ablation]
        if self.reference not in compared:
            raise InputError(f"{path}: expected a reference out of {', '.join(compared)}, found {self.reference!r}")
        if len(set(self.titles(list(self.methods)))) < len(self.methods):
            raise InputError(f"{path}: expected a title of its own for each method, found one twice")
        if self.network not in self.networks or self.selection not in self.selections:
            raise InputError(
                f"{path}: expected main to be out of networks and selections, found network {self.network!r} and "
                f"selection {self.selection!r}"
            )
        if not self.replicates:
            raise InputError(f"{path}: expected at least one replicate, found none")
        if not case_means(self.rows, self.reference):
            raise InputError(
                f"{self.folder / 'scores.csv'}: expected scores of {self.reference!r} for network {self.network!r} and "
                f"selection {self.selection!r}, found none"
            )

    @cached_property
    def rows(self) -> list[Row]:
        """Those of the main cell."""
        return cell(self.table, self.network, self.selection)

    def scored(self, ablations: bool) -> list[str]:
        """Methods with scores in the main cell: those compared, the reference among them, or its variants."""
        known = {row["method"] for row in self.rows if row["dice"] is not None}
        return [key for key, one in self.methods.items() if one.ablation == ablations and key in known]

    def others(self, ablations: bool) -> list[str]:
        return [key for key in self.scored(ablations) if key != self.reference]

    def titles(self, keys: Sequence[str]) -> list[str]:
        return [self.methods[key].title for key in keys]

    def color(self, key: str) -> str:
        """The same for a method in all figures."""
        keys = sorted(self.methods, key=lambda name: (name != self.reference, self.methods[name].ablation))
        return COLORS[keys.index(key) % len(COLORS)]

    def run(self, key: str, replicate: str) -> Path:
        return self.folder / "runs" / self.network / self.selection / key / replicate

    def history(self, key: str) -> History:
        """What training of the first replicate noted; empty where it left nothing."""
        path = self.run(key, self.replicates[0]) / "eval" / "history.jsonl"
        if not path.exists():
            return []
        try:
            return read_history(path)
        except ValueError as error:
            raise InputError(f"{path}: expected one record per line, found something else ({error})") from None

    def prior(self, key: str) -> Prior | None:
        path = self.run(key, self.replicates[0]) / "eval" / "prior.json"
        return Prior.load(path) if path.exists() else None


# --- Numbers as text -------------------------------------------------------------------------------------------------
def percent(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def points(value: float) -> str:
    return f"{round(100 * value, 2) + 0.0:+.2f}".replace("-", "−")  # + 0.0: there is no −0.00


def p_text(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def mean_dice(rows: Sequence[Row], method: str) -> float | None:
    means = case_means(rows, method)
    return float(np.mean(list(means.values()))) if means else None


def best_of(values: Sequence[float | None], digits: int) -> list[bool]:
    """Which values are the largest as they are shown: a lead that nobody can read is none."""
    shown = [None if value is None else round(100 * value, digits) for value in values]
    known = [value for value in shown if value is not None]
    return [bool(known) and len(known) > 1 and value == max(known) for value in shown]


# --- Tables ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Table:
    """A table of mean Dice: one row per ``names``, one column per ``head``."""

    head: list[str]
    names: list[str]
    values: list[list[float | None]]
    digits: int = 2

    @property
    def lines(self) -> list[list[str]]:
        return [
            [name, *(percent(value, self.digits) for value in row)]
            for name, row in zip(self.names, self.values, strict=True)
        ]

    @property
    def best(self) -> list[list[bool]]:
        return [[False, *best_of(row, self.digits)] for row in self.values]

    def markdown(self) -> str:
        lines = [self.head, ["---", *["---:"] * (len(self.head) - 1)]]
        for cells, best in zip(self.lines, self.best, strict=True):
            lines.append([f"**{text}**" if top else text for text, top in zip(cells, best, strict=True)])
        return "".join("| " + " | ".join(text.replace("|", "\\|") for text in line) + " |\n" for line in lines)

    def show(self, page: Page, total: bool) -> None:
        kinds = [["best" if top else "" for top in row] for row in self.best]
        page.table(self.head, self.lines, kinds, total=total)


def paper_table(comparison: Comparison) -> Table:
    """Mean Dice of each network (rows) with each method and selection of cohorts (columns).

    A method whose scores are the same for all selections, such as one that never sees the partial cohorts, has one
    column.
    """
    head, columns = ["network"], []
    for method in [one for one in comparison.methods.values() if not one.ablation]:
        means = {
            selection: [
                mean_dice(cell(comparison.table, network, selection), method.key) for network in comparison.networks
            ]
            for selection in comparison.selections
        }
        means = {name: column for name, column in means.items() if any(value is not None for value in column)}
        same = len(means) > 1 and len({tuple(column) for column in means.values()}) == 1
        for selection, column in list(means.items())[: 1 if same else None]:
            head.append(method.title if same else f"{method.title}, {selection}")
            columns.append(column)
    return Table(head, comparison.networks, [list(row) for row in zip(*columns, strict=True)])


def organ_table(comparison: Comparison, keys: Sequence[str]) -> Table:
    """Mean Dice over cases of each organ (rows) with each method (columns); below it the means of the cases."""
    rows, values = comparison.rows, []
    for organ in comparison.vocabulary.names:
        found = [list(organ_values(rows, key, organ).values()) for key in keys]
        values.append([float(np.mean(dice)) if dice else None for dice in found])
    values.append([mean_dice(rows, key) for key in keys])
    names = [*comparison.vocabulary.names, "mean of the cases"]
    return Table(["organ", *comparison.titles(keys)], names, values, digits=1)


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


def even_columns(count: int, most: int = 7) -> int:
    """Columns of a legend whose lines are about equally long."""
    return -(-count // -(-count // most))


# --- Box plots -------------------------------------------------------------------------------------------------------
def plot_boxes(comparison: Comparison, keys: Sequence[str]) -> Figure:
    """Dice of the cases, methods side by side, one axis per organ and one for the means."""
    rows, names = comparison.rows, comparison.vocabulary.names
    groups = {name: [list(organ_values(rows, key, name).values()) for key in keys] for name in names}
    groups = {name: group for name, group in groups.items() if any(group)}
    groups["mean over organs"] = [list(case_means(rows, key).values()) for key in keys]
    figure, axes = grid_of_axes(len(groups), COLUMNS, 2.6, 2.4)
    colors = [comparison.color(key) for key in keys]
    for axis, (name, group) in zip(axes, groups.items(), strict=True):
        draw_boxes(axis, group, colors)
        axis.set_title(name, fontsize=10, fontweight="bold" if name == "mean over organs" else None)
    handles = [
        Patch(facecolor=color, alpha=0.6, edgecolor=color, label=title)
        for color, title in zip(colors, comparison.titles(keys), strict=True)
    ]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=even_columns(len(keys)), frameon=False, fontsize=10
    )
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
    axis.grid(axis="y", color="#e6eaf0")
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


# --- Qualitative figure ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Region:
    """A place to look at.

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


def choose_regions(comparison: Comparison, keys: Sequence[str], count: int = REGIONS) -> list[Region]:
    """Organs of different cases where the reference differs most from the others, for the better or the worse.

    Other organs come first while there are some, so that the figure shows more than one.
    """
    found = [region for name in comparison.cases for region in case_regions(comparison, keys, name)]
    found.sort(key=lambda region: -gap(region, comparison.reference))
    chosen: list[Region] = []
    for fresh in (True, False):
        for region in found:
            used = region.case in {one.case for one in chosen}
            known = region.organ in {one.organ for one in chosen}
            if len(chosen) < count and not used and not (fresh and known):
                chosen.append(region)
    return sorted(chosen, key=lambda region: -gap(region, comparison.reference))


def case_regions(comparison: Comparison, keys: Sequence[str], name: str) -> list[Region]:
    """Every organ of a case, as the first replicate that segmented it saw it."""
    files = [comparison.cases[name].get(kind) for kind in ("image", "label")]
    if not all(path and (comparison.folder / path).exists() for path in files):
        return []
    for replicate in comparison.replicates:
        paths = {key: comparison.run(key, replicate) / "test" / "segmentations" / f"{name}.nii.gz" for key in keys}
        maps = {key: path for key, path in paths.items() if path.exists()}
        if comparison.reference in maps:
            break
    else:
        return []
    dice: dict[str, dict[str, float]] = {}
    for row in comparison.rows:
        if row["case"] == name and row["replicate"] == replicate and row["method"] in maps and row["dice"] is not None:
            dice.setdefault(row["organ"], {})[row["method"]] = row["dice"]
    regions = [Region(name, organ, replicate, maps, scores) for organ, scores in dice.items()]
    return [one for one in regions if one.organ in comparison.vocabulary.names and comparison.reference in one.dice]


def gap(region: Region, reference: str) -> float:
    """Distance of the reference's Dice from the mean of the others'."""
    others = [value for key, value in region.dice.items() if key != reference]
    return abs(region.dice[reference] - float(np.mean(others))) if others else 0.0


def plot_regions(comparison: Comparison, keys: Sequence[str], regions: Sequence[Region]) -> Figure:
    """One row per region: the CT, the truth and each method, with the organ's Dice below."""
    keys = [key for key in keys if any(key in region.maps for region in regions)]
    heads = ["CT", "truth", *comparison.titles(keys)]
    figure, axes = grid_of_axes(len(regions) * len(heads), len(heads), 2.1, 2.35)
    shown: set[int] = set()
    for row, region in enumerate(regions):
        line = axes[row * len(heads) : (row + 1) * len(heads)]
        shown |= draw_region(line, comparison, keys, region)
        if row == 0:
            for axis, head in zip(line, heads, strict=True):
                axis.set_title(textwrap.fill(head, LINE), fontsize=10)
    organs = [organ for channel, organ in enumerate(comparison.vocabulary, start=1) if channel in shown]
    handles = [Line2D([], [], color=organ.rgb, linewidth=3, label=organ.name) for organ in organs]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=even_columns(max(len(handles), 1), len(heads)),
        frameon=False,
        fontsize=9,
    )
    return figure


def draw_region(axes: Sequence[Axes], comparison: Comparison, keys: Sequence[str], region: Region) -> set[int]:
    """One row of the figure; returns the channels to be seen in it."""
    organs, files = comparison.vocabulary, comparison.cases[region.case]
    image, spacing = load_canonical(comparison.folder / files["image"])
    maps = {"truth": load_map(comparison.folder / files["label"], image.shape, files.get("values"))}
    maps |= {key: load_map(path, image.shape) for key, path in region.maps.items()}
    channel = organs.names.index(region.organ) + 1
    window = region_window(image, list(maps.values()), channel, spacing)
    views = [None, maps["truth"], *(maps.get(key) for key in keys)]
    dice = [percent(region.dice.get(key), 1) for key in keys]
    for axis, label, text in zip(axes, views, [region.case, region.organ, *dice], strict=True):
        axis.set_axis_off()
        if label is None and axis is not axes[0]:
            continue  # this method has no segmentation of the case
        draw_slice(axis, image[window], None if label is None else label[window], spacing[1] / spacing[0], organs)
        if label is not None and (label[window] == channel).any():  # the organ that matters stands out
            mask = (label[window] == channel)[::-1, ::-1].T
            axis.contour(mask, [0.5], colors=[organs.organs[channel - 1].rgb], linewidths=2.2)
        axis.text(0.5, -0.03, textwrap.fill(text, LINE), transform=axis.transAxes, ha="center", va="top", fontsize=9)
    return {int(value) for label in maps.values() for value in np.unique(label[window])}


def load_map(path: Path, shape: tuple[int, ...], values: Mapping[str, int] | None = None) -> NDArray[Any]:
    """A label map; ``values`` turns a cohort's values into the vocabulary's."""
    label, _ = load_canonical(path)
    if values is not None:
        known = {int(value): channel for value, channel in values.items()}
        table = np.zeros(max([*known, int(label.max())]) + 1, np.uint8)
        table[list(known)] = list(known.values())
        label = table[np.asarray(label, np.intp)]
    if label.shape != shape:
        raise InputError(f"{path}: expected a label map of {shape} voxels like its image, found {label.shape}")
    return label


def region_window(
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
    outlines = [span(np.any(body, axis=1 - axis)) for axis in range(2)]
    side = ZOOM * max((stop - start) * step for (start, stop), step in zip(outlines, spacing, strict=False))
    window = []
    for axis, outline in enumerate(outlines):
        size = image.shape[axis]
        length = min(max(round(side / spacing[axis]), SMALLEST_WINDOW), size)
        middle = sum(span(np.any(organ, axis=1 - axis))) // 2
        ends = sorted((outline[0], outline[1] - length))  # as much of the body as fits
        start = int(np.clip(np.clip(middle - length // 2, *ends), 0, size - length))
        window.append(slice(start, start + length))
    return window[0], window[1], z


def span(values: NDArray[np.bool_]) -> tuple[int, int]:
    """Start and stop of what is True; everything when nothing is."""
    start, stop, _ = shown_range(values).indices(len(values))
    return start, stop


# --- Diagnostics -----------------------------------------------------------------------------------------------------
def numbers(values: Any) -> NDArray[np.float64]:
    """Numbers with NaN for null."""
    return np.array(values, dtype=float)


def mean_known(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the first axis without the NaNs; NaN where nothing is known."""
    known = ~np.isnan(rows)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, rows, 0).sum(0) / np.maximum(count, 1), np.nan)


def quality_curves(history: History, channels: int) -> tuple[list[int], dict[str, NDArray[np.float64]]]:
    """Iterations of the refreshes, and precision and recall (refreshes × channels), averaged over cohorts."""
    records = [record for record in steps(history, "train", "refresh") if record.get("quality")]
    nothing = [None] * channels
    curves = {
        kind: np.array([
            mean_known(numbers([cohort.get(kind) or nothing for cohort in record["quality"].values()]))
            for record in records
        ])
        for kind in ("precision", "recall")
    }  # fmt: skip
    return [record["iteration"] for record in records], curves


def plot_quality(histories: Mapping[str, History], colors: Mapping[str, str], organs: Sequence[str]) -> Figure | None:
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
    figure, axes = grid_of_axes(len(channels), COLUMNS, 2.6, 2.15)
    for axis, channel in zip(axes, channels, strict=True):
        for title, (when, found) in curves.items():
            for kind, style in (("precision", "o-"), ("recall", "s--")):
                axis.plot(when, 100 * found[kind][:, channel], style, color=colors[title], markersize=3, linewidth=1.4)
        tidy(axis, organs[channel - 1])
    handles = [Line2D([], [], color=colors[title], linewidth=3, label=title) for title in curves]
    handles.append(Line2D([], [], color="#5b6775", marker="o", markersize=4, label="precision"))
    handles.append(Line2D([], [], color="#5b6775", marker="s", markersize=4, linestyle="--", label="recall"))
    finish(figure, handles, "% of voxels")
    return figure


def plot_shares(history: History, prior: Prior) -> Figure | None:
    """p̄ of each organ in each partial cohort over q, at the refreshes; None where there were none."""
    records = [record for record in steps(history, "train", "refresh") if record.get("by_cohort")]
    cohorts = list(dict.fromkeys(name for record in records for name in record["by_cohort"]))
    channels = [channel for channel in range(1, len(prior.names)) if prior.proportions[channel] > 0]
    if not cohorts or not channels:
        return None
    colors = dict(zip(cohorts, itertools.cycle(COLORS), strict=False))
    figure, axes = grid_of_axes(len(channels), COLUMNS, 2.6, 2.15)
    for axis, channel in zip(axes, channels, strict=True):
        axis.axhline(1, color="#b7950b", linewidth=1.2)
        for cohort in cohorts:
            mine = [record for record in records if cohort in record["by_cohort"]]
            ratio = numbers([record["by_cohort"][cohort][channel] for record in mine]) / prior.proportions[channel]
            when = [record["iteration"] for record in mine]
            axis.plot(when, np.maximum(ratio, 0.01), "o-", color=colors[cohort], markersize=3, linewidth=1.4)
        tidy(axis, prior.names[channel])
        log_scale(axis.yaxis, np.concatenate([np.asarray(line.get_ydata(), float) for line in axis.lines]))
    handles = [Line2D([], [], color=color, linewidth=3, label=cohort) for cohort, color in colors.items()]
    handles.append(Line2D([], [], color="#b7950b", label="the prior itself"))
    finish(figure, handles, "p̄ ÷ q")
    return figure


def plot_gradients(history: History, vocabulary: Vocabulary) -> Figure | None:
    """Size of the prior's gradient over that of the loss on partial samples, per organ; None where it was not noted."""
    records = [record for record in steps(history, "train") if record.get("gradients")]
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
    left.axvline(1, color="#1d2733", linewidth=1)
    right.axhline(1, color="#1d2733", linewidth=1)
    left.set(title="all steps together", xlabel="prior ÷ partial loss")
    right.set(title="over training", xlabel="iteration of stage 2", ylabel="prior ÷ partial loss")
    log_scale(left.xaxis, total[1:])
    log_scale(right.yaxis, curves[:, 1:])
    for axis in (left, right):
        axis.grid(color="#e6eaf0")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
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
    axis.grid(color="#e6eaf0")
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
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
    ncols = even_columns(len(handles))
    figure.legend(handles=handles, loc="outside lower center", ncols=ncols, frameon=False, fontsize=9.5)
    figure.supylabel(along, fontsize=9.5)
    for axis in figure.axes[-COLUMNS:]:
        axis.set_xlabel("iteration of stage 2", fontsize=8)


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
