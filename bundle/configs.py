# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The command line of `python -m monai.bundle run`: which config it is, and a guard against misspelt options.

MONAI takes `--suprevision full` as a new id and goes on with the default.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from fire.parser import DefaultParseValue
from monai.bundle import ConfigParser, run

from bundle.errors import InputError

__all__ = ["check_options", "run_config"]


def option_names(arguments: Sequence[str]) -> list[str]:
    """The ids that a command line overrides: `--train::trainer::max_epochs 3` overrides `train`."""
    return [option.replace("#", "::").split("::")[0].lstrip("+") for option in option_values(arguments)]


def option_values(arguments: Sequence[str]) -> dict[str, str]:
    """Options and their values, `--a 1` and `--a=1` alike."""
    values = {}
    for place, argument in enumerate(arguments):
        if argument.startswith("--"):
            name, _, value = argument[2:].partition("=")
            values[name] = value if "=" in argument else "".join(arguments[place + 1 : place + 2])
    return values


def config_files(arguments: Sequence[str]) -> list[str]:
    """The files given as `--config_file`, one or a list."""
    for place, argument in enumerate(arguments):
        if argument.lstrip("-").split("=")[0] == "config_file":
            text = argument.split("=", 1)[1] if "=" in argument else arguments[place + 1]
            return list(ast.literal_eval(text)) if text.startswith("[") else text.split(",")
    return []


def run_config(arguments: Sequence[str] | None = None) -> ConfigParser | None:
    """The config, with its overrides, of the `python -m monai.bundle run` that this process is; None if it is none."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    files = config_files(given)
    if not files or given[0] != "run":
        return None
    parser = ConfigParser()
    parser.read_config(files)
    known = set(inspect.signature(run).parameters)
    overrides = {name: value for name, value in option_values(given).items() if name not in known}
    parser.update({name.replace("#", "::"): DefaultParseValue(value) for name, value in overrides.items()})
    return parser


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
