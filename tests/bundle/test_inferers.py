"""What inference reads."""

from pathlib import Path

import pytest

from bundle.errors import InputError
from bundle.inferers import find_images


def test_images_of_a_folder_or_one_file(tmp_path: Path) -> None:
    for name in ("b.nii.gz", "a.nii", "notes.txt"):
        (tmp_path / name).write_text("")
    assert [Path(item["image"]).name for item in find_images(tmp_path)] == ["a.nii", "b.nii.gz"]
    assert find_images(tmp_path / "a.nii") == [{"image": str(tmp_path / "a.nii")}]
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no .nii.gz or .nii file found"):
        find_images(tmp_path / "empty")
