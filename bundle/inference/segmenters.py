# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A trained model that segments scans, built from configs/inference.yaml and the `model.json` beside the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.bundle import ConfigParser
from numpy.typing import NDArray
from scipy import ndimage
from torch import nn

from bundle.errors import InputError
from bundle.inference.inferers import SlabInferer, ViewInferer
from bundle.inference.weights import load_weights, read_model_config
from bundle.organs import Vocabulary
from bundle.scans.finding import Source

__all__ = ["Segmenter", "keep_largest_parts", "load_segmenter"]


SHARED = ("organs", "pixdim", "hu_window", "intensity")  # what models that are averaged must have in common


@dataclass
class Segmenter:
    """What turns a scan into a label map on the scan's own grid.

    Args:
        preprocessing: from `{"image": Source or path}` to the image on the network's grid.
        inferer: the engine.
        network: one network, or a ModuleList of several.
        vocabulary: the organs.
        clean: keep the largest connected part of each organ only.
    """

    preprocessing: Any
    inferer: SlabInferer
    network: nn.Module
    vocabulary: Vocabulary
    clean: bool = False

    def __call__(
        self, source: Source | str | Path, organs: Vocabulary | None = None
    ) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
        """Labels, X×Y×Z, and the affine of the scan's grid; of ``organs`` only, when given."""
        image = self.preprocessing({"image": source})["image"]
        labels: NDArray[np.uint8] = self.inferer(image[None], self.network)[0, 0].numpy()
        if organs is not None:
            keep_organs(labels, [self.vocabulary.channel(organ.name) for organ in organs])
        if self.clean:
            keep_largest_parts(labels)
        return labels, np.asarray(image.meta["original_affine"], np.float64)


def keep_organs(labels: NDArray[np.uint8], channels: Sequence[int | None]) -> None:
    """Remove, in place, all organs but these."""
    table = np.where(np.isin(np.arange(256), [channel for channel in channels if channel]), np.arange(256), 0)
    for plane in labels.T:  # a plane at a time: indexing makes a copy
        plane[...] = table.astype(np.uint8)[plane]


def keep_largest_parts(labels: NDArray[np.uint8]) -> None:
    """Remove, in place, all but the largest connected part of each organ; voxels are connected by their faces."""
    for channel, box in enumerate(ndimage.find_objects(labels), start=1):
        if box is None:
            continue
        parts, count = ndimage.label(labels[box] == channel)
        if count > 1:
            sizes = np.sum([np.bincount(plane.ravel(), minlength=count + 1) for plane in parts], axis=0)
            sizes[0] = 0
            labels[box][(parts > 0) & (parts != sizes.argmax())] = 0


def weight_files(model: str | Path | Sequence[str]) -> list[Path]:
    """Paths of weights: one, several separated by commas, or a list; a folder means the model.pt in it."""
    names = model.split(",") if isinstance(model, str) else [model] if isinstance(model, Path) else list(model)
    paths = [Path(str(name).strip()) for name in names]
    return [path / "model.pt" if path.is_dir() else path for path in paths]


def read_config(
    config: str | Path, weights: Path, overlays: Sequence[str | Path], values: Mapping[str, Any]
) -> ConfigParser:
    """configs/inference.yaml as it is for these weights."""
    parser = ConfigParser()
    parser.read_config([str(config), *(str(overlay) for overlay in overlays)])
    parser.update({**read_model_config(weights), **values, "label_grid": "scan"})
    return parser


def load_segmenter(
    model: str | Path | Sequence[str],
    config: str | Path,
    overlays: Sequence[str | Path] = (),
    clean: bool = False,
    memory: float | None = None,
    values: Mapping[str, Any] | None = None,
) -> Segmenter:
    """Load one model; or several, whose probabilities are averaged.

    Models with windows of one size are averaged window by window; models with windows of their own (2D networks on
    axial, coronal and sagittal slices) slab by slab.

    Args:
        model: weights (see `weight_files`).
        config: configs/inference.yaml.
        overlays: config files on top of it, for weights that have no model.json beside them.
        clean: see `Segmenter`.
        memory: see `SlabInferer`.
        values: ids of the config to set.

    Raises:
        InputError: when weights cannot be loaded, or models do not go together.

    >>> load_segmenter("models/gone.pt", "configs/inference.yaml")
    Traceback (most recent call last):
    bundle.errors.InputError: models/gone.pt: no such weights; train first, or give the path of a checkpoint as --model
    """
    paths = weight_files(model)
    check_files(paths, overlays)
    values = {**(values or {}), "inferer::memory": memory}
    parsers = [read_config(config, path, overlays, values) for path in paths]
    check_alike(paths, parsers)
    networks = [load_network(path, parser) for path, parser in zip(paths, parsers, strict=True)]
    inferers = [parser.get_parsed_content("inferer") for parser in parsers]
    # windows that differ in size, channels or scales are not averaged window by window
    kinds = {(one.roi_size, one.context, tuple(one.asked["scales"])) for one in inferers}
    return Segmenter(
        parsers[0].get_parsed_content("preprocessing"),
        ViewInferer(inferers, grid="scan") if len(kinds) > 1 else inferers[0],
        networks[0] if len(networks) == 1 else nn.ModuleList(networks),
        Vocabulary(parsers[0].get("organs")),
        clean,
    )


def check_files(weights: Sequence[Path], overlays: Sequence[str | Path]) -> None:
    for path in weights:
        if not path.is_file():
            raise InputError(f"{path}: no such weights; train first, or give the path of a checkpoint as --model")
    for overlay in overlays:
        if not Path(overlay).is_file():
            raise InputError(f"{overlay}: no such config; give the path of an overlay")


def check_alike(paths: Sequence[Path], parsers: Sequence[ConfigParser]) -> None:
    """Models that are averaged have the same organs, grid and intensities."""
    first = parsers[0]
    for path, parser in zip(paths, parsers, strict=True):
        for name in SHARED:
            if parser.get(name) != first.get(name):
                raise InputError(
                    f"{path}: its {name} is {parser.get(name)}, that of {paths[0]} is {first.get(name)}; models that "
                    "are averaged must have one"
                )


def load_network(weights: Path, parser: ConfigParser) -> nn.Module:
    network: nn.Module = parser.get_parsed_content("network")
    load_weights(network, weights, Vocabulary(parser.get("organs")))
    return network.eval()


def set_threads(threads: int | None) -> None:
    """Let PyTorch and OpenVINO use this many threads; None leaves it to them."""
    if threads is None:
        return
    if not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads: expected a number from 1 on, found {threads}")
    torch.set_num_threads(threads)


def check_device(device: str) -> str:
    """The device, if this machine has it.

    Raises:
        InputError: when it has not.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"device: {device} cannot be used ({reason}); choose cpu") from None
    return device
