# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""A trained model that segments scans, built from configs/inference.yaml and the record of what the weights are."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.bundle import ConfigParser
from numpy.typing import NDArray
from scipy import ndimage
from torch import nn

from bundle.checks.sizes import Sizes
from bundle.configs import RunningConfig
from bundle.errors import InputError
from bundle.inference.inferers import SlabInferer, ViewInferer
from bundle.inference.weights import MODEL_CONFIG, check_agreement, load_state, model_values, read_checkpoint
from bundle.networks.definitions import build_network, shorten
from bundle.organs import Vocabulary
from bundle.scans.finding import Source

__all__ = ["Segmenter", "keep_largest_parts", "load_segmenter"]

logger = logging.getLogger(__name__)

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
        files: what it was made from: weights, descriptions, overlays.
        sizes: how large organs are in the training cases (see `bundle.checks.sizes`); of several models, of the first.
    """

    preprocessing: Any
    inferer: SlabInferer
    network: nn.Module
    vocabulary: Vocabulary
    clean: bool = False
    files: tuple[Path, ...] = ()
    sizes: Sizes = field(default_factory=dict)

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


@dataclass
class Model:
    """One trained model as `segment` runs it.

    Args:
        path: its weights.
        config: configs/inference.yaml as it is for them.
        network: with the weights.
        source: the file that says what the model is; None where overlays do.
        sizes: see `Segmenter`.
    """

    path: Path
    config: ConfigParser
    network: nn.Module
    source: Path | None
    sizes: Sizes


def read_config(config: str | Path, overlays: Sequence[str | Path]) -> tuple[ConfigParser, set[str]]:
    """configs/inference.yaml with overlays, and the ids that these set."""
    parser = ConfigParser()
    try:
        parser.read_config([str(config), *(str(overlay) for overlay in overlays)])
        given = [name for overlay in overlays for name in ConfigParser.load_config_file(str(overlay))]
    except Exception as error:  # YAML, JSON and MONAI's parser raise a dozen kinds
        names = ", ".join(str(overlay) for overlay in overlays)
        raise InputError(f"{names}: cannot be read as a config ({shorten(str(error))}); correct the overlay") from None
    return parser, {name.replace("#", "::").split("::")[0].lstrip("+") for name in given}


def load_model(path: Path, config: str | Path, overlays: Sequence[str | Path], values: Mapping[str, Any]) -> Model:
    """The network with its weights, and the config for it.

    What the model is, its record says: as data, which MONAI's parser only sees after it was checked. Overlays are
    configs of the user, which may choose other windows, but must agree with the record.
    """
    parser, given = read_config(config, overlays)
    checkpoint = read_checkpoint(path)
    record, source = checkpoint.describe()
    described = {} if record is None else record.config()
    parser.update({name: value for name, value in described.items() if name not in {"network_def", *given}})
    parser.update({**values, "label_grid": "scan"})
    parser.parse()
    if record is None:
        check_described(path, overlays)
    else:
        chosen = model_values(RunningConfig(parser.ref_resolver), given.intersection(described))
        names = ", ".join(str(overlay) for overlay in overlays)
        check_agreement(record, chosen, source, f"leave it out of {names}: the model says what it is")
    if record is None or "network_def" in given:
        network: nn.Module = parser.get_parsed_content("network")
    else:
        network = build_network(record.network_def, checkpoint.state, str(source))
    load_state(network, checkpoint)
    network = network.to(parser.get_parsed_content("device")).eval()
    return Model(path, parser, network, *((None, {}) if record is None else (source, record.sizes)))


def check_described(path: Path, overlays: Sequence[str | Path]) -> None:
    """Overlays say what the weights are, where nothing else does."""
    if not overlays:
        raise InputError(
            f"{path}: the weights do not say what they are, and there is no {MODEL_CONFIG} beside them; give the "
            "--overlays that they were trained with"
        )
    logger.warning("%s: the weights do not say what they are; nothing confirms what the overlays say", path)


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
        overlays: config files on top of it, for weights that do not say what they are.
        clean: see `Segmenter`.
        memory: see `SlabInferer`.
        values: ids of the config to set.

    Raises:
        InputError: when weights cannot be loaded, or models do not go together.

    >>> load_segmenter("models/gone.pt", "configs/inference.yaml")
    Traceback (most recent call last):
    bundle.errors.InputError: models/gone.pt: no such weights; train first, or give the path of a checkpoint
    """
    paths = weight_files(model)
    check_files(overlays)
    values = {**(values or {}), "inferer::memory": memory}
    models = [load_model(path, config, overlays, values) for path in paths]
    check_alike(models)
    inferers = [one.config.get_parsed_content("inferer") for one in models]
    # windows that differ in size, channels or scales are not averaged window by window
    kinds = {(one.roi_size, one.context, tuple(one.asked["scales"])) for one in inferers}
    sources = [one.source for one in models if one.source is not None]
    return Segmenter(
        models[0].config.get_parsed_content("preprocessing"),
        ViewInferer(inferers, grid="scan") if len(kinds) > 1 else inferers[0],
        models[0].network if len(models) == 1 else nn.ModuleList(one.network for one in models),
        Vocabulary(models[0].config.get_parsed_content("organs")),
        clean,
        tuple(dict.fromkeys([*paths, *sources, *map(Path, overlays)])),
        models[0].sizes,
    )


def check_files(overlays: Sequence[str | Path]) -> None:
    for overlay in overlays:
        if not Path(overlay).is_file():
            raise InputError(f"{overlay}: no such config; give the path of an overlay")


def check_alike(models: Sequence[Model]) -> None:
    """Models that are averaged have the same organs, grid and intensities."""
    first = models[0]
    for model in models:
        for name in SHARED:
            mine, theirs = (one.config.get_parsed_content(name) for one in (model, first))
            if mine != theirs:
                raise InputError(
                    f"{model.path}: its {name} is {mine}, that of {first.path} is {theirs}; models that are averaged "
                    "must have one"
                )


def set_threads(threads: int | None) -> None:
    """Let PyTorch and OpenVINO use this many threads; None leaves it to them."""
    if threads is None:
        return
    if not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads: expected a number from 1 on, found {threads}")
    torch.set_num_threads(threads)
