# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts COMMAND`: one Fire command per tool. Only the command that is asked for is imported."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from typing import Any

import fire

from bundle.errors import EXIT_CODE, InputError, find_input_error
from bundle.processes import patient_threads

__all__ = ["COMMANDS", "GROUPS", "load_command", "main"]

PROGRAM = "python -m scripts"
INTERRUPTED = 130  # what shells report for Ctrl-C
COMMANDS = {  # where each command lives
    "bench": ("scripts.bench", "Bench"),
    "check": ("scripts.check", "check"),
    "compare": ("scripts.compare", "compare"),
    "crossval": ("scripts.crossval", "crossval"),
    "demo": ("scripts.demo", "demo"),
    "folds": ("scripts.folds", "folds"),
    "phantom": ("scripts.phantom", "phantom"),
    "prepare": ("scripts.prepare", "prepare"),
    "prior": ("scripts.prior", "prior"),
    "reference": ("scripts.reference", "reference"),
    "segment": ("scripts.segment", "segment"),
}
GROUPS = {  # what is shown without a command, in the order in which commands are needed
    "First look": {
        "demo": "the whole method on synthetic cohorts, with a report, in a few minutes",
    },
    "Data": {
        "phantom": "make synthetic cohorts",
        "prepare": "turn the download of a public dataset into a cohort",
        "check": "examine all cases before training: files, geometry, labels, sides, copies",
        "folds": "deal the fully labelled cases of a cohort out to folds",
        "prior": "show the organ proportions q, and where they are doubtful",
    },
    "Experiments": {
        "crossval": "train and score every fold, and segment a test set with all of them",
        "compare": "compare supervisions, cohorts and networks under one budget, with a report",
        "bench": "what things cost, side by side",
    },
    "Use": {
        "segment": "segment CT scans with a trained model",
    },
    "Development": {
        "reference": "write the reference pages of the documentation from the code",
    },
}
RENAMED = {  # options that shadowed names of Python
    "crossval": {"set": "values", "all": "all_cases", "zip": "submission"},
    "prepare": {"list": "datasets"},
    "segment": {"input": "scans"},
}


def load_command(name: str) -> Any:
    """The function, or the class of several functions, behind a command."""
    module, attribute = COMMANDS[name]
    return getattr(import_module(module), attribute)


def print_overview() -> None:
    """All commands with a line each; nothing is imported for it."""
    print(f"usage: {PROGRAM} COMMAND [OPTIONS]\n")
    for title, commands in GROUPS.items():
        print(title)
        for name, line in commands.items():
            print(f"  {name:<10}{line}")
        print()
    print(f"The options of a command: {PROGRAM} COMMAND --help")
    print("To train, evaluate and infer from the configs: python -m monai.bundle run; see README.md")


def refuse(shown: str, name: str, kind: str, known: Collection[str], otherwise: str) -> None:
    """Raise an InputError for a name that nobody has, with what was probably meant."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {otherwise.format(close[0])}?" if close else "see --help"
    raise InputError(f"{shown}: there is no such {kind}; {hint}")


def check_options(function: Callable[..., Any], arguments: Sequence[str], renamed: dict[str, str]) -> None:
    """Refuse options a command does not have: Fire would run it first and complain afterwards."""
    known = set(inspect.signature(function).parameters) - {"self"}
    for argument in arguments:
        name = argument[2:].split("=")[0].replace("-", "_")
        if not argument.startswith("--") or not name or name in known | {"help"} or name.removeprefix("no") in known:
            continue
        if name in renamed:
            raise InputError(f"--{name}: this option is now called --{renamed[name]}")
        refuse(f"--{name}", name, "option", known, "--{}")


def check_command(arguments: Sequence[str]) -> Any:
    """The command that is asked for, once its name and its options are known to be right."""
    name, *rest = arguments
    if name not in COMMANDS:
        refuse(name, name, "command", COMMANDS, '"{}"')
    command = load_command(name)
    if not inspect.isclass(command):
        check_options(command, rest, RENAMED.get(name, {}))
    elif rest and not rest[0].startswith("-"):
        names = [method for method in vars(command) if not method.startswith("_")]
        if rest[0] not in names:
            refuse(f"{name} {rest[0]}", rest[0], "command", names, '"' + name + ' {}"')
        check_options(getattr(command, rest[0]), rest[1:], {})
    return command


def run_command(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print_overview()
        return
    command = check_command(arguments)
    # An object of a class: `bench --help` then lists what it can do, where a class would show how it is made.
    component = command() if inspect.isclass(command) else command
    fire.Fire({arguments[0]: component}, command=list(arguments), name=PROGRAM)


def main() -> None:
    """Run the command; a mistake of the user ends with one sentence and exit code 2, Ctrl-C with one word."""
    patient_threads()  # before a command loads torch
    try:
        run_command(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except Exception as error:
        found = find_input_error(error)  # MONAI's config parser wraps what its targets raise
        if found is None:
            raise
        print(f"error: {found}", file=sys.stderr)
        sys.exit(EXIT_CODE)


if __name__ == "__main__":
    main()
