# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts COMMAND`: one Fire command per tool. Only the command that is asked for is imported."""

from __future__ import annotations

import difflib
import inspect
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import fire
from fire.parser import DefaultParseValue

from bundle.configs.values import shown
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
    "run": ("scripts.run", "run"),
    "segment": ("scripts.segment", "segment"),
    "serve": ("scripts.serve", "serve"),
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
    "Training": {
        "run": "train, evaluate or infer from the configs, as `python -m monai.bundle run` does",
    },
    "Experiments": {
        "crossval": "train and score every fold, and segment a test set with all of them",
        "compare": "compare supervisions, cohorts and networks under one budget, with a report",
        "bench": "what things cost, side by side",
    },
    "Use": {
        "segment": "segment CT scans with a trained model",
        "serve": "let annotators use a model in MONAI Label, and let it learn from what they save",
    },
    "Development": {
        "reference": "write the reference pages of the documentation from the code",
    },
}
SINGLE = {int: "a whole number", float: "a number", str: "text", bool: "no value, it is on or off"}
SEVERAL = {int: "whole numbers", float: "numbers", str: "names"}
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


def refuse(shown: str, name: str, kind: str, known: Collection[str], otherwise: str) -> None:
    """Raise an InputError for a name that nobody has, with what was probably meant."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {otherwise.format(close[0])}?" if close else "see --help"
    raise InputError(f"{shown}: there is no such {kind}; {hint}")


def check_options(
    name: str, function: Callable[..., Any], arguments: Sequence[str], renamed: Mapping[str, str] | None = None
) -> None:
    """Refuse options a command does not have, and values of another kind: Fire would pass anything.

    Args:
        name: of the command.
        function: behind it, whose annotations say what kind each option is.
        arguments: what was typed after the name.
        renamed: options that have another name now.
    """
    if any(argument in ("--help", "-h", "--") for argument in arguments):
        return
    parameters = {key: entry for key, entry in inspect.signature(function).parameters.items() if key != "self"}
    positional, options = split_arguments(arguments, parameters)
    takes_all = any(entry.kind is entry.VAR_KEYWORD for entry in parameters.values())
    known = {key for key, entry in parameters.items() if entry.kind is not entry.VAR_KEYWORD}
    for option in options if not takes_all else ():
        if option in (renamed or {}):
            raise InputError(f"--{option}: this option is now called --{(renamed or {})[option]}")
        if option not in known:
            refuse(f"--{option}", option, "option", known, "--{}")
    given = {**place_arguments(name, positional, parameters, options), **options}
    hints = get_type_hints(function)
    for key, value in given.items():
        if key in known and key in hints:
            check_kind(key, value, hints[key])
    missing = [key.upper() for key in known - set(given) if parameters[key].default is inspect.Parameter.empty
               and parameters[key].kind is not inspect.Parameter.VAR_POSITIONAL]  # fmt: skip
    if missing:
        raise InputError(f"{name}: {' and '.join(sorted(missing))} must be given; see --help")


def split_arguments(arguments: Sequence[str], known: Collection[str]) -> tuple[list[Any], dict[str, Any]]:
    """What Fire makes of a command line: values without a name, and values by name.

    >>> split_arguments(["data", "--seed", "3", "--noair", "-x=a,b"], ["air"])
    (['data'], {'seed': 3, 'air': False, 'x': ('a', 'b')})
    """
    positional, options, waiting = [], {}, list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if not is_option(argument):
            positional.append(DefaultParseValue(argument))
            continue
        name, sign, text = argument.lstrip("-").partition("=")
        name = in_full(name.replace("-", "_"), known)
        if sign:
            value = DefaultParseValue(text)
        elif waiting and not is_option(waiting[0]):
            value = DefaultParseValue(waiting.pop(0))
        else:
            value = name in known or not (name.startswith("no") and name[2:] in known)
            name = name if value else name[2:]
        if name in options:
            raise InputError(f"--{name}: was given twice; leave one out")
        options[name] = value
    return positional, options


def in_full(name: str, known: Collection[str]) -> str:
    """A single letter stands for the one option that begins with it, if there is just one."""
    meant = [option for option in known if option.startswith(name)] if len(name) == 1 else []
    return meant[0] if len(meant) == 1 else name


def is_option(argument: str) -> bool:
    """Whether an argument is a name: `--seed`, or `-seed`, which Fire takes as well; `-1` is a number."""
    return re.match(r"--?[A-Za-z]", argument) is not None


def place_arguments(
    name: str, positional: Sequence[Any], parameters: Mapping[str, inspect.Parameter], taken: Collection[str]
) -> dict[str, Any]:
    """Values without a name by the options that they fill."""
    rest = any(entry.kind is entry.VAR_POSITIONAL for entry in parameters.values())
    free = [key for key, entry in parameters.items() if entry.kind is entry.POSITIONAL_OR_KEYWORD and key not in taken]
    if len(positional) > len(free) and not rest:
        raise InputError(f"{name}: {shown(positional[len(free)])} is one value too many; name it, or see --help")
    return dict(zip(free, positional, strict=False))


# --- Kinds -----------------------------------------------------------------------------------------------------------
def check_kind(name: str, value: Any, hint: Any) -> None:
    """Raise an InputError for a value that an annotation does not allow.

    >>> check_kind("seed", "abc", int)
    Traceback (most recent call last):
    bundle.errors.InputError: --seed: expected a whole number, found 'abc'
    """
    if not fits(value, hint):
        raise InputError(f"--{name}: expected {in_words(hint)}, found {shown(value)}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a command that asks for a kind can be given a value that Fire has read."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, part) for part in inner)
    if hint is NoneType:
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if hint is str:  # Fire reads a folder called 5 as a number
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    if origin is tuple and inner and Ellipsis not in inner:
        return isinstance(value, list | tuple) and len(value) == len(inner) and all(map(fits, value, inner))
    if origin in (Sequence, list, tuple):
        several = value if isinstance(value, list | tuple) else [value]
        return all(fits(part, inner[0]) for part in several)
    return True


def in_words(hint: Any) -> str:
    """An annotation in words.

    >>> in_words(tuple[int, int, int]), in_words(float | None)
    ('3 whole numbers, such as 1,2,3', 'a number')
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(in_words(part) for part in inner if part is not NoneType))
    if origin is tuple and inner and Ellipsis not in inner:
        return f"{len(inner)} {SEVERAL.get(inner[0], 'values')}, such as 1,2,3"
    if origin in (Sequence, list, tuple):
        return f"{SEVERAL.get(inner[0], 'values')}, separated by commas"
    return SINGLE.get(hint, "another value")


def check_command(arguments: Sequence[str]) -> Any:
    """The command that is asked for, once its name and its options are known to be right."""
    name, *rest = arguments
    if name not in COMMANDS:
        refuse(name, name, "command", COMMANDS, '"{}"')
    command = load_command(name)
    if not inspect.isclass(command):
        check_options(name, command, rest, RENAMED.get(name, {}))
    elif rest and not rest[0].startswith("-"):
        names = [method for method in vars(command) if not method.startswith("_")]
        if rest[0] not in names:
            refuse(f"{name} {rest[0]}", rest[0], "command", names, '"' + name + ' {}"')
        check_options(f"{name} {rest[0]}", getattr(command, rest[0]), rest[1:])
    return command


def run_command(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print_overview()
        return
    command = check_command(arguments)
    # An object of a class: `bench --help` then lists what it can do, where a class would show how it is made.
    component = command() if inspect.isclass(command) else command
    fire.Fire({arguments[0]: component}, command=help_last(arguments), name=PROGRAM)


def help_last(arguments: Sequence[str]) -> list[str]:
    """Where help is asked for, Fire is told so after `--`: a command that takes any option would take `--help` too."""
    asked = [argument for argument in arguments if argument in ("--help", "-h")]
    rest = [argument for argument in arguments if argument not in ("--help", "-h")]
    return [*rest, "--", "--help"] if asked and "--" not in rest else list(arguments)


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
