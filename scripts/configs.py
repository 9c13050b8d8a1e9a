# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Configs as `python -m monai.bundle run` would read them: files that overlay each other, and values on top."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import InputError
from scripts.runs import ROOT

if TYPE_CHECKING:
    from monai.bundle import ConfigParser

__all__ = ["EVALUATE", "INFERENCE", "TRAIN", "config_values", "read_config"]

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
    from monai.bundle import ConfigParser  # here: it brings torch

    for file in files:
        if not Path(file).is_file():
            raise InputError(f"{file}: no such config; give the path of an overlay")
    parser = ConfigParser()
    try:
        parser.read_config([str(file) for file in files])
    except Exception as error:  # YAML, JSON and MONAI's parser raise a dozen kinds
        raise unreadable(files, error) from None
    given = {name.replace("#", "::"): value for name, value in (values or {}).items()}
    check_ids(given, set(parser.get()), files)
    parser.update({
        name: DefaultParseValue(value) if isinstance(value, str) else value for name, value in given.items()
    })  # fmt: skip
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


def check_ids(given: Mapping[str, Any], known: set[str], files: Sequence[str | Path]) -> None:
    """MONAI would take a misspelled id as a new one, and go on with the default."""
    for name in given:
        top = name.split("::")[0].lstrip("+")
        if top not in known:
            close = difflib.get_close_matches(top, known, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"see the ids at the top of {files[0]}"
            raise InputError(f'{top}: the config has no "{top}"; {hint}')


def unreadable(files: Sequence[str | Path], error: Exception) -> InputError:
    names = [Path(file).name if file in (TRAIN, EVALUATE) else str(file) for file in files]
    reason = " ".join(str(error).split())
    return InputError(f"{' + '.join(names)}: cannot be read as a config ({reason}); correct the overlay or the value")
