# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Bad weights: broken files, other networks, records that lie, and folders that belong to another run."""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.integration.bad_inputs.record import EVALUATING, INFERRING, SEGMENT, TRAINING, BadInput, Plant, both

__all__ = ["CHECKPOINTS"]

MODEL = "models/model.pt"
WARMUP = f"{TRAINING} --bundle_root again --warmup_checkpoint models/warmup.pt"
PRIOR = "eval/prior.json"
WITH_PRIOR = f"{WARMUP} --prior_file {PRIOR}"
Weights = dict[str, Any]


# --- Faults ----------------------------------------------------------------------------------------------------------
def content(data: bytes, name: str = MODEL) -> Plant:
    def plant(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return plant


def cut(name: str = MODEL, part: float = 0.5) -> Plant:
    def plant(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: int(len(whole) * part)])

    return plant


def gone(name: str = MODEL) -> Plant:
    return lambda folder: (folder / name).unlink()


def saved(thing: Any, name: str = MODEL) -> Plant:
    return lambda folder: torch.save(thing, folder / name)


def edit(change: Callable[[Weights], object], name: str = MODEL) -> Plant:
    """The whole content of a checkpoint, changed."""

    def plant(folder: Path) -> None:
        stored = torch.load(folder / name, weights_only=True)
        change(stored)
        torch.save(stored, folder / name)

    return plant


def weights(change: Callable[[Weights], object], name: str = MODEL) -> Plant:
    """Its tensors, changed."""
    return edit(lambda stored: change(stored.get("model", stored)), name)


def record(change: Callable[[Weights], object] | None = None, **values: Any) -> Plant:
    """Its record, changed; its copy for people is removed, so that the two do not disagree."""
    changed = change or (lambda stored: stored.update(values))
    return both(edit(lambda stored: changed(stored["record"])), gone("models/model.json"))


def network(**values: Any) -> Plant:
    """What its record says of the network, changed."""
    return record(lambda stored: stored["network_def"].update(values))


def set_value(value: float) -> Callable[[Weights], None]:
    """One weight of the last tensor."""

    def change(tensors: Weights) -> None:
        tensors[list(tensors)[-1]].view(-1)[0] = value

    return change


def rename_one(tensors: Weights) -> None:
    tensors["renamed.weight"] = tensors.pop(next(iter(tensors)))


def reshape_one(tensors: Weights) -> None:
    tensors[next(iter(tensors))] = torch.zeros(3, 3)


def bare(name: str = MODEL) -> Plant:
    """A checkpoint as earlier versions wrote it: tensors alone."""

    def plant(folder: Path) -> None:
        torch.save(torch.load(folder / name, weights_only=True)["model"], folder / name)

    return plant


def description(change: Callable[[dict[str, Any]], object]) -> Plant:
    """models/model.json, changed: what is for people says something else than the weights."""

    def plant(folder: Path) -> None:
        path = folder / "models" / "model.json"
        stored = json.loads(path.read_text())
        change(stored)
        path.write_text(json.dumps(stored))

    return plant


def swapped_organs(stored: dict[str, Any]) -> None:
    stored["organs"] = [stored["organs"][1], stored["organs"][0], *stored["organs"][2:]]


class Malice:
    """What runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("open('harm.txt', 'w').close()",)


def malicious(folder: Path) -> None:
    (folder / MODEL).write_bytes(pickle.dumps({"model": Malice()}))


def whole_network(folder: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), folder / MODEL)


def nested(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for _ in range(levels):
        made = {"norm": made}
    return made


def nested_network(folder: Path) -> None:
    """Deeper than Python likes to write, but not too deep to read."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        network(act=nested(500))(folder)
    finally:
        sys.setrecursionlimit(limit)


def second_model(change: Callable[[Weights], object]) -> Plant:
    """A model beside the first, whose record says something else."""

    def plant(folder: Path) -> None:
        (folder / "other").mkdir()
        stored = torch.load(folder / MODEL, weights_only=True)
        change(stored["record"])
        torch.save(stored, folder / "other" / "model.pt")

    return plant


SEGMENTED: dict[str, Plant] = {
    "no weights": gone(),
    "an empty file": content(b""),
    "half a checkpoint": cut(),
    "a checkpoint without its last bytes": cut(part=0.99),
    "text": content(b"weights"),
    "a web page that was saved as weights": content(b"<html><body>Please log in</body></html>"),
    "a scan as weights": lambda folder: (folder / MODEL).write_bytes((folder / "scan.nii.gz").read_bytes()),
    "a pickle that runs a command": malicious,
    "a whole network instead of its weights": whole_network,
    "a list of tensors": saved([torch.zeros(2)]),
    "a number": saved(5),
    "no tensor at all": weights(lambda tensors: tensors.clear()),
    "a weight that is NaN": weights(set_value(float("nan"))),
    "a weight that is infinite": weights(set_value(float("inf"))),
    "a weight of another name": weights(rename_one),
    "a weight of another shape": weights(reshape_one),
    "a weight that is missing": weights(lambda tensors: tensors.pop(next(iter(tensors)))),
    "a weight that is text": weights(lambda tensors: tensors.update({next(iter(tensors)): "text"})),
    "an old checkpoint, nothing beside it": both(bare(), gone("models/model.json")),
    "a record that is missing": both(edit(lambda stored: stored.pop("record")), gone("models/model.json")),
    "a record that is a list": both(edit(lambda stored: stored.update(record=[1])), gone("models/model.json")),
    "a record without organs": record(lambda stored: stored.pop("organs")),
    "a record without a network": record(lambda stored: stored.pop("network_def")),
    "a record of no organs": record(organs=[]),
    "a record of an unknown organ": record(lambda stored: stored["organs"].__setitem__(0, "brain")),
    "a record with an organ twice": record(lambda stored: stored["organs"].__setitem__(0, stored["organs"][1])),
    "a record of fewer organs than the weights have": record(lambda stored: stored["organs"].pop()),
    "a record with a reversed HU window": record(hu_window=[275, -125]),
    "a record with a NaN in its HU window": record(hu_window=[float("nan"), 275]),
    "a record with a voxel size of two numbers": record(pixdim=[1.5, 1.5]),
    "a record with a negative voxel size": record(pixdim=[-1, 1, 1]),
    "a record with a patch of no size": record(patch_size=[0, 16, 8]),
    "a record with an expression": record(pixdim="$[1.0, 1.0, 1.0]"),
    "a record with an expression in the network": network(channels="$[4, 8]"),
    "a record with a reference": network(out_channels="@out_channels"),
    "a record whose network is a program": network(_target_="os.system"),
    "a record whose network is nobody's": network(_target_="bundle.networks.Nowhere"),
    "a record whose network is a function of ours": network(_target_="bundle.files.remove_unfinished"),
    "a record with a component inside the network": network(act={"_target_": "subprocess.run", "args": "ls"}),
    "a record with an argument that no network has": network(chanels=[4, 8]),
    "a record with channels that are words": network(channels=["four", "eight"]),
    "a record nested too deep": nested_network,
    "a record with the size of an organ that the model does not have": record(sizes={"lung": 5}),
    "a record with the size of an organ of 0 ml": record(sizes={"liver": {"cases": 1, "ml": 0, "spread": 0.0}}),
    "a record with a prior that is a list": record(prior=[0.9, 0.1]),
    "a model.json that is no JSON": content(b"{", "models/model.json"),
    "a model.json that is a list": content(b"[]", "models/model.json"),
    "a model.json that names two organs the other way round": description(swapped_organs),
    "a model.json of another grid": description(lambda stored: stored.update(pixdim=[3.0, 3.0, 3.0])),
    "a model.json with an expression": description(lambda stored: stored.update(pixdim="$[1.0, 1.0, 1.0]")),
    "a model.json of another network": description(lambda stored: stored["network_def"].update(channels=[8, 16])),
}  # fmt: skip
OF_MODEL, OF_WARMUP = ("models/model.pt",), ("models/warmup.pt",)
AVERAGED = "scripts segment scan.nii.gz out --model models,other"
OTHER_RUN = f"{TRAINING} --supervision partial"
LONG_RUN = f"{TRAINING} --warmup_iterations 100000"
KILLED_RUN = f"{LONG_RUN} --save_minutes 0"

CHECKPOINTS = [
    *(BadInput(wrong, SEGMENT, plant, about=("models/model.",), trained=True) for wrong, plant in SEGMENTED.items()),
    BadInput("a folder without weights", "scripts segment scan.nii.gz out --model data", trained=True),
    BadInput("two models, one of which is missing", AVERAGED, trained=True),
    BadInput("two models of different organs", AVERAGED, second_model(swapped_organs), trained=True),
    BadInput(
        "two models of different grids", AVERAGED, trained=True,
        plant=second_model(lambda stored: stored.update(pixdim=[3.0, 3.0, 3.0])),
    ),
    BadInput("no weights to evaluate", EVALUATING, gone(), about=OF_MODEL, trained=True),
    BadInput("half a checkpoint to evaluate", EVALUATING, cut(), about=OF_MODEL, trained=True),
    BadInput("NaN weights to evaluate", EVALUATING, weights(set_value(float("nan"))), about=OF_MODEL, trained=True),
    BadInput("an evaluation with other organs", f"{EVALUATING} --organs \"['liver','spleen']\"",
             about=OF_MODEL, trained=True),
    BadInput("an evaluation with organs in another order", EVALUATING, about=OF_MODEL, trained=True,
             plant=both(edit(lambda stored: swapped_organs(stored["record"])), gone("models/model.json"))),
    BadInput("an evaluation with another HU window", f"{EVALUATING} --hu_window [-100,200]",
             about=OF_MODEL, trained=True),
    BadInput("an evaluation on another grid", f"{EVALUATING} --pixdim [6,6,6]", about=OF_MODEL, trained=True),
    BadInput("an evaluation with another network", f"{EVALUATING} --network_def::channels [8,16]",
             about=OF_MODEL, trained=True),
    BadInput("no weights for inference", INFERRING, gone(), about=OF_MODEL, trained=True),
    BadInput("NaN weights for inference", INFERRING,
             weights(set_value(float("nan"))), about=OF_MODEL, trained=True),
    BadInput("inference with organs in another order", INFERRING, about=OF_MODEL, trained=True,
             plant=both(edit(lambda stored: swapped_organs(stored["record"])), gone("models/model.json"))),
    BadInput("no weights in place of stage 1", f"{TRAINING} --warmup_checkpoint nowhere.pt"),
    BadInput("a folder in place of stage 1", f"{TRAINING} --warmup_checkpoint data"),
    BadInput("half a checkpoint in place of stage 1", WARMUP, cut("models/warmup.pt"), about=OF_WARMUP, trained=True),
    BadInput("NaN weights in place of stage 1", WARMUP, about=OF_WARMUP, trained=True,
             plant=weights(set_value(float("nan")), "models/warmup.pt")),
    BadInput("weights of other organs in place of stage 1", f"{WARMUP} --organs \"['liver','spleen']\"",
             about=OF_WARMUP, trained=True),
    BadInput("weights of another network in place of stage 1", f"{WARMUP} --network_def::channels [8,16]",
             about=OF_WARMUP, trained=True),
    BadInput("weights of another grid in place of stage 1", f"{WARMUP} --pixdim [6,6,6]",
             about=OF_WARMUP, trained=True),
    BadInput("partial cohorts alone without a prior", f"{WARMUP} --cohorts spleen", about=("--prior_file",),
             trained=True),
    BadInput("no prior of an earlier training", f"{TRAINING} --prior_file nowhere.json"),
    BadInput("half a prior of an earlier training", WITH_PRIOR, cut(PRIOR), about=(PRIOR,), trained=True),
    BadInput("a prior of other organs", f"{TRAINING} --bundle_root again --prior_file {PRIOR} --organs \"['liver']\"",
             about=(PRIOR, "organs"), trained=True),
    BadInput("a prior of volumes for slices", f"{TRAINING} --bundle_root again --prior_file {PRIOR} "
             "--patch_size [16,16,1] --network_def::spatial_dims 2 --rotation [0.2,0,0]", about=(PRIOR,), trained=True),
    BadInput("a folder with the weights of another run", OTHER_RUN, about=("overwrite",), trained=True),
    BadInput("a folder with an unfinished run of other values", OTHER_RUN, about=("overwrite",), after=KILLED_RUN),
    BadInput("a folder in which a training runs", LONG_RUN, beside=LONG_RUN),
    BadInput("a folder in which another training runs", OTHER_RUN, beside=LONG_RUN),
    BadInput("a folder to overwrite in which a training runs", f"{OTHER_RUN} --overwrite True", beside=LONG_RUN),
]  # fmt: skip
