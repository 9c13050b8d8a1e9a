# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Dictionary transforms that MONAI does not have: reading a label map in the sense of its case's label set."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from monai.data import MetaTensor
from monai.transforms import MapTransform

from bundle.organs import UNKNOWN

__all__ = ["MapLabelValuesd"]


class MapLabelValuesd(MapTransform):
    """Turn a cohort's label values into the vocabulary's, as `case["values"]` says, uint8.

    A case without a label map gets one that is unknown everywhere, on the image's grid; a case without `values`
    (MONAI Label's items) already has the vocabulary's values.

    Args:
        keys: the label.
        image_key: the image, for the grid of a missing label.
    """

    def __init__(self, keys: str = "label", image_key: str = "image") -> None:
        super().__init__(keys, allow_missing_keys=True)
        self.image_key = image_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        result = dict(data)
        for key in self.keys:
            if key not in result:
                image = result[self.image_key]
                result[key] = MetaTensor(torch.full(image.shape, UNKNOWN, dtype=torch.uint8), affine=image.affine)
                continue
            label = result[key]
            mapped = self.map_values(
                label.as_tensor() if isinstance(label, MetaTensor) else label, result.get("values")
            )
            result[key] = MetaTensor(mapped, meta=label.meta) if isinstance(label, MetaTensor) else mapped
        return result

    @staticmethod
    def map_values(label: torch.Tensor, values: Mapping[int, int] | None) -> torch.Tensor:
        label = label.round().to(torch.int64).clamp(min=0)
        if values is None:
            return label.to(torch.uint8)
        table = torch.full((int(max(max(values), int(label.max()))) + 1,), UNKNOWN, dtype=torch.uint8)
        for value, channel in values.items():
            table[value] = channel
        return table[label]
