# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The cost of the prior: a training step of stage 2 with and without it, and the memory of each."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable

import numpy as np
import torch
from monai.networks.nets import UNet
from torch import Tensor
from tqdm import tqdm

from bundle.processes import peak_memory
from bundle.training.duals import PriorTerm
from bundle.training.losses import PannLoss, SupervisedLoss, split_samples

__all__ = ["run"]

CLASSES = 14
Step = Callable[[], None]


def stage2_step(with_prior: bool, kind: str, size: int) -> Step:
    """One stage-2 step of the default network on 3 full and 1 partial patches, with or without the prior term."""
    torch.manual_seed(0)
    network = UNet(3, 1, CLASSES, (32, 64, 128, 256, 512), (2, 2, 2, 2), num_res_units=0)
    optimizer = torch.optim.Adam(network.parameters(), 1e-5)
    supervised = SupervisedLoss("dice_ce" if kind == "dice_ce" else "ce")
    pann = PannLoss(supervised, PriorTerm([1 / CLASSES] * CLASSES))
    image = torch.rand(4, 1, size, size, size)
    target = {
        "label": torch.randint(0, CLASSES, image.shape, dtype=torch.uint8),
        "partial": torch.tensor([False, False, False, True]),
    }

    def loss_without_prior(logits: Tensor) -> Tensor:
        (full, rest), (full_label, rest_label) = (
            split_samples(t, target["partial"]) for t in (logits, target["label"])
        )
        return supervised(full, full_label) + supervised(rest, rest_label)

    def step() -> None:
        optimizer.zero_grad()
        logits = network(image)
        if not with_prior:
            loss_without_prior(logits).backward()
            optimizer.step()
            return
        objective = pann(logits, target)
        objective.total.backward()
        optimizer.step()
        if objective.proportions is not None:
            pann.prior_term.step(objective.proportions, objective.partial_samples)

    return step


def peak_of_step(with_prior: bool, kind: str, size: int) -> int:
    """Peak resident memory of two steps, bytes; to be called in a process of its own."""
    step = stage2_step(with_prior, kind, size)
    step()
    step()
    return peak_memory()


def run(repeats: int, kind: str, size: int) -> None:
    steps = {name: stage2_step(name == "with", kind, size) for name in ("without", "with")}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for turn in tqdm(range(repeats), desc="timing", unit="pair"):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            started = time.perf_counter()
            steps[name]()
            times[name].append(time.perf_counter() - started)
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        peaks = {name: pool.apply(peak_of_step, (name == "with", kind, size)) for name in steps}
    seconds = {name: float(np.median(values)) for name, values in times.items()}
    print(f"stage-2 step, 4×{size}³ patches, {CLASSES} classes, loss {kind}, median of {repeats}")
    print(f"{'':<10}{'without':>10}{'with':>10}{'ratio':>8}")
    ratio = float(np.median(np.array(times["with"]) / np.array(times["without"])))
    print(f"{'time, s':<10}{seconds['without']:>10.3f}{seconds['with']:>10.3f}{ratio:>8.3f}")
    gigabytes = {name: peak / 1e9 for name, peak in peaks.items()}
    peak_ratio = gigabytes["with"] / gigabytes["without"]
    print(f"{'peak, GB':<10}{gigabytes['without']:>10.3f}{gigabytes['with']:>10.3f}{peak_ratio:>8.3f}")
