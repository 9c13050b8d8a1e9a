# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Images at another scale, in training and in testing alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

__all__ = ["resize", "resized"]


def resized(size: int, scale: float) -> int:
    """A window's size times ``scale``, as often divisible by 2 as the window's, up to 32: networks halve it."""
    step = math.gcd(size, 32)
    return max(step, round(size * scale / step) * step)


def resize(values: Tensor, to: float | Sequence[int], labels: bool = False) -> Tensor:
    """Resize B×C×spatial by a factor, or to a shape; labels take the value of the nearest voxel.

    >>> import torch
    >>> resize(torch.zeros(1, 1, 64, 48), 0.75).shape
    torch.Size([1, 1, 64, 32])
    """
    shape = [resized(n, to) for n in values.shape[2:]] if isinstance(to, float) else list(to)
    if shape == list(values.shape[2:]):
        return values
    if labels:
        return F.interpolate(values, shape, mode="nearest-exact")
    return F.interpolate(values, shape, mode="bilinear" if len(shape) == 2 else "trilinear", align_corners=False)
