# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is compared: the YAML of a comparison, read and checked."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from bundle.cohorts.datalists import find_cohorts
from bundle.cohorts.selection import SUPERVISIONS
from bundle.errors import InputError
from scripts.configs import EVALUATE, TRAIN, check_config
from scripts.runs import ROOT

__all__ = ["ComparisonPlan", "Values", "replicate_name"]

Values = dict[str, Any]


@dataclass
class ComparisonPlan:
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
    def read(cls, path: Path) -> ComparisonPlan:
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

    def check_values(self, path: Path) -> None:
        """The values of each method are what the configs allow, before the first of them is trained.

        Raises:
            InputError: with every mistake of the first method that has any.
        """
        for network in self.networks:
            for method, values in self.variants.items():
                try:
                    check_config([*self.configs(network), EVALUATE], {**self.values, **values})
                except InputError as error:
                    raise InputError(f"{path}: method {method}: {error}") from None

    def configs(self, network: str) -> list[Path]:
        """Config files of a training, in the order in which they overlay each other."""
        return [TRAIN, *(ROOT / overlay for overlay in [*self.overlays, *self.networks[network]])]

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
        raise InputError(f"{path}: no such file; give a YAML such as configs/experiments/small.yaml")
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
