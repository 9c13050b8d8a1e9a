# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a training of the server will do: which cases, which configs, which values. Nothing is trained here."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.cohorts.datalists import Case, load_cases
from bundle.cohorts.selection import evaluation_cases, full_cases, validation_cases
from bundle.configs.components import nearest
from bundle.configs.values import VALUES
from bundle.errors import InputError
from bundle.files import digest_files, write_json
from bundle.inference.records import ModelRecord
from bundle.organs import Vocabulary
from bundle.training.prior import Prior
from bundle.training.schedule import scaled_interval
from bundle.untrusted import is_whole, shown
from label.annotations import COHORT, Annotation, write_saved_cohort
from label.gate import MARGIN
from label.replay import HELD_OUT, copy_reference
from label.state import ServerState, Setup
from scripts.configs import TRAIN, check_config, config_values
from scripts.runs import ROOT

__all__ = [
    "OPTIONS",
    "TrainingPlan",
    "TrainingRequest",
    "asked",
    "plan_training",
    "read_request",
    "signature_of",
    "validation_section",
]

OVERLAY = ROOT / "configs" / "overlays" / "label.yaml"
SLICE_ROTATION = [0.2618, 0, 0]  # 15 degrees in the slice, as the 2D overlays have it
SLICE_MARGIN = 8  # voxels around a slice's patch
RESUME = ("auto", "yes", "no")
# What a client may send; of a list the first is the default, as MONAI Label shows options.
OPTIONS: dict[str, Any] = {"max_epochs": 50, "resume": list(RESUME), "margin": MARGIN}


@dataclass(frozen=True)
class TrainingRequest:
    """What a client asks for.

    Args:
        max_epochs: of the whole training.
        device: such as cpu or cuda:0.
        resume: go on with the training that was stopped: `yes`, `no`, or `auto`, if nothing has changed since.
        margin: of the Dice that an organ may lose before the candidate is refused.
        values: ids of configs/train.yaml to set.
    """

    max_epochs: int
    device: str
    resume: str
    margin: float
    values: dict[str, Any]


def read_request(request: Mapping[str, Any], device: str = "cpu") -> TrainingRequest:
    """Check what a client sent.

    Raises:
        InputError: for a value that is none.

    >>> read_request({"max_epochs": 0})
    Traceback (most recent call last):
    bundle.errors.InputError: max_epochs: expected a whole number from 1 on, found 0
    """
    epochs, resume = request.get("max_epochs", OPTIONS["max_epochs"]), request.get("resume", "auto")
    margin, values = request.get("margin", MARGIN), request.get("values") or {}
    if not is_whole(epochs) or epochs < 1:
        raise InputError(f"max_epochs: expected a whole number from 1 on, found {shown(epochs)}")
    resume = resume[0] if isinstance(resume, list) and resume else resume
    resume = {True: "yes", False: "no"}.get(resume, resume) if isinstance(resume, bool) else resume
    if resume not in RESUME:
        raise InputError(f"resume: expected one of {', '.join(RESUME)}, found {shown(resume)}")
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not 0 <= margin <= 1:
        raise InputError(f"margin: expected a number from 0 to 1, found {shown(margin)}")
    for name in set(request) - set(OPTIONS) - {"values"}:
        if difflib.get_close_matches(name, [*OPTIONS, "values"], n=1, cutoff=0.8):  # others are of other apps
            raise InputError(f"{name}: {nearest(name, [*OPTIONS, 'values'], '')}")
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise InputError(f'values: expected ids of configs/train.yaml such as {{"seed": 1}}, found {shown(values)}')
    for name, value in values.items():
        check_value(name, value)
    return TrainingRequest(epochs, device, resume, float(margin), dict(values))


# What the server decides, so that a training stays in its folder and its model stays what it is.
OURS = {
    "bundle_root", "dataset_dir", "cohorts", "output_dir", "cache_dir", "organs", "fold", "warmup_checkpoint",
    "warmup_iterations", "train_iterations", "refresh_interval", "prior_file", "device", "overwrite", "resume",
    "truth_dir", "hu_window", "intensity", "pixdim", "context", "network_def", "patch_size",
}  # fmt: skip
PLAIN = {value.name: value for value in VALUES}


def check_value(name: str, value: Any) -> None:
    """Only plain values may come over the network: a config can name any code."""
    if name in OURS:
        raise InputError(f"values: {name} is set by the server; leave it out")
    if name not in PLAIN:
        hint = nearest(name, set(PLAIN) - OURS, "docs/reference/configs.md lists all values")
        raise InputError(f'values: there is no value "{name}"; {hint}')
    if not all(map(is_plain, value if isinstance(value, list) else [value])):
        raise InputError(f"values: {name}: expected a plain value, found {shown(value)}")
    mistake = PLAIN[name].mistake(value)
    if mistake:
        raise InputError(f"values: {name}: {mistake}")


def is_plain(value: Any) -> bool:
    """Whether MONAI's parser takes it as it is: neither an expression nor an object."""
    text = isinstance(value, str) and not value.startswith(("$", "@", "%"))
    return value is None or text or isinstance(value, bool | int | float)


@dataclass(frozen=True)
class TrainingPlan:
    """A training, ready to run.

    Args:
        folder: of the training.
        configs: files that overlay each other.
        values: ids set on top of them.
        validated: number of fully labelled cases to validate on.
        label_sets: of the saved cases.
        base: version that is fine-tuned; None where there is no model yet.
    """

    folder: Path
    configs: list[str]
    values: dict[str, Any]
    validated: int
    label_sets: dict[str, list[str]]
    base: int | None


def signature_of(annotations: Sequence[Annotation], base: int | None, request: TrainingRequest, setup: Setup) -> str:
    """Changes when a training begun now would be another one."""
    facts = [(one.case, sorted(one.names.items()), one.labelled, one.complete) for one in annotations]
    return f"{digest_files([one.label for one in annotations])}{hash_of(facts)}{hash_of((base, setup))}{asked(request)}"


def asked(request: TrainingRequest) -> str:
    """Changes when a client asks for another training."""
    return hash_of((request.max_epochs, request.margin, sorted(request.values.items())))


def hash_of(facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def plan_training(
    state: ServerState, folder: Path, annotations: Sequence[Annotation], request: TrainingRequest
) -> TrainingPlan:
    """Write the cohorts and configs of a training into its folder, and say how it runs.

    Args:
        state: of the server.
        folder: of the training.
        annotations: what was saved.
        request: what the client asks for.

    Raises:
        InputError: when there is nothing to learn from, no prior, or a value is not allowed.
    """
    setup, vocabulary, base = state.setup, state.vocabulary, state.served
    record = state.model
    said = [one for one in annotations if one.labelled]
    held_out = state.hold_out({one.case: one.complete for one in said})
    said = [one for one in said if one.complete or one.case not in held_out]
    cohorts = copy_reference(setup.reference, folder / "data", vocabulary, setup.fold)
    if said:
        cohorts.append(write_saved_cohort(folder / "data" / COHORT, said, vocabulary, held_out))
    if not cohorts:
        raise InputError(
            "train: there is nothing to learn from: no label map that names an organ was saved, and the server has no "
            "reference cohorts (make serve REFERENCE=DIR)"
        )
    files = [str(TRAIN), *setup.overlays, str(OVERLAY)]
    if record is not None:
        write_json(folder / "model.json", record.config() | slice_values(record, setup))
        files.append(str(folder / "model.json"))
    cases = load_cases(folder / "data", [str(path) for path in cohorts], vocabulary)
    values = {
        **places(state, folder, cohorts),
        **lengths(files, request, base is not None),
        **priors(state, folder, cases, record, vocabulary),
        "fold": HELD_OUT if any(case["fold"] == HELD_OUT for case in full_cases(cases, vocabulary)) else None,
        "device": f"$torch.device('{request.device}')",
        **request.values,
    }
    check_config(files, values, prefix="values: ")
    return TrainingPlan(
        folder, files, values, count_validated(values, vocabulary), {one.case: one.labelled for one in said}, base
    )


def count_validated(values: Mapping[str, Any], vocabulary: Vocabulary) -> int:
    """How many cases are validated on; what would stop their evaluation stops the plan."""
    place = (values["dataset_dir"], values["cohorts"], vocabulary)
    found = validation_cases(*place, values["fold"])
    return len(evaluation_cases(*place, validation_section(values), values["fold"])) if found else 0


def validation_section(values: Mapping[str, Any]) -> str:
    """What an evaluation is to be told: the section `fold` has the cases of `validation` too, but needs a fold."""
    return "validation" if values["fold"] is None else "fold"


def slice_values(record: ModelRecord, setup: Setup) -> dict[str, Any]:
    """What a 2D model needs besides; the configs have values for 3D, unless the server was started with overlays."""
    if 1 not in record.patch_size or setup.overlays:
        return {}
    margin = [0 if size == 1 else SLICE_MARGIN for size in record.patch_size]
    return {"rotation": SLICE_ROTATION, "patch_margin": margin}


def places(state: ServerState, folder: Path, cohorts: Sequence[Path]) -> dict[str, Any]:
    weights = state.served_weights
    return {
        "bundle_root": str(folder),
        "dataset_dir": str(folder / "data"),
        "cohorts": [str(path) for path in cohorts],
        "output_dir": str(folder / "eval"),
        "cache_dir": str(state.folder / "cache"),
        "warmup_checkpoint": None if weights is None else str(weights),
    }


def lengths(files: Sequence[str], request: TrainingRequest, has_model: bool) -> dict[str, int]:
    """Iterations of the stages: a client's epochs bound the whole training, both stages where there is no model."""
    names = ["epoch_length", "warmup_iterations", "train_iterations", "refresh_interval"]
    chosen = {name: value for name, value in request.values.items() if name == "epoch_length"}
    length, first, second, interval = config_values(names, files, chosen).values()
    total = request.max_epochs * length
    if not has_model and total < 2:
        raise InputError(
            f"max_epochs: a first model needs an iteration of each stage, found {total} in all; ask for more"
        )
    warmup = 0 if has_model else min(max(1, round(total * first / max(1, first + second))), total - 1)
    train = total - warmup
    return {
        "warmup_iterations": warmup,
        "train_iterations": train,
        "refresh_interval": scaled_interval(interval, second, 1, train),
    }


def priors(
    state: ServerState, folder: Path, cases: Sequence[Case], record: ModelRecord | None, vocabulary: Vocabulary
) -> dict[str, Any]:
    """The prior of a training without any fully labelled case: the one that was given, else the model's own."""
    training = [case for case in full_cases(cases, vocabulary) if case["fold"] != HELD_OUT]
    if training:
        return {"prior_file": None}
    if record is None:
        raise InputError(
            "train: there is no model yet and no fully labeled case for stage 1; start the server with MODEL= or "
            "REFERENCE=, or save a case as complete"
        )
    if state.setup.prior_file:
        return {"prior_file": state.setup.prior_file}
    if not record.prior:
        raise InputError(
            "train: no case is fully labeled, and the model does not bring a prior on organ sizes; start the server "
            "with REFERENCE= or PRIOR=, or save a case as complete"
        )
    Prior.from_record(record.prior, str(state.served_weights)).save(folder / "prior.json")
    return {"prior_file": str(folder / "prior.json")}
