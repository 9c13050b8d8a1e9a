# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Which image to annotate next."""

from __future__ import annotations

import math

import pytest

from bundle.checks.sizes import judge_volumes
from bundle.organs import Vocabulary
from bundle.scans.volumes import OrganVolume, Volumes
from label.choosing import choose_by_organs, choose_by_sizes, implausibility, label_counts

SIZES = {"liver": {"cases": 9, "ml": 1000.0, "spread": 0.25}, "spleen": {"cases": 9, "ml": 200.0, "spread": 0.25}}


def found(liver: float, spleen: float) -> Volumes:
    """Volumes in ml of two organs that touch no border."""
    organs = {"liver": liver, "spleen": spleen}
    return Volumes(1.0, {name: OrganVolume(1, int(1000 * ml), ml, False) for name, ml in organs.items()})


def test_implausibility_is_the_root_mean_square_of_spreads() -> None:
    judged = judge_volumes(found(1000 * math.exp(0.5), 200 * math.exp(-0.25)), SIZES)  # 2 and -1 spreads
    assert implausibility(judged) == pytest.approx(math.sqrt((4 + 1) / 2))


def test_the_least_plausible_sizes_come_first_with_reasons() -> None:
    images = {"usual": found(1000, 200), "huge": found(5000, 200), "large": found(1600, 200)}
    choice = choose_by_sizes(images, SIZES)
    assert choice is not None
    assert (choice.image, choice.organs) == ("huge", ["liver"])
    assert choice.why == ["liver: 5000 ml, 5 times the 1000 ml of 9 training cases"]


def test_a_missing_organ_is_as_wrong_as_can_be() -> None:
    choice = choose_by_sizes({"a": found(1000, 0), "b": found(3000, 200)}, SIZES)
    assert choice is not None
    assert choice.image == "a"
    assert "not found" in choice.why[0]


def test_where_all_is_usual_it_says_so() -> None:
    choice = choose_by_sizes({"a": found(1000, 200)}, SIZES)
    assert choice is not None
    assert choice.why == ["all predicted sizes are usual"]
    assert choose_by_sizes({}, SIZES) is None


def test_label_counts() -> None:
    sets = [["liver"], ["liver", "spleen"], []]
    assert label_counts(sets, Vocabulary("liver,spleen,aorta")) == {"liver": 2, "spleen": 1, "aorta": 0}


def test_the_rarest_organs_come_first() -> None:
    counts = {"liver": 2, "spleen": 0}
    both = choose_by_organs(["a", "b"], {"a": ["spleen"]}, counts, {})
    assert both is not None
    assert both.image == "b"
    assert both.score == pytest.approx(1 / 3 + 1, abs=1e-4)
    shown = choose_by_organs(["a", "b"], {}, counts, {"a": found(1000, 0)})  # the model finds no spleen in a
    assert shown is not None
    assert shown.image == "b"
    assert choose_by_organs([], {}, counts, {}) is None
