# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Configs as `python -m monai.bundle run` would read them: files that overlay each other, and values on top.

Everything is read strictly: what MONAI would answer with a traceback, or not at all, is refused with a sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.config_files import ConfigFile, ConfigSources, normal_id
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
    set_values(parser, given)
    return parser


def merge_files(files: Sequence[str | Path]) -> ConfigParser:
    """The config of several files, merged as MONAI does it.

    Raises:
        InputError: naming the file and the id that cannot be merged.
    """
    from monai.bundle import ConfigParser  # here: it brings torch
    from monai.bundle.utils import merge_kv

    read = [ConfigFile.read(file) for file in files]
    twice = list(ConfigSources(tuple(file.path for file in read)).repeated())
    if twice:
        raise InputError("; ".join(twice))
    parser = ConfigParser(config={})
    for file in read:
        for name, value in file.content.items():
            try:
                merge_kv(parser, name, value)
            except Exception as error:  # a dozen kinds, for a parent that is not there or takes no parts
                raise InputError(f"{file.path}: {missing_parent(parser, name, error)}") from None
    return parser


def set_values(parser: ConfigParser, values: Mapping[str, Any], prefix: str = "") -> None:
    """Set values as MONAI does for those of a command line.

    Args:
        parser: of the merged files.
        values: by id.
        prefix: what stands before an id in errors: `--` for what was typed.

    Raises:
        InputError: for an id that there is not, with what was probably meant.
    """
    for given, value in values.items():
        name = normal_id(given)
        top = name.split("::")[0]
        known = set(parser.get())
        if top not in known:
            close = difflib.get_close_matches(top, known, n=1)
            hint = f'did you mean "{close[0]}"?' if close else "docs/reference/configs.md lists all values"
            raise InputError(f'{prefix}{top}: the config has no "{top}"; {hint}')
        try:
            parser[name] = value
        except Exception as error:
            raise InputError(prefix + missing_parent(parser, name, error)) from None


def missing_parent(parser: ConfigParser, given: str, error: Exception) -> str:
    """Why an id cannot be set: which part of it is not there, or is nothing that has parts."""
    parts = normal_id(given).split("::")
    for count in range(1, len(parts)):
        name, above = "::".join(parts[:count]), parser.get("::".join(parts[: count - 1]))
        if name not in parser:
            known = [str(key) for key in above] if isinstance(above, dict) else []
            close = difflib.get_close_matches(parts[count - 1], known, n=1)
            found = f"the list has {len(above)} parts, counted from 0" if isinstance(above, list) else "see the config"
            hint = f'did you mean "{close[0]}"?' if close else found
            return f'{given}: the config has no "{name}"; {hint}'
        if not isinstance(parser[name], dict | list):
            return f'{given}: "{name}" is {parser[name]!r}, which has no parts; set it as a whole'
    return f"{given}: cannot be set ({' '.join(str(error).split())}); see the config"


def check_config(
    files: Sequence[str | Path], values: Mapping[str, Any] | None = None, typed: bool = False
) -> ConfigParser:
    """Read a config and check it as its run would before it starts: all mistakes at once.

    Args:
        files: see :func:`read_config`.
        values: likewise.
        typed: whether somebody has typed these values, as `--name value`.

    Raises:
        InputError: with every mistake.
    """
    from bundle.configs import RunningConfig, find_mistakes, refuse_mistakes

    parser = read_config(files, values)
    try:
        parser.parse()
    except Exception as error:
        raise unreadable(files, error) from None
    sources = ConfigSources(tuple(map(str, files)), dict(values or {}) if typed else {})
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
