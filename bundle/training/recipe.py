# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The recipe of stage 2: what a supervision makes of the values that are configured."""

from __future__ import annotations

from dataclasses import dataclass

from bundle.errors import InputError
from bundle.training.pseudo_labels import Decision

__all__ = ["Recipe"]


@dataclass(frozen=True)
class Recipe:
    """What stage 2 does with voxels that annotators left out.

    | supervision      | such a voxel                                                      | prior |
    |------------------|-------------------------------------------------------------------|-------|
    | `semi`           | has a pseudo-label, and so has every other voxel of partial cases | no    |
    | `partial`        | has a pseudo-label                                                | no    |
    | `marginal`       | is none of the annotated organs                                   | no    |
    | `ignore`         | counts for nothing                                                | no    |
    | `pann`           | has a pseudo-label                                                | yes   |

    Args:
        supervision: which information is used (see `bundle.cohorts.selection`).
        confidence: share of the probability that a pseudo-label needs, at least.
        marginal: a voxel without a pseudo-label is still known to be none of the annotated organs.
        prior_weight: λ2.
        prior_correction: exponent of expected ÷ predicted proportion in a pseudo-label's decision.

    Raises:
        InputError: for values out of their range.
    """

    supervision: str
    confidence: float = 0.0
    marginal: bool = False
    prior_weight: float = 0.1
    prior_correction: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise InputError(f"confidence: expected a number from 0 to 1, found {self.confidence}")

    @property
    def has_pseudo_labels(self) -> bool:
        return self.supervision in ("semi", "partial", "pann")

    @property
    def has_prior(self) -> bool:
        return self.supervision == "pann"

    @property
    def decision(self) -> Decision:
        """How probabilities become pseudo-labels."""
        if not self.has_pseudo_labels:
            return Decision(confidence=None)
        return Decision(float(self.confidence), float(self.prior_correction) if self.has_prior else 0.0)

    @property
    def effective_prior_weight(self) -> float:
        """λ2; without a prior it is 0."""
        return float(self.prior_weight) if self.has_prior else 0.0

    @property
    def effective_marginal(self) -> bool:
        """Whether unknown voxels have the marginal cross-entropy."""
        return self.supervision == "marginal" or (self.has_pseudo_labels and bool(self.marginal))
