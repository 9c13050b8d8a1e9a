# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""All random states of this process: taken, and put back."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

__all__ = ["random_states", "restore_random_states"]


def random_states() -> dict[str, Any]:
    """All random states of this process, as a checkpoint can hold them."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    version, numbers, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [str(name), torch.from_numpy(np.asarray(keys).copy()), int(position), int(has_gauss), float(cached)],
        "python": [version, list(numbers), gauss],
    }


def restore_random_states(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    name, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((name, keys.numpy(), position, has_gauss, cached))
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
