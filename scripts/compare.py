# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts compare`: supervisions × cohorts × networks × seeds or folds from one YAML, with a report.

Every method starts from one stage-1 checkpoint per network and replicate and has the same number of iterations.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from bundle.cohorts.datalists import find_cohorts
from bundle.cohorts.phantoms import make_phantoms
from bundle.cohorts.selection import SUPERVISIONS, evaluation_cases
from bundle.errors import InputError
from bundle.evaluation.scores import read_scores
from bundle.evaluation.statistics import write_table
from bundle.files import write_json, write_text
from bundle.organs import Vocabulary
from bundle.reports.comparison import write_comparison
from scripts.common import check_writable
from scripts.runs import ROOT, Run, bundle_command, read_record, run_all_within

TRAIN, EVALUATE = (ROOT / "configs" / f"{name}.yaml" for name in ("train", "evaluate"))
Values = dict[str, Any]


# --- What is compared ------------------------------------------------------------------------------------------------
@dataclass
class Plan:
    """The YAML of a comparison.

    Args:
        title: of the report.
        methods: name and config values of each method that is compared.
        ablations: the same for variants of the reference, which are reported apart.
        reference: the method that the others are tested against.
        networks: name and overlays of each network.
        selections: name and cohorts of each choice of cohorts; null takes all. The last one is shown in detail.
        seeds: each trains everything anew, on synthetic cohorts of its own where those are made.
        folds: of the fully labelled cohort, instead of a test set.
        dataset_dir: folder of cohorts, relative to the repository's root.
        phantoms: arguments of `python -m scripts phantom` where cohorts are synthetic, and `test_seed`.
        overlays: config files on configs/train.yaml for all runs.
        values: config values for all runs.
        cores: that may be used in all.
        threads: of one run.
        memory: GB that may be used in all; null takes most of what is free.
    """

    methods: dict[str, Values]
    title: str = "Comparison of supervisions"
    ablations: dict[str, Values] = field(default_factory=dict)
    reference: str = "pann"
    networks: dict[str, list[str]] = field(default_factory=lambda: {"unet": []})
    selections: dict[str, list[str] | None] = field(default_factory=lambda: {"all": None})
    seeds: list[int] = field(default_factory=lambda: [0])
    folds: list[int] | None = None
    dataset_dir: str | None = None
    phantoms: Values | None = None
    overlays: list[str] = field(default_factory=list)
    values: Values = field(default_factory=dict)
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    threads: int = 1
    memory: float | None = None

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a file; one that names a `base` says only what differs from that file.

        Raises:
            InputError: when there is none, or one that cannot be carried out.
        """
        read = read_entries(path)
        known = {entry.name for entry in fields(cls)}
        if not isinstance(read, dict) or "methods" not in read or not set(read) <= known:
            odd = sorted(set(read) - known) if isinstance(read, dict) else read
            raise InputError(f"{path}: expected methods and any of {', '.join(sorted(known))}, found {odd}")
        plan = cls(**read)
        plan.check(path)
        return plan

    def check(self, path: Path) -> None:
        """Mistakes that would otherwise show after hours."""
        for name in (*self.variants, *self.networks, *self.selections):
            if not re.fullmatch(r"[\w.+*-]+", str(name)):
                raise InputError(f'{path}: expected names of letters, digits, ".", "+", "*" and "-", found "{name}"')
        for name, values in self.variants.items():
            if (values or {}).get("supervision") not in SUPERVISIONS:
                found = (values or {}).get("supervision")
                raise InputError(
                    f'{path}: method {name}: expected a supervision of {", ".join(SUPERVISIONS)}, found "{found}"'
                )
        if self.reference not in self.methods:
            raise InputError(f'{path}: reference: expected one of {", ".join(self.methods)}, found "{self.reference}"')
        if (self.dataset_dir is None) == (self.phantoms is None):
            raise InputError(f"{path}: expected either dataset_dir or phantoms")
        if self.phantoms is not None and self.folds is not None:
            raise InputError(f"{path}: folds: synthetic cohorts have a test set; leave one of the two out")
        for overlay in [*self.overlays, *(file for files in self.networks.values() for file in files)]:
            if not (ROOT / overlay).is_file():
                raise InputError(f"{path}: {overlay}: no such config; paths start at {ROOT}")
        if self.dataset_dir is not None:
            for cohorts in self.selections.values():
                find_cohorts(ROOT / self.dataset_dir, cohorts)

    @property
    def variants(self) -> dict[str, Values]:
        """Everything that is trained."""
        return {**self.methods, **self.ablations}

    @property
    def main(self) -> dict[str, str]:
        """What is shown in detail."""
        return {"network": list(self.networks)[-1], "selection": list(self.selections)[-1]}

    @property
    def replicates(self) -> list[Values]:
        """Seed and fold of each repetition."""
        if self.folds is not None:
            return [{"seed": self.seeds[0], "fold": fold} for fold in self.folds]
        return [{"seed": seed, "fold": None} for seed in self.seeds]

    def variants_of(self, network: str, selection: str) -> dict[str, Values]:
        """What is trained there: ablations only in the main cell, and nothing twice that needs no partial cohort."""
        if {"network": network, "selection": selection} == self.main:
            return self.variants
        alone = selection != self.main["selection"]
        return {
            name: values for name, values in self.methods.items() if not (alone and values["supervision"] == "full")
        }


def read_entries(path: Path) -> Any:
    """What a YAML says, on top of what its base says: entries replace, `phantoms` and `values` are merged."""
    if not path.is_file():
        raise InputError(f"{path}: no such file; give a YAML such as configs/compare_small.yaml")
    try:
        read = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise InputError(f"{path}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(read, dict) or "base" not in read:
        return read
    base = read_entries(path.parent / str(read.pop("base")))
    merged = {key: {**base[key], **read[key]} for key in ("phantoms", "values") if base.get(key) and read.get(key)}
    return {**base, **read, **merged}


def replicate_name(replicate: Values) -> str:
    return f"seed{replicate['seed']}" if replicate["fold"] is None else f"fold{replicate['fold']}"


# --- Data ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Data:
    """Where the cohorts of a replicate are: to train on, to test on, and what the annotators left out."""

    train: Path
    test: Path
    truth: Path | None = None


def make_data(plan: Plan, folder: Path) -> dict[str, Data]:
    """The cohorts of each replicate; synthetic ones are made, unless they are there."""
    names = [replicate_name(replicate) for replicate in plan.replicates]
    if plan.phantoms is None:
        cohorts = ROOT / str(plan.dataset_dir)
        return {name: Data(cohorts, cohorts) for name in names}
    options = {"test_seed": 1000, **plan.phantoms}
    test_seed, test = options.pop("test_seed"), options.pop("test", 24)
    held_out = phantoms_in(folder / "test", seed=test_seed, **{**options, "full": 0, "partial": 0, "test": test})
    result = {}
    for name, replicate in zip(names, plan.replicates, strict=True):
        made = phantoms_in(folder / name, seed=replicate["seed"], **options, test=0)
        result[name] = Data(made, held_out, made / "truth" if (made / "truth").is_dir() else None)
    return result


def phantoms_in(folder: Path, **options: Any) -> Path:
    """Synthetic cohorts, made once."""
    record = folder / "phantoms.json"
    wanted = json.dumps(options, sort_keys=True)
    if not record.is_file() or record.read_text() != wanted:
        make_phantoms(str(folder), **options)
        write_text(record, wanted)
    return folder


# --- Runs ------------------------------------------------------------------------------------------------------------
class Planner:
    """Turns a plan into runs.

    Args:
        plan: what is compared.
        folder: where everything goes.
        data: cohorts of each replicate.
    """

    def __init__(self, plan: Plan, folder: Path, data: Mapping[str, Data]) -> None:
        self.plan, self.folder, self.data = plan, folder, data

    def configs(self, network: str) -> list[Path]:
        return [TRAIN, *(ROOT / overlay for overlay in [*self.plan.overlays, *self.plan.networks[network]])]

    def values(self, replicate: Values, folder: Path) -> Values:
        data = self.data[replicate_name(replicate)]
        return {
            **self.plan.values,
            **replicate,
            "dataset_dir": data.train,
            "bundle_root": folder,
            "cache_dir": self.folder / "cache",
            "truth_dir": data.truth,
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
        step = bundle_command("training", self.configs(network), **values)
        return self.run(f"{network} {replicate_name(replicate)}: stage 1", folder, (step,), values)

    def method(self, network: str, selection: str, name: str, replicate: Values) -> Run:
        """Stage 2 of a method, and its scores."""
        folder, warmup = self.run_folder(network, selection, name, replicate), self.warmup_folder(network, replicate)
        values = {
            **self.values(replicate, folder),
            **self.plan.variants[name],
            "cohorts": self.plan.selections[selection],
            "warmup_checkpoint": warmup / "models" / "warmup.pt",
        }
        scored = {**values, "output_dir": folder / "test", "dataset_dir": self.data[replicate_name(replicate)].test}
        if self.plan.phantoms is not None:
            scored["cohorts"] = None
        if replicate["fold"] is not None:
            scored["section"] = "fold"
        configs = self.configs(network)
        steps = (
            bundle_command("training", configs, **values),
            bundle_command("evaluating", [*configs, EVALUATE], **{**scored, "truth_dir": None}),
        )
        return self.run(f"{network} {selection} {name} {replicate_name(replicate)}", folder, steps, values, (warmup,))

    def run(
        self, name: str, folder: Path, steps: tuple[tuple[str, ...], ...], values: Values, needs: tuple[Path, ...] = ()
    ) -> Run:
        overlays = {str(path.relative_to(ROOT)): path.read_text() for path in self.configs_of(steps)}
        return Run(name, folder, steps, {"values": values, "configs": overlays, "phantoms": self.plan.phantoms}, needs)

    @staticmethod
    def configs_of(steps: tuple[tuple[str, ...], ...]) -> list[Path]:
        """The config files of the steps: a run is made anew when one of them has changed."""
        named = {
            path for step in steps for path in re.findall(r"'([^']+\.yaml)'", step[step.index("--config_file") + 1])
        }
        return sorted(Path(path) for path in named)

    def cells(self) -> list[tuple[str, str, str, Values]]:
        """Network, selection, method and replicate of every run of stage 2; a replicate is finished before the next."""
        return [
            (network, selection, method, replicate)
            for network in self.plan.networks
            for replicate in self.plan.replicates
            for selection in self.plan.selections
            for method in self.plan.variants_of(network, selection)
        ]

    def all(self) -> list[Run]:
        warmups = [
            self.warmup(network, replicate) for network in self.plan.networks for replicate in self.plan.replicates
        ]
        return [*warmups, *(self.method(*cell) for cell in self.cells())]


# --- Results ---------------------------------------------------------------------------------------------------------
def collect_rows(planner: Planner) -> list[dict[str, Any]]:
    """The scores of all runs, each row with where it comes from."""
    rows = []
    for network, selection, method, replicate in planner.cells():
        where = {"network": network, "selection": selection, "method": method}
        scores, _ = read_scores(planner.run_folder(network, selection, method, replicate) / "test")
        rows += [{**where, "replicate": replicate_name(replicate), **row} for row in scores]
    return rows


def test_cases(planner: Planner, vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    """Image and true label map of each test case, and what the values of the map mean."""
    cases = {}
    for replicate in planner.plan.replicates:
        folder = planner.data[replicate_name(replicate)].test
        section = "test" if replicate["fold"] is None else "fold"
        for case in evaluation_cases(folder, None, vocabulary, section, replicate["fold"]):
            cases[case["case"]] = {key: case[key] for key in ("image", "label", "values")}
    return cases


def processor() -> str:
    """What the machine calls its processor."""
    table = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", table.read_text()) if table.is_file() else []
    return names[0] if names else platform.processor() or platform.machine()


def facts_of(plan: Plan, runs: Sequence[Run], config: Path, seconds: float) -> dict[str, str]:
    """What anyone needs to do it again."""
    records = [read_record(run.folder) or {} for run in runs]
    busy = sum(float(record.get("seconds", 0)) for record in records)
    peak = max(float(record.get("peak_memory_gb", 0)) for record in records)
    return {
        "command": f"python -m scripts compare --config {config}",
        "runs": f"{len(runs)}, {busy / 3600:.2f} hours in all, {plan.cores // plan.threads} at a time",
        "this call": f"{seconds / 60:.0f} minutes",
        "largest run": f"{peak:.2f} GB",
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in ("torch", "monai", "pytorch-ignite", "numpy")),
        "Python": platform.python_version(),
    }


def describe(plan: Plan, planner: Planner, facts: Mapping[str, str]) -> dict[str, Any]:
    """comparison.json: what the report needs beside the scores."""
    vocabulary = Vocabulary(plan.values.get("organs"))
    return {
        "title": plan.title,
        "reference": plan.reference,
        "methods": {
            name: {"title": name.replace("_", " "), "values": values, "ablation": name in plan.ablations}
            for name, values in plan.variants.items()
        },
        "replicates": [replicate_name(replicate) for replicate in plan.replicates],
        "networks": list(plan.networks),
        "selections": plan.selections,
        "main": plan.main,
        "organs": vocabulary.names,
        "cases": test_cases(planner, vocabulary),
        "facts": facts,
    }


def compare(config: str = "configs/compare_small.yaml", output: str | None = None) -> None:
    """Compare supervisions on the same data, with the same budget, and write tables, statistics and a report.

    Finished runs are kept: the same command goes on after an interruption.

    Args:
        config: what to compare; see configs/compare_small.yaml.
        output: folder for everything; default eval/NAME of the config.
    """
    started, path = time.time(), Path(str(config))
    plan = Plan.read(path)
    folder = (Path(str(output)) if output else ROOT / "eval" / path.stem).resolve()
    check_writable(folder)
    planner = Planner(plan, folder, make_data(plan, folder / "data"))
    runs = planner.all()
    run_all_within(runs, plan.cores, plan.threads, plan.memory)
    write_table(folder / "scores.csv", collect_rows(planner))
    facts = facts_of(plan, runs, path, time.time() - started)
    write_json(folder / "comparison.json", describe(plan, planner, facts), default=str)
    print(f"the report is {write_comparison(folder)}")
