# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Where the prior of a training comes from: the file of an earlier one, or its fully labelled cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bundle.cohorts.datalists import Case
from bundle.cohorts.selection import full_cases
from bundle.errors import InputError
from bundle.organs import Vocabulary
from bundle.training.dataset import PatchDataset, full_indices
from bundle.training.patches import Patches
from bundle.training.prior import UNKNOWN_PRIOR, Prior, estimate_prior
from bundle.untrusted import shown

__all__ = ["check_prior", "find_prior", "read_prior"]


def find_prior(dataset: PatchDataset, file: str | None = None, needed: bool = True) -> Prior:
    """q: from a file, else of the fully labelled cases of ``dataset``, else, where nothing needs it, no expectation.

    Args:
        dataset: the training cases.
        file: prior.json of an earlier training; None measures q.
        needed: whether the supervision has a prior.

    Raises:
        InputError: when the file does not fit, or when q can neither be read nor measured, and is needed.
    """
    if file is not None:
        return read_prior(file, dataset.vocabulary, dataset.patches)
    if not needed and not full_indices(dataset):
        names = dataset.vocabulary.channel_names  # background, and no case: what has no weight is not to pull
        return Prior(names, [1.0, *[0.0] * (len(names) - 1)], [0.0] * len(names), [], {})
    return estimate_prior(dataset)


def check_prior(
    cases: Sequence[Case], file: str | None, vocabulary: Vocabulary, patches: Patches, needed: bool = True
) -> None:
    """Refuse what `find_prior` would refuse, before any scan is read.

    Args:
        cases: the training cases.
        file: see `find_prior`.
        vocabulary: the organs of this run.
        patches: how it cuts patches.
        needed: see `find_prior`.
    """
    if file is not None:
        read_prior(file, vocabulary, patches)
    elif needed and not full_cases(cases, vocabulary):
        raise InputError(UNKNOWN_PRIOR)


def read_prior(file: str | Path, vocabulary: Vocabulary, patches: Patches) -> Prior:
    """A stored q that was sampled as this run samples.

    Args:
        file: prior.json of an earlier training.
        vocabulary: the organs of this run.
        patches: how it cuts patches.

    Raises:
        InputError: when the file holds something else, or q is of other organs, or on another footing.
    """
    prior = Prior.load(file)
    sampled = prior.sampling
    flat, flat_here = (flat_axes(size) for size in (sampled.get("patch"), patches.size))
    for name, expected, found in (
        ("organs", vocabulary.names, prior.names[1:]),
        ("empty_rate", patches.empty_rate, sampled.get("empty_rate")),
        ("axes on which a patch has size 1", flat_here, flat),
    ):
        if expected != found:
            raise InputError(
                f"{file}: expected a prior for {name} {shown(expected)}, as in this training, found {shown(found)}; "
                "give the prior.json of a training with the same values, or leave --prior_file out to measure q on the "
                "fully labelled cases"
            )
    return prior


def flat_axes(size: Any) -> list[int] | None:
    """The axes along which a patch has one voxel; None for what is no size of a patch.

    >>> flat_axes([512, 512, 1]), flat_axes((64, 64, 64)), flat_axes("64")
    ([2], [], None)
    """
    if not isinstance(size, list | tuple) or len(size) != 3:
        return None
    return [axis for axis, voxels in enumerate(size) if voxels == 1]
