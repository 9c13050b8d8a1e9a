# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The cost of 2D networks on axial, coronal and sagittal slices, averaged: time, memory and the file of their sum."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from monai.networks.nets import UNet
from torch import nn

from bundle.inference.fusion import tiled_bytes
from bundle.inference.inferers import ViewInferer
from bundle.inference.records import describe_model
from bundle.inference.segmenters import load_segmenter
from bundle.inference.weights import write_weights
from bundle.networks import DeepLabV3Plus
from bundle.organs import Vocabulary
from bundle.processes import peak_memory, resident_memory
from bundle.scans.writing import write_label_map
from bundle.training.patches import VIEWS
from scripts.bench.inference import HU_WINDOW, INTENSITY, SPACING, make_scan, measure
from scripts.configs import INFERENCE

__all__ = ["run"]

HALVED = 8  # by the U-Net
Definition = dict[str, Any]


@dataclass
class ViewsCost:
    """What one run took: seconds from the file to the label map, GB above the loaded weights, GB of the file."""

    seconds: float
    above_weights: float
    file: float


# --- What is segmented, and by what ----------------------------------------------------------------------
def narrow_unet(width: int) -> Definition:
    """A 2D U-Net that is cheap enough for a whole volume at all scales."""
    channels = [width, 2 * width, 4 * width, 8 * width]
    sizes = {"spatial_dims": 2, "in_channels": 1, "out_channels": Vocabulary().out_channels}
    return {"_target_": "UNet", **sizes, "channels": channels, "strides": [2, 2, 2]}


def deeplab(backbone: str) -> Definition:
    sizes = {"spatial_dims": 2, "in_channels": 1, "out_channels": Vocabulary().out_channels}
    return {"_target_": "bundle.networks.DeepLabV3Plus", **sizes, "backbone": backbone}


def untrained(definition: Definition) -> nn.Module:
    """A network with the statistics of one batch: without any, values fade to denormal numbers, which are slow."""
    kind = UNet if definition["_target_"] == "UNet" else DeepLabV3Plus
    network: nn.Module = kind(**{name: value for name, value in definition.items() if name != "_target_"})
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches
    with torch.no_grad():
        network.train()(255 * torch.rand(2, 1, 64, 64))
    return network


def make_models(folder: Path, definition: Definition, shape: Sequence[int]) -> list[Path]:
    """Weights for each view that were never trained, for whole slices of a scan on its own grid."""
    paths = []
    for view, across in VIEWS.items():
        torch.manual_seed(across)
        window = [1 if axis == across else -(-n // HALVED) * HALVED for axis, n in enumerate(shape)]
        path = folder / view / "model.pt"
        record = describe_model(Vocabulary(), HU_WINDOW, INTENSITY, window, SPACING, network_def=definition)
        write_weights(path, untrained(definition), record)
        paths.append(path)
    return paths


# --- What is measured: in a process of its own -----------------------------------------------------------
def segment(scan: Path, models: Sequence[Path], output: Path, scales: Sequence[float], skip_air: bool) -> ViewsCost:
    """What `python -m scripts segment --backend torch` does, from loading the scan to the label map."""
    warnings.simplefilter("ignore")
    values = {"backend": "torch", "scales": list(scales), "skip_air": skip_air}
    segmenter = load_segmenter([str(path) for path in models], INFERENCE, values=values)
    loaded, started = resident_memory(), time.perf_counter()
    labels, affine = segmenter(scan)
    write_label_map(output, labels, affine, segmenter.vocabulary)
    fused = isinstance(segmenter.inferer, ViewInferer)  # on the scan's grid, which is the network's here
    file = tiled_bytes(labels.shape, segmenter.vocabulary.out_channels) if fused else 0
    return ViewsCost(time.perf_counter() - started, (peak_memory() - loaded) / 1e9, file / 1e9)


def run(
    slices: int, size: int, scales: Sequence[float], width: int, backbone: str, backbone_slices: int, skip_air: bool
) -> None:
    rows: list[tuple[str, Definition, int, int, Sequence[float]]] = [
        (f"U-Net, width {width}", narrow_unet(width), slices, 1, [1.0]),
        (f"U-Net, width {width}", narrow_unet(width), slices, 3, scales),
        (f"DeepLabV3+, {backbone}", deeplab(backbone), backbone_slices, 3, scales),
    ]
    print(f"{Vocabulary().out_channels} classes, untrained weights, air {'skipped' if skip_air else 'included'}")
    print(f"scales {', '.join(f'{scale:g}' for scale in scales)}; {torch.get_num_threads()} threads")
    print(f"{'':<56}{'time, s':>9}{'above weights, GB':>19}{'file, GB':>10}", flush=True)
    for name, definition, length, views, factors in rows:
        if not length:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            models = make_models(folder, definition, (size, size, length))[:views]
            scan = make_scan(folder / "scan.nii.gz", length, size)
            cost = measure(segment, scan, models, folder / "labels.nii.gz", factors, skip_air)
        what = f"{name}, {size}×{size}×{length}, {plural(views, 'view')}, {plural(len(factors), 'scale')}"
        print(f"{what:<56}{cost.seconds:>9.1f}{cost.above_weights:>19.2f}{cost.file:>10.2f}", flush=True)


def plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
