# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What inference reads. How a volume is segmented is the config id `inferer`."""

from __future__ import annotations

from pathlib import Path

from bundle.cohorts import not_a_volume
from bundle.errors import InputError

__all__ = ["find_images"]


def find_images(folder: str | Path) -> list[dict[str, str]]:
    """The NIfTI files of a folder, or the one file given, as MONAI items.

    Raises:
        InputError: when there is none, or one of them is not a volume.
    """
    path = Path(folder)
    images = (
        [path] if path.is_file() else sorted(file for ending in ("*.nii.gz", "*.nii") for file in path.glob(ending))
    )
    if not images:
        raise InputError(f"{path}: no .nii.gz or .nii file found; give a folder of CT scans as --dataset_dir")
    items = [{"image": str(image)} for image in images]
    for item in items:
        problem = not_a_volume(item)
        if problem is not None:
            raise InputError(problem)
    return items
