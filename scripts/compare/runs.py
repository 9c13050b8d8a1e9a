# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The runs of a comparison: the cohorts they need, stage 1 once, then stage 2 and the scores of every method."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.cohorts.phantoms import make_phantoms
from bundle.files import write_text
from scripts.compare.plan import ComparisonPlan, Values, replicate_name
from scripts.configs import EVALUATE
from scripts.runs import ROOT, Run, bundle_command

__all__ = ["ComparisonRuns", "ReplicateCohorts", "make_cohorts"]


# --- Data ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ReplicateCohorts:
    """Where the cohorts of a replicate are: to train on, to test on, and what the annotators left out."""

    train: Path
    test: Path
    truth: Path | None = None


def make_cohorts(plan: ComparisonPlan, folder: Path) -> dict[str, ReplicateCohorts]:
    """The cohorts of each replicate; synthetic ones are made, unless they are there."""
    names = [replicate_name(replicate) for replicate in plan.replicates]
    if plan.phantoms is None:
        cohorts = ROOT / str(plan.dataset_dir)
        return {name: ReplicateCohorts(cohorts, cohorts) for name in names}
    options = {"test_seed": 1000, **plan.phantoms}
    test_seed, test = options.pop("test_seed"), options.pop("test", 24)
    held_out = phantoms_in(folder / "test", seed=test_seed, **{**options, "full": 0, "partial": 0, "test": test})
    result = {}
    for name, replicate in zip(names, plan.replicates, strict=True):
        made = phantoms_in(folder / name, seed=replicate["seed"], **options, test=0)
        result[name] = ReplicateCohorts(made, held_out, made / "truth" if (made / "truth").is_dir() else None)
    return result


def phantoms_in(folder: Path, **options: Any) -> Path:
    """Synthetic cohorts, made once."""
    record = folder / "phantoms.json"
    wanted = json.dumps(options, sort_keys=True)
    if not record.is_file() or record.read_text(errors="replace") != wanted:
        make_phantoms(str(folder), **options)
        write_text(record, wanted)
    return folder


# --- Runs ------------------------------------------------------------------------------------------------------------
class ComparisonRuns:
    """Turns a plan into runs.

    Args:
        plan: what is compared.
        folder: where everything goes.
        cohorts: of each replicate.
    """

    def __init__(self, plan: ComparisonPlan, folder: Path, cohorts: Mapping[str, ReplicateCohorts]) -> None:
        self.plan, self.folder, self.cohorts = plan, folder, cohorts

    def values(self, replicate: Values, folder: Path) -> Values:
        found = self.cohorts[replicate_name(replicate)]
        return {
            **self.plan.values,
            **replicate,
            "dataset_dir": found.train,
            "bundle_root": folder,
            "cache_dir": self.folder / "cache",
            "truth_dir": found.truth,
        }

    def warmup_folder(self, network: str, replicate: Values) -> Path:
        return self.folder / "warmup" / network / replicate_name(replicate)

    def run_folder(self, network: str, selection: str, method: str, replicate: Values) -> Path:
        return self.folder / "runs" / network / selection / method / replicate_name(replicate)

    def warmup(self, network: str, replicate: Values) -> Run:
        """Stage 1, which all methods share."""
        folder = self.warmup_folder(network, replicate)
        cohorts = self.plan.selections[self.plan.main["selection"]]
        values = {**self.values(replicate, folder), "cohorts": cohorts, "supervision": "full", "train_iterations": 0}
        configs = self.plan.configs(network)
        step = bundle_command("training", configs, **values)
        return self.run(f"{network} {replicate_name(replicate)}: stage 1", folder, (step,), configs, values)

    def method(self, network: str, selection: str, name: str, replicate: Values) -> Run:
        """Stage 2 of a method, and its scores."""
        folder, warmup = self.run_folder(network, selection, name, replicate), self.warmup_folder(network, replicate)
        values = {
            **self.values(replicate, folder),
            **self.plan.variants[name],
            "cohorts": self.plan.selections[selection],
            "warmup_checkpoint": warmup / "models" / "warmup.pt",
        }
        scored = {**values, "output_dir": folder / "test", "dataset_dir": self.cohorts[replicate_name(replicate)].test}
        if self.plan.phantoms is not None:
            scored["cohorts"] = None
        if replicate["fold"] is not None:
            scored["section"] = "fold"
        training, evaluating = self.plan.configs(network), [*self.plan.configs(network), EVALUATE]
        steps = (
            bundle_command("training", training, **values),
            bundle_command("evaluating", evaluating, **{**scored, "truth_dir": None}),
        )
        title = f"{network} {selection} {name} {replicate_name(replicate)}"
        return self.run(title, folder, steps, evaluating, values, (warmup,))

    def run(
        self,
        name: str,
        folder: Path,
        steps: tuple[tuple[str, ...], ...],
        configs: Sequence[Path],
        values: Values,
        needs: tuple[Path, ...] = (),
    ) -> Run:
        """A run that is made anew when one of its values, or the text of one of its configs, has changed."""
        texts = {os.path.relpath(path, ROOT): path.read_text() for path in sorted(configs)}
        return Run(
            name, folder, steps, {"values": values, "configs": texts, "phantoms": self.plan.phantoms}, needs, True
        )

    def cells(self) -> list[tuple[str, str, str, Values]]:
        """Network, selection, method and replicate of every run of stage 2; a replicate is finished before the next."""
        return [
            (network, selection, method, replicate)
            for network in self.plan.networks
            for replicate in self.plan.replicates
            for selection in self.plan.selections
            for method in self.plan.variants_of(network, selection)
        ]

    def all_runs(self) -> list[Run]:
        warmups = [
            self.warmup(network, replicate) for network in self.plan.networks for replicate in self.plan.replicates
        ]
        return [*warmups, *(self.method(*cell) for cell in self.cells())]
