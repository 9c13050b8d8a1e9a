# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What inference reads. How a volume is segmented is the config id `inferer`."""

from __future__ import annotations

from pathlib import Path

from bundle.errors import InputError

__all__ = ["find_images"]


def find_images(folder: str | Path) -> list[dict[str, str]]:
    """The NIfTI files of a folder, or the one file given, as MONAI items.

    Raises:
        InputError: when there is none.
    """
    path = Path(folder)
    if path.is_file():
        return [{"image": str(path)}]
    images = sorted(file for ending in ("*.nii.gz", "*.nii") for file in path.glob(ending))
    if not images:
        raise InputError(f"{path}: no .nii.gz or .nii file found; give a folder of CT scans as --dataset_dir")
    return [{"image": str(image)} for image in images]
