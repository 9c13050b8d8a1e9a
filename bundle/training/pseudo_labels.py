# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Pseudo-labels: what the network says where the annotators said nothing, kept on disk on the preprocessed grid."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from bundle.cohorts.datalists import Case
from bundle.errors import InputError
from bundle.inference.inferers import SlabInferer
from bundle.organs import BACKGROUND, UNKNOWN
from bundle.training.dataset import PatchDataset, annotated_channels, partial_indices
from bundle.training.patches import Patches, Region, occupied_slices
from bundle.training.prior import Expectation, label_proportions, probability_proportions

__all__ = ["Decision", "PseudoLabels", "Refresh", "complete_labels", "doubtful_cohorts", "refresh_pseudo_labels"]


OCCUPIED = "occupied"  # name of the piece that tells which slices show an organ


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
    """
    if factors is not None:
        weights = torch.as_tensor(np.asarray(factors)[: len(scores)], dtype=scores.dtype)
        scores.mul_(weights.reshape(-1, *[1] * (scores.ndim - 1)))
    scores[annotated] = -torch.inf
    best, label = scores.max(0)
    if confidence > 0:
        label = label.where(best >= confidence * scores.clamp(min=0).sum(0), UNKNOWN)
    return torch.where(given == UNKNOWN, label, given).to(torch.uint8)


class PseudoLabels:
    """Completed label maps on disk: one compressed file a case, in slabs, so that a patch reads little of it.

    Args:
        directory: folder of the files.
        slab: slices per compressed piece.
        axis: axis across which the slices lie; that of the patches where these are slices.
    """

    def __init__(self, directory: str | Path, slab: int = 8, axis: int | None = None) -> None:
        self.directory, self.slab, self.axis = Path(directory), int(slab), 2 if axis is None else int(axis)
        self.known: dict[Path, tuple[int, NDArray[np.bool_] | None]] = {}  # asked for at every draw

    def path(self, case: Case) -> Path:
        return self.directory / case["cohort"] / f"{case['case']}.npz"

    def write(self, case: Case, completed: NDArray[np.uint8]) -> None:
        """Replace the case's file in one step: a reader sees the old one or the new one, never half of one."""
        path = self.path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        across = np.moveaxis(completed, self.axis, 0)
        slabs = {f"{start:05d}": across[start : start + self.slab] for start in range(0, len(across), self.slab)}
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(unfinished, "wb") as file:
                occupied = {OCCUPIED: occupied_slices(completed, self.axis)}
                np.savez_compressed(file, **occupied, **slabs)  # type: ignore[arg-type]
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def read(self, case: Case, region: Region | None = None) -> NDArray[np.uint8] | None:
        """The completed labels of a region of the case, or of all of it; None before the first refresh."""
        with self.opened(case) as slabs:
            if slabs is None:
                return None
            starts = sorted(int(name) for name in slabs.files if name != OCCUPIED)
            side = region[self.axis] if region else slice(0, starts[-1] + self.slab)
            wanted = [start for start in starts if start < side.stop and start + self.slab > side.start]
            volume = np.concatenate([slabs[f"{start:05d}"] for start in wanted])
        if region is None:
            return np.moveaxis(volume, 0, self.axis)
        inner = slice(side.start - wanted[0], side.stop - wanted[0])
        others = [part for axis, part in enumerate(region) if axis != self.axis]
        return np.ascontiguousarray(np.moveaxis(volume[(inner, *others)], 0, self.axis))

    def occupied(self, case: Case) -> NDArray[np.bool_] | None:
        """Which slices show an organ; None before the first refresh."""
        path = self.path(case)
        made = path.stat().st_mtime_ns if path.is_file() else 0
        if self.known.get(path, (0, None))[0] != made:
            with self.opened(case) as slabs:
                self.known[path] = (made, None if slabs is None else slabs[OCCUPIED])
        return self.known.get(path, (0, None))[1]

    @contextmanager
    def opened(self, case: Case) -> Iterator[Any]:
        """The case's file; None before the first refresh."""
        path = self.path(case)
        try:
            with np.load(path, allow_pickle=False) as slabs:
                yield slabs
        except FileNotFoundError:
            yield None
        except (zipfile.BadZipFile, zlib.error, ValueError, KeyError) as error:
            raise InputError(f"{path}: pseudo-labels are damaged ({error}); delete the file and train again") from None


@dataclass
class Refresh:
    """What a refresh learned: exact p̄ over all partially labelled data, and per cohort.

    Args:
        proportions: p̄, cohorts weighted equally as the mini-batches do (C).
        by_cohort: p̄ of each cohort.
        by_case: p̄ of each case, by its place in the dataset.
        given: for each cohort the proportions of the organs its annotators marked, by channel.
        quality: precision and recall of the pseudo-labels by cohort, where a hidden truth is known.
    """

    proportions: Tensor
    by_cohort: dict[str, list[float]]
    by_case: dict[int, NDArray[np.float64]]
    given: dict[str, dict[int, float]]
    quality: dict[str, Any] | None = None


@dataclass(frozen=True)
class Decision:
    """How probabilities become pseudo-labels.

    Args:
        confidence: share of the probability that a pseudo-label needs; 0 gives every voxel one, None gives none one.
        correction: exponent of expected ÷ predicted proportion of a case, by which each organ's probability is
            multiplied before the decision: an organ that is found too small is favoured. 0 leaves them alone.
    """

    confidence: float | None = 0.0
    correction: float = 0.0

    LIMIT = 4.0  # of the factors: a wrong expectation must not invent organs

    def factors(self, predicted: Sequence[float] | NDArray[np.float64], expected: Expectation) -> NDArray[np.float64]:
        """By what the probabilities of each channel are multiplied, given a case's p̄."""
        p = np.maximum(np.asarray(predicted, np.float64), 1e-9)
        ratio = np.clip(expected.nearest(p) / p, 1 / self.LIMIT, self.LIMIT) ** self.correction
        ratio[BACKGROUND] = 1.0
        return ratio


def doubtful_cohorts(
    given: Mapping[str, Mapping[int, float]], prior: Sequence[float], names: Sequence[str], factor: float = 2.0
) -> list[str]:
    """Sentences on cohorts whose annotated organs take a share of the volume far from the prior's.

    Their field of view differs from the fully labelled cohort's, so that the prior may push the wrong way.
    """
    return [
        f"cohort {cohort}: the {names[channel]} takes {share:.2%} of its volume, but {prior[channel]:.2%} in the fully "
        "labelled cases; if their fields of view differ, the prior misleads there"
        for cohort, shares in given.items()
        for channel, share in shares.items()
        if not prior[channel] / factor <= share <= prior[channel] * factor
    ]


@torch.no_grad()
def complete_case(
    network: nn.Module,
    inferer: SlabInferer,
    volume: Mapping[str, Tensor],
    annotated: list[int],
    patches: Patches,
    channels: int,
    confidence: float | None = 0.0,
    factors: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Completed labels of a case, X×Y×Z, and its p̄ (C), weighted by the coverage of the patches."""
    given = volume["label"][0]
    axis, slabs = inferer.slabs(volume["image"][0], network)
    completed, shares = torch.empty_like(given), SliceShares(patches, given.shape, channels)
    for start, planes in slabs:
        scores, here = planes.movedim(1, 0).contiguous(), slice(start, start + len(planes))
        shares.add(scores.numpy(), axis, start)
        known = given.movedim(axis, 0)[here]
        if confidence is None:
            completed.movedim(axis, 0)[here] = known
            continue
        # A volume of nothing but air has one channel, the background.
        inside = [channel for channel in annotated if channel < len(scores)]
        completed.movedim(axis, 0)[here] = complete_labels(scores, known, inside, confidence, factors)
    return completed.numpy(), shares.proportions(completed.numpy())


class SliceShares:
    """p̄ of a case, slab by slab. Where empty slices are drawn less often, only the whole label map tells which are.

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


def refresh_pseudo_labels(
    network: nn.Module,
    inferer: SlabInferer,
    dataset: PatchDataset,
    store: PseudoLabels,
    confidence: float | None = 0.0,
    factors: Mapping[int, NDArray[np.float64]] | None = None,
) -> Refresh | None:
    """Complete the labels of all partially labelled cases with the network's present weights.

    A case goes through the inference engine whole, so the exact p̄ comes for free; it is weighted by the coverage of
    the patches, which puts it on the footing of the prior. None when there is no partially labelled case.

    Args:
        network: whose predictions are taken.
        inferer: the inference engine.
        dataset: the cases.
        store: where completed labels are written.
        confidence: see `Decision`.
        factors: of the channels' probabilities before the decision, by the case's place in the dataset.
    """
    vocabulary, was_training = dataset.vocabulary, network.training
    cohorts = partial_indices(dataset)
    by_case: dict[int, NDArray[np.float64]] = {}
    marked: dict[str, dict[int, list[float]]] = {cohort: {} for cohort in cohorts}
    network.eval()
    jobs = [(cohort, index) for cohort, indices in cohorts.items() for index in indices]
    for cohort, index in tqdm(jobs, desc="pseudo-labels", unit="case", leave=False):
        case, volume = dataset.data[index], dataset.volume(index)
        annotated = annotated_channels(case, vocabulary)
        completed, proportions = complete_case(
            network,
            inferer,
            volume,
            annotated,
            dataset.patches,
            vocabulary.out_channels,
            confidence,
            (factors or {}).get(index),
        )
        store.write(case, completed)
        by_case[index] = proportions
        label, occupied = volume["label"][0].numpy(), dataset.occupied(index, partial=True)
        shares = label_proportions(label, dataset.patches.coverage(label.shape, occupied), vocabulary.out_channels)
        for channel in annotated:
            marked[cohort].setdefault(channel, []).append(shares[channel])
    network.train(was_training)
    if not jobs:
        return None
    by_cohort = {name: np.mean([by_case[index] for index in indices], axis=0) for name, indices in cohorts.items()}
    mean = np.mean(list(by_cohort.values()), axis=0)
    return Refresh(
        torch.as_tensor(mean),
        {cohort: row.tolist() for cohort, row in by_cohort.items()},
        by_case,
        {cohort: {c: float(np.mean(v)) for c, v in channels.items()} for cohort, channels in marked.items()},
    )
