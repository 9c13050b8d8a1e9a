# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Numbers stay numbers: a loss or a weight that is not finite ends a training at once, and says where."""

from __future__ import annotations

import torch
from ignite.engine import Engine
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys
from torch import nn

from bundle.errors import InputError
from bundle.training.batches import MixedBatches

__all__ = ["NumbersWatch", "are_finite"]


def are_finite(network: nn.Module) -> bool:
    """Whether all weights are numbers: a sum is none as soon as one of its terms is, and costs next to nothing."""
    sums = [value.sum().float() for value in network.state_dict().values() if value.is_floating_point()]
    return bool(torch.stack(sums).isfinite().all()) if sums else True


class NumbersWatch:
    """Looks at the loss and the weights after every step, before anything is made of them.

    Args:
        stage: name of the stage, for the message.
    """

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(IterationEvents.MODEL_COMPLETED, self.look)

    def look(self, engine: SupervisedTrainer) -> None:
        loss = engine.state.output[CommonKeys.LOSS]
        finite = bool(torch.isfinite(loss).all())
        if finite and are_finite(engine.network):
            return
        found = "a weight that is no finite number" if finite else f"a loss of {float(loss.detach().mean())}"
        raise InputError(
            f"stage {self.stage}, iteration {engine.state.iteration}: expected finite numbers, found {found} after a "
            f"batch of {self.cases(engine)}; lower the learning rate, or look for scans that are not in Hounsfield "
            "units; the last checkpoint is from before"
        )

    def cases(self, engine: SupervisedTrainer) -> str:
        """The cases of the batch; what a batch holds follows from its number."""
        sampler = engine.data_loader.batch_sampler
        if not isinstance(sampler, MixedBatches):
            return "unknown cases"
        data = engine.data_loader.dataset.data
        cases = [data[draw.number] for draw in sampler.batch(engine.state.iteration - 1)]
        return ", ".join(dict.fromkeys(f"{case.get('cohort', '')}/{case.get('case', '')}" for case in cases))
