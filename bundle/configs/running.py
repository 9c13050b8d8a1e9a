# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The config that runs: its effective values, and the check that each of them is known and allowed.

MONAI hands a component its arguments and nothing else. The functions here are named in a config's list of acts
(`training`, `evaluating`, `inferring`) and find the config they are part of, whoever runs it: a command line, MONAI
Label, or `ConfigWorkflow`. What values there are is in `bundle.configs.values`.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.configs.components import find_component_mistakes, find_reference_mistakes
from bundle.configs.relations import Mistake, find_contradictions, switched_off
from bundle.configs.sources import ConfigSources, callers
from bundle.configs.values import VALUES, shown
from bundle.errors import InputError, find_input_error
from bundle.files import digest_files
from bundle.processes import check_device

if TYPE_CHECKING:
    from monai.bundle.reference_resolver import ReferenceResolver

__all__ = [
    "RunningConfig",
    "build_parts",
    "check_values",
    "config_record",
    "find_mistakes",
    "reason_of",
    "refuse_mistakes",
]

logger = logging.getLogger(__name__)

REFERENCE = re.compile(r"[@%]([A-Za-z_]\w*)(?:(?:::|#)(\w+))?")
# Ids that programs ask for by name: nothing in the config needs to refer to them.
ENTRY_POINTS = {
    "imports", "initialize", "finalize", "run", "training", "evaluating", "inferring", "bundle_root", "dataset_dir",
    "output_dir", "device", "val_interval", "save_execute_config",
}  # fmt: skip
PARTS = {"trainer", "evaluator", "handlers", "preprocessing", "postprocessing", "key_metric"}  # likewise, of stages
RENAMED = {"save_interval": "save_minutes"}  # values of earlier versions
VERSIONS = ("torch", "monai", "pytorch-ignite", "numpy", "nibabel", "itk")


class RunningConfig:
    """The config whose component is being instantiated right now.

    Args:
        resolver: MONAI's, with all ids of the config, overrides included.
    """

    def __init__(self, resolver: ReferenceResolver) -> None:
        self.resolver = resolver
        found: dict[str, Any] = resolver.items[""].get_config()
        self.raw = {name: value for name, value in found.items() if name != "_meta_"}  # metadata.json comes along

    @classmethod
    def find(cls) -> RunningConfig | None:
        """The config that runs; None if the caller was not instantiated by one.

        MONAI's resolver is an object on the call stack of everything that it instantiates, and nowhere else.
        """
        from monai.bundle.reference_resolver import ReferenceResolver  # here: it brings torch

        owners = (frame.f_locals.get("self") for frame in callers())
        return next((cls(owner) for owner in owners if isinstance(owner, ReferenceResolver)), None)

    def value(self, name: str) -> Any:
        """What an id stands for, as JSON can hold it."""
        found = self.resolver.get_resolved_content(name)
        return found if is_plain(found) else str(found)

    def section(self, name: str) -> Any:
        """An id as it is written, with references and expressions inside replaced by what they stand for."""
        return self.written(self.raw[name], name)

    def written(self, value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {key: self.written(item, f"{name}::{key}") for key, item in value.items()}
        if isinstance(value, list):
            return [self.written(item, f"{name}::{place}") for place, item in enumerate(value)]
        return self.value(name) if isinstance(value, str) and value.startswith(("$", "@")) else value

    def build(self, name: str) -> Any:
        """What an id stands for, its components built.

        Raises:
            InputError: when one of them cannot be built: which, and why.
        """
        try:
            return self.resolver.get_resolved_content(name)
        except Exception as error:  # what a class raises that is given something it cannot use is its own matter
            found = find_input_error(error)
            if found is not None:
                raise found from None
            raise InputError(self.why_not_built(failed_id(error) or name, error)) from None

    def as_written(self, name: str) -> Any:
        """What stands at an id of any depth; MONAI changes expressions when it evaluates them, but not here."""
        value: Any = self.raw
        for part in name.split("::"):
            value = value[int(part)] if isinstance(value, list) else value[part]
        return value

    def used_by(self, name: str) -> set[str]:
        """The ids that an id refers to."""
        return {used for text in texts(self.as_written(name)) for used in self.resolver.match_refs_pattern(text)}

    def why_not_built(self, name: str, error: BaseException) -> str:
        """A sentence about an id that cannot be worked out, and what it refers to that was set later than itself."""
        config, sources = self.as_written(name), ConfigSources.find()
        target = config.get("_target_") if isinstance(config, Mapping) else None
        what = f"{target} cannot be built" if target is not None else "cannot be worked out"
        later = [sources.place(used) for used in sorted(self.used_by(name)) if sources.rank(used) > sources.rank(name)]
        advice = f"correct {' or '.join(later)}" if later else "correct its arguments, or the values that they refer to"
        return f"{sources.place(name)}: {what} ({reason_of(error)}); {advice}"

    def references(self) -> set[str]:
        """The ids that something in the config refers to: `loss`, and of stages `train::loss`."""
        found = {match for text in texts(self.raw) for match in REFERENCE.findall(text)}
        return {top for top, _ in found} | {f"{top}::{part}" for top, part in found if part}

    def unused(self, entry_points: Collection[str] = ()) -> list[str]:
        """Plain values that nothing refers to, and parts of stages: they have no effect."""
        plain = [name for name in self.unreferenced(entry_points) if not has_target(self.raw[name])]
        known = self.references()
        stages = {name: value for name, value in self.raw.items() if is_stage(value)}
        parts = [(name, part) for name, stage in stages.items() for part in stage]
        return plain + [
            f"{name}::{part}" for name, part in parts if part not in PARTS and f"{name}::{part}" not in known
        ]

    def unreferenced(self, entry_points: Collection[str] = ()) -> list[str]:
        """Ids at the top that nothing refers to."""
        known = self.references() | ENTRY_POINTS | set(entry_points)
        return [name for name, value in self.raw.items() if name not in known and not is_stage(value)]


def is_stage(value: Any) -> bool:
    """Whether a config value is a group of components, such as `train`, and none itself."""
    return isinstance(value, Mapping) and "_target_" not in value and has_target(value)


def is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, str | int | float | bool)


def has_target(value: Any) -> bool:
    """Whether a config value has a component or an expression inside: it is no plain value."""
    return any(key == "_target_" for key in keys(value)) or any(text.startswith("$") for text in texts(value))


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        yield from map(str, value)
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from keys(item)


def texts(value: Any) -> Iterator[str]:
    """All text inside a config value."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        yield from texts(item)


# --- The check -------------------------------------------------------------------------------------------------------
def check_values(strict: bool = True) -> None:
    """Every value of the config that runs is allowed, and none is misspelled.

    MONAI takes `--suprevision full` as a new id and goes on with the default.

    Args:
        strict: refuse all unknown ids that nothing refers to. Else only those that look like a misspelling: an overlay
            for training may be given to inference.

    Raises:
        InputError: with all mistakes, a line each: where the value was set, what is allowed, what was found, and what
            it was probably meant to be.
    """
    config = RunningConfig.find()
    if config is None:
        return
    sources = ConfigSources.find()
    refuse_mistakes(find_mistakes(config, sources, strict))
    warn_of_idle_values(config, sources, strict)


def refuse_mistakes(mistakes: Sequence[str]) -> None:
    """Raise an InputError that has a line for each mistake, if there is any."""
    if len(mistakes) > 1:
        raise InputError("\n  ".join([f"{len(mistakes)} mistakes in the config:", *mistakes]))
    if mistakes:
        raise InputError(mistakes[0])


def find_mistakes(config: RunningConfig, sources: ConfigSources, strict: bool = True) -> list[str]:
    """A sentence for each mistake in a config, all of them.

    Args:
        config: with everything merged.
        sources: what it was made of, to say where a mistake is.
        strict: as for `check_values`.
    """
    values, wrong = checked_values(config)
    broken = list(find_reference_mistakes(config.resolver)) if strict else []
    named = {mistake.ids for mistake in broken}
    found = [
        *find_replaced_parts(config, sources),
        *find_unknown_ids(config, sources, strict),
        *find_component_mistakes(config.resolver),
        *broken,
        *(mistake for mistake in wrong if mistake.ids not in named),
        *find_contradictions(values),
        *missing_device(values.get("device", "")),
    ]
    sentences = [f"{sources.place(max(ids, key=sources.rank))}: {sentence}" for ids, sentence in found]
    return list(dict.fromkeys([*sources.repeated(), *sentences]))


def find_unknown_ids(config: RunningConfig, sources: ConfigSources, strict: bool) -> Iterator[Mistake]:
    """Ids that nothing uses: MONAI takes a misspelled one as new, and goes on with the default."""
    described = {value.name for value in VALUES}
    known = sorted(config.references() | described | (set(config.raw) - set(config.unreferenced())))
    built = [name for name in config.unreferenced(sources.run_ids) if has_target(config.raw[name])]
    # an overlay may leave a component of the file below it without use, but has no reason to bring one along
    suspects = [name for name in built if sources.is_new(name)]
    for name in [*config.unused(sources.run_ids), *(suspects if strict else ())]:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.6 if strict else 0.8)
        if name not in described and (strict or close):
            meant = RENAMED.get(name) or (close[0] if close else None)
            hint = f'did you mean "{meant}"?' if meant else "docs/reference/configs.md lists all values"
            yield Mistake((name,), f'nothing in this config uses a value "{name}"; {hint}')


def find_replaced_parts(config: RunningConfig, sources: ConfigSources) -> Iterator[Mistake]:
    """Components, stages and lists of the first config file that a plain value has taken the place of."""
    for name, before in (sources.files[0].content if sources.files else {}).items():
        now = config.raw.get(name)
        if is_stage(before) and isinstance(now, Mapping):
            pairs = [(f"{name}::{part}", before[part], now[part]) for part in before if part in now]
            lost = ", ".join(part for part in before if part not in now)
            if lost:
                yield Mistake(
                    (name,), f"takes the place of the whole, without {lost}; write {name}::PART to change one"
                )
        else:
            pairs = [(name, before, now)] if has_target(before) and not isinstance(before, str) else []
        for part, old, new in pairs:
            optional = new is None and not (
                part == name and is_stage(old)
            )  # evaluate.yaml takes validation's metric away
            if isinstance(old, Mapping | list) and not optional and not can_replace(new, old):
                expected = "a list" if isinstance(old, list) else "a component, a mapping with _target_"
                yield Mistake((part,), f"expected {expected} or a reference to one, found {shown(new)}")


def can_replace(new: Any, old: Any) -> bool:
    """Whether something can stand where a component, a stage or a list stood, whatever is inside."""
    if isinstance(new, str):
        return new.startswith(("$", "@", "%"))
    if isinstance(old, Mapping) and "_target_" in old:
        return isinstance(new, list) or (isinstance(new, Mapping) and "_target_" in new)
    return isinstance(new, Mapping | list)


def checked_values(config: RunningConfig) -> tuple[dict[str, Any], list[Mistake]]:
    """The values that are allowed, and what is wrong with the others."""
    values, wrong = {}, []
    for value in VALUES:
        if value.name not in config.raw:
            continue
        try:
            found = config.value(value.name)
        except Exception as error:  # an expression may raise anything
            wrong.append(Mistake((value.name,), f"cannot be worked out ({reason_of(error)}); expected {value.kind}"))
            continue
        mistake = value.mistake(found)
        if mistake is None:
            values[value.name] = found
        else:
            wrong.append(Mistake((value.name,), mistake))
    return values, without_consequences(config, wrong)


def without_consequences(config: RunningConfig, wrong: Sequence[Mistake]) -> list[Mistake]:
    """The mistakes without those of values that are worked out from one that is wrong itself."""
    named = {name for mistake in wrong for name in mistake.ids}
    causes = {name: named & config.used_by(name) - {name} for name in named}
    return [mistake for mistake in wrong if all(causes[cause] for name in mistake.ids for cause in causes[name])]


def reason_of(error: BaseException) -> str:
    """What an exception is about in one line: MONAI's config parser wraps what its targets raise."""
    found = find_input_error(error)
    while found is None and error.__cause__ is not None:
        error = error.__cause__
    reason = " ".join(str(found or error).split())
    return (reason[:300] + " …" if len(reason) > 300 else reason) or type(error).__name__


def failed_id(error: BaseException) -> str | None:
    """The innermost id that MONAI was resolving when an exception was raised."""
    trace, failed = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_name == "_resolve_one_item":
            failed = trace.tb_frame.f_locals.get("id")
        trace = trace.tb_next
    return failed


def build_parts(ids: Sequence[str]) -> None:
    """Build parts of the config that runs now, to find out what cannot be built before time is spent on data.

    Args:
        ids: of the parts; those that the config does not have are left out.

    Raises:
        InputError: for the first part that cannot be built.
    """
    config = RunningConfig.find()
    for name in ids if config is not None else ():
        if config is not None and name in config.resolver.items:
            config.build(name)


def missing_device(device: str) -> Iterator[Mistake]:
    """A device that is asked for and not there."""
    if device.startswith("cuda"):  # others are there, and most commands need no torch
        try:
            check_device(device)
        except InputError as error:
            yield Mistake(("device",), str(error).removeprefix("device: "))


def warn_of_idle_values(config: RunningConfig, sources: ConfigSources, strict: bool) -> None:
    """Values that are set and have no effect."""
    described = {value.name for value in VALUES}
    idle = [name for name in config.unused(sources.run_ids) if name in described]
    if idle and strict:  # their place may have been taken by an overlay
        logger.warning("nothing in this config uses %s: setting these values has no effect here", ", ".join(idle))
    for name, reason in switched_off(checked_values(config)[0]).items() if strict else ():
        if name in sources.chosen:
            logger.warning("%s: has no effect here, since %s", sources.place(name), reason)


# --- The record ------------------------------------------------------------------------------------------------------
def config_record() -> dict[str, Any]:
    """What runs: every effective value, the whole config, the versions of the libraries, a key of our own code."""
    config = RunningConfig.find()
    record: dict[str, Any] = {"versions": {name: installed(name) for name in VERSIONS}, "code": code_key()}
    if config is not None:
        record["values"] = {value.name: config.value(value.name) for value in VALUES if value.name in config.raw}
        record["config"] = config.raw
    return record


def code_key() -> str:
    """Changes when a line of the library does."""
    library = Path(str(files("bundle")))
    return digest_files(sorted(library.rglob("*.py")))


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
