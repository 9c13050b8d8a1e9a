# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A finished comparison of methods as data: what was compared, and the means that its tables show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from bundle.errors import InputError
from bundle.evaluation.statistics import case_means, cell, organ_values, read_table
from bundle.organs import Vocabulary
from bundle.training.history import read_history
from bundle.training.prior import Prior
from bundle.untrusted import read_json, shown

__all__ = ["Comparison", "Method", "mean_dice", "organ_table", "paper_table"]


CASE_FILES = ("image", "label")


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
    table: pd.DataFrame

    @classmethod
    def load(cls, folder: Path) -> Comparison:
        """Read comparison.json and scores.csv.

        Raises:
            InputError: when they do not describe a comparison, or the reference has no scores.
        """
        path = folder / "comparison.json"
        if not path.is_file():
            raise InputError(f"{path}: expected the description of a comparison, found none")
        given = read_json(path)
        check_description(given, path)
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
        result.check(path)
        return result

    def check(self, path: Path) -> None:
        """Refuse entries that do not fit together; ``path`` is named in the errors."""
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
        if case_means(self.rows, self.reference).empty:
            raise InputError(
                f"{self.folder / 'scores.csv'}: expected scores of {self.reference!r} for network {self.network!r} and "
                f"selection {self.selection!r}, found none"
            )

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Those of the main cell."""
        return cell(self.table, self.network, self.selection)

    def scored(self, ablations: bool) -> list[str]:
        """Methods with scores in the main cell: those compared, the reference among them, or its variants."""
        known = set(self.rows.dropna(subset=["dice"])["method"])
        return [key for key, one in self.methods.items() if one.ablation == ablations and key in known]

    def others(self, ablations: bool) -> list[str]:
        """The same without the reference."""
        return [key for key in self.scored(ablations) if key != self.reference]

    def titles(self, keys: Sequence[str]) -> list[str]:
        return [self.methods[key].title for key in keys]

    def run(self, key: str, replicate: str) -> Path:
        """Folder of a run of the main cell."""
        return self.folder / "runs" / self.network / self.selection / key / replicate

    def history(self, key: str) -> list[dict[str, Any]]:
        """The records that training of the first replicate wrote; empty where there are none."""
        path = self.run(key, self.replicates[0]) / "eval" / "history.jsonl"
        return read_history(path) if path.exists() else []

    def prior(self, key: str) -> Prior | None:
        """q of the first replicate, if its training wrote it."""
        path = self.run(key, self.replicates[0]) / "eval" / "prior.json"
        return Prior.load(path) if path.exists() else None


ENTRIES: dict[str, type] = {
    "title": str, "reference": str, "methods": dict, "replicates": list, "networks": list, "selections": dict,
    "main": dict, "organs": list, "cases": dict, "facts": dict,
}  # fmt: skip


def check_description(given: Any, path: Path) -> None:
    """Refuse what is no description of a comparison, or has an entry of another kind."""
    if not isinstance(given, dict):
        raise InputError(f"{path}: expected the description of a comparison, found another ({shown(given)})")
    for name, kind in ENTRIES.items():
        if name not in given:
            raise InputError(f"{path}: expected an entry '{name}', found none")
        if not isinstance(given[name], kind):
            raise InputError(
                f"{path}: expected the description of a comparison, found another ({name}: {shown(given[name])})"
            )
    texts = [
        *(text for name in ("replicates", "networks", "organs") for text in given[name]),
        *(given["main"].get(name) for name in ("network", "selection")),
        *(one.get("title") if isinstance(one, dict) else None for one in given["methods"].values()),
        *(one.get(key) if isinstance(one, dict) else None for one in given["cases"].values() for key in CASE_FILES),
        *given["facts"].values(),
    ]
    odd = [text for text in texts if not isinstance(text, str)]
    if odd:
        raise InputError(
            f"{path}: expected the description of a comparison, found another ({shown(odd[0])} in the place of a text)"
        )


# --- Mean Dice -------------------------------------------------------------------------------------------------------
def mean_dice(scores: pd.DataFrame, method: str) -> float | None:
    """Mean of the cases of one cell; None where the method has none."""
    means = case_means(scores, method)
    return float(means.mean()) if len(means) else None


def paper_table(comparison: Comparison) -> pd.DataFrame:
    """Mean Dice of each network (rows) with each method and selection of cohorts (columns); NaN where there is none.

    A method whose scores are the same for all selections, such as one that never sees the partial cohorts, has one
    column.
    """
    columns: dict[str, pd.Series] = {}
    for method in [one for one in comparison.methods.values() if not one.ablation]:
        means = {selection: network_means(comparison, method, selection) for selection in comparison.selections}
        means = {selection: column for selection, column in means.items() if column.notna().any()}
        names = [f"{method.title}, {selection}" for selection in means]
        if len(means) > 1 and all_equal(list(means.values())):
            names = [method.title]
        columns |= dict(zip(names, means.values(), strict=False))
    return pd.DataFrame(columns, index=comparison.networks)


def network_means(comparison: Comparison, method: Method, selection: str) -> pd.Series:
    """Mean Dice of a method with one selection of cohorts, for each network."""
    means = [mean_dice(cell(comparison.table, network, selection), method.key) for network in comparison.networks]
    return pd.Series(means, comparison.networks, dtype=float)


def all_equal(columns: Sequence[pd.Series]) -> bool:
    return all(column.equals(columns[0]) for column in columns)


def organ_table(comparison: Comparison, keys: Sequence[str]) -> pd.DataFrame:
    """Mean Dice over cases of each organ (rows) with each method (columns); below it the means of the cases."""
    columns = {}
    for key in keys:
        organs = {name: organ_values(comparison.rows, key, name).mean() for name in comparison.vocabulary.names}
        columns[comparison.methods[key].title] = organs | {"mean of the cases": mean_dice(comparison.rows, key)}
    return pd.DataFrame(columns, dtype=float)
