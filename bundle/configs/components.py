# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The components of a config, before one is built: is there such a class, and does it have these arguments?"""

from __future__ import annotations

import ast
import difflib
import inspect
import pydoc
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from bundle.configs.relations import Mistake
from bundle.configs.values import shown

if TYPE_CHECKING:
    from monai.bundle import ConfigComponent
    from monai.bundle.reference_resolver import ReferenceResolver

__all__ = ["Signature", "find_component_mistakes", "find_reference_mistakes", "nearest"]

REFERENCE = re.compile(r"@(?:\w*)(?:::\w+)*")
ALIAS = "run"  # repeats the list of acts that it stands for


def nearest(name: str, known: Collection[str], otherwise: str, cutoff: float = 0.6) -> str:
    """What was probably meant by a name that nobody has.

    >>> nearest("chanels", ["channels", "strides"], "see the documentation")
    'did you mean "channels"?'
    """
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=cutoff)
    return f'did you mean "{close[0]}"?' if close else otherwise


class Signature:
    """Which arguments a class or a function takes.

    Args:
        target: the class or function. A class that hands further arguments on to its parents has theirs too.
    """

    def __init__(self, target: Callable[..., Any]) -> None:
        self.names: set[str] = set()
        self.needed: set[str] = set()
        self.takes_all = False
        makers = parents_of(target) if inspect.isclass(target) else [target]
        for place, maker in enumerate(makers):
            parameters = parameters_of(maker)
            if parameters is None:
                self.takes_all = True
                return
            named = [entry for entry in parameters if entry.kind in (entry.POSITIONAL_OR_KEYWORD, entry.KEYWORD_ONLY)]
            self.names |= {entry.name for entry in named}
            if place == 0:
                self.needed = {entry.name for entry in named if entry.default is entry.empty}
            if not any(entry.kind is entry.VAR_KEYWORD for entry in parameters):
                return
        self.takes_all = True


def parents_of(target: type) -> list[Callable[..., Any]]:
    """The classes, from the target on, that say how they are made."""
    return [kind for kind in target.__mro__ if "__init__" in vars(kind) and kind is not object] or [target]


def parameters_of(target: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):  # some that are written in C
        return None


# --- Targets and arguments -------------------------------------------------------------------------------------------
def find_component_mistakes(resolver: ReferenceResolver) -> Iterator[Mistake]:
    """Components whose target cannot be found, or does not have the arguments that it is given."""
    from monai.bundle import ConfigComponent  # here: it brings torch

    for name, item in list(resolver.items.items()):
        if isinstance(item, ConfigComponent) and not is_alias(name):
            yield from check_component(name, item)


def is_alias(name: str) -> bool:
    return name.split("::")[0] in (ALIAS, "_meta_")


def check_component(name: str, item: ConfigComponent) -> Iterator[Mistake]:
    config: Mapping[str, Any] = item.get_config()
    target = config["_target_"]
    if not isinstance(target, str):
        if not callable(target):
            yield Mistake((f"{name}::_target_",), f"expected the name of a class or function, found {shown(target)}")
        return
    if target.startswith(("$", "@")):
        return  # found out when it is built
    found = locate(str(item.resolve_module_name()))
    if found is None:
        table = getattr(item.locator, "_components_table", None) or {}
        hint = nearest(target, siblings(target) or set(table), "give the name of a class or function")
        yield Mistake((f"{name}::_target_",), f'there is no "{target}"; {hint}')
    elif callable(found):
        yield from check_arguments(name, target, Signature(found), config)


def check_arguments(name: str, target: str, signature: Signature, config: Mapping[str, Any]) -> Iterator[Mistake]:
    given = {key for key in config if not (key.startswith("_") and key.endswith("_"))}
    for key in sorted(given - signature.names) if not signature.takes_all else ():
        hint = nearest(key, signature.names - {"self"}, f"it has {', '.join(sorted(signature.names)) or 'none'}")
        yield Mistake((f"{name}::{key}",), f'{target} has no argument "{key}"; {hint}')
    missing = sorted(signature.needed - given)
    if missing and config.get("_mode_", "default") == "default":
        yield Mistake((name,), f"{target} needs {', '.join(missing)}; add what is missing")


def locate(path: str) -> Any:
    try:
        return pydoc.locate(path)
    except pydoc.ErrorDuringImport:
        return None


def siblings(target: str) -> set[str]:
    """Full names of what is in the module of a dotted name; empty where there is no such module."""
    module, _, _ = target.rpartition(".")
    owner = locate(module) if module else None
    known = {} if owner is None else vars(owner)
    package = module.split(".")[0]
    own = [name for name, found in known.items() if str(getattr(found, "__module__", "")).split(".")[0] == package]
    return {f"{module}.{name}" for name in own if callable(known[name]) and not name.startswith("_")}


# --- References and expressions --------------------------------------------------------------------------------------
def find_reference_mistakes(resolver: ReferenceResolver) -> Iterator[Mistake]:
    """Text that refers to ids that are not there, and expressions that are no Python."""
    for name, item in list(resolver.items.items()):
        written = item.get_config()
        if not isinstance(written, str) or is_alias(name):
            continue
        for reference in resolver.match_refs_pattern(written):
            if reference not in resolver.items:
                known = {other for other in resolver.items if other.count("::") == reference.count("::")}
                hint = nearest(reference, known, "set it, or refer to another")
                yield Mistake((name,), f'refers to "@{reference}", which is not there; {hint}')
        if written.startswith("$") and not is_python(written[1:]):
            yield Mistake((name,), f"expected an expression in Python after $, found {shown(written)}")


def is_python(written: str) -> bool:
    try:
        ast.parse(REFERENCE.sub("_", written.replace("#", "::")).strip())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
