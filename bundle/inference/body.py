# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Where the body is in a volume, so that windows lie over it alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F

from bundle.inference.windows import Index, Windows

__all__ = ["find_body"]


BLOCK = 4  # edge, in voxels, of the blocks in which the body is looked for

SMALLEST_PART = 0.1  # of the largest one; smaller parts are noise, the table, a tube


def find_body(image: Tensor, air: float) -> NDArray[np.bool_]:
    """Blocks of a volume, X×Y×Z, half of whose voxels are not air, in its largest connected parts.

    Args:
        image: the volume.
        air: values up to this one are air; where intensities are clipped to soft tissue that includes the lungs.
    """
    tissue = (image > air)[None, None].float()
    size = [min(BLOCK, n) for n in image.shape]
    blocks = F.avg_pool3d(tissue, size, BLOCK, ceil_mode=True, count_include_pad=False)[0, 0].numpy() >= 0.5
    parts, _ = ndimage.label(blocks)
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    body: NDArray[np.bool_] = (sizes >= max(1, SMALLEST_PART * sizes.max()))[parts]
    return body


def box_around(blocks: NDArray[np.bool_], shape: Sequence[int], least: Sequence[int]) -> tuple[slice, ...]:
    """The part of a volume with all blocks that are set and a block's margin, of at least ``least`` voxels."""
    (box,) = ndimage.find_objects(blocks.astype(np.uint8))
    region = []
    for side, total, size in zip(box, shape, least, strict=True):
        low, high = max(0, (side.start - 1) * BLOCK), min(total, (side.stop + 1) * BLOCK)
        low = max(0, min(low, (low + high - size) // 2, total - size))
        region.append(slice(low, min(total, max(high, low + size))))
    return tuple(region)


def touches(body: NDArray[np.bool_], windows: Windows, offset: Sequence[int]) -> Callable[[Index], bool]:
    """Whether a window has any of the body in it; ``offset`` is the place of the windows' volume in the body's."""

    def check(index: Index) -> bool:
        sides = zip(windows.region(index), offset, strict=True)
        return bool(
            body[tuple(slice(max(0, s.start + o) // BLOCK, max(0, -(-(s.stop + o) // BLOCK))) for s, o in sides)].any()
        )

    return check
