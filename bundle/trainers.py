# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The two stages. Stage 1 (`warmup`) is MONAI's SupervisedTrainer; stage 2 (`train`) is the same with our batches."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import torch
from ignite.engine import EventEnum
from monai.engines import SupervisedTrainer
from torch import Tensor, nn

from bundle.errors import InputError

__all__ = ["PannEvents", "PannTrainer", "load_weights", "prepare_partial_batch", "run_warmup"]

logger = logging.getLogger(__name__)


def prepare_partial_batch(
    batch: dict[str, Tensor], device: str | torch.device | None = None, non_blocking: bool = False, **kwargs: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Image, and a target that says which samples are partially labelled."""
    target = {key: batch[key].to(device, non_blocking=non_blocking) for key in ("label", "partial")}
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


def load_weights(network: nn.Module, path: str | Path) -> None:
    """Load a state dict into the network.

    Raises:
        InputError: when the file is missing or belongs to another network.
    """
    if not Path(path).is_file():
        raise InputError(f"{path}: no such weights; train first, or give the path of a checkpoint")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(state.get("model", state))
    except Exception as error:  # torch raises many kinds for a file that is not a checkpoint
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{path}: not the weights of this network ({reason}); check `network_def` and `organs`"
        ) from None


def run_warmup(trainer: SupervisedTrainer, checkpoint: str | None = None) -> None:
    """Run stage 1, or take its result from a checkpoint."""
    if checkpoint is not None:
        load_weights(trainer.network, checkpoint)
        logger.info("stage 1 is taken from %s", checkpoint)
        return
    started = time.time()
    trainer.run()
    logger.info("stage 1 took %.0f s", time.time() - started)
