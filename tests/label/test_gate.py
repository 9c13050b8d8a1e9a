# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A candidate replaces the served model only if no organ has lost too much."""

from __future__ import annotations

from typing import Any

import pytest

from label.gate import compare_models


def summary(cases: int = 3, **dice: float | None) -> dict[str, Any]:
    known = [value for value in dice.values() if value is not None]
    mean = sum(known) / len(known) if known else None
    return {"cases": cases, "mean": {"dice": mean}, "organs": {name: {"dice": value} for name, value in dice.items()}}


@pytest.mark.parametrize(
    ("before", "after", "accepted"),
    [
        ({"liver": 0.9, "spleen": 0.8}, {"liver": 0.9, "spleen": 0.8}, True),
        ({"liver": 0.9, "spleen": 0.8}, {"liver": 0.88, "spleen": 0.85}, True),
        ({"liver": 0.9, "spleen": 0.8}, {"liver": 0.86, "spleen": 0.99}, False),  # one organ lost .04
        ({"liver": 0.9, "spleen": 0.8}, {"liver": 0.88, "spleen": 0.78}, False),  # each lost .02, and so their mean
        ({"liver": 0.9, "spleen": None}, {"liver": 0.9, "spleen": 0.1}, True),  # no case shows it before
        ({"liver": 0.9, "spleen": 0.1}, {"liver": 0.9, "spleen": None}, False),
    ],
)
def test_an_organ_may_lose_a_little_and_the_mean_less(
    before: dict[str, float], after: dict[str, float], accepted: bool
) -> None:
    found = compare_models(summary(**before), summary(**after), margin=0.03)
    assert found.accepted is accepted
    assert "worse than" in found.why
    assert found.why.startswith("not worse") is accepted


def test_a_margin_is_the_users() -> None:
    assert not compare_models(summary(liver=0.9), summary(liver=0.899), margin=0.0).accepted
    assert compare_models(summary(liver=0.9), summary(liver=0.0), margin=1.0).accepted is False  # the mean may lose .33
    assert compare_models(summary(liver=0.3), summary(liver=0.0), margin=1.0).accepted


def test_without_validation_cases_nothing_is_compared_and_it_says_so() -> None:
    found = compare_models(None, None)
    assert found.accepted
    assert "not compared" in found.why


def test_the_first_model_is_taken() -> None:
    found = compare_models(None, summary(liver=0.5))
    assert found.accepted
    assert found.why == "the first model: mean Dice .500 on 3 validation cases"


def test_small_losses_do_not_add_up() -> None:
    first, served, candidate = summary(liver=0.90), summary(liver=0.88), summary(liver=0.86)
    assert compare_models(served, candidate, margin=0.09).accepted
    found = compare_models(served, candidate, margin=0.09, first=first)
    assert not found.accepted
    assert "worse than the model that the server began with" in found.why
    assert found.served == {"liver": 0.88}  # what the report shows beside the candidate
    assert compare_models(served, summary(liver=0.89), margin=0.09, first=first).why.startswith(
        "not worse than the served"
    )
