# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The cost of slices: how many the loader delivers, and whether it or the network sets the pace of training."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from monai.bundle import ConfigParser

from bundle.cohorts.phantoms import make_phantoms
from bundle.training.dataset import Draw, PatchDataset
from scripts.runs import ROOT

__all__ = ["run"]

CONFIGS = ROOT / "configs"


def parse(folder: str, view: str, size: Sequence[int], backbone: str) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / "train.yaml"), str(CONFIGS / "overlays" / "paper_2d.yaml")])
    parser.update({
        "dataset_dir": f"{folder}/data",
        "output_dir": f"{folder}/eval",
        "view": view,
        "slice_size": list(size),
        "train_scales": [1.0],  # so that all samples cost the same
        "network_def::backbone": backbone,
        "fold": None,
    })  # fmt: skip
    return parser


def per_second(work: Callable[[int], Any], count: int) -> float:
    started = time.perf_counter()
    for number in range(count):
        work(number)
    return count / (time.perf_counter() - started)


def volume_per_slice(dataset: PatchDataset, number: int) -> Any:
    """A sample as a loader without a cache makes it: the whole scan is read and preprocessed for one slice."""
    case = dataset.data[number % len(dataset.data)]
    volume = dataset._pre_transform(dict(case))
    dataset.beyond = (number % len(dataset.data), {key: volume[key] for key in ("image", "label")})
    try:
        return dataset[Draw(number % len(dataset.data), (number,))]
    finally:
        dataset.beyond = (-1, {})


def seconds_of_step(parser: ConfigParser, samples: Sequence[dict[str, torch.Tensor]]) -> float:
    """One training step on a mini-batch, the second of two."""
    network, loss = (parser.get_parsed_content(name) for name in ("network", "supervised_loss"))
    batch = {key: torch.stack([sample[key] for sample in samples]) for key in ("image", "label")}
    optimizer = torch.optim.Adam(network.parameters(), 1e-5)
    for _ in range(2):
        started = time.perf_counter()
        optimizer.zero_grad()
        loss(network(batch["image"]), batch["label"]).backward()
        optimizer.step()
    return time.perf_counter() - started


def run(
    cases: int, grid: Sequence[int], views: Sequence[str], backbones: Sequence[str], slices: int, batch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_phantoms(f"{folder}/data", full=cases, partial=0, test=0, grid=tuple(grid))
        shapes = {"axial": grid[:2], "coronal": (grid[0], grid[2]), "sagittal": grid[1:]}
        print(f"{cases} cases of {'×'.join(map(str, grid))}; slices per second, one process")
        print(f"{'':<12}{'loader':>10}{'volume per slice':>18}{'ratio':>8}")
        for view in views:
            dataset: PatchDataset = parse(folder, view, shapes[view], "tiny").get_parsed_content("train::dataset")
            dataset.prepare()
            fast = per_second(lambda number: dataset[Draw(number % cases, (number,))], slices)  # noqa: B023
            slow = per_second(lambda number: volume_per_slice(dataset, number), 2 * cases)  # noqa: B023
            print(f"{view:<12}{fast:>10.1f}{slow:>18.2f}{fast / slow:>8.1f}")
        print(f"\na mini-batch of {batch} axial slices, seconds")
        print(f"{'':<12}{'loader':>10}{'network':>18}{'ratio':>8}")
        for backbone in backbones:
            parser = parse(folder, "axial", shapes["axial"], backbone)
            dataset = parser.get_parsed_content("train::dataset")
            samples: list[dict[str, torch.Tensor]] = []
            loading = batch / per_second(lambda number: samples.append(dataset[Draw(number % cases, (number,))]), batch)  # noqa: B023
            step = seconds_of_step(parser, samples)
            print(f"{backbone:<12}{loading:>10.3f}{step:>18.3f}{step / loading:>8.1f}")
