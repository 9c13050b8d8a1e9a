# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The cost of inference: MONAI's usual pipeline and this engine on one scan, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import nibabel as nib
import numpy as np
import torch
from monai.inferers import SlidingWindowInferer
from monai.networks.nets import UNet
from monai.transforms import (
    Activationsd,
    AsDiscreted,
    Compose,
    Invertd,
    LoadImaged,
    Orientationd,
    SaveImaged,
    ScaleIntensityRanged,
    Spacingd,
)
from numpy.typing import NDArray
from torch.nn import functional as F
from tqdm import tqdm

from bundle.cohorts.phantoms import PROTOCOLS, make_patient
from bundle.inference.records import describe_model
from bundle.inference.segmenters import load_segmenter
from bundle.inference.weights import read_checkpoint, write_weights
from bundle.organs import Vocabulary
from bundle.processes import peak_memory
from bundle.scans.writing import write_label_map
from scripts.configs import INFERENCE

__all__ = ["run"]

Measurement = TypeVar("Measurement")
PIXDIM, HU_WINDOW, INTENSITY, OVERLAP = (1.5, 1.5, 2.0), (-125, 275), (0, 255), 0.25
SPACING = (0.8, 0.8, 1.5)  # of the synthetic scan, mm
NETWORK: dict[str, Any] = {
    "spatial_dims": 3,
    "in_channels": 1,
    "out_channels": Vocabulary().out_channels,
    "channels": [16, 32, 64, 128, 256],
    "strides": [2, 2, 2, 2],
    "num_res_units": 2,
}


@dataclass
class EngineCost:
    """What one run took: seconds from the file to the label map, and the peak of its process in GB."""

    seconds: float
    peak: float


# --- What is segmented, and by what ----------------------------------------------------------------------
@lru_cache(maxsize=1)
def make_block(size: int) -> NDArray[np.int16]:
    """200 slices of a synthetic patient, SIZE×SIZE each."""
    image, _, _ = make_patient((7,), PROTOCOLS["full"], (128, 128, 50))
    values = torch.from_numpy(np.asarray(image, np.float32))[None, None]
    block = F.interpolate(values, (size, size, 200), mode="trilinear")[0, 0].numpy()
    block += np.random.default_rng(0).normal(0, 8, block.shape).astype(np.float32)
    return np.asfortranarray(block.astype(np.int16))


def make_scan(path: Path, slices: int, size: int) -> Path:
    """A synthetic CT of SIZE×SIZE×SLICES: the patient, mirrored again and again where more slices are wanted."""
    order = np.concatenate([np.arange(200), np.arange(200)[::-1]])[np.arange(slices) % 400]
    nib.save(nib.Nifti1Image(make_block(size)[:, :, order], np.diag([*SPACING, 1.0])), path)
    return path


def make_model(folder: Path, window: int) -> Path:
    """Weights that were never trained: every organ is found everywhere, the hardest case for the way back."""
    torch.manual_seed(0)
    definition = {"_target_": "UNet", **NETWORK}
    record = describe_model(Vocabulary(), HU_WINDOW, INTENSITY, [window] * 3, PIXDIM, network_def=definition)
    write_weights(folder / "model.pt", UNet(**NETWORK), record)
    return folder / "model.pt"


# --- What is measured: each function runs in a process of its own ----------------------------------------
def usual_pipeline(scan: Path, model: Path, output: Path) -> EngineCost:
    """MONAI's transforms and SlidingWindowInferer, probabilities inverted whole."""
    warnings.simplefilter("ignore")
    network = UNet(**NETWORK).eval()
    checkpoint = read_checkpoint(model)
    network.load_state_dict(checkpoint.state)
    assert checkpoint.record is not None  # see make_model
    started = time.perf_counter()
    before = Compose([
        LoadImaged("image", image_only=True, ensure_channel_first=True),
        Orientationd("image", "RAS", labels=None),
        Spacingd("image", PIXDIM),
        ScaleIntensityRanged("image", *HU_WINDOW, *INTENSITY, clip=True),
    ])  # fmt: skip
    after = Compose([
        Activationsd("pred", softmax=True),
        Invertd("pred", before, "image", nearest_interp=False, to_tensor=True),
        AsDiscreted("pred", argmax=True),
        SaveImaged("pred", output_dir=output, output_postfix="usual", output_dtype=np.uint8, separate_folder=False,
                   resample=False, print_log=False),
    ])  # fmt: skip
    data = before({"image": str(scan)})
    with torch.inference_mode():
        data["pred"] = SlidingWindowInferer(checkpoint.record.patch_size, 1, OVERLAP)(data["image"][None], network)[0]
    after(data)
    return EngineCost(time.perf_counter() - started, peak_memory() / 1e9)


def engine(scan: Path, model: Path, output: Path, backend: str, skip_air: bool) -> EngineCost:
    """What `python -m scripts segment` does, from loading the scan to the label map."""
    warnings.simplefilter("ignore")
    values = {"backend": backend, "skip_air": skip_air, "window_batch": 1, "inferer::mode": "constant"}
    segmenter = load_segmenter(model, INFERENCE, values=values)
    started = time.perf_counter()
    labels, affine = segmenter(scan)
    write_label_map(output, labels, affine, segmenter.vocabulary)
    return EngineCost(time.perf_counter() - started, peak_memory() / 1e9)


def measure(function: Callable[..., Measurement], *arguments: Any) -> Measurement:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


# --- Tables ----------------------------------------------------------------------------------------------
def read_labels(path: Path) -> NDArray[np.uint8]:
    return np.asanyarray(nib.load(path).dataobj).astype(np.uint8)


def compare_pipelines(folder: Path, model: Path, slices: int, size: int, backends: Sequence[str], repeats: int) -> None:
    """The usual pipeline against the engine, all windows and body only; they take turns."""
    scan, output = make_scan(folder / "scan.nii.gz", slices, size), folder / "engine.nii.gz"
    kinds = [(backend, skip_air) for skip_air in (False, True) for backend in backends]
    usual: list[EngineCost] = []
    costs: dict[tuple[str, bool], list[EngineCost]] = {kind: [] for kind in kinds}
    different: dict[tuple[str, bool], int] = {}
    for _ in tqdm(range(repeats), desc="rounds", unit="round"):
        usual.append(measure(usual_pipeline, scan, model, folder))
        expected = read_labels(folder / "scan_usual.nii.gz")
        for kind in kinds:
            costs[kind].append(measure(engine, scan, model, output, *kind))
            different[kind] = max(different.get(kind, 0), int(np.sum(read_labels(output) != expected)))
    head = f"{size}×{size}×{slices}, {Vocabulary().out_channels} classes, untrained weights"
    print(f"\n{head}, {torch.get_num_threads()} threads, medians of {repeats} rounds")
    print(f"{'':<28}{'time, s':>9}{'speed-up':>10}{'peak, GB':>10}{'memory':>9}{'labels equal':>14}{'differ':>10}")
    print(f"{'usual MONAI pipeline':<28}{seconds(usual):>9.1f}{1:>10.2f}{peak(usual):>10.2f}{1:>9.2f}")
    for backend, skip_air in kinds:
        cost = costs[backend, skip_air]
        speed = np.median([before.seconds / after.seconds for before, after in zip(usual, cost, strict=True)])
        count = different[backend, skip_air]
        # With body only, what lies outside of it is background: there is nothing to compare.
        agreement = "" if skip_air else f"{100 * (1 - count / expected.size):>13.4f}%{count:>10}"
        name = f"{backend}, {'body only' if skip_air else 'all windows'}"
        memory = peak(cost) / peak(usual)
        print(f"{name:<28}{seconds(cost):>9.1f}{speed:>10.2f}{peak(cost):>10.2f}{memory:>9.2f}{agreement}")


def seconds(costs: Sequence[EngineCost]) -> float:
    return float(np.median([cost.seconds for cost in costs]))


def peak(costs: Sequence[EngineCost]) -> float:
    return max(cost.peak for cost in costs)


def show_growth(folder: Path, model: Path, lengths: Sequence[int], size: int, backend: str) -> None:
    """Time and memory of the engine, all windows, for longer and longer scans."""
    print(f"\n{size}×{size}×N, {backend}, all windows")
    print(f"{'slices':>8}{'time, s':>9}{'s per 100':>11}{'peak, GB':>10}{'labels × classes, GB':>22}")
    for slices in lengths:
        scan = make_scan(folder / "scan.nii.gz", slices, size)
        cost = measure(engine, scan, model, folder / "engine.nii.gz", backend, False)
        whole = 4 * Vocabulary().out_channels * size * size * slices / 1e9
        per_hundred = 100 * cost.seconds / slices
        print(f"{slices:>8}{cost.seconds:>9.1f}{per_hundred:>11.2f}{cost.peak:>10.2f}{whole:>22.2f}", flush=True)


def run(slices: int, lengths: Sequence[int], size: int, window: int, backends: Sequence[str], repeats: int) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = make_model(folder, window)
        if slices:
            compare_pipelines(folder, model, slices, size, backends, repeats)
        if lengths:
            show_growth(folder, model, lengths, size, backends[0])
