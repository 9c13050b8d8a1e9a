# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Pseudo-labels: what the network says where the annotators said nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from bundle.errors import InputError
from bundle.inference.inferers import SlabInferer
from bundle.organs import BACKGROUND, UNKNOWN
from bundle.training.dataset import PatchDataset, annotated_channels, partial_indices
from bundle.training.label_store import PseudoLabelStore
from bundle.training.patches import Patches, occupied_slices
from bundle.training.prior import Expectation, SizePrior, label_proportions, probability_proportions
from bundle.training.quality import PseudoLabelQuality
from bundle.training.teacher import Teacher

__all__ = ["Decision", "PseudoLabeler", "Refresh", "complete_case", "complete_labels"]

LIMIT = 4.0  # of the factors of a decision: a wrong expectation must not invent organs


def complete_labels(
    scores: Tensor,
    given: Tensor,
    annotated: list[int],
    confidence: float = 0.0,
    factors: Sequence[float] | NDArray[np.float64] | None = None,
) -> Tensor:
    """The given label where the annotators marked a voxel, the pseudo-label where they left it unknown, uint8.

    The pseudo-label is the best of background and the organs *outside* the label set: an organ of the label set that
    the annotator did not mark here is known to be absent here.

    Args:
        scores: C×spatial, probabilities; changed in place. Without confidence and factors logits do as well.
        given: spatial, with `UNKNOWN` where nothing is known; ignored voxels stay ignored.
        annotated: channels of the label set.
        confidence: a voxel whose best class has a smaller share of the probability that is left stays unknown.
        factors: of the channels' probabilities before the decision (C).

    >>> scores = torch.tensor([[0.2, 0.5], [0.7, 0.1], [0.1, 0.4]])  # background, spleen, liver in two voxels
    >>> complete_labels(scores, torch.tensor([UNKNOWN, UNKNOWN]), annotated=[1]).tolist()  # no spleen was marked
    [0, 0]
    """
    if factors is not None:
        weights = torch.as_tensor(np.asarray(factors)[: len(scores)], dtype=scores.dtype)
        scores.mul_(weights.reshape(-1, *[1] * (scores.ndim - 1)))
    scores[annotated] = -torch.inf
    best, label = scores.max(0)
    if confidence > 0:
        label = label.where(best >= confidence * scores.clamp(min=0).sum(0), UNKNOWN)
    return torch.where(given == UNKNOWN, label, given).to(torch.uint8)


@dataclass
class Refresh:
    """What a refresh found: exact p̄ over all partially labelled data, and per cohort.

    Args:
        proportions: p̄, cohorts weighted equally as the mini-batches do (C).
        by_cohort: p̄ of each cohort.
        by_case: p̄ of each case, by its place in the dataset.
        marked: for each cohort the proportions of the organs its annotators marked, by channel.
        quality: precision and recall of the pseudo-labels by cohort, where a hidden truth is known.
        expected: the proportions that the prior term has expected since.
    """

    proportions: Tensor
    by_cohort: dict[str, list[float]]
    by_case: dict[int, NDArray[np.float64]]
    marked: dict[str, dict[int, float]]
    quality: dict[str, Any] | None = None
    expected: list[float] | None = None

    def state_dict(self) -> dict[str, Any]:
        """What later refreshes need of it."""
        by_case = {index: torch.from_numpy(row) for index, row in self.by_case.items()}
        return {"proportions": self.proportions, "by_cohort": self.by_cohort, "by_case": by_case, "marked": self.marked}

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Refresh:
        by_case = {index: row.numpy() for index, row in state["by_case"].items()}
        return cls(state["proportions"], state["by_cohort"], by_case, state["marked"])


@dataclass(frozen=True)
class Decision:
    """How probabilities become pseudo-labels.

    Args:
        confidence: share of the probability that a pseudo-label needs; 0 gives every voxel one, None gives none one.
        correction: exponent of expected ÷ predicted proportion of a case, by which each organ's probability is
            multiplied before the decision: an organ that is found too small is favored. 0 leaves them alone.
    """

    confidence: float | None = 0.0
    correction: float = 0.0

    def waiting(self) -> Decision:
        """The same, but for now no voxel has a pseudo-label."""
        return replace(self, confidence=None)

    def factors(self, predicted: Sequence[float] | NDArray[np.float64], expected: Expectation) -> NDArray[np.float64]:
        """By what the probabilities of each channel are multiplied, given a case's p̄."""
        p = np.maximum(np.asarray(predicted, np.float64), 1e-9)
        ratio = np.clip(expected.nearest(p) / p, 1 / LIMIT, LIMIT) ** self.correction
        ratio[BACKGROUND] = 1.0
        return ratio


@torch.no_grad()
def complete_case(
    network: nn.Module,
    inferer: SlabInferer,
    dataset: PatchDataset,
    index: int,
    decision: Decision,
    factors: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Completed labels of a case, X×Y×Z, and its p̄ (C), weighted by the coverage of the patches.

    Args:
        network: whose predictions are taken.
        inferer: the inference engine.
        dataset: the cases.
        index: which of them.
        decision: how probabilities become pseudo-labels.
        factors: of the channels' probabilities before the decision.
    """
    volume, vocabulary = dataset.volume(index), dataset.vocabulary
    annotated = annotated_channels(dataset.data[index], vocabulary)
    given = volume["label"][0]
    axis, slabs = inferer.slabs(volume["image"][0], network)
    completed, shares = torch.empty_like(given), SliceShares(dataset.patches, given.shape, vocabulary.out_channels)
    for start, planes in slabs:
        scores, here = planes.movedim(1, 0).contiguous(), slice(start, start + len(planes))
        shares.add(scores.numpy(), axis, start)
        known = given.movedim(axis, 0)[here]
        if decision.confidence is None:
            completed.movedim(axis, 0)[here] = known
            continue
        # A volume of nothing but air has one channel, the background.
        inside = [channel for channel in annotated if channel < len(scores)]
        completed.movedim(axis, 0)[here] = complete_labels(scores, known, inside, decision.confidence, factors)
    return completed.numpy(), shares.proportions(completed.numpy())


class SliceShares:
    """p̄ of a case, slab by slab. Where empty slices are drawn less often, only the whole label map shows which are.

    Args:
        patches: how patches are cut.
        shape: of the volume.
        channels: of the network.
    """

    def __init__(self, patches: Patches, shape: Sequence[int], channels: int) -> None:
        self.patches, self.shape, self.kept = patches, tuple(shape), patches.slice_axis
        self.coverage = patches.coverage(shape)
        count = 1 if self.kept is None else shape[self.kept]
        self.sums = np.zeros((count, channels))  # per slice, not yet weighted by how often it is drawn

    def add(self, scores: NDArray[np.float32], axis: int, start: int) -> None:
        """Take C×N×U×V, planes from ``start`` on across ``axis``."""
        order = [axis, *(other for other in range(3) if other != axis)]
        weights = [self.coverage[other] for other in order]
        weights[0] = weights[0][start : start + scores.shape[1]]
        if self.kept is None:
            self.sums[0, : len(scores)] += probability_proportions(scores, weights)
            return
        place = order.index(self.kept)
        # one slice after the other has a weight of 1: the rates come at the end
        rest = [weight for other, weight in enumerate(weights) if other != place]
        rows = np.einsum("csuv,u,v->sc", np.moveaxis(scores, 1 + place, 1), *rest, optimize=True)
        first = start if place == 0 else 0
        self.sums[first : first + len(rows), : len(scores)] += rows

    def proportions(self, completed: NDArray[np.uint8]) -> NDArray[np.float64]:
        total = self.sums[0]
        if self.kept is not None:
            occupied = None if self.patches.empty_rate == 1 else occupied_slices(completed, self.kept)
            total = self.patches.coverage(self.shape, occupied)[self.kept] @ self.sums
        result: NDArray[np.float64] = total / total.sum()
        return result


class PseudoLabeler:
    """Completes the labels of all partially labelled cases with what a teacher says of them now.

    A case goes through the inference engine whole, so that the exact p̄ comes for free; it is weighted by the coverage
    of the patches, which puts it on the footing of the prior.

    Args:
        teacher: whose predictions are taken.
        inferer: the inference engine.
        dataset: the cases.
        store: where completed labels are written.
        decision: how probabilities become pseudo-labels.
        size_prior: what proportions are expected, for corrected decisions.
        quality: measures the pseudo-labels against a hidden truth.
    """

    def __init__(
        self,
        teacher: Teacher,
        inferer: SlabInferer,
        dataset: PatchDataset,
        store: PseudoLabelStore,
        decision: Decision,
        size_prior: SizePrior,
        quality: PseudoLabelQuality | None = None,
    ) -> None:
        self.teacher, self.inferer, self.dataset, self.store = teacher, inferer, dataset, store
        self.decision, self.size_prior, self.quality = decision, size_prior, quality
        self.last: Refresh | None = None
        self.started = False

    def start(self) -> None:
        """Begin with the weights of stage 1; a stage that goes on from a checkpoint has begun already."""
        self.teacher.start()
        self.started = True

    def refresh(self, iteration: int, wait: bool = False) -> Refresh | None:
        """Complete the labels; None when there is no partially labelled case.

        Decisions are corrected by what the last refresh found. The first one therefore looks twice.

        Args:
            iteration: of the stage.
            wait: give no pseudo-label yet: the voxels in question stay unknown.
        """
        decision = self.decision.waiting() if wait else self.decision
        with self.store.refreshing(iteration):
            result = self.complete(decision)
            if result is None:
                return None
            if self.last is None and decision.correction > 0 and decision.confidence is not None:
                self.last = result
                result = self.complete(decision)
        self.last = result
        if result is not None and self.quality is not None and self.decision.confidence is not None:
            result.quality = self.quality.measure(self.store)
        return result

    def is_intact(self) -> bool:
        """Whether the pseudo-labels that there should be are there, and can be read."""
        indices = [index for members in partial_indices(self.dataset).values() for index in members]
        return self.store.generation is None or self.store.is_intact(self.dataset.data[index] for index in indices)

    # --- Checkpoints -------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        return {
            "started": self.started,
            "teacher": self.teacher.state_dict(),
            "last": None if self.last is None else self.last.state_dict(),
            "generation": self.store.generation,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.started, self.store.generation = state["started"], state["generation"]
        self.teacher.load_state_dict(state["teacher"])
        self.last = None if state["last"] is None else Refresh.from_state(state["last"])

    def saved(self) -> None:
        """A checkpoint has been written: older pseudo-labels are no longer needed."""
        self.store.forget_others()

    def complete(self, decision: Decision) -> Refresh | None:
        """Write completed labels of all partially labelled cases, and sum up what was found."""
        cohorts, factors = partial_indices(self.dataset), self.factors()
        by_case: dict[int, NDArray[np.float64]] = {}
        marked: dict[int, dict[int, float]] = {}
        jobs = [index for indices in cohorts.values() for index in indices]
        with self.teacher.teaching() as network:
            for index in tqdm(jobs, desc="pseudo-labels", unit="case", leave=False):
                completed, by_case[index] = complete_case(
                    network, self.inferer, self.dataset, index, decision, factors.get(index)
                )
                if not np.isfinite(by_case[index]).all():  # large weights do that before they are infinite themselves
                    case = self.dataset.data[index]
                    raise InputError(
                        f"pseudo-labels of {case.get('cohort', '')}/{case.get('case', '')}: expected finite "
                        "predictions, found others; lower the learning rate; the last checkpoint is from before"
                    )
                self.store.write(self.dataset.data[index], completed)
                marked[index] = marked_shares(self.dataset, index)
        return summed_up(cohorts, by_case, marked) if jobs else None

    def factors(self) -> dict[int, NDArray[np.float64]]:
        """By what the probabilities of each case are multiplied before the decision; nothing before the first look."""
        if self.decision.correction == 0 or self.last is None:
            return {}
        aims, cases = self.size_prior.of_cases(self.last.marked), self.dataset.data
        return {
            index: self.decision.factors(found, aims[cases[index].get("cohort", "")])
            for index, found in self.last.by_case.items()
        }


def marked_shares(dataset: PatchDataset, index: int) -> dict[int, float]:
    """The share of each annotated channel in a case, as patches see it."""
    label, occupied = dataset.volume(index)["label"][0].numpy(), dataset.occupied(index, partial=True)
    coverage = dataset.patches.coverage(label.shape, occupied)
    shares = label_proportions(label, coverage, dataset.vocabulary.out_channels)
    return {channel: shares[channel] for channel in annotated_channels(dataset.data[index], dataset.vocabulary)}


def summed_up(
    cohorts: Mapping[str, Sequence[int]],
    by_case: Mapping[int, NDArray[np.float64]],
    marked: Mapping[int, Mapping[int, float]],
) -> Refresh:
    """What was found in single cases, by cohort and in all.

    Args:
        cohorts: the cases of each cohort.
        by_case: p̄ of each case.
        marked: the share of each channel that was annotated in a case.
    """
    by_cohort = {name: np.mean([by_case[index] for index in indices], axis=0) for name, indices in cohorts.items()}
    shares: dict[str, dict[int, float]] = {}
    for name, indices in cohorts.items():
        channels = dict.fromkeys(channel for index in indices for channel in marked[index])
        shares[name] = {
            channel: float(np.mean([marked[index][channel] for index in indices if channel in marked[index]]))
            for channel in channels
        }
    mean = np.mean(list(by_cohort.values()), axis=0)
    return Refresh(
        torch.as_tensor(mean), {name: row.tolist() for name, row in by_cohort.items()}, dict(by_case), shares
    )
