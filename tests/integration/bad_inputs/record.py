# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a bad input is: a fault that is planted in a fresh small folder, and the command that meets it there.

The folder holds `configs`, `tiny.yaml`, `data` (tiny cohorts), `scan.nii.gz` and, where asked for, `models` and `eval`
of a finished training.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "CHECK", "EVALUATING", "INFERRING", "RUN", "SEGMENT", "TRAINING", "BadInput", "Plant", "both", "bundle_command",
    "nothing",
]  # fmt: skip

Plant = Callable[[Path], object]


def bundle_command(run_id: str, *configs: str, program: str = "monai.bundle", data: str = "data") -> str:
    """`python -m monai.bundle run` with these configs, without `python -m`."""
    files = "[" + ",".join(f"'{name}'" for name in configs) + "]"
    return f'{program} run {run_id} --config_file "{files}" --dataset_dir {data}'


TRAINING = bundle_command("training", "configs/train.yaml", "tiny.yaml")
EVALUATING = bundle_command("evaluating", "configs/train.yaml", "tiny.yaml", "configs/evaluate.yaml")
INFERRING = bundle_command("inferring", "configs/inference.yaml", "tiny.yaml", data="data/test/imagesTs")
RUN = "scripts run"
CHECK = "scripts check data --output out --workers 1"
SEGMENT = "scripts segment scan.nii.gz out --model models/model.pt"
SHORT = {TRAINING: "training", EVALUATING: "evaluating", INFERRING: "inferring"}  # how the page shows them


def nothing(folder: Path) -> None:
    """No file is at fault: the command line is."""


def both(*plants: Plant) -> Plant:
    """One fault after the other."""

    def plant(folder: Path) -> None:
        for one in plants:
            one(folder)

    return plant


@dataclass(frozen=True)
class BadInput:
    """A mistake, and the command that must refuse it.

    Args:
        wrong: what is wrong, in a few words.
        command: as a user types it after `python -m`.
        plant: makes the fault in the folder.
        about: what the sentence must name, at least: another mistake may have been met first.
        untouched: whether it can be known before anything at all is written, the cache included.
        trained: whether `models` and `eval` of a finished training are there.
        variables: of the environment.
        without: packages that are not installed.
        largest_file: bytes, as on a disk that is full beyond them.
        beside: a training that runs in the folder all the while.
        after: a training that has been killed there before, once it had a checkpoint.
    """

    wrong: str
    command: str
    plant: Plant = nothing
    about: tuple[str, ...] = ()
    untouched: bool = False
    trained: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    largest_file: int | None = None
    beside: str | None = None
    after: str | None = None

    @property
    def words(self) -> list[str]:
        return shlex.split(self.command)

    @property
    def shown(self) -> str:
        """The command as the page shows it: what all have in common is left out."""
        for long, short in SHORT.items():
            if self.command.startswith(long):
                return short + self.command.removeprefix(long)
        return self.command.removeprefix("scripts ").removeprefix("monai.bundle ")
