"""What inference reads."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.errors import InputError
from bundle.inferers import find_images


def test_images_of_a_folder_or_one_file(tmp_path: Path) -> None:
    for name in ("b.nii.gz", "a.nii"):
        nib.save(nib.Nifti1Image(np.zeros((2, 2, 2), np.int16), np.eye(4)), tmp_path / name)
    (tmp_path / "notes.txt").write_text("")
    assert [Path(item["image"]).name for item in find_images(tmp_path)] == ["a.nii", "b.nii.gz"]
    assert find_images(tmp_path / "a.nii") == [{"image": str(tmp_path / "a.nii")}]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no .nii.gz or .nii file found"):
        find_images(tmp_path / "empty")


def test_an_image_that_is_no_volume_is_refused(tmp_path: Path) -> None:
    nib.save(nib.Nifti1Image(np.zeros((2, 2, 2, 3), np.int16), np.eye(4)), tmp_path / "a.nii.gz")
    with pytest.raises(InputError, match=r"a.nii.gz: expected one 3D volume, found an image of shape \(2, 2, 2, 3\)"):
        find_images(tmp_path)
