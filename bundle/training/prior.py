# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The prior q: the organ proportions of the fully labelled cases, on the footing of the partially labelled batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bundle.errors import InputError
from bundle.files import whole_file
from bundle.organs import BACKGROUND, Vocabulary
from bundle.training.dataset import PatchDataset, full_indices
from bundle.training.patches import Patches

__all__ = [
    "Expectation",
    "Prior",
    "Weights",
    "estimate_prior",
    "expected_proportions",
    "label_proportions",
    "prior_of_cases",
    "probability_proportions",
    "view_factor",
]


Weights = Sequence[NDArray[np.float64]]


def label_proportions(label: NDArray[Any], weights: Weights, channels: int) -> NDArray[np.float64]:
    """Share of each channel in a label map, voxels weighted by how often a draw covers them.

    Args:
        label: X×Y×Z label map; unknown and ignored voxels count in the whole, but in no channel's share.
        weights: per axis the coverage (see `Patches.coverage`).
        channels: number of channels, background included.
    """
    # One axis at a time: the product of the weights is never built for the whole volume.
    counts = np.zeros(channels)
    for row, weight in zip(np.asarray(label), weights[0], strict=True):
        if weight > 0:
            plane = weight * np.multiply.outer(weights[1], weights[2])
            counts += np.bincount(row.ravel(), weights=plane.ravel(), minlength=channels)[:channels]
    return counts


def probability_proportions(probabilities: NDArray[np.float32], weights: Weights) -> NDArray[np.float64]:
    """Sum of each channel's probability (C×X×Y×Z), voxels weighted by how often a draw covers them.

    Over a whole volume the weights add up to 1, and the sum is the mean.
    """
    result = np.asarray(probabilities @ np.asarray(weights[2], np.float32), np.float64)
    total: NDArray[np.float64] = result @ weights[1] @ weights[0]
    return total


@dataclass
class Prior:
    """The prior q with the way it was sampled.

    Args:
        names: names of the channels, background first.
        proportions: q, one entry per channel, sums to 1.
        spread: standard deviation of each entry over the cases.
        cases: names of the cases.
        sampling: how it was sampled: patch size, number of voxels and so on.
    """

    names: list[str]
    proportions: list[float]
    spread: list[float]
    cases: list[str]
    sampling: dict[str, Any]

    @property
    def standard_error(self) -> list[float]:
        """How well each entry of q is known."""
        return [spread / max(1, len(self.cases)) ** 0.5 for spread in self.spread]

    def save(self, path: str | Path) -> None:
        with whole_file(path) as unfinished:
            unfinished.write_text(json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Prior:
        try:
            return cls(**json.loads(Path(path).read_text()))
        except (OSError, TypeError, json.JSONDecodeError) as error:
            raise InputError(f"{path}: expected a prior written by training, found something else ({error})") from None


@dataclass
class Expectation:
    """What proportions a partially labelled cohort, or all of them, should show.

    Args:
        proportions: one entry per channel, sums to 1.
        slack: how far off the expectation itself may be, one entry per channel.
    """

    proportions: NDArray[np.float64]
    slack: NDArray[np.float64]

    def nearest(self, proportions: NDArray[np.float64]) -> NDArray[np.float64]:
        """The value within the slack that is nearest to given proportions."""
        low, high = np.maximum(self.proportions - self.slack, 0), self.proportions + self.slack
        near: NDArray[np.float64] = np.clip(proportions, low, high)
        return near


def view_factor(prior: Prior, given: Mapping[str, Mapping[int, float]]) -> float:
    """How much larger organs are in the partially labelled cohorts than in the fully labelled one.

    A shorter or narrower field of view holds the same organs in fewer voxels. What the annotators marked tells by how
    much: the mean of given ÷ q over cohorts and their organs, weighted by how well each q is known.
    """
    logs, weights = [], []
    for shares in given.values():
        for channel, share in shares.items():
            q = prior.proportions[channel]
            if q > 0 and share > 0:
                logs.append(np.log(share / q))
                weights.append(1 / max(prior.standard_error[channel] / q, 0.01) ** 2)
    return float(np.exp(np.average(logs, weights=weights))) if logs else 1.0


def expected_proportions(
    prior: Prior,
    given: Mapping[str, Mapping[int, float]],
    fit: bool = False,
    slack: float = 0.0,
    single: bool = False,
) -> dict[str, Expectation]:
    """What each partially labelled cohort should show.

    Args:
        prior: q.
        given: for each cohort the proportions of the organs its annotators marked, by channel.
        fit: scale q to the cohorts' field of view, and take from the annotators what they marked. Else it is q.
        slack: allowed distance, in standard errors of q.
        single: what a single case should show: patients differ, so the distance is in standard deviations over cases.
    """
    error = prior.spread if single else prior.standard_error
    factor = view_factor(prior, given) if fit else 1.0
    result = {}
    for cohort, shares in given.items():
        proportions = factor * np.array(prior.proportions)
        allowed = slack * factor * np.array(error)
        if fit:
            for channel, share in shares.items():
                proportions[channel], allowed[channel] = share, allowed[channel] if single else 0.0
        proportions[BACKGROUND] = 1 - proportions[BACKGROUND + 1 :].sum()
        result[cohort] = Expectation(proportions, allowed)
    return result


def prior_of_cases(
    vocabulary: Vocabulary, table: NDArray[np.float64], cases: Sequence[str], patches: Patches, voxels: int
) -> Prior:
    """q from the proportions of single cases.

    Args:
        vocabulary: the organs.
        table: cases × channels, rows add up to 1.
        cases: names of the cases.
        patches: how patches were cut.
        voxels: of all cases together.
    """
    return Prior(
        names=vocabulary.channel_names,
        proportions=table.mean(0).tolist(),
        spread=(table.std(0, ddof=1) if len(table) > 1 else np.zeros(table.shape[1])).tolist(),
        cases=list(cases),
        sampling={
            "patch": list(patches.size),
            "margin": list(patches.margin),
            "positions": "all positions of a patch, equally likely",
            "empty_rate": patches.empty_rate,
            "cases": len(cases),
            "voxels": voxels,
        },
    )


def estimate_prior(dataset: PatchDataset, path: str | Path | None = None) -> Prior:
    """q of the fully labelled cases of ``dataset``, exactly as its uniform patches would see it; saved to ``path``.

    The expectation over all draws is computed, not sampled: a rare organ's q has no sampling noise.
    """
    vocabulary = dataset.vocabulary
    indices = full_indices(dataset)
    if not indices:
        raise InputError("prior: no case has all organs annotated, so organ proportions cannot be estimated")
    rows, voxels = [], 0
    for index in tqdm(indices, desc="organ proportions of the full cohort", unit="case", leave=False):
        label = dataset.volume(index)["label"][0].numpy()
        coverage = dataset.patches.coverage(label.shape, dataset.occupied(index, partial=False))
        shares = label_proportions(label, coverage, vocabulary.out_channels)
        rows.append(shares / shares.sum())  # ignored voxels are left out
        voxels += label.size
    cases = [dataset.data[index].get("case", str(index)) for index in indices]
    prior = prior_of_cases(vocabulary, np.stack(rows), cases, dataset.patches, voxels)
    if path is not None:
        prior.save(path)
    return prior
