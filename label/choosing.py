# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Which image to annotate next, and why: two strategies that know about organ sizes and about label sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bundle.checks.sizes import Plausibility, judge_volumes
from bundle.organs import Vocabulary
from bundle.scans.volumes import Volumes

__all__ = ["Choice", "choose_by_organs", "choose_by_sizes", "implausibility", "label_counts"]

WORST = 6.0  # spreads at which an organ is as wrong as it can be; a missing organ counts as that
NAMED = 3  # organs that a suggestion names


@dataclass(frozen=True)
class Choice:
    """An image to annotate.

    Args:
        image: its id.
        score: by which it was chosen; higher is more urgent.
        why: sentences, the most important first.
        organs: to annotate first.
    """

    image: str
    score: float
    why: list[str] = field(default_factory=list)
    organs: list[str] = field(default_factory=list)


# --- By size ---------------------------------------------------------------------------------------------------------
def spreads_of(one: Plausibility) -> float:
    """How far an organ's size is from the usual one; 0 where nobody can say."""
    if one.flag == "missing":
        return WORST if one.expected_ml is not None else 0.0
    return 0.0 if one.spreads is None or one.flag == "cut" else min(abs(one.spreads), WORST)


def implausibility(judged: Mapping[str, Plausibility]) -> float:
    """How implausible the sizes of an image are: the root mean square of the organs' spreads."""
    spreads = [spreads_of(one) for one in judged.values()]
    return float((sum(one**2 for one in spreads) / max(1, len(spreads))) ** 0.5)


def choose_by_sizes(images: Mapping[str, Volumes], sizes: Mapping[str, Any]) -> Choice | None:
    """The image whose predicted organ sizes are least plausible.

    Args:
        images: organ volumes by image id, as the model predicts them.
        sizes: of the model's training cases.
    """
    choices = []
    for image in sorted(images):
        judged = judge_volumes(images[image], sizes)
        order = sorted(judged, key=lambda name: -spreads_of(judged[name]))
        odd = [name for name in order if spreads_of(judged[name]) > 2]
        why = [judged[name].why for name in odd] or ["all predicted sizes are usual"]
        choices.append(Choice(image, round(implausibility(judged), 4), why, odd[:NAMED]))
    return max(choices, key=lambda choice: choice.score, default=None)


# --- By organ --------------------------------------------------------------------------------------------------------
def label_counts(label_sets: Iterable[Iterable[str]], vocabulary: Vocabulary) -> dict[str, int]:
    """In how many cases each organ is annotated."""
    counts = Counter(name for labelled in label_sets for name in labelled)
    return {name: counts[name] for name in vocabulary.names}


def choose_by_organs(
    images: Sequence[str],
    annotated: Mapping[str, Sequence[str]],
    counts: Mapping[str, int],
    predicted: Mapping[str, Volumes],
) -> Choice | None:
    """The image that would add most to the organs with the fewest labels.

    An organ counts 1 / (1 + cases that have it annotated), if it is not annotated in the image yet and the model, where
    it was asked, finds it there.

    Args:
        images: ids that may be chosen.
        annotated: the label set of images that have one.
        counts: in how many cases each organ is annotated.
        predicted: organ volumes of images that the model was asked about.

    >>> counts = {"liver": 9, "spleen": 1, "pancreas": 0}
    >>> choice = choose_by_organs(["a", "b"], {"a": ["pancreas"]}, counts, {})
    >>> choice.image, choice.organs
    ('b', ['pancreas', 'spleen', 'liver'])
    """
    choices = []
    for image in sorted(images):
        found = predicted.get(image)
        missing = [
            name
            for name in counts
            if name not in annotated.get(image, ()) and (found is None or found.organs[name].voxels > 0)
        ]
        rarest = sorted(missing, key=lambda name: counts[name])[:NAMED]
        score = sum(1 / (1 + counts[name]) for name in missing)
        why = [f"{name}: annotated in {counts[name]} cases so far" for name in rarest]
        choices.append(Choice(image, round(score, 4), why, rarest))
    return max(choices, key=lambda choice: choice.score, default=None)
