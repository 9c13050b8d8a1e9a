# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The folder of a server: several processes write it, and no save is lost, half, or under another's names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

pytest.importorskip("monailabel", reason="MONAI Label has an environment of its own: make test-label")

from bundle.errors import InputError
from label.annotations import embedded_info
from label.datastore import FINAL, SavedLabels
from label.state import ServerState
from label.tasks import saved_annotations

pytestmark = [pytest.mark.slow, pytest.mark.label]


def open_folder(folder: Path) -> SavedLabels:
    return SavedLabels(str(folder / "studies"), ("*.nii.gz", "*.nii", "*.nrrd"), ServerState(folder / "state"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "studies").mkdir()
    for name in ("a", "b", "c"):
        voxels = np.arange(64, dtype=np.int16).reshape(4, 4, 4)
        nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / "studies" / f"{name}.nii.gz")
    ServerState(tmp_path / "state").set_up()
    return tmp_path


def save(datastore: SavedLabels, image: str, organ: str, folder: Path, value: int = 1, **more: Any) -> None:
    labels = np.zeros((4, 4, 4), np.uint8)
    labels[1:3] = value
    nib.save(nib.Nifti1Image(labels, np.eye(4)), folder / "sent.nii.gz")
    info = {"label_info": [{"name": organ, "idx": value}], **more}
    datastore.save_label(image, str(folder / "sent.nii.gz"), FINAL, info)


def listed(folder: Path) -> dict[str, Any]:
    objects: dict[str, Any] = json.loads((folder / "studies" / "datastore_v2.json").read_text())["objects"]
    return {name: entry["labels"][FINAL]["info"]["label_info"][0]["name"] for name, entry in objects.items()
            if FINAL in entry["labels"]}  # fmt: skip


def test_processes_do_not_forget_what_others_saved(folder: Path) -> None:
    one, other = open_folder(folder), open_folder(folder)
    save(one, "a", "liver", folder)
    save(other, "b", "spleen", folder)  # which has not seen the first
    one.update_image_info("c", {"dice": 1})
    other.update_image_info("c", {"plausibility": 2})
    assert listed(folder) == {"a": "liver", "b": "spleen"}
    fresh = open_folder(folder)
    assert fresh.get_image_info("c")["dice"] == 1
    assert fresh.get_image_info("c")["plausibility"] == 2


def test_a_map_has_its_own_names_whatever_the_list_says(folder: Path, tmp_path: Path) -> None:
    datastore = open_folder(folder)
    save(datastore, "a", "aorta", folder, value=8)
    assert embedded_info(datastore.get_label_uri("a", FINAL)) == {
        "label_info": [{"name": "aorta", "idx": 8}], "complete": False,
    }  # fmt: skip
    datastore.update_label_info("a", FINAL, {"label_info": [{"name": "pancreas", "idx": 8}]})
    (tmp_path / "snapshot").mkdir()
    (found,), refused = saved_annotations(datastore, datastore.state, tmp_path / "snapshot")
    assert (found.labelled, refused) == (["aorta"], [])


def test_a_map_that_is_sent_again_has_the_names_that_come_with_it(folder: Path, tmp_path: Path) -> None:
    datastore = open_folder(folder)
    save(datastore, "a", "aorta", folder)
    fetched = tmp_path / "fetched.nii.gz"  # with its older names inside, as nibabel keeps them
    fetched.write_bytes(Path(datastore.get_label_uri("a", FINAL)).read_bytes())
    datastore.save_label("a", str(fetched), FINAL, {"label_info": [{"name": "pancreas", "idx": 1}]})
    datastore.save_label("b", str(fetched), FINAL, {})
    (tmp_path / "snapshot").mkdir()
    found, refused = saved_annotations(datastore, datastore.state, tmp_path / "snapshot")
    assert {one.case: one.labelled for one in found} == {"a": ["pancreas"], "b": []}
    assert refused == []


def test_a_save_replaces_the_one_before_in_any_format(folder: Path) -> None:
    datastore = open_folder(folder)
    save(datastore, "a", "liver", folder)
    import itk

    itk.imwrite(itk.imread(str(folder / "sent.nii.gz")), str(folder / "sent.nrrd"))
    datastore.save_label("a", str(folder / "sent.nrrd"), FINAL, {"label_info": [{"name": "spleen", "idx": 1}]})
    assert [path.name for path in (folder / "studies" / "labels" / FINAL).iterdir()] == ["a.nii.gz"]
    assert listed(folder) == {"a": "spleen"}


def test_what_others_put_into_the_folder_shows(folder: Path) -> None:
    datastore = open_folder(folder)
    assert sorted(datastore.list_images()) == ["a", "b", "c"]
    (folder / "studies" / "d.nii.gz").write_bytes((folder / "studies" / "a.nii.gz").read_bytes())
    assert sorted(datastore.list_images()) == ["a", "b", "c", "d"]
    (folder / "studies" / "b.nii.gz").unlink()
    assert sorted(datastore.list_images()) == ["a", "c", "d"]
    save(open_folder(folder), "a", "liver", folder)
    assert datastore.get_labeled_images() == ["a"]
    Path(datastore.get_label_uri("a", FINAL)).unlink()
    assert datastore.get_labeled_images() == []


def test_an_image_with_labels_is_not_replaced(folder: Path) -> None:
    datastore = open_folder(folder)
    save(datastore, "a", "liver", folder)
    with pytest.raises(InputError, match="with labels"):
        datastore.add_image("a", str(folder / "studies" / "b.nii.gz"), {})
    assert datastore.add_image("d", str(folder / "studies" / "b.nii.gz"), {}) == "d"


@pytest.mark.parametrize("tag", ["../../out", "", "a b", None])
def test_a_tag_is_no_path(folder: Path, tag: Any) -> None:
    datastore = open_folder(folder)
    with pytest.raises(InputError, match="tag"):
        datastore.save_label("a", str(folder / "studies" / "b.nii.gz"), tag, {})
    assert not (folder.parent / "out").exists()


def test_a_linked_image_keeps_its_name(folder: Path, tmp_path: Path) -> None:
    (folder / "studies" / "patient.nii.gz").symlink_to(folder / "studies" / "b.nii.gz")
    datastore = open_folder(folder)
    save(datastore, "patient", "liver", folder)
    (tmp_path / "snapshot").mkdir()
    (found,), _ = saved_annotations(datastore, datastore.state, tmp_path / "snapshot")
    assert (found.case, found.labelled) == ("patient", ["liver"])


def test_what_cannot_be_used_is_named(folder: Path, tmp_path: Path) -> None:
    datastore = open_folder(folder)
    save(datastore, "a", "liver", folder)
    save(datastore, "b", "spleen", folder)
    Path(datastore.get_label_uri("a", FINAL)).write_bytes(b"broken")
    (tmp_path / "snapshot").mkdir()
    (found,), (sentence,) = saved_annotations(datastore, datastore.state, tmp_path / "snapshot")
    assert found.case == "b"
    assert sentence.startswith("a: left out")
