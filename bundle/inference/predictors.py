# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What is asked of a network in one window: a slice or a block, mirrored or resized, by one network or several."""

from __future__ import annotations

import copy
import importlib.util
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bundle.errors import InputError
from bundle.inference.scaling import resize

__all__ = ["BACKENDS", "OpenVinoNetwork", "Predictor", "check_backend", "choose_backend"]


BACKENDS = ("auto", "torch", "openvino")


def check_backend(backend: str) -> None:
    if backend not in BACKENDS:
        raise InputError(f'backend: expected one of {", ".join(BACKENDS)}, found "{backend}"')


def choose_backend(backend: str, device: torch.device) -> str:
    """`torch` or `openvino`; `auto` takes OpenVINO where it is installed and the network is on the CPU.

    Raises:
        InputError: for an unknown backend, or one that cannot be had.
    """
    check_backend(backend)
    installed = importlib.util.find_spec("openvino") is not None
    if backend == "openvino" and not installed:
        raise InputError("backend: openvino is not installed; pip install openvino, or choose --backend torch")
    if backend == "openvino" and device.type != "cpu":
        raise InputError(f"backend: openvino runs on the CPU, but the device is {device}; choose --backend torch")
    if backend == "auto":
        return "openvino" if installed and device.type == "cpu" else "torch"
    return backend


class OpenVinoNetwork(nn.Module):
    """A network compiled by OpenVINO, once per window size, and again when its weights have changed.

    Args:
        network: the network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.weights: list[tuple[int, int]] = []
        self.compiled: dict[tuple[int, ...], Any] = {}

    def compile_for(self, window: Tensor) -> Any:
        import openvino

        with torch.no_grad():  # tracing here, once, is faster than leaving it to convert_model
            # A copy: OpenVINO would share some of the weights, and see only those change. Of the trace and not of the
            # network: in training DynUNet keeps what its heads gave, which cannot be copied.
            traced = copy.deepcopy(torch.jit.trace(self.network, window, check_trace=False))
        model = openvino.convert_model(traced, example_input=window, input=list(window.shape))
        hints = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
        threads = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        return openvino.Core().compile_model(model, "CPU", hints | threads).create_infer_request()

    def forward(self, window: Tensor) -> Tensor:
        import openvino

        weights = [(value.data_ptr(), value._version) for value in self.network.state_dict(keep_vars=True).values()]
        if weights != self.weights:
            self.weights, self.compiled = weights, {}
        batch, size = len(window), tuple(window.shape[1:])
        if size not in self.compiled or self.compiled[size].get_compiled_model().input(0).shape[0] < batch:
            self.compiled[size] = self.compile_for(window)
        request = self.compiled[size]
        # The last batch may be smaller: filling it up takes less time than compiling for it.
        window = F.pad(
            window, [0] * 2 * (window.ndim - 1) + [0, request.get_compiled_model().input(0).shape[0] - batch]
        )
        # The result is written where it will be used: a copy of it takes a tenth of the network's time.
        logits = torch.empty(tuple(request.get_compiled_model().output(0).shape))
        request.set_output_tensor(0, openvino.Tensor(logits.numpy(), shared_memory=True))
        request.infer([window.contiguous().numpy()], share_inputs=True)
        return logits[:batch]


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
        chosen = choose_backend(backend, device_of(networks[0]))
        self.networks = [OpenVinoNetwork(network) if chosen == "openvino" else network for network in networks]
        axes = sorted(set(flips))
        self.mirrored = [some for n in range(len(axes) + 1) for some in itertools.combinations(axes, n)]
        self.scales = tuple(float(scale) for scale in scales)

    def __call__(self, windows: Tensor) -> Tensor:
        asked = list(itertools.product(self.networks, self.mirrored, self.scales))
        windows = windows.to(device_of(self.networks[0]))
        if len(asked) == 1:
            return self.ask(windows, *asked[0]).float().cpu()
        total = torch.zeros(())
        for network, axes, scale in asked:
            total = total + self.ask(windows, network, axes, scale).float().softmax(1)
        return (total / len(asked)).clamp_(min=1e-30).log_().cpu()

    def ask(self, windows: Tensor, network: nn.Module, axes: Sequence[int], scale: float) -> Tensor:
        dims = [2 + axis for axis in axes]
        thin = [2 + axis for axis, n in enumerate(windows.shape[2:]) if n == 1]  # a 2D network sees no such axis
        if set(dims) & set(thin):
            windows = windows.flip(1)  # slices beside a slice change sides
        given = windows.flip(dims).squeeze(thin)
        logits = resize(network(resize(given, scale)), given.shape[2:])
        for dim in thin:
            logits = logits.unsqueeze(dim)
        return logits.flip(dims) if dims else logits


def device_of(network: nn.Module) -> torch.device:
    return next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
