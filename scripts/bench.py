# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts bench`: what things cost, side by side in one run, as ratios."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from monai.networks.nets import UNet
from torch import Tensor
from tqdm import tqdm

from bundle.processes import peak_memory
from bundle.training.duals import PriorLoss
from bundle.training.losses import PannLoss, SupervisedLoss, split_samples
from scripts.common import listed

CLASSES = 14
Step = Callable[[], None]


def stage2_step(with_prior: bool, kind: str, size: int) -> Step:
    """One stage-2 step of the default network on 3 full and 1 partial patches, with or without the prior term."""
    torch.manual_seed(0)
    network = UNet(3, 1, CLASSES, (32, 64, 128, 256, 512), (2, 2, 2, 2), num_res_units=0)
    optimizer = torch.optim.Adam(network.parameters(), 1e-5)
    supervised = SupervisedLoss("dice_ce" if kind == "dice_ce" else "ce")
    pann = PannLoss(supervised, PriorLoss([1 / CLASSES] * CLASSES))
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
        loss = pann(logits, target) if with_prior else loss_without_prior(logits)
        loss.backward()
        optimizer.step()
        if with_prior and pann.proportions is not None:
            pann.prior.step_duals(pann.proportions, pann.partial_samples)

    return step


def peak_of_step(with_prior: bool, kind: str, size: int) -> int:
    """Peak resident memory of two steps, bytes; to be called in a process of its own."""
    step = stage2_step(with_prior, kind, size)
    step()
    step()
    return peak_memory()


class Bench:
    """Benchmarks that print ratios: compare figures of one run, never of two."""

    def check(
        self, cases: int = 20, grid: Sequence[int] = (512, 512, 100), repeats: int = 3, workers: int | None = None
    ) -> None:
        """The cost of a data check beside that of reading the same files.

        Args:
            cases: phantoms that are made for it.
            grid: their voxels.
            repeats: rounds; in each all take their turn.
            workers: processes; all cores if not given.
        """
        from scripts.bench_check import run

        run(cases, grid, repeats, workers)

    def inference(
        self,
        slices: int = 200,
        lengths: Sequence[int] = (100, 200, 400, 800, 1000),
        size: int = 512,
        window: int = 96,
        backends: Sequence[str] = ("torch", "openvino"),
        repeats: int = 3,
    ) -> None:
        """The cost of inference: MONAI's usual pipeline and this project's engine on a synthetic CT, same weights.

        Args:
            slices: of the scan that both segment; 0 leaves the comparison out.
            lengths: slices of the scans that show how the engine's cost grows; [] leaves them out.
            size: voxels of a slice's edge.
            window: voxels of a window's edge.
            backends: of the engine; the first shows the growth.
            repeats: rounds of the comparison; in each all take their turn.
        """
        from scripts.bench_inference import run

        run(slices, lengths, size, window, backends, repeats)

    def loss(self, repeats: int = 15, kind: str = "ce", size: int = 64) -> None:
        """The cost of the prior: a stage-2 step with and without it, on 4×SIZE³ patches with 14 classes.

        Args:
            repeats: timed steps of each; they take turns.
            kind: ce or dice_ce.
            size: edge of a patch in voxels.
        """
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

    def views(
        self,
        slices: int = 200,
        size: int = 512,
        scales: Sequence[float] = (0.75, 1, 1.25, 1.5, 1.75, 2),
        width: int = 8,
        backbone: str = "resnet50",
        backbone_slices: int = 8,
        skip_air: bool = False,
    ) -> None:
        """The cost of three views and several scales, averaged: time, memory above the weights, size of the file.

        Args:
            slices: of the scan that narrow 2D U-Nets segment; 0 leaves them out.
            size: voxels of a slice's edge.
            scales: sizes of a slice.
            width: channels of the U-Nets' first level.
            backbone: of a DeepLabV3+ beside them.
            backbone_slices: of the scan that it segments; 0 leaves it out.
            skip_air: leave slices without body out.
        """
        from scripts.bench_views import run

        run(slices, size, scales, width, backbone, backbone_slices, skip_air)

    def slices(
        self,
        cases: int = 2,
        grid: Sequence[int] = (512, 512, 100),
        views: Sequence[str] = ("axial", "coronal", "sagittal"),
        backbones: Sequence[str] = ("tiny", "resnet50"),
        slices: int = 200,
        batch: int = 4,
    ) -> None:
        """The cost of slices: the loader beside reading a volume for each, and beside a step of the network.

        Args:
            cases: phantoms that are made for it.
            grid: their voxels.
            views: axial, coronal, sagittal.
            backbones: of the DeepLab whose training step is timed.
            slices: how many are drawn.
            batch: slices in a mini-batch.
        """
        from scripts.bench_slices import run

        run(cases, grid, listed(views), listed(backbones), slices, batch)
