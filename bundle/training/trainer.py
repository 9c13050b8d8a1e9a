# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The two stages. Stage 1 (`warmup`) is MONAI's SupervisedTrainer; stage 2 (`train`) is the same with our batches."""

from __future__ import annotations

import logging
from typing import Any

import torch
from ignite.engine import EventEnum
from monai.engines import SupervisedTrainer
from torch import Tensor

from bundle.inference.weights import load_weights
from bundle.organs import WHOLE_VOCABULARY, Vocabulary

__all__ = ["PannEvents", "PannTrainer", "prepare_partial_batch", "run_warmup"]


logger = logging.getLogger(__name__)


def prepare_partial_batch(
    batch: dict[str, Tensor], device: str | torch.device | None = None, non_blocking: bool = False, **kwargs: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Image, and a target that says which samples are partially labelled, and with what."""
    target = {key: batch[key].to(device, non_blocking=non_blocking) for key in ("label", "partial", "annotated")}
    return batch["image"].to(device, non_blocking=non_blocking, **kwargs), target


class PannEvents(EventEnum):
    """Fired in stage 2 beside Ignite's own events."""

    REFRESHED = "refreshed"  # the pseudo-labels are new; state.refresh says what that showed


class PannTrainer(SupervisedTrainer):
    """Stage 2: batches of fully and partially labelled samples for a `PannLoss`.

    What happens around the network's step (pseudo-labels, duals, history) is in handlers: see `bundle.handlers`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        ours: dict[str, Any] = {"prepare_batch": prepare_partial_batch, "decollate": False, "event_names": [PannEvents]}
        super().__init__(*args, **(ours | kwargs))


def run_warmup(
    trainer: SupervisedTrainer,
    iterations: int,
    checkpoint: str | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
) -> None:
    """Run stage 1; or take its result from a checkpoint; or skip it, for 0 iterations."""
    if checkpoint is not None:
        load_weights(trainer.network, checkpoint, vocabulary)
        logger.info("stage 1 is taken from %s", checkpoint)
    elif iterations > 0:
        trainer.run()
