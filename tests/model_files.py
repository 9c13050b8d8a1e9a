# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Tiny untrained models as files, as training writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from monai.networks.nets import UNet

from bundle.inference.records import ModelRecord, read_record
from bundle.inference.weights import write_weights
from bundle.organs import Vocabulary

ORGANS = ["liver", "spleen"]


def description(spatial_dims: int = 3, organs: list[str] | None = None, **values: Any) -> dict[str, Any]:
    """What a tiny model says about itself; ``values`` replace entries."""
    organs = ORGANS if organs is None else organs
    network = {"_target_": "UNet", "spatial_dims": spatial_dims, "in_channels": 1, "out_channels": 1 + len(organs),
               "channels": [4, 8], "strides": [2]}  # fmt: skip
    sizes = {"patch_size": [16, 16, 8 if spatial_dims == 3 else 1], "pixdim": [3.0, 3.0, 3.0]}
    return {"organs": organs, "hu_window": [-125, 275], "intensity": [0, 255], "context": 0, "scales": [1.0], **sizes,
            "network_def": network, **values}  # fmt: skip


def tiny_network(record: ModelRecord, seed: int = 0) -> UNet:
    torch.manual_seed(seed)
    return UNet(**{name: value for name, value in record.network_def.items() if name != "_target_"})


def save_model(folder: Path, seed: int = 0, **values: Any) -> Path:
    """Write model.pt with its record; returns its path."""
    record = read_record(description(**values), "a test")
    write_weights(folder / "model.pt", tiny_network(record, seed), record)
    return folder / "model.pt"


def save_bare_weights(folder: Path, organs: list[str] | None = None) -> Path:
    """Write a state dict and nothing else, as other programs do."""
    record = read_record(description(organs=Vocabulary(organs or ORGANS).names), "a test")
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tiny_network(record).state_dict(), folder / "model.pt")
    return folder / "model.pt"
