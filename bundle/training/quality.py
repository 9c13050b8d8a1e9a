# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""How good pseudo-labels are, where somebody knows better: complete label maps that training itself never sees."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.datalists import Case, case_file
from bundle.errors import InputError
from bundle.organs import UNKNOWN, Vocabulary
from bundle.training.dataset import PatchDataset, partial_indices
from bundle.training.label_store import PseudoLabelStore

__all__ = ["PseudoLabelQuality", "Quality", "precision_and_recall"]


Confusion = NDArray[np.int64]  # 3×C: see `confusion`

Quality = dict[str, dict[str, list[float | None]]]  # cohort: precision and recall of each channel


def confusion(completed: NDArray[np.uint8], truth: NDArray[np.uint8], channels: int) -> Confusion:
    """Voxels that were given each channel, that truly are of it, and both (3×C). Unknown ones were given none."""
    here = truth < channels
    labelled = here & (completed < channels)
    right = labelled & (completed == truth)
    voxels = (completed[labelled], truth[here], truth[right])
    return np.stack([np.bincount(values, minlength=channels) for values in voxels]).astype(np.int64)


def precision_and_recall(counts: Confusion) -> dict[str, list[float | None]]:
    """Of each channel; None where there is nothing to divide by."""
    given, true, right = counts.tolist()
    return {
        name: [hits / total if total else None for hits, total in zip(right, totals, strict=True)]
        for name, totals in (("precision", given), ("recall", true))
    }


class PseudoLabelQuality:
    """Precision and recall of the pseudo-labels, per cohort and organ, over the voxels the annotators left unknown.

    Args:
        truth_dir: folder with the complete label map of each partially labelled case, COHORT/CASE.nii.gz, in the
            vocabulary's values; None switches this off.
        dataset: stage 2's dataset; the truth goes through its transforms.
    """

    def __init__(self, truth_dir: str | Path | None, dataset: PatchDataset) -> None:
        self.dataset = dataset
        self.cohorts = {} if truth_dir is None else partial_indices(dataset)
        jobs = [index for indices in self.cohorts.values() for index in indices]
        self.place = {index: place for place, index in enumerate(jobs)}
        cases = [with_truth(dataset.data[index], Path(str(truth_dir)), dataset.vocabulary) for index in jobs]
        self.truth = PatchDataset(cases, dataset.transform, dataset.patches, str(dataset.cache_dir), dataset.vocabulary)

    def measure(self, store: PseudoLabelStore) -> Quality | None:
        """What the store holds now, against the truth; None where the truth is not known."""
        quality = {cohort: precision_and_recall(self.count(store, indices)) for cohort, indices in self.cohorts.items()}
        return quality or None

    def count(self, store: PseudoLabelStore, indices: list[int]) -> Confusion:
        channels = self.dataset.vocabulary.out_channels
        total = np.zeros((3, channels), np.int64)
        for index in indices:
            completed = store.read(self.dataset.data[index])
            truth = self.truth.volume(self.place[index])["label"][0].numpy()
            unknown = self.dataset.volume(index)["label"][0].numpy() == UNKNOWN
            if completed is not None:
                total += confusion(completed[unknown], truth[unknown], channels)
        return total


def with_truth(case: Case, folder: Path, vocabulary: Vocabulary) -> Case:
    """The case with its complete label map, whose values are the vocabulary's."""
    path = case_file(folder, case, ".nii.gz")
    if not path.is_file():
        raise InputError(f"{path}: no complete label map of this case; give another --truth_dir, or none")
    complete = case.copy()
    complete.pop("values", None)
    complete["label"], complete["labelled"] = str(path), vocabulary.names
    return complete
