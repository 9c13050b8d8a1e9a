# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a model is, as plain data: it travels inside the weights, and for people as `model.json` beside them.

`read_record` is the one reader of such descriptions, wherever they come from: nothing in them is ever executed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from bundle.checks.sizes import Sizes, sizes_problem
from bundle.configs.running import VERSIONS, RunningConfig, installed
from bundle.configs.values import VALUES
from bundle.errors import InputError
from bundle.networks.definitions import (
    TARGET,
    as_lists,
    check_definition,
    check_plain,
    complete_definition,
    outline_network,
    shorten,
)
from bundle.organs import Vocabulary

__all__ = ["ModelRecord", "describe_model", "differences", "read_record"]

IDENTITY = (
    "organs",
    "network_def",
    "pixdim",
    "hu_window",
    "intensity",
    "context",
)  # patch_size, scales: free to choose
FREE = ("versions", "training", "prior")  # told to people; no network depends on them
APART = (*FREE, "sizes")  # not for configs/inference.yaml
TABLE = {value.name: value for value in VALUES}
# What no model needs: a description of this size would only exhaust the memory.
SMALLEST = {"pixdim": 0.05, "scales": 0.05}
LARGEST = {"pixdim": 100, "scales": 10, "patch_size": 4096, "context": 100, "hu_window": 1e5, "intensity": 1e6}


class HasPlain(Protocol):
    """What says what it is as JSON can hold it."""

    def plain(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class ModelRecord:
    """What a model is. Objects are made by `read_record` and `describe_model`, which check every value.

    Args:
        organs: names, in the order of the channels; the background is none of them.
        network_def: class and arguments of the network.
        pixdim: voxel size of its grid, mm; 0 is the scan's own.
        hu_window: HU values between which intensities are kept.
        intensity: what the window becomes.
        patch_size: voxels of a window; an axis of size 1 is the one across slices.
        context: slices on either side that are further input channels.
        scales: sizes of a window that are averaged.
        versions: of the libraries.
        training: how it was trained, in short.
        sizes: how large organs are in its training cases: see `bundle.checks.sizes`.
        prior: q, for trainings that go on from these weights: see `bundle.training.prior`; empty where there is none.
    """

    organs: list[str]
    network_def: dict[str, Any]
    pixdim: list[float]
    hu_window: list[float]
    intensity: list[float]
    patch_size: list[int]
    context: int = 0
    scales: list[float] = field(default_factory=lambda: [1.0])
    versions: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, dict[str, float]] = field(default_factory=dict)
    prior: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """All of it, as JSON can hold it."""
        return asdict(self)

    def config(self) -> dict[str, Any]:
        """What configs/inference.yaml must know of it, by the ids there."""
        return {name: value for name, value in self.plain().items() if name not in APART}


KNOWN = tuple(entry.name for entry in fields(ModelRecord))
REQUIRED = ("organs", "network_def", "pixdim", "hu_window", "intensity", "patch_size")


# --- Writing ---------------------------------------------------------------------------------------------------------
def describe_model(
    vocabulary: Vocabulary,
    hu_window: Sequence[float],
    intensity: Sequence[float],
    patch_size: Sequence[int],
    pixdim: Sequence[float],
    context: int = 0,
    scales: Sequence[float] = (1.0,),
    network_def: Mapping[str, Any] | None = None,
    sizes: Sizes | None = None,
    prior: HasPlain | None = None,
) -> ModelRecord:
    """The model of the config that runs.

    Args:
        vocabulary: the organs: numbers alone do not say which organ is which.
        hu_window: see `ModelRecord`, also for those that follow.
        intensity: likewise.
        patch_size: likewise.
        pixdim: likewise.
        context: likewise.
        scales: likewise.
        network_def: that of the config that runs, if not given: what is instantiated no longer shows it.
        sizes: see `ModelRecord`.
        prior: q.

    Raises:
        InputError: when it is not plain data, or its network is one that weights cannot name.

    >>> unet = {"_target_": "BasicUNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 2}
    >>> window, intensity, pixdim = (-125, 275), (0, 255), (1.5, 1.5, 2.0)
    >>> describe_model(Vocabulary("liver"), window, intensity, (64, 64, 64), pixdim, network_def=unet).organs
    ['liver']
    """
    if network_def is None:
        config = RunningConfig.find()
        network_def = {} if config is None else config.section("network_def")
    record = {
        "organs": vocabulary.names,
        "network_def": without_pretrained(network_def),
        "pixdim": pixdim,
        "hu_window": hu_window,
        "intensity": intensity,
        "patch_size": patch_size,
        "context": context,
        "scales": scales,
        "versions": {name: installed(name) for name in VERSIONS},
        "sizes": sizes or {},
        "prior": {} if prior is None else prior.plain(),
    }
    described = read_record(record, "this config")
    outline_network(described.network_def, "this config")  # what is written now can be built later
    return described


def without_pretrained(network_def: Any) -> Any:
    """The trained weights replace those that a network started from, whose file may be gone by then."""
    if not isinstance(network_def, Mapping):
        return network_def
    return {name: None if str(name).startswith("pretrained") else value for name, value in network_def.items()}


# --- Reading ---------------------------------------------------------------------------------------------------------
def read_record(mapping: Any, source: str) -> ModelRecord:
    """A description from anywhere, checked completely and as data.

    A key that is not known is refused: whoever wrote it may have meant something that changes what the model is.

    Args:
        mapping: anything.
        source: the file it was read from, for the sentence.

    Raises:
        InputError: naming file, key, what was expected and what was found.

    >>> read_record({"organs": ["liver"], "organ": "spleen"}, "models/model.json")
    Traceback (most recent call last):
    bundle.errors.InputError: models/model.json: 'organ' is no part of a model's description; expected organs, \
network_def, pixdim, hu_window, intensity, patch_size, context, scales, versions, training, sizes, prior
    """
    if not isinstance(mapping, Mapping):
        raise InputError(f"{source}: expected the description of a model, found {shorten(mapping)}")
    check_plain(mapping, source)
    for name in mapping:
        if name not in KNOWN:
            raise InputError(
                f"{source}: {shorten(name)} is no part of a model's description; expected {', '.join(KNOWN)}"
            )
    for name in REQUIRED:
        if name not in mapping:
            raise InputError(f"{source}: does not say the {name} of the model; give the file that training wrote")
    values = {name: as_lists(value) for name, value in mapping.items()}
    for name, value in values.items():
        check_value(name, value, source)
    values["organs"] = read_organs(values["organs"], source)
    record = ModelRecord(**values)
    check_relations(record, source)
    return record


def check_value(name: str, value: Any, source: str) -> None:
    """One entry, by itself."""
    if name == "network_def":
        check_definition(value, source)
        return
    if name == "sizes":
        return  # it is about the organs: see `check_relations`
    if name in FREE:
        expected, allowed = "names and values", isinstance(value, dict)
    else:
        expected, allowed = f"{TABLE[name].kind}, {TABLE[name].allowed}", TABLE[name].test(value)
    if not allowed:
        raise InputError(f"{source}: {name}: expected {expected}, found {shorten(value)}")
    for number in value if isinstance(value, list) else [value]:
        if name in LARGEST and number and not SMALLEST.get(name, 0) <= abs(number) <= LARGEST[name]:
            low = f"from {SMALLEST[name]:g} " if name in SMALLEST else ""
            raise InputError(f"{source}: {name}: expected sizes {low}up to {LARGEST[name]:g}, found {shorten(value)}")


def read_organs(organs: Any, source: str) -> list[str]:
    if not isinstance(organs, list):
        raise InputError(f"{source}: organs: expected a list of names, found {shorten(organs)}")
    try:
        return Vocabulary(organs).names
    except InputError as error:
        raise InputError(f"{source}: {error}") from None


def check_relations(record: ModelRecord, source: str) -> None:
    """What two entries say does not contradict."""
    problem = sizes_problem(record.sizes, record.organs)
    if problem:
        raise InputError(f"{source}: sizes: expected {problem}")
    for name, (low, high) in {"hu_window": record.hu_window, "intensity": record.intensity}.items():
        if not low < high:
            raise InputError(f"{source}: {name}: expected a smaller and a larger value, found {[low, high]}")
    slices = record.patch_size.count(1)
    if slices > 1 or 0 in record.patch_size:
        raise InputError(
            f"{source}: patch_size: expected sizes above 0, or -1, and one of size 1 at most, found {record.patch_size}"
        )
    expected = {
        "out_channels": (1 + len(record.organs), f"{len(record.organs)} organs and the background"),
        "in_channels": (1 + 2 * record.context, f"context {record.context}"),
        "spatial_dims": (3 - slices, f"patch_size {record.patch_size}"),
    }
    for name, (number, reason) in expected.items():
        found = record.network_def.get(name, number)
        if found != number:
            raise InputError(f"{source}: network_def: {name}: expected {number}, for {reason}, found {shorten(found)}")


# --- Comparing -------------------------------------------------------------------------------------------------------
def differences(
    record: ModelRecord, other: Mapping[str, Any], names: Sequence[str] = IDENTITY
) -> Iterator[tuple[str, Any, Any]]:
    """Where another description says something else: the id, what the record has, what the other one has.

    Args:
        record: of a model.
        other: ids of a config and their values; what it does not have is not compared.
        names: what to compare. Windows may have another size than in training, but slices lie across the same axis.
    """
    for name in names:
        if name in other and name != "network_def":
            mine, theirs = getattr(record, name), as_lists(other[name])
            if mine != theirs:
                yield name, mine, theirs
    if "network_def" in names and isinstance(other.get("network_def"), Mapping):
        mine, theirs = (complete_definition(one) for one in (record.network_def, other["network_def"]))
        for key in dict.fromkeys([TARGET, *mine, *theirs]):  # another network has other arguments: its name first
            if not key.startswith("pretrained") and mine.get(key) != theirs.get(key):
                yield f"network_def::{key}", mine.get(key), theirs.get(key)
    sizes = as_lists(other.get("patch_size"))
    if isinstance(sizes, list) and [n == 1 for n in sizes] != [n == 1 for n in record.patch_size]:
        yield "patch_size", record.patch_size, sizes
