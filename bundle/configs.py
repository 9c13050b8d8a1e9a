# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The config that runs: its effective values, and the check that each of them is known and allowed.

MONAI hands a component its arguments and nothing else. The functions here are named in a config's list of acts
(`training`, `evaluating`, `inferring`) and find the config they are part of, whoever runs it: a command line, MONAI
Label, or `ConfigWorkflow`. What values there are is in `bundle.values`.
"""

from __future__ import annotations

import difflib
import inspect
import logging
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import InputError
from bundle.files import digest_files
from bundle.values import VALUES

if TYPE_CHECKING:
    from monai.bundle.reference_resolver import ReferenceResolver

__all__ = ["RunningConfig", "check_values", "config_record"]

logger = logging.getLogger(__name__)

REFERENCE = re.compile(r"[@%]([A-Za-z_]\w*)(?:(?:::|#)(\w+))?")
# Ids that programs ask for by name: nothing in the config needs to refer to them.
ENTRY_POINTS = {
    "imports", "initialize", "finalize", "run", "training", "evaluating", "inferring", "bundle_root", "dataset_dir",
    "output_dir", "device", "val_interval", "save_execute_config",
}  # fmt: skip
PARTS = {"trainer", "evaluator", "handlers", "preprocessing", "postprocessing", "key_metric"}  # likewise, of stages
VERSIONS = ("torch", "monai", "pytorch-ignite", "numpy", "nibabel", "itk")


class RunningConfig:
    """The config whose component is being instantiated right now.

    Args:
        resolver: MONAI's, with all ids of the config, overrides included.
    """

    def __init__(self, resolver: ReferenceResolver) -> None:
        self.resolver = resolver
        found: dict[str, Any] = resolver.items[""].get_config()
        self.raw = {name: value for name, value in found.items() if name != "_meta_"}  # metadata.json comes along

    @classmethod
    def find(cls) -> RunningConfig | None:
        """The config that runs; None if the caller was not instantiated by one.

        MONAI's resolver is an object on the call stack of everything that it instantiates, and nowhere else.
        """
        from monai.bundle.reference_resolver import ReferenceResolver  # here: it brings torch

        frame = inspect.currentframe()
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, ReferenceResolver):
                return cls(owner)
            frame = frame.f_back
        return None

    def value(self, name: str) -> Any:
        """What an id stands for, as JSON can hold it."""
        found = self.resolver.get_resolved_content(name)
        return found if is_plain(found) else str(found)

    def section(self, name: str) -> Any:
        """An id as it is written, with references and expressions inside replaced by what they stand for."""
        return self.written(self.raw[name], name)

    def written(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {key: self.written(item, f"{name}::{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [self.written(item, f"{name}::{place}") for place, item in enumerate(value)]
        return self.value(name) if isinstance(value, str) and value.startswith(("$", "@")) else value

    def references(self) -> set[str]:
        """The ids that something in the config refers to: `loss`, and of stages `train::loss`."""
        found = {match for text in texts(self.raw) for match in REFERENCE.findall(text)}
        return {top for top, _ in found} | {f"{top}::{part}" for top, part in found if part}

    def unused(self) -> list[str]:
        """Plain values that nothing refers to, and parts of stages: they have no effect."""
        known = self.references() | ENTRY_POINTS
        plain = [name for name, value in self.raw.items() if name not in known and not has_target(value)]
        stages = {name: value for name, value in self.raw.items() if is_stage(value)}
        parts = [(name, part) for name, stage in stages.items() for part in stage]
        return plain + [
            f"{name}::{part}" for name, part in parts if part not in PARTS and f"{name}::{part}" not in known
        ]


def is_stage(value: Any) -> bool:
    """Whether a config value is a group of components, such as `train`, and none itself."""
    return isinstance(value, Mapping) and "_target_" not in value and has_target(value)


def is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


def has_target(value: Any) -> bool:
    """Whether a config value has a component or an expression inside: it is no plain value."""
    return any(key == "_target_" for key in keys(value)) or any(text.startswith("$") for text in texts(value))


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from map(str, value)
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from keys(item)


def texts(value: Any) -> Iterator[str]:
    """All text inside a config value."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from texts(item)


def check_values(strict: bool = True) -> None:
    """Every value of the config that runs is allowed, and none is misspelled.

    MONAI takes `--suprevision full` as a new id and goes on with the default.

    Args:
        strict: refuse all unknown ids that nothing refers to. Else only those that look like a misspelling: an overlay
            for training may be given to inference.

    Raises:
        InputError: naming the value, what is allowed, or what it was probably meant to be.
    """
    config = RunningConfig.find()
    if config is None:
        return
    known = {value.name for value in VALUES}
    unused = config.unused()
    for name in unused:
        close = difflib.get_close_matches(name, sorted(config.references() | known), n=1, cutoff=0.6 if strict else 0.8)
        if name not in known and (strict or close):
            hint = f'did you mean "{close[0]}"?' if close else "docs/reference/configs.md lists all values"
            raise InputError(f'--{name}: nothing in this config uses a value "{name}"; {hint}')
    idle = [name for name in unused if name in known]
    if idle and strict:  # their place may have been taken by an overlay
        logger.warning("nothing in this config uses %s: setting these values has no effect here", ", ".join(idle))
    for value in VALUES:
        if value.name in config.raw:
            value.check(config.value(value.name))


def config_record() -> dict[str, Any]:
    """What runs: every effective value, the whole config, the versions of the libraries, a key of our own code."""
    config = RunningConfig.find()
    record: dict[str, Any] = {"versions": {name: installed(name) for name in VERSIONS}, "code": code_key()}
    if config is not None:
        record["values"] = {value.name: config.value(value.name) for value in VALUES if value.name in config.raw}
        record["config"] = config.raw
    return record


def code_key() -> str:
    """Changes when a line of the library does."""
    library = Path(str(files("bundle")))
    return digest_files(sorted(library.rglob("*.py")))


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
