# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A finished comparison of methods as data: what was compared, and its tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import InputError
from bundle.evaluation.scores import Row
from bundle.evaluation.statistics import case_means, cell, organ_values, read_table
from bundle.organs import Vocabulary
from bundle.reports.pages import Page
from bundle.training.history import read_history
from bundle.training.prior import Prior

__all__ = ["Comparison", "paper_table"]


# Okabe and Ito's colours, told apart by the colour-blind too; the reference has the first.
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7f7f7f", "#b8a800", "#1d2733")

History = list[dict[str, Any]]


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
