# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Whether a candidate may replace the served model: it must not be worse on the validation cases, organ by organ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["MARGIN", "Comparison", "compare_models"]

Scores = dict[str, float | None]  # mean Dice of each organ; None where no case shows it

MARGIN = 0.03  # of a mean Dice: what an organ may lose; the mean over organs may lose a third of it


@dataclass(frozen=True)
class Comparison:
    """What the validation cases say about a candidate.

    Args:
        accepted: whether it may replace the served model.
        why: a sentence.
        cases: validated on.
        margin: that an organ may lose.
        served: mean Dice of each organ, with the served model; empty where nothing was compared.
        candidate: with the candidate.
    """

    accepted: bool
    why: str
    cases: int = 0
    margin: float = MARGIN
    served: Scores = field(default_factory=dict)
    candidate: Scores = field(default_factory=dict)


def compare_models(
    served: Mapping[str, Any] | None,
    candidate: Mapping[str, Any] | None,
    margin: float = MARGIN,
    first: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare summaries of scores (`bundle.evaluation.summaries`) on the same cases.

    Beside the served model stands the one that the server began with: many small losses must not add up.

    Args:
        served: of the served model; None where there is none.
        candidate: of the candidate; None where there is no fully labelled case to validate on.
        margin: that an organ may lose.
        first: of the model that the server began with, where that is another.

    >>> def summary(liver, spleen):
    ...     return {"cases": 4, "organs": {"liver": {"dice": liver}, "spleen": {"dice": spleen}}}
    >>> compare_models(summary(0.9, 0.8), summary(0.89, 0.85)).accepted
    True
    >>> print(compare_models(summary(0.9, 0.8), summary(0.95, 0.76)).why)
    worse than the served model on 4 validation cases: spleen .800 → .760 (an organ may lose .03)
    """
    if candidate is None:
        return Comparison(True, "not compared: there is no fully labeled case to validate on", margin=margin)
    after = dice_by_organ(candidate)
    if served is None:
        mean = mean_of(after, after, after)
        why = f"the first model: mean Dice {short(mean)} on {candidate['cases']} validation cases"
        return Comparison(True, why, candidate["cases"], margin, {}, after)
    for other, name in ((first, "model that the server began with"), (served, "served model")):
        if other is not None:
            found = compare_pair(other, candidate, margin, name)
            if not found.accepted:
                break
    return replace(found, served=dice_by_organ(served))


def compare_pair(served: Mapping[str, Any], candidate: Mapping[str, Any], margin: float, name: str) -> Comparison:
    """Whether a candidate is not worse than one other model."""
    before, after = dice_by_organ(served), dice_by_organ(candidate)
    lost = [
        f"{organ} {short(old)} → {short(new)}"
        for organ, old in before.items()
        if old is not None and ((new := after.get(organ)) is None or new < old - margin)
    ]
    allowed = f"an organ may lose {short(margin, 2)}"
    old_mean, new_mean = (mean_of(dice, before, after) for dice in (before, after))
    if new_mean < old_mean - margin / 3:
        lost.append(f"mean over organs {short(old_mean)} → {short(new_mean)}")
        allowed += f", their mean {short(margin / 3, 2)}"
    change = f"on {candidate['cases']} validation cases: "
    if lost:
        why = f"worse than the {name} {change}{', '.join(lost)} ({allowed})"
        return Comparison(False, why, candidate["cases"], margin, before, after)
    why = f"not worse than the {name} {change}mean Dice {short(old_mean)} → {short(new_mean)}"
    return Comparison(True, why, candidate["cases"], margin, before, after)


def dice_by_organ(summary: Mapping[str, Any]) -> Scores:
    return {organ: scores["dice"] for organ, scores in summary["organs"].items()}


def mean_of(dice: Scores, before: Scores, after: Scores) -> float:
    """Over the organs that both models have a score for."""
    both = [organ for organ in dice if before.get(organ) is not None and after.get(organ) is not None]
    return sum(dice[organ] or 0.0 for organ in both) / max(1, len(both))


def short(value: float | None, digits: int = 3) -> str:
    """A number below 1 as papers print it.

    >>> short(0.8254), short(None)
    ('.825', '–')
    """
    return "–" if value is None else f"{value:.{digits}f}".removeprefix("0")
