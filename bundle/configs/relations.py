# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What the values of the configs have to do with each other: combinations that cannot be, and values switched off.

Each value by itself has been checked before (`bundle.configs.values`); a relation of which one value is missing is
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bundle.organs import ORGANS, Organ, find_organ, similar_organ

__all__ = ["Mistake", "find_contradictions", "switched_off"]

GivenValues = Mapping[str, Any]
PSEUDO_LABELS = ("semi", "partial", "pann")  # supervisions that have them


class Mistake(NamedTuple):
    """What is wrong with some values: the ids that it is about, and a sentence without them."""

    ids: tuple[str, ...]
    sentence: str


def find_contradictions(values: GivenValues) -> list[Mistake]:
    """Values that are allowed each, but not together.

    >>> [mistake] = find_contradictions({"hu_window": [275, -125]})
    >>> mistake.sentence
    'expected the lower end first, found [275, -125]; write [-125, 275]'
    """
    return [mistake for names, rule in RULES if all(name in values for name in names) for mistake in rule(values)]


# --- Rules -----------------------------------------------------------------------------------------------------------
def ascending(name: str) -> Callable[[GivenValues], Iterator[Mistake]]:
    def rule(values: GivenValues) -> Iterator[Mistake]:
        low, high = values[name]
        if low >= high:
            advice = f"write [{high}, {low}]" if low > high else "give two different numbers"
            yield Mistake((name,), f"expected the lower end first, found [{low}, {high}]; {advice}")

    return rule


def known_organs(values: GivenValues) -> Iterator[Mistake]:
    given = values["organs"]
    names = given.split(",") if isinstance(given, str) else given or []
    found: dict[Organ, str] = {}
    for name in names:
        organ = find_organ(name)
        if organ is None:
            close = similar_organ(name)
            known = ", ".join(organ.name for organ in ORGANS)
            hint = f'did you mean "{close}"?' if close else f"choose from: {known}"
            yield Mistake(("organs",), f'"{name}" is not in the vocabulary; {hint}')
        elif organ in found:
            yield Mistake(("organs",), f'"{found[organ]}" and "{name}" are one organ; name it once')
        else:
            found[organ] = name


def few_flat_axes(values: GivenValues) -> Iterator[Mistake]:
    size = list(values["patch_size"])
    if size.count(1) > 1:
        yield Mistake(("patch_size",), f"expected at most one axis of size 1, which makes slices, found {size}")


def slices_for(name: str, usual: float) -> Callable[[GivenValues], Iterator[Mistake]]:
    """A value that is about slices, unless it has its usual value."""

    def rule(values: GivenValues) -> Iterator[Mistake]:
        size = list(values["patch_size"])
        if values[name] != usual and size.count(1) != 1:
            yield Mistake(
                (name, "patch_size"),
                f"{values[name]} is about slices, but patch_size is {size}; give patches one axis of size 1, or set "
                f"{name} to {usual:g}",
            )

    return rule


def something_to_train(values: GivenValues) -> Iterator[Mistake]:
    if "checkpoint" in values or values["train_iterations"] > 0:
        return  # a config that evaluates trains nothing anyhow
    if values["warmup_iterations"] == 0:
        yield Mistake(
            ("train_iterations", "warmup_iterations"),
            "0, and so is warmup_iterations: nothing is trained; give one of them",
        )
    elif values["warmup_checkpoint"] is not None:
        yield Mistake(
            ("train_iterations", "warmup_checkpoint"),
            "0, and warmup_checkpoint replaces stage 1: nothing is trained; give train_iterations",
        )


def start_within_stage(values: GivenValues) -> Iterator[Mistake]:
    start, end = values["pseudo_start"], values["train_iterations"]
    if "checkpoint" not in values and values["supervision"] in PSEUDO_LABELS and 0 < end <= start:
        yield Mistake(
            ("pseudo_start", "train_iterations"),
            f"expected an iteration of stage 2, which has {end}, found {start}; without pseudo-labels train with "
            "supervision marginal",
        )


def partial_samples(values: GivenValues) -> Iterator[Mistake]:
    if values["batch_partial"] == 0 and values["supervision"] != "full" and "checkpoint" not in values:
        yield Mistake(
            ("batch_partial", "supervision"),
            f"0, but the supervision {values['supervision']} learns from partially labelled samples; give 1 or more, "
            "or train with supervision full",
        )


def one_or_the_other(values: GivenValues) -> Iterator[Mistake]:
    if values["resume"] and values["overwrite"]:
        yield Mistake(("overwrite", "resume"), "true, and so is resume: a run is either gone on with or removed")


def fold_to_score(values: GivenValues) -> Iterator[Mistake]:
    if values["section"] == "fold" and values["fold"] is None:
        yield Mistake(("section", "fold"), "fold, but fold is null: no case was held out; give the fold, or a section")


RULES: tuple[tuple[tuple[str, ...], Callable[[GivenValues], Iterator[Mistake]]], ...] = (
    (("hu_window",), ascending("hu_window")),
    (("intensity",), ascending("intensity")),
    (("organs",), known_organs),
    (("patch_size",), few_flat_axes),
    (("context", "patch_size"), slices_for("context", 0)),
    (("empty_rate", "patch_size"), slices_for("empty_rate", 1)),
    (("train_iterations", "warmup_iterations", "warmup_checkpoint"), something_to_train),
    (("pseudo_start", "train_iterations", "supervision"), start_within_stage),
    (("batch_partial", "supervision"), partial_samples),
    (("resume", "overwrite"), one_or_the_other),
    (("section", "fold"), fold_to_score),
)


# --- Values that another one switches off ----------------------------------------------------------------------------
def switched_off(values: GivenValues) -> dict[str, str]:
    """Values that have no effect beside the others, and why.

    >>> switched_off({"supervision": "pann", "duals": "natural", "dual_rate": 1e-3})
    {'dual_rate': 'duals is natural'}
    """
    supervision, duals = values.get("supervision"), values.get("duals")
    off: dict[str, str] = {}
    if duals is not None and duals != "gradient":
        off["dual_rate"] = f"duals is {duals}"
    if duals is not None and duals != "natural":
        off["dual_memory"] = f"duals is {duals}"
    if values.get("warmup_iterations") == 0:
        off["warmup_learning_rate"] = "warmup_iterations is 0"
    if values.get("warmup_checkpoint") is not None:
        off |= dict.fromkeys(("warmup_iterations", "warmup_learning_rate"), "warmup_checkpoint replaces stage 1")
    if values.get("train_iterations") == 0:
        stage2 = ("train_learning_rate", "refresh_interval", "pseudo_start", "partial_weight")
        off |= dict.fromkeys(stage2, "train_iterations is 0")
    if supervision is not None and supervision not in PSEUDO_LABELS:
        labels = ("confidence", "marginal", "teacher_memory", "pseudo_start", "refresh_interval", "truth_dir")
        off |= dict.fromkeys(labels, f"the supervision {supervision} has no pseudo-labels")
    if supervision == "full":
        off["partial_weight"] = "the supervision full has no partially labelled samples"
    if supervision is not None and supervision != "pann":
        prior = ("prior_weight", "prior_fit", "prior_slack", "prior_correction", "duals", "dual_memory", "dual_rate")
        off |= dict.fromkeys(prior, f"the supervision {supervision} has no prior")
    return {name: reason for name, reason in off.items() if name in values}
