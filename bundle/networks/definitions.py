# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A `network_def` that came with a model is data: what it may say, and the network that it describes.

A config that a user passes is code, by MONAI's design; what is found inside or beside weights is not. So a definition
is checked completely before anything is instantiated, and it is never given to MONAI's config parser.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from monai.networks import nets
from torch import Tensor, nn
from torch.nn.modules import module as registration
from torch.overrides import TorchFunctionMode

import bundle.networks
from bundle.errors import InputError

__all__ = [
    "build_network",
    "check_definition",
    "check_plain",
    "complete_definition",
    "find_network",
    "outline_network",
    "shorten",
]

TARGET = "_target_"
DEEPEST, MOST, LONGEST = 16, 100_000, 10_000  # nesting and items of plain data, letters of a text
LARGEST_WHOLE = 2**53  # beyond it JSON is not exact
LARGEST_ARGUMENT, MOST_ARGUMENTS = 1_000_000, 10_000  # no network needs as many channels
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")  # not `_mode_`, `a::b`, `a#b` or `+a`, which mean something to MONAI
PROGRAM = ("$", "@", "%")  # what expressions, references and macros of MONAI begin with
REPLACE = "replace the file by the one that training wrote"
FILES = re.compile(r"pretrained|weights|checkpoint|ckpt|path|file|folder|dir|url|repo", re.IGNORECASE)


# --- Plain data ------------------------------------------------------------------------------------------------------
def check_plain(value: Any, source: str, most: int = MOST) -> None:
    """What JSON can hold, neither too deep nor too long.

    Args:
        value: anything, also what refers to itself.
        source: the file it was read from, for the sentence.
        most: items, at most.

    Raises:
        InputError: saying what else was found.
    """
    waiting, count = [(value, 0)], 0
    while waiting:
        item, depth = waiting.pop()
        count += 1
        if depth > DEEPEST or count > most:
            limit = f"at most {most} values, nested at most {DEEPEST} deep"
            raise InputError(f"{source}: expected a description of a model, {limit}, found more; {REPLACE}")
        if isinstance(item, Mapping):
            waiting += [(inner, depth + 1) for pair in item.items() for inner in (check_key(pair[0], source), pair[1])]
        elif isinstance(item, list | tuple):
            waiting += [(inner, depth + 1) for inner in item[: most + 1]]
        else:
            check_scalar(item, source)


def check_key(key: Any, source: str) -> str:
    if not isinstance(key, str):
        raise InputError(f"{source}: expected names as keys, found {shorten(key)}; {REPLACE}")
    return key


def check_scalar(item: Any, source: str) -> None:
    if not (item is None or isinstance(item, str | int | float | bool)):
        raise InputError(f"{source}: expected text and numbers, found {type(item).__name__}; {REPLACE}")
    too_long = isinstance(item, str) and len(item) > LONGEST
    if too_long or (isinstance(item, int) and abs(item) > LARGEST_WHOLE):
        what = f"text of {len(item)} letters" if isinstance(item, str) else "a whole number beyond 2⁵³"
        raise InputError(f"{source}: expected values of a reasonable size, found {what}; {REPLACE}")


def shorten(value: Any, most: int = 80) -> str:
    """A value in a sentence."""
    found = " ".join(repr(value).split())
    return found if len(found) <= most else found[:most] + " …"


# --- Which networks there are ----------------------------------------------------------------------------------------
def find_network(target: Any) -> type[nn.Module] | None:
    """The class that a `_target_` names if it is one of MONAI's networks or of bundle.networks; else None.

    >>> find_network("UNet") is find_network("monai.networks.nets.UNet") is nets.UNet
    True
    >>> find_network("bundle.networks.DeepLabV3Plus").__name__
    'DeepLabV3Plus'
    >>> find_network("os.system"), find_network("torch.nn.Linear")
    (None, None)
    """
    if not isinstance(target, str):
        return None
    path, _, name = target.rpartition(".")
    for room, names in ((nets, vars(nets)), (bundle.networks, bundle.networks.__all__)):
        found = getattr(room, name, None) if name in names else None
        if inspect.isclass(found) and issubclass(found, nn.Module):
            short = target == name and room is nets  # as MONAI's configs write it
            if short or path in (room.__name__, found.__module__):
                return found
    return None


def check_definition(definition: Any, source: str) -> None:
    """A `network_def` is a network that is known, with plain values as arguments.

    Args:
        definition: anything.
        source: the file it was read from, for the sentence.

    Raises:
        InputError: for another `_target_`, and for anything that would be executed, loaded or downloaded.

    >>> check_definition({"_target_": "UNet", "spatial_dims": 3}, "model.pt")
    >>> check_definition({"_target_": "os.system", "command": "true"}, "model.pt")
    Traceback (most recent call last):
    bundle.errors.InputError: model.pt: network_def: expected a network of MONAI, or one that bundle.networks exports, \
found 'os.system'; nothing else is built from a description
    """
    check_plain(definition, source, MOST_ARGUMENTS)
    if not isinstance(definition, Mapping) or find_network(definition.get(TARGET)) is None:
        found = definition.get(TARGET) if isinstance(definition, Mapping) else definition
        raise InputError(
            f"{source}: network_def: expected a network of MONAI, or one that bundle.networks exports, found "
            f"{shorten(found)}; nothing else is built from a description"
        )
    for name, value in definition.items():
        if name != TARGET:
            check_argument(name, value, source)
    for name, value in complete_definition(definition).items():  # some load files unless told otherwise
        check_no_file(name, value, source)


def check_argument(name: str, value: Any, source: str) -> None:
    """An argument and all that is inside of it."""
    if not NAME.fullmatch(name):
        raise InputError(f"{source}: network_def: {shorten(name)} is no argument of a network; descriptions are data")
    check_no_file(name, value, source)
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, Mapping):
            for inner, content in item.items():
                check_argument(inner, content, source)
        elif isinstance(item, list | tuple):
            check_argument(name, item, source)
        elif isinstance(item, str) and item.strip().startswith(PROGRAM):
            raise InputError(
                f"{source}: network_def: {name}: {shorten(item)} would be an expression or a reference of a config; "
                "descriptions are data, and nothing in them is executed"
            )
        elif isinstance(item, int | float) and not abs(item) <= LARGEST_ARGUMENT:
            raise InputError(
                f"{source}: network_def: {name}: expected numbers up to {LARGEST_ARGUMENT}, found {shorten(item)}"
            )


def check_no_file(name: str, value: Any, source: str) -> None:
    loads = bool(value) if name.lower().startswith("pretrained") else isinstance(value, str) and value != ""
    if loads and FILES.search(name):
        raise InputError(
            f"{source}: network_def: {name}: {shorten(value)} would load another file or download it; "
            f"a description has null there"
        )


def complete_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """The definition with the defaults of the arguments it leaves out, so that two can be compared.

    >>> complete_definition({"_target_": "UNet", "channels": (4, 8)})["channels"]
    [4, 8]
    >>> complete_definition({"_target_": "UNet"})["num_res_units"]
    0
    """
    network = find_network(definition.get(TARGET))
    if network is None:
        return {name: as_lists(value) for name, value in definition.items()}
    parameters = inspect.signature(network).parameters.values()
    defaults = {
        parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
    }
    given = {**defaults, **definition, TARGET: f"{network.__module__}.{network.__qualname__}"}
    return {name: as_lists(value) for name, value in given.items()}


def as_lists(value: Any) -> Any:
    """Tuples as the lists that JSON makes of them."""
    if isinstance(value, Mapping):
        return {name: as_lists(item) for name, item in value.items()}
    return [as_lists(item) for item in value] if isinstance(value, list | tuple) else value


# --- The network -----------------------------------------------------------------------------------------------------
def build_network(definition: Mapping[str, Any], weights: Mapping[str, Tensor], source: str) -> nn.Module:
    """The network that a definition describes, if these are its weights. They are not loaded yet.

    It is built without memory first: a definition of absurd size is refused before anything is allocated for it.

    Args:
        definition: a `network_def`; it is checked here.
        weights: its state dict.
        source: the file it was read from, for the sentence.

    Raises:
        InputError: when the network cannot be built, or has other weights.
    """
    with no_more_than(weights):
        outline = outline_network(definition, source)
    expected = {name: tuple(value.shape) for name, value in outline.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in weights.items()}
    for name in [*expected, *found]:
        if expected.get(name) != found.get(name):
            raise InputError(
                f"{source}: the description does not fit the weights: {shorten(name)} is {found.get(name, 'missing')} "
                f"in the file and {expected.get(name, 'missing')} in the network; {REPLACE}"
            )
    return instantiate(definition, source)


def outline_network(definition: Mapping[str, Any], source: str) -> nn.Module:
    """The network that a definition describes, without memory: its parameters have shapes and no values.

    Args:
        definition: a `network_def`; it is checked here.
        source: the file it was read from, for the sentence.

    Raises:
        InputError: when it cannot be built.
    """
    check_definition(definition, source)
    with torch.device("meta"), SchedulesOnCPU():
        return instantiate(definition, source)


def instantiate(definition: Mapping[str, Any], source: str) -> nn.Module:
    network = find_network(definition[TARGET])
    assert network is not None  # checked before
    try:
        return network(**{name: value for name, value in definition.items() if name != TARGET})
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except Exception as error:  # whatever a constructor makes of arguments that it does not expect
        raise InputError(
            f"{source}: network_def: {definition[TARGET]} cannot be built with these arguments "
            f"({type(error).__name__}: {shorten(str(error))}); it needs plain values that it takes"
        ) from None


class SchedulesOnCPU(TorchFunctionMode):
    """Constructors read numbers out of `torch.linspace` (Swin UNETR), which a tensor without memory does not have."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        device = {"device": "cpu"} if func is torch.linspace else {}
        return func(*args, **{**(kwargs or {}), **device})


@contextmanager
def no_more_than(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop a constructor that makes more parameters than there are weights, or modules without end."""

    def stop_after(limit: int, what: str) -> Callable[..., None]:
        numbers = itertools.count(1)

        def hook(*_: Any) -> None:
            if next(numbers) > limit:
                raise InputError(f"network_def: the network has more {what} than its {len(weights)} weights allow")

        return hook

    # A parameter may be registered more than once, and many modules have none.
    hooks = [
        registration.register_module_parameter_registration_hook(stop_after(10 * len(weights) + 100, "parameters")),
        registration.register_module_module_registration_hook(stop_after(100 * len(weights) + 1000, "modules")),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
