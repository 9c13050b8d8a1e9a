# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Config files as they are typed: read strictly, and remembered as the place where an id was set.

MONAI merges files, an `--args_file` and the command line into one config and forgets which said what.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from bundle.errors import InputError

__all__ = ["ConfigFile", "ConfigSources", "callers", "listed_files", "normal_id"]

SUFFIXES = (".json", ".yaml", ".yml")
# arguments of `python -m monai.bundle run` that are no ids of the config
RUN_ARGUMENTS = ("run_id", "init_id", "final_id", "meta_file", "config_file", "logging_file", "tracking", "args_file")


def normal_id(name: str) -> str:
    """An id with `::` between its parts, where `#` does as well, and without the `+` that merges.

    >>> normal_id("+train#handlers")
    'train::handlers'
    """
    return name.removeprefix("+").replace("#", "::")


def listed_files(given: Any) -> list[str]:
    """What `--config_file` may be: a path, paths separated by commas, or a list of them."""
    if isinstance(given, str):
        return [given] if Path(given).is_file() or "," not in given else [part.strip() for part in given.split(",")]
    return [str(part) for part in given] if isinstance(given, list | tuple) else [str(given)]


# --- One file --------------------------------------------------------------------------------------------------------
class StrictLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML as MONAI reads it, but a key that stands twice in a mapping is remembered."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        self.repeated: list[str]
        seen: set[str] = set()
        for key, _ in node.value:
            name = normal_id(str(key.value)) if isinstance(key, yaml.ScalarNode) else ""
            if name and name in seen and name != "<<":
                self.repeated.append(f"{key.value} (line {key.start_mark.line + 1})")
            seen.add(name)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


@dataclass(frozen=True)
class ConfigFile:
    """What a YAML or JSON file says, at its top a mapping of ids to values.

    Args:
        path: of the file, as it was typed.
        content: ids and values, in the order of the file.
        repeated: keys that stand twice: only the last one counts.
    """

    path: str
    content: dict[str, Any]
    repeated: tuple[str, ...] = ()

    @classmethod
    def read(cls, path: str | Path) -> ConfigFile:
        """
        Raises:
            InputError: for a file that is not there, or is no mapping of names to values.
        """
        place = Path(path)
        if place.suffix.lower() not in SUFFIXES:
            raise InputError(f"{path}: expected a config, a file that ends with {', '.join(SUFFIXES)}; give its path")
        if place.is_dir():
            raise InputError(f"{path}: expected a config file, found a folder; give the path of a file")
        if not place.is_file():
            raise InputError(f"{path}: no such config; give the path of a config file")
        try:
            written = place.read_text(encoding="utf-8")
            content, repeated = read_json(written) if place.suffix.lower() == ".json" else read_yaml(written)
        except Exception as error:  # YAML and JSON raise a dozen kinds, also for numbers, dates and depth
            reason = (
                " ".join(str(error).replace('in "<unicode string>", ', "at ").split())[:300] or type(error).__name__
            )
            raise InputError(f"{path}: cannot be read as a config ({reason}); correct the file") from None
        if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
            found = found_instead(content)
            raise InputError(f"{path}: expected ids and their values, such as `seed: 1`, found {found}; correct it")
        return cls(str(path), content, tuple(repeated))

    def sets(self, name: str) -> bool:
        """Whether the file sets an id, a part of it, or what it is a part of."""
        return any(is_part(name, key) or is_part(key, name) for key in map(normal_id, self.content))


def found_instead(content: Any) -> str:
    """What a file holds that is no mapping of ids to values."""
    if isinstance(content, dict):
        return f"{next(key for key in content if not isinstance(key, str))!r} in place of an id"
    kinds = {type(None): "nothing", list: "a list", str: "text"}
    return kinds.get(type(content), "a single value")


def is_part(name: str, whole: str) -> bool:
    return name == whole or name.startswith(f"{whole}::")


def read_yaml(written: str) -> tuple[Any, list[str]]:
    loader = StrictLoader(written)
    loader.repeated = []
    try:
        return loader.get_single_data(), loader.repeated
    finally:
        loader.dispose()


def read_json(written: str) -> tuple[Any, list[str]]:
    repeated: list[str] = []

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [normal_id(key) for key, _ in pairs]
        repeated.extend(key for place, (key, _) in enumerate(pairs) if names[place] in names[:place])
        return dict(pairs)

    return json.loads(written, object_pairs_hook=mapping), repeated


# --- All that was typed ----------------------------------------------------------------------------------------------
def callers() -> Iterator[FrameType]:
    """The call stack, from the caller on outwards."""
    frame = inspect.currentframe()
    while frame is not None and (frame := frame.f_back) is not None:
        yield frame


@dataclass(frozen=True)
class ConfigSources:
    """The files and the command line that a config is made of.

    Args:
        paths: config files; each overlays those before it.
        typed: ids and values of the command line.
        args_file: file of further arguments, which the command line overrides.
        run_ids: the ids that are run.
        prefix: what stands before an id that was typed.
    """

    paths: tuple[str, ...] = ()
    typed: Mapping[str, Any] = field(default_factory=dict)
    args_file: str | None = None
    run_ids: tuple[str, ...] = ()
    prefix: str = "--"

    @classmethod
    def of_arguments(cls, arguments: Mapping[str, Any], override: Mapping[str, Any]) -> ConfigSources:
        """Of the arguments of MONAI's `run`, and its further ones.

        Raises:
            InputError: when there is an args_file that cannot be read.
        """
        path = arguments.get("args_file")
        defaults = ConfigFile.read(path).content if isinstance(path, str) else {}
        given = {**defaults, **{name: value for name, value in arguments.items() if value is not None}}
        usual = {"run_id": "run", "init_id": "initialize", "final_id": "finalize"}
        files = given.get("config_file")
        return cls(
            tuple(listed_files(files)) if files else (),
            {normal_id(name): value for name, value in override.items()},
            path,
            tuple(str(given.get(name) or other) for name, other in usual.items()),
        )

    @classmethod
    def find(cls) -> ConfigSources:
        """Of the `python -m monai.bundle run` that is under way: its arguments are on the call stack.

        Empty where nobody called it: MONAI Label and `ConfigWorkflow` read configs by themselves.
        """
        for frame in callers():
            names = frame.f_locals
            if frame.f_code.co_name == "run" and frame.f_globals.get("__name__") == "monai.bundle.scripts":
                return cls.of_arguments({name: names.get(name) for name in RUN_ARGUMENTS}, names.get("override") or {})
        return cls()

    @cached_property
    def files(self) -> list[ConfigFile]:
        """The config files, read; one that is gone meanwhile is left out."""
        read = []
        for path in self.paths:
            try:
                read.append(ConfigFile.read(path))
            except InputError:
                continue
        return read

    @cached_property
    def further(self) -> ConfigFile | None:
        """The file of further arguments."""
        return None if self.args_file is None else ConfigFile.read(self.args_file)

    @property
    def chosen(self) -> set[str]:
        """Ids that were set on purpose: typed, or in the file of further arguments."""
        typed = {name for name, value in self.typed.items() if value is not None}
        return typed | ({normal_id(name) for name in self.further.content} if self.further else set())

    def rank(self, name: str) -> int:
        """How late an id was set: 0 where nobody knows, then the files in their order, then what was typed."""
        if any(is_part(name, key) or is_part(key, name) for key in self.typed):
            return len(self.files) + 2
        if self.further is not None and self.further.sets(name):
            return len(self.files) + 1
        return max((place for place, file in enumerate(self.files, start=1) if file.sets(name)), default=0)

    def place(self, name: str) -> str:
        """The id with where it was last set in front: `--seed` for the command line, `small.yaml: seed` for a file."""
        rank = self.rank(name)
        if rank == 0:
            return name
        if rank == len(self.files) + 2:
            return f"{self.prefix}{name}"
        file = self.further if rank == len(self.files) + 1 else self.files[rank - 1]
        assert file is not None
        return f"{file.path}: {name}"

    def is_new(self, name: str) -> bool:
        """Whether an id is not from the first config file, which the others overlay; False where nobody knows."""
        return bool(self.files) and not self.files[0].sets(name)

    def repeated(self) -> Iterator[str]:
        """A sentence for each key that stands twice in one mapping of a file."""
        read: Sequence[ConfigFile] = [*self.files, *([self.further] if self.further else [])]
        for file in read:
            for key in file.repeated:
                yield f"{file.path}: {key}: stands there twice, and only the last would count; remove one"
