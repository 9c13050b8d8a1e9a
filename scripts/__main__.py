# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts COMMAND`: one Fire command per tool."""

from __future__ import annotations

import difflib
import inspect
import sys
from importlib import import_module
from typing import Any

import fire

from bundle.errors import EXIT_CODE, InputError, find_input_error
from bundle.processes import patient_threads

INTERRUPTED = 130  # what shells report for Ctrl-C
COMMANDS = {  # where each command lives; only the one that is asked for is imported
    "bench": ("scripts.bench", "Bench"),
    "check": ("scripts.check", "check"),
    "compare": ("scripts.compare", "compare"),
    "crossval": ("scripts.crossval", "crossval"),
    "demo": ("scripts.demo", "demo"),
    "folds": ("scripts.folds", "folds"),
    "phantom": ("bundle.cohorts.phantoms", "make_phantoms"),
    "prepare": ("scripts.prepare", "prepare"),
    "prior": ("scripts.prior", "prior"),
    "segment": ("scripts.segment", "segment"),
}


def load_commands(names: list[str]) -> dict[str, Any]:
    """The named commands; all of them when none is named, for the help."""
    wanted = [name for name in names if name in COMMANDS] or list(COMMANDS)
    return {name: getattr(import_module(COMMANDS[name][0]), COMMANDS[name][1]) for name in wanted}


def check_options(command: Any, arguments: list[str]) -> None:
    """Refuse options a command does not have: Fire would run it first and complain afterwards."""
    known = set(inspect.signature(command).parameters)
    for argument in arguments:
        name = argument[2:].split("=")[0].replace("-", "_")
        if not argument.startswith("--") or not name or name in known | {"help"} or name.removeprefix("no") in known:
            continue
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean --{close[0]}?" if close else "see --help"
        raise InputError(f"--{name}: there is no such option; {hint}")


def main() -> None:
    """Run the command; a mistake of the user ends with one sentence and exit code 2, Ctrl-C with one word."""
    patient_threads()  # before a command loads torch
    try:
        run_command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        found = find_input_error(error)  # MONAI's config parser wraps what its targets raise
        if found is None:
            raise
        print(f"error: {found}", file=sys.stderr)
        sys.exit(EXIT_CODE)


def run_command() -> None:
    name = "".join(sys.argv[1:2])
    if name and not name.startswith("-") and name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"choose from {', '.join(sorted(COMMANDS))}"
        raise InputError(f"{name}: there is no such command; {hint}")
    for name, command in load_commands(sys.argv[1:2]).items():
        if [name] == sys.argv[1:2] and not inspect.isclass(command):
            check_options(command, sys.argv[2:])
    fire.Fire(load_commands(sys.argv[1:2]), name="python -m scripts")


if __name__ == "__main__":
    main()
