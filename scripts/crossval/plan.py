# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a cross-validation trains and scores: folds, values and the runs that come of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bundle.checks.cases import check_cohorts
from bundle.cohorts.datalists import find_cohorts
from bundle.cohorts.selection import fold_cases, training_cases, validation_cases
from bundle.errors import InputError
from bundle.files import digest_files
from bundle.organs import Vocabulary
from scripts.common import check_writable, listed
from scripts.configs import EVALUATE, TRAIN, check_config, config_values
from scripts.runs import Run, bundle_command, check_folders

__all__ = ["CrossValidation", "chosen_folds", "chosen_values"]

OURS = ("bundle_root", "dataset_dir", "output_dir", "cache_dir", "fold", "section", "checkpoint")  # set for each fold
SCORING = ("tolerance",)  # values that training has none of
Folds = Sequence[int | None]  # None trains on all cases


# --- What is asked for -----------------------------------------------------------------------------------------------
def chosen_folds(folds: Any) -> list[int]:
    """`5` are the folds 0 to 4; `0,2` and `[3]` are these."""
    numbers = list(range(folds)) if isinstance(folds, int) and not isinstance(folds, bool) else listed(folds)
    whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)
    if not numbers or not whole or len(numbers) != len(set(numbers)):
        raise InputError(f"folds: expected how many, such as 5, or which, such as 0,1,2, found {folds}")
    return numbers


def chosen_values(given: Any) -> dict[str, str]:
    """`seed=1,pixdim=[4,4,6]`, a list of such parts, or a mapping, as options of a command line."""
    if isinstance(given, Mapping):
        return {str(name): str(value) for name, value in given.items()}
    # a comma in brackets belongs to its value
    parts = re.split(r",(?![^\[(]*[\])])", given) if isinstance(given, str) else [str(part) for part in listed(given)]
    values = {}
    for part in parts:
        name, sign, value = (text.strip() for text in part.partition("="))
        if not name or not sign or not value:
            raise InputError(f'values: expected values such as supervision=partial,seed=1, found "{part}"')
        values[name] = value
    return values


@dataclass(frozen=True)
class CrossValidation:
    """What is trained and scored, and where.

    Args:
        dataset_dir: folder of the cohorts.
        output: folder for everything that is made.
        overlays: config files on configs/train.yaml.
        values: further values of the config, as text on a command line.
    """

    dataset_dir: Path
    output: Path
    overlays: tuple[str, ...]
    values: dict[str, str]

    def folder(self, fold: int | None) -> Path:
        return self.output / "folds" / ("all" if fold is None else f"fold{fold}")

    def scores(self, fold: int) -> Path:
        return self.output / "scores" / f"fold{fold}"

    def weights(self, fold: int | None) -> Path:
        """The last ones; of stage 1 where there is no stage 2."""
        return self.folder(fold) / "models" / ("model.pt" if self.config["train_iterations"] > 0 else "warmup.pt")

    def common(self, fold: int | None) -> dict[str, Any]:
        """Values of both commands; what is preprocessed for one fold serves the others."""
        made = {"bundle_root": self.folder(fold), "cache_dir": self.output / "cache"}
        return {**made, "dataset_dir": self.dataset_dir, "fold": fold}

    @property
    def scoring_configs(self) -> list[str | Path]:
        return [TRAIN, *self.overlays, EVALUATE]

    @property
    def training_values(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if name not in SCORING}

    def training(self, fold: int | None) -> Run:
        command = bundle_command("training", [TRAIN, *self.overlays], **self.training_values, **self.common(fold))
        name = "training on all cases" if fold is None else f"training of fold {fold}"
        return Run(name, self.folder(fold), (command,), {**self.settings, "fold": fold}, goes_on=True)

    def scoring(self, fold: int) -> Run:
        folder = self.scores(fold)
        made = {"section": "fold", "checkpoint": self.weights(fold), "output_dir": folder}
        command = bundle_command("evaluating", self.scoring_configs, **self.values, **self.common(fold), **made)
        settings = {"evaluate": digest_files([EVALUATE]), "values": self.values}
        return Run(f"scores of fold {fold}", folder, (command,), settings, (self.folder(fold),))

    def runs(self, folds: Folds) -> list[Run]:
        """Trainings first: they take the longest."""
        return [self.training(fold) for fold in folds] + [self.scoring(fold) for fold in folds if fold is not None]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What weights depend on."""
        cohorts = find_cohorts(self.dataset_dir, self.config["cohorts"])
        return {
            "configs": digest_files([TRAIN, *self.overlays]),
            "values": self.training_values,
            "cohorts": {str(path): digest_files([path]) for path in cohorts},
        }

    @cached_property
    def config(self) -> dict[str, Any]:
        """Those values of the config that matter here."""
        names = ("cohorts", "organs", "supervision", "tolerance", "train_iterations")
        return config_values(names, self.scoring_configs, self.values)

    def check(self, folds: Folds) -> None:
        """What can be refused at once."""
        for name in self.values:
            if name in OURS:
                raise InputError(f"values: {name} differs from fold to fold and is set by this command; leave it out")
        check_config(self.scoring_configs, self.values, "values: ")
        check_writable(self.output)
        for fold in folds:
            held = fold_cases(self.dataset_dir, self.config["cohorts"], self.vocabulary, fold)
            if fold is not None and not held:
                raise InputError(
                    f"{self.dataset_dir}: fold {fold} holds out no case; add cases, or train with --all_cases"
                )
        check_folders(self.runs(folds))

    def validated_always(self) -> set[tuple[str, str]]:
        """Cohort and name of the cases of the section `validation`, which are of no fold and scored with each."""
        cases = validation_cases(self.dataset_dir, self.config["cohorts"], self.vocabulary, fold=None)
        return {(case["cohort"], case["case"]) for case in cases}

    def check_data(self, folds: Folds) -> None:
        """Examine all scans once, before hours of work; the runs find the results in the cache."""
        cohorts, supervision = self.config["cohorts"], self.config["supervision"]
        training_cases(self.dataset_dir, cohorts, self.vocabulary, supervision, folds[0])
        check_cohorts(self.dataset_dir, cohorts, self.vocabulary, self.checks)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.config["organs"])

    @property
    def checks(self) -> Path:
        return self.output / "cache" / "checks.json"
