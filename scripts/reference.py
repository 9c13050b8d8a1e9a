# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts reference`: the pages of docs/reference that repeat what the code says, written from the code."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from fire import docstrings

from bundle.files import write_text

if TYPE_CHECKING:
    from bundle.cohorts.adapters.base import Adapter
    from bundle.configs.values import Value

__all__ = ["reference", "reference_pages", "undescribed_values", "unused_descriptions"]

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
NOTE = "<!-- Written by `python -m scripts reference`; do not edit. -->"
WIDTH = 120
NONE = "–"
KINDS = {  # how the annotation of a parameter is said in words: one, and several
    "str": ("text", "texts"),
    "int": ("whole number", "whole numbers"),
    "float": ("number", "numbers"),
    "bool": ("flag", "flags"),
    "Any": ("any value", "any values"),
}
Config = dict[str, Any]


def reference(output: str = str(ROOT / "docs" / "reference")) -> None:
    """Write the reference pages of the documentation: commands.md, configs.md and datasets.md.

    Args:
        output: folder for the pages.
    """
    for name, text in reference_pages().items():
        path = Path(str(output)) / name
        write_text(path, text)
        print(path)


def reference_pages() -> dict[str, str]:
    """The text of every generated page, by file name."""
    from bundle.cohorts.adapters import ADAPTERS  # imported here: the help of this command needs none of these
    from bundle.configs.values import VALUES
    from scripts.__main__ import COMMANDS

    commands = {name: getattr(import_module(module), attribute) for name, (module, attribute) in COMMANDS.items()}
    return {
        "commands.md": command_page(commands),
        "configs.md": config_page(VALUES),
        "datasets.md": dataset_page(list(ADAPTERS.values())),
    }


# --- Markdown --------------------------------------------------------------------------------------------------------
def paragraph(text: str) -> str:
    """Text in lines of the usual width; a path or an address is not broken."""
    return textwrap.fill(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; a bar within a cell is escaped.

    >>> print(table(["id", "what"], [["loss", "ce | dice_ce"]]))
    | id | what |
    |---|---|
    | loss | ce \\| dice_ce |
    """
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in [head, *rows]]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def page(title: str, parts: Iterable[str]) -> str:
    return "\n\n".join([f"# {title}", NOTE, *(part for part in parts if part)]) + "\n"


# --- Commands --------------------------------------------------------------------------------------------------------
def command_page(commands: Mapping[str, Any]) -> str:
    """Every command with its options.

    Args:
        commands: functions, or classes whose public methods are commands of their own, by name.
    """
    parts = [
        paragraph(
            "`python -m scripts` lists the commands, `python -m scripts COMMAND --help` shows one. A list is given as "
            "`a,b` or `[a,b]`. A flag is given by its name alone; one that is on by default is switched off by `--no` "
            "before its name, as in `--noskip_air`. Exit codes: 0 success, 2 input that cannot be used (one sentence "
            "says what and why), 130 interrupted; others are named with the command."
        )
    ]
    for name, command in commands.items():
        if inspect.isclass(command):
            parts += [f"## {name}", paragraph(inspect.getdoc(command) or "")]
            for method, function in public_methods(command):
                parts += describe_command(f"{name} {method}", function, level=3)
        else:
            parts += describe_command(name, command, level=2)
    return page("Commands", parts)


def public_methods(command: type) -> list[tuple[str, Callable[..., Any]]]:
    return [(name, method) for name, method in inspect.getmembers(command, callable) if not name.startswith("_")]


def describe_command(name: str, function: Callable[..., Any], level: int) -> list[str]:
    """Heading, usage, what it does, and a table of its options."""
    documented = docstrings.parse(inspect.getdoc(function) or "")
    about = {argument.name: argument.description for argument in documented.args or []}
    parameters = [entry for entry in inspect.signature(function).parameters.values() if entry.name != "self"]
    usage = " ".join(["python -m scripts", name, *(placeholder(entry) for entry in parameters if is_positional(entry))])
    rows = [
        [f"`{option(entry)}`", type_in_words(entry.annotation), default_of(entry), about.get(entry.name) or ""]
        for entry in parameters
    ]
    return [
        f"{'#' * level} {name}",
        f"`{usage}`",
        paragraph(documented.summary or ""),
        paragraph(documented.description or ""),
        table(["option", "type", "default", "what"], rows) if rows else "",
    ]


def is_positional(parameter: inspect.Parameter) -> bool:
    """Whether a command cannot do without it."""
    named = parameter.kind is parameter.VAR_KEYWORD
    return parameter.kind is parameter.VAR_POSITIONAL or (parameter.default is parameter.empty and not named)


def placeholder(parameter: inspect.Parameter) -> str:
    return parameter.name.upper() + ("…" if parameter.kind is parameter.VAR_POSITIONAL else "")


def option(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return "--ID VALUE"
    return placeholder(parameter) if is_positional(parameter) else f"--{parameter.name}"


def type_in_words(annotation: Any) -> str:
    """What an annotation means to whoever types a command.

    >>> type_in_words("int | Sequence[int] | None")
    'whole number, or several'
    """
    if annotation is inspect.Parameter.empty:
        return "text"
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:\w+\.)+", "", text)  # names without their modules
    one, several = None, None
    for part in re.split(r"\s*\|\s*(?![^\[]*\])", text):
        inner = re.fullmatch(r"(?:Sequence|list|tuple)\[([^,\]]+).*\]", part)
        if inner:
            several = KINDS.get(inner[1], ("", inner[1]))[1]
        elif part.startswith("Mapping"):
            several = "name=value"
        elif part != "None":
            one = KINDS.get(part, (part,))[0]
    if one and several:
        return f"{one}, or several"
    return one or several or ""


def default_of(parameter: inspect.Parameter) -> str:
    """The default as one would type it; paths of this repository start at its root."""
    if is_positional(parameter):
        return "needed"
    default = parameter.default
    if isinstance(default, bool):
        return "on" if default else "off"
    if default is None or default == () or default is parameter.empty:
        return NONE
    if isinstance(default, list | tuple):
        return f"`{','.join(str(part) for part in default)}`"
    return f"`{str(default).removeprefix(f'{ROOT}/')}`"


# --- Configs ---------------------------------------------------------------------------------------------------------
def config_page(values: Sequence[Value]) -> str:
    """Every value of the configs, and what each overlay sets.

    Args:
        values: type, range and meaning of each id.
    """
    train, evaluate, inference = (read_config(CONFIGS / f"{name}.yaml") for name in ("train", "evaluate", "inference"))
    own = {name: value for name, value in inference.items() if name not in train or train[name] != value}
    head = ["id", "type", "allowed", "default", "what"]
    parts = [
        paragraph(
            "Every id below can be given on the command line of `python -m monai.bundle run`, as in "
            "`--supervision partial`, or in an overlay; a value given on the command line wins. A value that begins "
            "with `$` is an expression, `@id` in it stands for another value. A run writes the values that took effect "
            "to `eval/config.json`. An id that nothing refers to is refused."
        ),
        "## configs/train.yaml",
    ]
    sections = sections_of(CONFIGS / "train.yaml")
    for section in dict.fromkeys(sections.values()):
        rows = value_rows({name: train[name] for name in train if sections[name] == section}, values)
        parts += [f"### {section}" if section else "", table(head, rows)] if rows else []
    for name, config in (("evaluate", evaluate), ("inference", own)):
        parts += [f"## configs/{name}.yaml", opening(CONFIGS / f"{name}.yaml")]
        parts += ["Only what it has beside `train.yaml`, or sets otherwise:"] if name == "inference" else []
        parts.append(table(head, value_rows(config, values)))
    parts.append("## Overlays")
    for path in sorted((CONFIGS / "overlays").glob("*.yaml")):
        rows = overlay_rows(read_config(path), {value.name: value.about for value in values if value.name not in train})
        parts += [f"### configs/overlays/{path.name}", opening(path), table(["id", "value", "what"], rows)]
    return page("Config values", parts)


def read_config(path: Path) -> Config:
    config: Config = yaml.safe_load(path.read_text(encoding="utf-8"))
    return config


def is_plain(value: Any) -> bool:
    """Whether a value of a config is a number, a text or a list of these: nothing that MONAI evaluates."""
    if isinstance(value, list):
        return all(is_plain(part) for part in value)
    return not isinstance(value, dict) and not (isinstance(value, str) and value[:1] in ("$", "@", "%"))


def value_rows(config: Config, values: Sequence[Value]) -> list[list[str]]:
    """A row for each id that is plain or described, in the order of the file."""
    described = {value.name: value for value in values}
    rows = []
    for name, default in config.items():
        value = described.get(name)
        if value is not None:
            rows.append([f"`{name}`", value.kind, value.allowed, f"`{in_yaml(default)}`", value.about])
        elif is_plain(default) and "::" not in name:
            rows.append([f"`{name}`", "", "", f"`{in_yaml(default)}`", ""])
    return rows


def in_yaml(value: Any) -> str:
    """A value as a config has it, in one line.

    >>> in_yaml([1.5, None, "ce"])
    '[1.5, null, ce]'
    """
    if isinstance(value, str):
        return value
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def overlay_rows(overlay: Config, about: Mapping[str, str]) -> list[list[str]]:
    """What an overlay sets; of something that is built, the class.

    Args:
        overlay: its ids and their values.
        about: what ids mean that only overlays have.
    """
    return [[f"`{name}`", f"`{built_or_plain(value)}`", about.get(name, "")] for name, value in overlay.items()]


def built_or_plain(value: Any) -> str:
    if isinstance(value, dict) and "_target_" in value:
        return str(value["_target_"])
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        return ", ".join(built_or_plain(part) for part in value)
    return in_yaml(value)


def sections_of(path: Path) -> dict[str, str]:
    """The heading, a comment such as `# --- Data ---`, that each top-level id of a config stands under."""
    section, sections = "", {}
    for line in path.read_text(encoding="utf-8").splitlines():
        heading, name = re.match(r"# -+ (.+?) -+$", line), re.match(r"([\w:]+):(\s|$)", line)
        if heading:
            section = heading[1]
        elif name:
            sections[name[1]] = section
    return sections


def opening(path: Path) -> str:
    """The sentences that a config begins with; a command among them stands in a line of its own."""
    parts = [""]
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or line.startswith("# ---"):
            break
        text = line.removeprefix("#").strip()
        if text.startswith("python "):
            parts += [f"`{text}`", ""]
        else:
            parts[-1] += f" {text}"
    if "." in parts[-1]:
        parts[-1] = parts[-1][: parts[-1].rindex(".") + 1]  # the heading of the values that follow is no sentence
    return "\n\n".join(part if part.startswith("`") else paragraph(part) for part in parts if part)


def undescribed_values(values: Sequence[Value]) -> list[str]:
    """Plain values of the configs that no entry of ``values`` describes."""
    described = {value.name for value in values}
    paths = [CONFIGS / f"{name}.yaml" for name in ("train", "evaluate", "inference")]
    found = {
        name
        for path in [*paths, *(CONFIGS / "overlays").glob("*.yaml")]
        for name, value in read_config(path).items()
        if is_plain(value) and "::" not in name
    }
    return sorted(found - described)


def unused_descriptions(values: Sequence[Value]) -> list[str]:
    """Entries of ``values`` that describe nothing a config has."""
    known = {name for path in CONFIGS.rglob("*.yaml") for name in read_config(path)}
    return sorted({value.name for value in values} - known)


# --- Datasets --------------------------------------------------------------------------------------------------------
def dataset_page(adapters: Sequence[Adapter]) -> str:
    """The public datasets, with a command for each and what it corrects."""
    from scripts.prepare import row_of

    rows, parts = [], []
    for adapter in adapters:
        _, organs, cases, registration, terms, url = row_of(adapter)
        seen = "seen on real data" if adapter.seen else "built from its description"
        rows.append([f"[{adapter.title}]({url})", organs, cases, terms, registration, seen])
        command = f"python -m scripts prepare {adapter.name} downloads/{adapter.name} --output data/{adapter.name}"
        corrected = adapter.fixes or "Nothing needs to be corrected."
        parts += [
            paragraph(f"**{adapter.title}**: `{adapter.layout}`"), f"```bash\n{command}\n```", paragraph(corrected)
        ]  # fmt: skip
    explained = paragraph(
        "*Seen on real data* means that the adapter was run on scans of the dataset itself; *built from its "
        "description*, that it was run on a miniature copy with the same names, formats and quirks only. How to use "
        "them: [Public datasets](../how-to/datasets.md)."
    )
    head = ["dataset", "organs", "cases", "license", "registration", "adapter"]
    return page("Datasets", [explained, table(head, rows), "## Files, command and what is corrected", *parts])
