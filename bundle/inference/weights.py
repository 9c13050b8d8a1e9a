# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Weights, and beside them a small config that says to inference what the model is: `model.json`.

The config is an overlay on configs/inference.yaml. With it nobody has to remember what a model was trained with.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bundle.configs import RunningConfig
from bundle.errors import InputError
from bundle.files import write_json
from bundle.organs import WHOLE_VOCABULARY, Vocabulary

__all__ = ["MODEL_CONFIG", "load_weights", "read_model_config", "record_model"]


MODEL_CONFIG = "model.json"


def record_model(directory: str | Path, vocabulary: Vocabulary, **values: Any) -> None:
    """Write what inference must know of a model into the folder of its weights.

    Args:
        directory: folder of the weights.
        vocabulary: the organs: numbers alone do not say which organ is which.
        values: further ids of the config.
    """
    record = {"organs": vocabulary.names, **values}
    config = RunningConfig.find()
    if config is not None:  # the network as the config declares it; what is instantiated no longer shows that
        record["network_def"] = without_pretrained(config.section("network_def"))
    write_json(Path(directory) / MODEL_CONFIG, record)


def without_pretrained(network_def: dict[str, Any]) -> dict[str, Any]:
    """The trained weights replace those that a network started from, whose file may be gone by then."""
    return {name: None if name == "pretrained" else value for name, value in network_def.items()}


def read_model_config(weights: str | Path) -> dict[str, Any]:
    """The config beside weights; empty when there is none.

    Raises:
        InputError: when it cannot be read.
    """
    path = Path(weights).with_name(MODEL_CONFIG)
    if not path.is_file():
        return {}
    try:
        config: dict[str, Any] = json.loads(path.read_text())
        Vocabulary(config["organs"])
        return config
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: expected the config that training writes, found something else ({error!r})"
        ) from None


def check_organs(path: Path, config: Mapping[str, Any], vocabulary: Vocabulary) -> None:
    """The organs recorded beside weights are those of this run."""
    known = config.get("organs", vocabulary.names)
    if known != vocabulary.names:
        raise InputError(f'{path}: the model was trained for the organs {known}; give them as --organs "{known}"')


def load_weights(network: nn.Module, path: str | Path, vocabulary: Vocabulary = WHOLE_VOCABULARY) -> None:
    """Load a state dict into the network.

    Raises:
        InputError: when the file is missing, or belongs to another network or to other organs.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     torch.save(nn.Linear(2, 2).state_dict(), f"{folder}/model.pt")
    ...     record_model(folder, Vocabulary("liver"))
    ...     load_weights(nn.Linear(2, 2), f"{folder}/model.pt", Vocabulary("spleen"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bundle.errors.InputError: ...model.pt: the model was trained for the organs ['liver']; give them as --organs ...
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such weights; train first, or give the path of a checkpoint")
    check_organs(path, read_model_config(path), vocabulary)
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
        network.load_state_dict(state.get("model", state))
    except Exception as error:  # torch raises many kinds for a file that is not a checkpoint
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"{path}: not the weights of this network ({reason} …); give the overlays and values it was trained with"
        ) from None
