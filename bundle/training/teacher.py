# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The teacher: the weights whose predictions become pseudo-labels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Teacher"]


class Teacher:
    """The network in training, or a moving average of its weights.

    Only weights are kept, and put into the network for a while: not every network can be copied once it is trained.

    Args:
        network: the network in training.
        memory: of the average, iterations; 0 takes the network as it is.
    """

    def __init__(self, network: nn.Module, memory: float = 0.0) -> None:
        self.network, self.memory = network, float(memory)
        self.average: dict[str, Tensor] | None = None

    def start(self) -> None:
        """Begin with the present weights: stage 1 may have come before."""
        if self.memory > 0:
            self.average = copied_weights(self.network)

    @torch.no_grad()
    def follow(self) -> None:
        """Take the present weights into the average."""
        if self.average is None:
            return
        for name, value in self.network.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - math.exp(-1 / self.memory))
            else:
                self.average[name].copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        average = state["average"]
        if average is not None:
            own = self.network.state_dict()
            average = {name: value.to(own[name].device) for name, value in average.items()}
        self.average = average

    @contextmanager
    def teaching(self) -> Iterator[nn.Module]:
        """The network with the averaged weights, for inference; it is as it was afterwards."""
        own, was_training = copied_weights(self.network) if self.average else None, self.network.training
        if self.average is not None:
            self.network.load_state_dict(self.average)
        self.network.eval()
        try:
            yield self.network
        finally:
            if own is not None:
                self.network.load_state_dict(own)
            self.network.train(was_training)


def copied_weights(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
