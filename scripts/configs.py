# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Configs as `python -m monai.bundle run` would read them: files that overlay each other, and values on top.

Everything is read strictly: what MONAI would answer with a traceback, or not at all, is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.configs import RunningConfig, find_mistakes, refuse_mistakes
from bundle.configs.components import nearest
from bundle.configs.sources import ConfigFile, ConfigSources, normal_id
from bundle.errors import InputError
from scripts.runs import ROOT

if TYPE_CHECKING:
    from monai.bundle import ConfigParser

__all__ = [
    "EVALUATE",
    "INFERENCE",
    "TRAIN",
    "check_config",
    "config_values",
    "merge_files",
    "read_config",
    "set_values",
]

TRAIN, EVALUATE, INFERENCE = (ROOT / "configs" / f"{name}.yaml" for name in ("train", "evaluate", "inference"))

BELOW = "name the config that this overlays before it, such as configs/train.yaml"


def read_config(files: Sequence[str | Path], values: Mapping[str, Any] | None = None) -> ConfigParser:
    """The config of several files, with values in place of theirs.

    Args:
        files: YAML or JSON; each overlays those before it.
        values: id and value, for instance ``{"network_def::channels": "[4,8]"}``. Text is read as on a command line.

    Raises:
        InputError: for a file that is not there or cannot be read, and for an id that the files do not have.
    """
    from fire.parser import DefaultParseValue

    parser = merge_files(files)
    given = {
        name: DefaultParseValue(value) if isinstance(value, str) else value for name, value in (values or {}).items()
    }
    refuse_mistakes(set_values(parser, given))
    return parser


def merge_files(files: Sequence[str | Path]) -> ConfigParser:
    """The config of several files, merged as MONAI does it.

    Raises:
        InputError: naming each file that cannot be read, and each id that cannot be merged.
    """
    from monai.bundle import ConfigParser  # here: it brings torch
    from monai.bundle.utils import merge_kv

    parser, mistakes = ConfigParser(config={}), []
    for path in files:
        try:
            file = ConfigFile.read(path)
        except InputError as error:
            mistakes.append(str(error))
            continue
        mistakes += ConfigSources((file.path,)).repeated()
        for name, value in file.content.items():
            try:
                merge_kv(parser, name, value)
            except Exception as error:  # a dozen kinds, for a parent that is not there or takes no parts
                mistakes.append(f"{file.path}: {missing_parent(parser, name, error)}")
    refuse_mistakes(mistakes)
    return parser


def set_values(parser: ConfigParser, values: Mapping[str, Any], prefix: str = "", new: bool = False) -> list[str]:
    """Set values as MONAI does for those of a command line; a sentence for each that cannot be set.

    Args:
        parser: of the merged files.
        values: by id.
        prefix: what stands before an id in sentences: `--` for what was typed.
        new: whether ids at the top may be new: the check of values, when it runs, names those that nothing uses.
    """
    mistakes = []
    for given, value in values.items():
        name = normal_id(given)
        top = name.split("::")[0]
        known = set(parser.get())
        if top not in known and not (new and top == name):
            hint = nearest(top, known, "docs/reference/configs.md lists all values")
            mistakes.append(f'{prefix}{top}: the config has no "{top}"; {hint}')
            continue
        try:
            parser[name] = value
        except Exception as error:
            mistakes.append(prefix + missing_parent(parser, name, error))
    return mistakes


def missing_parent(parser: ConfigParser, given: str, error: Exception) -> str:
    """Why an id cannot be set: which part of it is not there, or is nothing that has parts."""
    parts = normal_id(given).split("::")
    for count in range(1, len(parts) + 1):
        name, above = "::".join(parts[:count]), parser.get("::".join(parts[: count - 1]))
        if isinstance(above, list) and name not in parser:
            return f'{given}: the list "{"::".join(parts[: count - 1])}" has {len(above)} parts, counted from 0'
        if name not in parser and count < len(parts):
            known = [str(key) for key in above]
            otherwise = BELOW if count == 1 else f"it has {', '.join(known)}"
            hint = nearest(parts[count - 1], known, otherwise)
            return f'{given}: the config has no "{name}"; {hint}'
        if count < len(parts) and not isinstance(parser[name], dict | list):
            return f'{given}: "{name}" is {parser[name]!r}, which has no parts; set it as a whole'
    return f"{given}: cannot be set ({' '.join(str(error).split())}); see the config"


def check_config(
    files: Sequence[str | Path], values: Mapping[str, Any] | None = None, prefix: str = ""
) -> ConfigParser:
    """Read a config and check it as its run would before it starts: all mistakes at once.

    Args:
        files: see :func:`read_config`.
        values: likewise.
        prefix: what stands before the id of such a value in sentences.

    Raises:
        InputError: with every mistake.
    """
    parser = read_config(files, values)
    try:
        parser.parse()
    except Exception as error:
        raise unreadable(files, error) from None
    sources = ConfigSources(tuple(map(str, files)), dict(values or {}), prefix=prefix)
    refuse_mistakes(find_mistakes(RunningConfig(parser.ref_resolver), sources))
    return parser


def config_values(
    names: Sequence[str], files: Sequence[str | Path], values: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What some ids of a config stand for, references and expressions resolved.

    Args:
        names: the ids.
        files: see :func:`read_config`.
        values: likewise.
    """
    parser = read_config(files, values)
    try:
        return {name: parser.get_parsed_content(name) for name in names}
    except Exception as error:
        raise unreadable(files, error) from None


def unreadable(files: Sequence[str | Path], error: Exception) -> InputError:
    names = [Path(file).name if file in (TRAIN, EVALUATE, INFERENCE) else str(file) for file in files]
    reason = " ".join(str(error).split())
    return InputError(f"{' + '.join(names)}: cannot be read as a config ({reason}); correct the overlay or the value")
