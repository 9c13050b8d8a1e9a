# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts COMMAND`: one Fire command per tool."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import fire

COMMANDS = {  # where each command lives; only the one that is asked for is imported
    "bench": ("scripts.bench", "Bench"),
    "demo": ("scripts.demo", "demo"),
    "phantom": ("bundle.phantom", "make_phantoms"),
    "segment": ("scripts.segment", "segment"),
}


def load_commands(names: list[str]) -> dict[str, Any]:
    """The named commands; all of them when none is named, for the help."""
    wanted = [name for name in names if name in COMMANDS] or list(COMMANDS)
    return {name: getattr(import_module(COMMANDS[name][0]), COMMANDS[name][1]) for name in wanted}


def main() -> None:
    fire.Fire(load_commands(sys.argv[1:2]), name="python -m scripts")


if __name__ == "__main__":
    main()
