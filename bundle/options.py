# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A guard against misspelt options: MONAI takes `--suprevision full` as a new id and goes on with the default."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from monai.bundle import run

from bundle.errors import InputError

__all__ = ["check_options"]


def option_names(arguments: Sequence[str]) -> list[str]:
    """The ids that a command line overrides: `--train::trainer::max_epochs 3` overrides `train`."""
    options = [argument[2:].split("=")[0] for argument in arguments if argument.startswith("--")]
    return [option.replace("#", "::").split("::")[0].lstrip("+") for option in options]


def config_files(arguments: Sequence[str]) -> list[str]:
    """The files given as `--config_file`, one or a list."""
    for place, argument in enumerate(arguments):
        if argument.lstrip("-").split("=")[0] == "config_file":
            text = argument.split("=", 1)[1] if "=" in argument else arguments[place + 1]
            return list(ast.literal_eval(text)) if text.startswith("[") else text.split(",")
    return []


def check_options(arguments: Sequence[str] | None = None) -> None:
    """Every option of a `python -m monai.bundle run` command line is an id of its config files.

    Raises:
        InputError: naming the option and what it was probably meant to be.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    files = config_files(given)
    if not files or given[0] != "run":
        return  # another program runs the config
    known = {key.split("::")[0].lstrip("+") for file in files for key in yaml.safe_load(Path(file).read_text())}
    known |= set(inspect.signature(run).parameters)
    for name in option_names(given):
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f'did you mean "{close[0]}"?' if close else f"see the ids at the top of {files[0]}"
            raise InputError(f'--{name}: the config has no "{name}"; {hint}')
