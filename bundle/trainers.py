# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The two stages. Stage 1 (`warmup`) is MONAI's SupervisedTrainer; stage 2 (`train`) is the same with our batches."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from ignite.engine import EventEnum
from monai.engines import SupervisedTrainer
from torch import Tensor, nn

from bundle.errors import InputError
from bundle.organs import Vocabulary

__all__ = ["PannEvents", "PannTrainer", "load_weights", "prepare_partial_batch", "record_organs", "run_warmup"]

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


def record_organs(path: str | Path, organs: Sequence[str] | None = None) -> None:
    """Write the names of a model's channels beside its weights: numbers alone do not tell which organ is which."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"organs": Vocabulary(organs).names}, indent=2) + "\n")


def check_organs(path: Path, organs: Sequence[str] | None) -> None:
    """The organs recorded beside weights are those of this run."""
    recorded, wanted = path.with_name("organs.json"), Vocabulary(organs).names
    known = json.loads(recorded.read_text())["organs"] if recorded.is_file() else wanted
    if known != wanted:
        raise InputError(f'{path}: the model was trained for the organs {known}; give them as --organs "{known}"')


def load_weights(network: nn.Module, path: str | Path, organs: Sequence[str] | None = None) -> None:
    """Load a state dict into the network.

    Raises:
        InputError: when the file is missing, or belongs to another network or to other organs.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such weights; train first, or give the path of a checkpoint")
    check_organs(path, organs)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(state.get("model", state))
    except Exception as error:  # torch raises many kinds for a file that is not a checkpoint
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: not the weights of this network ({reason} …); give the overlays and values it was trained with"
        ) from None


def run_warmup(
    trainer: SupervisedTrainer, iterations: int, checkpoint: str | None = None, organs: Sequence[str] | None = None
) -> None:
    """Run stage 1; or take its result from a checkpoint; or skip it, for 0 iterations."""
    if checkpoint is not None:
        load_weights(trainer.network, checkpoint, organs)
        logger.info("stage 1 is taken from %s", checkpoint)
    elif iterations > 0:
        trainer.run()
