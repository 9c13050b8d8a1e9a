# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The prior q: the organ proportions of the fully labelled cases, on the footing of the partially labelled batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bundle.errors import InputError
from bundle.files import write_json
from bundle.organs import BACKGROUND, Vocabulary, find_organ
from bundle.training.dataset import PatchDataset, full_indices
from bundle.training.patches import Patches
from bundle.untrusted import is_number, is_whole, read_json, shown

__all__ = [
    "UNKNOWN_PRIOR",
    "Expectation",
    "MarkedShares",
    "Prior",
    "SizePrior",
    "Weights",
    "apart",
    "doubt_shares",
    "estimate_prior",
    "label_proportions",
    "prior_of_cases",
    "probability_proportions",
    "view_factor",
]


Weights = Sequence[NDArray[np.float64]]
MarkedShares = Mapping[str, Mapping[int, float]]  # cohort: share of each channel that its annotators marked
SHARE_FACTOR = 2.0  # proportions that differ by more are doubtful, unless the spread of q explains it
SUM_TOLERANCE = 1e-6  # of proportions that add up to 1
UNKNOWN_PRIOR = (
    "prior: no case has all organs annotated, so organ proportions cannot be estimated; give the prior.json of an "
    "earlier training (--prior_file), add a fully labelled cohort, or choose a --supervision without a prior"
)
MOST_CASES = 1_000_000  # more than there are
SPREADS = 2.0  # standard deviations of q that explain a difference


def label_proportions(label: NDArray[Any], weights: Weights, channels: int) -> NDArray[np.float64]:
    """Share of each channel in a label map, voxels weighted by how often a draw covers them.

    Args:
        label: X×Y×Z label map; unknown and ignored voxels count in the whole, but in no channel's share.
        weights: per axis the coverage (see `Patches.coverage`).
        channels: number of channels, background included.

    >>> label = np.array([[[0, 1], [1, 1]]])
    >>> label_proportions(label, [np.ones(1), np.full(2, 0.5), np.full(2, 0.5)], channels=3).tolist()
    [0.25, 0.75, 0.0]
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
        run: identity of the training that it belongs to; empty where it belongs to none.
    """

    names: list[str]
    proportions: list[float]
    spread: list[float]
    cases: list[str]
    sampling: dict[str, Any]
    run: str = ""

    @property
    def standard_error(self) -> list[float]:
        """How well each entry of q is known."""
        return [spread / max(1, len(self.cases)) ** 0.5 for spread in self.spread]

    def save(self, path: str | Path, run: str = "") -> None:
        """Write the prior, and which run it belongs to; nothing where nothing is expected."""
        if self.cases:
            write_json(path, asdict(replace(self, run=run)))

    @classmethod
    def load(cls, path: str | Path) -> Prior:
        """What `save` wrote.

        Raises:
            InputError: when the file holds anything else.
        """
        return cls.checked(read_json(path), str(path))

    def plain(self) -> dict[str, Any]:
        """The prior as weights carry it: how many cases, not which, since names may be those of patients.

        >>> Prior(["background", "liver"], [0.9, 0.1], [0.02, 0.02], ["anna", "ben"], {}).plain()["cases"]
        2
        """
        record = {**asdict(self), "cases": len(self.cases)}
        del record["run"]
        return record if self.cases else {}

    @classmethod
    def from_record(cls, record: Mapping[str, Any], source: str = "weights") -> Prior:
        """What `plain` gave; the cases have numbers for names.

        Args:
            record: from the record of weights.
            source: their file, for the sentence.

        Raises:
            InputError: when it is anything else, or nothing.
        """
        count: Any = record.get("cases")
        known = is_whole(count) and 0 < count <= MOST_CASES
        names = [str(number) for number in range(1, count + 1)] if known else []
        return cls.checked({"run": "", **record, "cases": names}, source)

    @classmethod
    def checked(cls, record: Any, source: str) -> Prior:
        """A prior of plain data that anybody may have written."""
        names = {field.name for field in fields(cls)}
        problem = (
            f"the entries {', '.join(sorted(names))} are not all there, or others are"
            if not isinstance(record, dict) or set(record) != names
            else prior_problem(record)
        )
        if problem:
            raise InputError(
                f"{source}: expected a prior written by training, found something else ({problem}); train again, or "
                "run `python -m scripts prior`"
            )
        return cls(**record)


def prior_problem(record: Mapping[str, Any]) -> str:
    """Why a record of all fields is no `Prior`; empty where it is one."""
    names, shares, spread, cases = (record[name] for name in ("names", "proportions", "spread", "cases"))
    if not all(isinstance(value, list) for value in (names, shares, spread, cases)):
        return "names, proportions, spread and cases are lists"
    if not all(isinstance(name, str) for name in (*names, *cases)) or not isinstance(record["sampling"], dict):
        return "names and cases are texts, and sampling is an object"
    if not isinstance(record["run"], str):
        return "run is a text"
    if names[:1] != ["background"] or len(names) < 2 or len(set(names)) < len(names):
        return "names are the background and different organs"
    unknown = [name for name in names[1:] if (organ := find_organ(name)) is None or organ.name != name]
    if unknown:
        return f"{shown(unknown[0])} is no organ"
    if not len(names) == len(shares) == len(spread):
        return f"{len(names)} names have {len(shares)} proportions and {len(spread)} spreads"
    if not all(is_number(value) and 0 <= value <= 1 for value in (*shares, *spread)):
        return "proportions and spreads are from 0 to 1"
    if abs(sum(shares) - 1) > SUM_TOLERANCE:
        return f"proportions add up to 1, not to {sum(shares):g}"
    return "" if cases else "it is of at least one case"


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


def view_factor(prior: Prior, marked: MarkedShares) -> float:
    """How much larger organs are in the partially labelled cohorts than in the fully labelled one.

    A shorter or narrower field of view holds the same organs in fewer voxels. What the annotators marked shows by how
    much: the mean of marked share ÷ q over cohorts and their organs, weighted by how well each q is known.
    """
    logs, weights = [], []
    for shares in marked.values():
        for channel, share in shares.items():
            q = prior.proportions[channel]
            if q > 0 and share > 0:
                logs.append(np.log(share / q))
                weights.append(1 / max(prior.standard_error[channel] / q, 0.01) ** 2)
    return float(np.exp(np.average(logs, weights=weights))) if logs else 1.0


@dataclass(frozen=True)
class SizePrior:
    """What the prior expects of partially labelled cohorts, given what their annotators marked.

    Args:
        prior: q.
        fit: scale q to the cohorts' field of view, and take from the annotators what they marked. Else it is q.
        slack: distance from q that is allowed: in standard errors for cohorts, in standard deviations for cases.
    """

    prior: Prior
    fit: bool = False
    slack: float = 0.0

    def of_cohorts(self, marked: MarkedShares) -> dict[str, Expectation]:
        """What the mean over each cohort should show."""
        return self.expect(marked, self.prior.standard_error, marked_slack=0.0)

    def of_cases(self, marked: MarkedShares) -> dict[str, Expectation]:
        """What a single case of each cohort should show: patients differ."""
        return self.expect(marked, self.prior.spread, marked_slack=1.0)

    def of_mean(self, marked: MarkedShares) -> Expectation:
        """What the mean over all cohorts should show, each of them counting alike."""
        aims = self.of_cohorts(marked).values()
        proportions, slack = (
            np.mean([getattr(aim, part) for aim in aims], axis=0) for part in ("proportions", "slack")
        )
        return Expectation(proportions, slack)

    def expect(self, marked: MarkedShares, error: Sequence[float], marked_slack: float) -> dict[str, Expectation]:
        """One expectation for each cohort.

        Args:
            marked: what the annotators of each cohort marked.
            error: one unit of slack for each channel.
            marked_slack: scales the slack of organs that were marked.
        """
        factor = view_factor(self.prior, marked) if self.fit else 1.0
        result = {}
        for cohort, shares in marked.items():
            proportions = factor * np.array(self.prior.proportions)
            slack = self.slack * factor * np.array(error)
            if self.fit:
                for channel, share in shares.items():
                    proportions[channel], slack[channel] = share, marked_slack * slack[channel]
            proportions[BACKGROUND] = 1 - proportions[BACKGROUND + 1 :].sum()
            result[cohort] = Expectation(proportions, slack)
        return result


def doubt_shares(prior: Prior, cohort: str, shares: Mapping[str, float]) -> list[str]:
    """Sentences on organs whose share of a cohort's scans is far from q, and further than q's own spread explains.

    The cohort's field of view then differs from that of the fully labelled cases, and the prior may push the wrong way.

    Args:
        prior: q and its spread.
        cohort: name of the cohort.
        shares: the proportion of each organ that its annotators marked.

    >>> prior = Prior(["background", "liver"], [0.9, 0.1], [0.02, 0.02], ["a", "b"], {})
    >>> doubt_shares(prior, "livers", {"liver": 0.12})
    []
    >>> len(doubt_shares(prior, "livers", {"liver": 0.3}))
    1
    """
    q = dict(zip(prior.names, zip(prior.proportions, prior.spread, strict=True), strict=True))
    doubts = []
    for organ, share in shares.items():
        expected, spread = q[organ]
        if apart(share, expected, SHARE_FACTOR) and abs(share - expected) > SPREADS * spread:
            times = f", {share / expected:.2g} times as much" if expected else ""
            doubts.append(
                f"cohort {cohort}: the {organ} takes {1000 * share:.3g} ‰ of its scans, but q is "
                f"{1000 * expected:.3g} ± {1000 * spread:.2g} ‰{times}; compare their fields of view, then crop, lower "
                "prior_weight, or leave the cohort out"
            )
    return doubts


def apart(a: float, b: float, factor: float) -> bool:
    """Whether two sizes differ by more than a factor.

    >>> apart(0.25, 1.0, factor=2), apart(1.0, 0.5, factor=2)
    (True, False)
    """
    return max(a, b) > factor * min(a, b)


def prior_of_cases(
    vocabulary: Vocabulary, shares: NDArray[np.float64], cases: Sequence[str], patches: Patches, voxels: int
) -> Prior:
    """q: the one place where it is computed, from the proportions of single cases.

    Args:
        vocabulary: the organs.
        shares: cases × channels, rows add up to 1.
        cases: names of the cases.
        patches: how patches were cut.
        voxels: of all cases together.

    >>> shares = np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]])  # of background and liver in three cases
    >>> prior = prior_of_cases(Vocabulary("liver"), shares, ["a", "b", "c"], Patches((8, 8, 8)), voxels=3 * 512)
    >>> prior.proportions, prior.spread
    ([0.5, 0.5], [0.25, 0.25])
    """
    return Prior(
        names=vocabulary.channel_names,
        proportions=shares.mean(0).tolist(),
        spread=(shares.std(0, ddof=1) if len(shares) > 1 else np.zeros(shares.shape[1])).tolist(),
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


def estimate_prior(dataset: PatchDataset) -> Prior:
    """q of the fully labelled cases of ``dataset``, exactly as its uniform patches would see it.

    The expectation over all draws is computed, not sampled: a rare organ's q has no sampling noise.

    Raises:
        InputError: when no case is fully labelled.
    """
    indices = full_indices(dataset)
    if not indices:
        raise InputError(UNKNOWN_PRIOR)
    rows, voxels = [], 0
    for index in tqdm(indices, desc="organ proportions of the full cohort", unit="case", leave=False):
        label = dataset.volume(index)["label"][0].numpy()
        coverage = dataset.patches.coverage(label.shape, dataset.occupied(index, partial=False))
        shares = label_proportions(label, coverage, dataset.vocabulary.out_channels)
        rows.append(shares / shares.sum())  # ignored voxels are left out
        voxels += label.size
    cases = [dataset.data[index].get("case", str(index)) for index in indices]
    return prior_of_cases(dataset.vocabulary, np.stack(rows), cases, dataset.patches, voxels)
