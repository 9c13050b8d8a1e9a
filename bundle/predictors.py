# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is asked of a network in one window: a slice or a block, mirrored or resized, by one network or several."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bundle.errors import InputError

__all__ = ["BACKENDS", "OpenVinoNetwork", "Predictor", "choose_backend"]

BACKENDS = ("auto", "torch", "openvino")


def choose_backend(backend: str, device: torch.device) -> str:
    """`torch` or `openvino`; `auto` takes OpenVINO where it is installed and the network is on the CPU.

    Raises:
        InputError: for an unknown backend, or one that cannot be had.
    """
    if backend not in BACKENDS:
        raise InputError(f'backend: expected one of {", ".join(BACKENDS)}, found "{backend}"')
    installed = importlib.util.find_spec("openvino") is not None
    if backend == "openvino" and not installed:
        raise InputError("backend: openvino is not installed; pip install openvino, or choose --backend torch")
    if backend == "openvino" and device.type != "cpu":
        raise InputError(f"backend: openvino runs on the CPU, but the device is {device}; choose --backend torch")
    if backend == "auto":
        return "openvino" if installed and device.type == "cpu" else "torch"
    return backend


class OpenVinoNetwork(nn.Module):
    """A network compiled by OpenVINO, once per input shape, with the weights it has at that moment.

    Args:
        network: the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.compiled: dict[tuple[int, ...], Any] = {}

    def compile_for(self, window: Tensor) -> Any:
        import openvino

        with torch.no_grad():  # tracing here, once, is faster than leaving it to convert_model
            traced = torch.jit.trace(self.network, window, check_trace=False)
        model = openvino.convert_model(traced, example_input=window, input=list(window.shape))
        hints = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        return openvino.Core().compile_model(model, "CPU", hints | threads).create_infer_request()

    def forward(self, window: Tensor) -> Tensor:
        shape = tuple(window.shape)
        if shape not in self.compiled:
            self.compiled[shape] = self.compile_for(window)
        import openvino

        request = self.compiled[shape]
        # The result is written where it will be used: a copy of it takes a tenth of the network's time.
        logits = torch.empty(tuple(request.get_compiled_model().output(0).shape))
        request.set_output_tensor(0, openvino.Tensor(logits.numpy(), shared_memory=True))
        request.infer([window.contiguous().numpy()], share_inputs=True)
        return logits


class Predictor:
    """Logits of windows, B×1×X×Y×Z to B×C×X×Y×Z: the logarithm of the mean probability over all that are asked.

    Args:
        networks: one network or several, whose mean is taken.
        flips: axes (0 right, 1 anterior, 2 superior) that are mirrored, in all combinations.
        scales: factors by which a window is resized.
        backend: `torch` or `openvino` (see `choose_backend`).
    """

    def __init__(
        self,
        networks: Sequence[nn.Module],
        flips: Sequence[int] = (),
        scales: Sequence[float] = (1.0,),
        backend: str = "torch",
    ) -> None:
        self.device = next((p.device for p in networks[0].parameters()), torch.device("cpu"))
        chosen = choose_backend(backend, self.device)
        self.networks = [OpenVinoNetwork(network) if chosen == "openvino" else network for network in networks]
        self.mirrored = [axes for n in range(len(flips) + 1) for axes in itertools.combinations(flips, n)]
        self.scales = tuple(float(scale) for scale in scales)

    def __call__(self, windows: Tensor) -> Tensor:
        asked = list(itertools.product(self.networks, self.mirrored, self.scales))
        windows = windows.to(self.device)
        if len(asked) == 1:
            return self.ask(windows, *asked[0]).float().cpu()
        total = torch.zeros(())
        for network, axes, scale in asked:
            total = total + self.ask(windows, network, axes, scale).float().softmax(1)
        return (total / len(asked)).clamp_(min=1e-30).log_().cpu()

    def ask(self, windows: Tensor, network: nn.Module, axes: Sequence[int], scale: float) -> Tensor:
        dims = [2 + axis for axis in axes]
        thin = [2 + axis for axis, n in enumerate(windows.shape[2:]) if n == 1]  # a 2D network sees no such axis
        given = windows.flip(dims).squeeze(thin)
        logits = resize(network(resize(given, scale)), given.shape[2:])
        for dim in thin:
            logits = logits.unsqueeze(dim)
        return logits.flip(dims) if dims else logits


def resize(values: Tensor, to: float | Sequence[int]) -> Tensor:
    """Resize B×C×spatial by a factor, or to a shape."""
    shape = [max(1, round(n * to)) for n in values.shape[2:]] if isinstance(to, float) else list(to)
    if shape == list(values.shape[2:]):
        return values
    return F.interpolate(values, shape, mode="bilinear" if len(shape) == 2 else "trilinear", align_corners=False)
