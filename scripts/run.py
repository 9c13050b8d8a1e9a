# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts run RUN_ID --config_file FILES`: `python -m monai.bundle run`, with sentences for mistakes.

MONAI reads files and values before any code of a config runs, so a mistake in them ends there with a traceback. Here
they are read strictly first, and then handed over to MONAI in this process.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.configs import refuse_mistakes
from bundle.configs.sources import RUN_ARGUMENTS, ConfigFile, listed_files
from bundle.errors import InputError
from scripts.configs import merge_files, set_values, unreadable

if TYPE_CHECKING:
    from monai.bundle import ConfigParser

__all__ = ["run"]

NEEDED = {  # where the acts are
    "training": "configs/train.yaml", "evaluating": "configs/evaluate.yaml", "inferring": "configs/inference.yaml",
}  # fmt: skip
OTHERS = tuple(name for name in RUN_ARGUMENTS if name not in ("run_id", "config_file", "args_file"))


def run(
    run_id: str = "run",
    *,
    config_file: str | Sequence[str] | None = None,
    args_file: str | None = None,
    **values: Any,
) -> None:
    """Run a config, as `python -m monai.bundle run` does; what was typed is checked first.

    Any id of the config can be given as an option, as in `--seed 1` or `--network_def::channels [8,16]`; the values are
    those of configs.md. Further options of MONAI's command (`--meta_file`, `--logging_file`, `--init_id`, `--final_id`,
    `--tracking`) are handed on.

    Args:
        run_id: what to run, named first: training, evaluating or inferring; the config's own choice if not given.
        config_file: the config, or several that overlay each other.
        args_file: YAML or JSON with further options; those that are typed win.
        values: ids of the config and their values.
    """
    further = further_arguments(args_file)
    chosen = str(further.get("run_id", run_id) if run_id == "run" else run_id)
    files = config_file if config_file is not None else further.get("config_file")
    if not files:
        raise InputError(
            "config_file: expected the path of a config, found none; give --config_file configs/train.yaml"
        )
    # MONAI drops None from what is typed, and goes on with the config's own value
    typed = {name: "$None" if value is None and name not in OTHERS else value for name, value in values.items()}
    check_files(**{name: value for name, value in {**further, **typed}.items() if name in OTHERS})
    paths = config_paths(files)
    parser = merge_files(paths)
    refuse_mistakes([
        *set_values(parser, without_options(further), f"{args_file}: ", new=True),
        *set_values(parser, without_options(typed), "--", new=True),
    ])  # fmt: skip
    check_run_id(parser, chosen, paths)
    hand_over(run_id=chosen, config_file=paths, args_file=args_file, **typed)


def config_paths(given: Any) -> list[str]:
    if isinstance(given, str) and given.startswith("[") and not Path(given).is_file():
        raise InputError(
            f"--config_file: expected a path or a list of paths, such as \"['configs/train.yaml','mine.yaml']\", found "
            f"{given}, which is no list; close its brackets and quotes"
        )
    return listed_files(given)


def without_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The ids of the config among what was given."""
    return {name: value for name, value in given.items() if name not in RUN_ARGUMENTS}


def further_arguments(args_file: str | None) -> dict[str, Any]:
    if args_file is None:
        return {}
    read = ConfigFile.read(args_file)
    if read.repeated:
        raise InputError(f"{args_file}: {', '.join(read.repeated)}: stands there twice; remove one")
    return dict(read.content)


def check_files(meta_file: Any = None, logging_file: Any = None, **_: Any) -> None:
    """Other files that MONAI reads."""
    for name, given in {"meta_file": meta_file, "logging_file": logging_file}.items():
        for path in listed_files(given) if isinstance(given, str | list | tuple) else ():
            if not Path(path).is_file():
                raise InputError(f"--{name}: {path}: no such file; give another, or leave the option out")


def check_run_id(parser: ConfigParser, run_id: str, paths: Sequence[str]) -> None:
    """There is such an id, and it is a list of acts."""
    try:
        parser.parse()
        acts = parser.get(run_id)
    except Exception as error:  # macros of files that are not there, references outside of the config
        raise unreadable(paths, error) from None
    if not isinstance(acts, list | dict) and not str(acts).startswith("$"):
        lists = [name for name, value in parser.get().items() if isinstance(value, list) and value and is_act(value[0])]
        known = ", ".join(name for name in lists if name != "run" and not name.startswith("_")) or "nothing"
        hint = f"; {run_id} needs {NEEDED[run_id]} in --config_file too" if run_id in NEEDED else ""
        raise InputError(f"{run_id}: the config has nothing of this name to run; it has {known}{hint}")


def is_act(value: Any) -> bool:
    """Whether something can be an act: the first of ours shows errors plainly."""
    return isinstance(value, dict) and "show_input_errors" in str(value.get("_target_", ""))


def hand_over(**arguments: Any) -> None:
    from monai.bundle import run as run_bundle

    warnings.filterwarnings("ignore", message="parsing config_file")  # whoever types a path knows what it is
    run_bundle(**arguments)
