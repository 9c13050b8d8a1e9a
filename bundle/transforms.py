# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Dictionary transforms of ours: loading that names a broken file, and label maps read in the sense of a label set."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from monai.data import MetaTensor
from monai.transforms import LoadImaged, MapTransform

from bundle.errors import InputError
from bundle.organs import UNKNOWN

__all__ = ["LoadScand", "MapLabelValuesd"]


class LoadScand(LoadImaged):
    """LoadImaged, channel first, that says which file cannot be read."""

    def __init__(self, keys: Any, allow_missing_keys: bool = False) -> None:
        super().__init__(keys, image_only=True, ensure_channel_first=True, allow_missing_keys=allow_missing_keys)

    def __call__(self, data: Mapping[Hashable, Any], reader: Any = None) -> dict[Hashable, Any]:
        try:
            return super().__call__(data, reader)
        except Exception as error:  # readers raise a dozen kinds for a broken file
            files = " or ".join(str(data[key]) for key in self.keys if key in data)
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InputError(f"{files}: cannot be read as an image ({reason}); replace the file") from error


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
