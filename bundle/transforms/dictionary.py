# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The bundle's own MONAI dictionary transforms: load scans, scale their values, map label values, save label maps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from monai.data import MetaTensor
from monai.transforms import MapTransform, SaveImaged, ScaleIntensityRanged
from monai.utils import ensure_tuple

from bundle.cohorts.labels import LabelValues
from bundle.errors import InputError
from bundle.organs import UNKNOWN, WHOLE_VOCABULARY, Vocabulary
from bundle.scans.finding import scan_name
from bundle.scans.grids import ScanGrid
from bundle.scans.headers import check_memory
from bundle.scans.reading import Scan, read_label_map, read_scan
from bundle.scans.writing import write_label_map
from bundle.transforms.resampling import to_network
from bundle.untrusted import check_name

__all__ = ["LoadOnNetworkGridd", "LoadOnOwnGridd", "MapLabelValuesd", "SaveLabelMapd", "WindowIntensityd"]


class LoadOnOwnGridd(MapTransform):
    """Read images and label maps of any format on the grid of their files, as LoadImaged does: channel first.

    Nothing is turned or resampled; `LoadOnNetworkGridd` does that.

    Args:
        keys: paths of files or DICOM folders.
        labels: those of the keys that are label maps.
        allow_missing_keys: skip keys that an item does not have.
    """

    def __init__(self, keys: Any, labels: Any = ("label",), allow_missing_keys: bool = False) -> None:
        super().__init__(keys, allow_missing_keys)
        self.labels = ensure_tuple(labels)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        result = dict(data)
        for key in self.key_iterator(result):
            scan = read_label_map(result[key]) if key in self.labels else read_scan(result[key])
            whole = np.uint8 if scan.voxels.dtype == np.uint8 else np.int32
            voxels = np.ascontiguousarray(scan.voxels, whole if key in self.labels else np.float32)
            result[key] = MetaTensor(
                torch.as_tensor(voxels)[None], affine=torch.as_tensor(scan.affine), meta=scan_meta(scan)
            )
        return result


def scan_meta(scan: Scan) -> dict[str, Any]:
    """What later transforms ask the metadata of an image for."""
    return {
        "filename_or_obj": str(scan.path),
        "original_affine": scan.affine,
        "spatial_shape": np.array(scan.voxels.shape),
    }


class LoadOnNetworkGridd(MapTransform):
    """Read images of any format onto the network's grid: `LoadOnOwnGridd`, Orientationd (RAS) and Spacingd in one.

    It holds only the planes that are being resampled twice, where those transforms hold several copies of the volume.
    What `SlabInferer` needs for the way back is in the metadata: the affine and the shape of the file.

    Args:
        keys: paths of files or DICOM folders, or what `bundle.scans.find_scans` gives.
        pixdim: voxel size of the network's grid, mm.
    """

    def __init__(self, keys: Any, pixdim: Sequence[float]) -> None:
        super().__init__(keys)
        self.pixdim = tuple(float(step) for step in pixdim)

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        result = dict(data)
        for key in self.keys:
            scan = read_scan(result[key])
            grid = ScanGrid.spaced(scan.voxels.shape, scan.affine, self.pixdim)
            check_memory(scan.path, grid.network_shape, itemsize=4)
            image = to_network(scan.voxels, grid)[None]
            result[key] = MetaTensor(image, affine=torch.as_tensor(grid.network_affine), meta=scan_meta(scan))
        return result


class WindowIntensityd(ScaleIntensityRanged):
    """Scale HU to the network's input, linearly, and clip what lies outside the window.

    A ScaleIntensityRanged that takes its two ranges as the configs have them.

    Args:
        keys: the images.
        hu_window: lowest and highest HU of the window; beyond them all values are the same.
        intensity: what these two become.
        allow_missing_keys: skip keys that an item does not have.

    Example:
        >>> window = WindowIntensityd("image", hu_window=(-125, 275), intensity=(0, 255))
        >>> window({"image": torch.tensor([-1000.0, -125.0, 75.0, 3000.0])})["image"].tolist()
        [0.0, 0.0, 127.5, 255.0]
    """

    def __init__(
        self, keys: Any, hu_window: Sequence[float], intensity: Sequence[float], allow_missing_keys: bool = False
    ) -> None:
        (a_min, a_max), (b_min, b_max) = ordered_pair("hu_window", hu_window), ordered_pair("intensity", intensity)
        super().__init__(keys, a_min, a_max, b_min, b_max, clip=True, allow_missing_keys=allow_missing_keys)


def ordered_pair(name: str, values: Sequence[float]) -> tuple[float, float]:
    """The two numbers of a range, as they are.

    Raises:
        InputError: naming the config's value, when they are not two, the lower one first.
    """
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != 2 or not values[0] < values[1]:
        raise InputError(f"{name}: expected two numbers, the lower one first, found {values}")
    return values[0], values[1]


class SaveLabelMapd(SaveImaged):
    """Write label maps as NIfTI in the geometry of their scans, with the names and colors of the organs.

    A SaveImaged by type, so that programs which write results themselves (MONAI Label) know to leave it out.

    Args:
        keys: label maps, 1×X×Y×Z, on the grid of the scan.
        output_dir: folder to write to.
        vocabulary: the organs.
        postfix: put behind the scan's name.
        image_key: the scan, for its name and affine.
    """

    def __init__(
        self,
        keys: Any,
        output_dir: str,
        vocabulary: Vocabulary = WHOLE_VOCABULARY,
        postfix: str = "",
        image_key: str = "image",
    ) -> None:
        super().__init__(keys, output_dir=output_dir, print_log=False)
        self.output_dir, self.vocabulary, self.postfix = Path(output_dir), vocabulary, postfix
        self.image_key = image_key

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        meta = data[self.image_key].meta
        name = data.get("name") or data.get("case") or scan_name(meta["filename_or_obj"])
        check_name(name, f"{meta['filename_or_obj']}: the name of its label map", "rename the scan")
        affine = np.asarray(meta["original_affine"], np.float64).reshape(4, 4)
        for key in self.keys:
            path = self.output_dir / f"{name}{self.postfix}.nii.gz"
            write_label_map(path, np.asarray(data[key])[0], affine, self.vocabulary)
        return dict(data)


class MapLabelValuesd(MapTransform):
    """Turn a cohort's label values into the vocabulary's, uint8, as `bundle.cohorts.labels.LabelValues` says.

    A case without a label map gets one that is unknown everywhere, on the image's grid; a case without `values`
    (another program's) already has the vocabulary's values.

    Args:
        keys: the label.
        image_key: the image, for the grid of a missing label.
        vocabulary: the organs of the run, for cases without `values`.

    Example:
        >>> case = {"label": torch.tensor([[[[0, 1, 2]]]]), "values": {0: UNKNOWN, 1: 6, 2: 6}, "cohort": "livers"}
        >>> MapLabelValuesd()(case)["label"].flatten().tolist()
        [255, 6, 6]
    """

    def __init__(
        self, keys: str = "label", image_key: str = "image", vocabulary: Vocabulary = WHOLE_VOCABULARY
    ) -> None:
        super().__init__(keys, allow_missing_keys=True)
        self.image_key, self.vocabulary = image_key, vocabulary

    def __call__(self, data: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
        """Raises an InputError for a value that nobody declared."""
        result = dict(data)
        for key in self.keys:
            if key not in result:
                image = result[self.image_key]
                result[key] = MetaTensor(torch.full(image.shape, UNKNOWN, dtype=torch.uint8), affine=image.affine)
                continue
            label = result[key]
            meta = label.meta if isinstance(label, MetaTensor) else {}
            file = meta.get("filename_or_obj", "label map")  # what is under `key` is no longer its path
            values = LabelValues.of(result, file, self.vocabulary)
            mapped = torch.from_numpy(values.map(np.asarray(label)))
            result[key] = MetaTensor(mapped, meta=meta) if isinstance(label, MetaTensor) else mapped
        return result
