# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Pseudo-labels: what the network says where the annotators said nothing, kept on disk on the preprocessed grid."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tqdm import tqdm

from bundle.cohorts import Case
from bundle.errors import InputError
from bundle.inferers import SlabInferer
from bundle.organs import UNKNOWN, Vocabulary
from bundle.priors import label_proportions, probability_proportions
from bundle.sampling import PatchDataset, Patches, Region, partial_indices

__all__ = [
    "PseudoLabels",
    "Refresh",
    "annotated_channels",
    "complete_labels",
    "doubtful_cohorts",
    "refresh_pseudo_labels",
]


def annotated_channels(case: Case, vocabulary: Vocabulary) -> list[int]:
    """Channels of the case's label set."""
    return [channel for name in case["labelled"] if (channel := vocabulary.channel(name)) is not None]


def complete_labels(scores: Tensor, given: Tensor, annotated: list[int]) -> Tensor:
    """The given label where the annotators marked a voxel, the pseudo-label where they left it unknown, uint8.

    The pseudo-label is the best of background and the organs *outside* the label set: an organ of the label set that
    the annotator did not mark here is known to be absent here.

    Args:
        scores: C×spatial, logits or probabilities; changed in place.
        given: spatial, with `UNKNOWN` where nothing is known; ignored voxels stay ignored.
        annotated: channels of the label set.
    """
    scores[annotated] = -torch.inf
    return torch.where(given == UNKNOWN, scores.argmax(0), given).to(torch.uint8)


class PseudoLabels:
    """Completed label maps on disk: one compressed file a case, in slabs, so that a patch reads little of it.

    Args:
        directory: folder of the files.
        slab: slices along the last axis per compressed piece.
    """

    def __init__(self, directory: str | Path, slab: int = 8) -> None:
        self.directory, self.slab = Path(directory), int(slab)

    def path(self, case: Case) -> Path:
        return self.directory / case["cohort"] / f"{case['case']}.npz"

    def write(self, case: Case, completed: NDArray[np.uint8]) -> None:
        """Replace the case's file in one step: a reader sees the old one or the new one, never half of one."""
        path = self.path(case)
        path.parent.mkdir(parents=True, exist_ok=True)
        slabs = {
            f"{start:05d}": completed[..., start : start + self.slab]
            for start in range(0, completed.shape[-1], self.slab)
        }
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            with open(unfinished, "wb") as file:
                np.savez_compressed(file, **slabs)  # type: ignore[arg-type]
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)

    def read(self, case: Case, region: Region | None = None) -> NDArray[np.uint8] | None:
        """The completed labels of a region of the case, or of all of it; None before the first refresh."""
        path = self.path(case)
        try:
            with np.load(path, allow_pickle=False) as slabs:
                starts = sorted(int(name) for name in slabs.files)
                first, last = (region[-1].start, region[-1].stop) if region else (0, starts[-1] + self.slab)
                wanted = [start for start in starts if start < last and start + self.slab > first]
                volume = np.concatenate([slabs[f"{start:05d}"] for start in wanted], axis=-1)
        except FileNotFoundError:
            return None
        except (zipfile.BadZipFile, ValueError, KeyError) as error:
            raise InputError(f"{path}: pseudo-labels are damaged ({error}); delete the file and train again") from None
        if region is None:
            return volume
        inner = slice(first - wanted[0], last - wanted[0])
        return np.ascontiguousarray(volume[(*region[:-1], inner)])


@dataclass
class Refresh:
    """What a refresh learned: exact p̄ over all partially labelled data, and per cohort.

    Args:
        proportions: p̄, cohorts weighted equally as the mini-batches do (C).
        by_cohort: p̄ of each cohort.
        given: for each cohort the proportions of the organs its annotators marked, by channel.
    """

    proportions: Tensor
    by_cohort: dict[str, list[float]]
    given: dict[str, dict[int, float]]


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
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Completed labels of a case, X×Y×Z, and its p̄ (C), weighted by the coverage of the patches."""
    given = volume["label"][0]
    coverage = patches.coverage(given.shape)
    axis, slabs = inferer.slabs(volume["image"][0], network)
    completed, proportions = torch.empty_like(given), np.zeros(channels)
    across, others = coverage[axis], [weight for other, weight in enumerate(coverage) if other != axis]
    for start, planes in slabs:
        scores, here = planes.movedim(1, 0).contiguous(), slice(start, start + len(planes))
        # A volume of nothing but air has one channel, the background.
        proportions[: len(scores)] += probability_proportions(scores.numpy(), [across[here], *others])
        known = given.movedim(axis, 0)[here]
        completed.movedim(axis, 0)[here] = complete_labels(
            scores, known, [channel for channel in annotated if channel < len(scores)]
        )
    return completed.numpy(), proportions / proportions.sum()


def refresh_pseudo_labels(
    network: nn.Module, inferer: SlabInferer, dataset: PatchDataset, store: PseudoLabels
) -> Refresh | None:
    """Complete the labels of all partially labelled cases with the network's present weights.

    A case goes through the inference engine whole, so the exact p̄ comes for free; it is weighted by the coverage of
    the patches, which puts it on the footing of the prior. None when there is no partially labelled case.
    """
    vocabulary, was_training = Vocabulary(dataset.organs), network.training
    cohorts = partial_indices(dataset)
    rows: dict[str, list[NDArray[np.float64]]] = {cohort: [] for cohort in cohorts}
    marked: dict[str, dict[int, list[float]]] = {cohort: {} for cohort in cohorts}
    network.eval()
    jobs = [(cohort, index) for cohort, indices in cohorts.items() for index in indices]
    for cohort, index in tqdm(jobs, desc="pseudo-labels", unit="case", leave=False):
        case, volume = dataset.data[index], dataset.volume(index)
        annotated = annotated_channels(case, vocabulary)
        completed, proportions = complete_case(
            network, inferer, volume, annotated, dataset.patches, vocabulary.out_channels
        )
        store.write(case, completed)
        rows[cohort].append(proportions)
        label = volume["label"][0].numpy()
        shares = label_proportions(label, dataset.patches.coverage(label.shape), vocabulary.out_channels)
        for channel in annotated:
            marked[cohort].setdefault(channel, []).append(shares[channel])
    network.train(was_training)
    if not jobs:
        return None
    by_cohort = {cohort: np.mean(row, axis=0) for cohort, row in rows.items()}
    mean = np.mean(list(by_cohort.values()), axis=0)
    return Refresh(
        torch.as_tensor(mean),
        {cohort: row.tolist() for cohort, row in by_cohort.items()},
        {cohort: {c: float(np.mean(v)) for c, v in channels.items()} for cohort, channels in marked.items()},
    )
