# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""MONAI Label's datastore of files, with care: what annotators save is whole, and never mixed with other saves.

The server and its tasks are several processes that all write one list of images and labels. MONAI Label writes its own
copy of the whole list each time; here each write begins with what is on the disk.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from monailabel.datastore.local import DataModel, ImageLabelModel, LocalDatastore, LocalDatastoreModel
from monailabel.interfaces.datastore import DefaultLabelTag
from monailabel.interfaces.exception import ImageNotFoundException, LabelNotFoundException

from bundle.errors import InputError
from bundle.files import make_folder, whole_file, write_text
from bundle.untrusted import shown
from label.annotations import embed_info, embedded_info, read_annotation
from label.state import ServerState

__all__ = ["FINAL", "CarefulFiles", "SavedLabels", "check_tag"]

FINAL = DefaultLabelTag.FINAL.value
TAG = re.compile(r"[A-Za-z0-9_-]{1,40}")


def check_tag(tag: Any) -> str:
    """A tag becomes the name of a folder.

    Raises:
        InputError: when it is anything else.
    """
    text = getattr(tag, "value", tag)
    if not isinstance(text, str) or not TAG.fullmatch(text):
        raise InputError(f"tag: expected letters, digits, - and _, found {shown(tag)}")
    return text


class CarefulFiles(LocalDatastore):
    """A datastore whose writes are whole, and merged with what other processes wrote."""

    _inside = False  # whether this process is changing the list now

    @contextmanager
    def changing(self) -> Iterator[LocalDatastoreModel]:
        """The list of images and labels as it is on the disk, to be changed by one process at a time."""
        with FileLock(self._lock_file):
            path = Path(self._datastore_config_path)
            if path.is_file():
                self._datastore = LocalDatastoreModel.model_validate_json(path.read_text())
                self._datastore.base_path = self._datastore_path
            self._inside = True
            try:
                yield self._datastore
            finally:
                self._inside = False
            self._write_list()

    def _reconcile_datastore(self) -> None:
        with self.changing():
            super()._reconcile_datastore()

    def _init_from_datastore_file(self, throw_exception: bool = False) -> None:
        if not self._inside:
            super()._init_from_datastore_file(throw_exception)

    def _update_datastore_file(self, lock: bool = True) -> None:
        if self._inside:
            return  # it is written when all is done
        with FileLock(self._lock_file):
            self._write_list()

    def _write_list(self) -> None:
        path = Path(self._datastore_config_path)
        self._ignore_event_config = True
        write_text(path, self._datastore.model_dump_json(exclude={"base_path"}, indent=2))
        self._config_ts = path.stat().st_mtime

    def add_image(self, image_id: str, image_filename: str, image_info: dict[str, Any]) -> str:
        """Take an image over; one that is there keeps its labels, so it is not replaced by another."""
        name, ending = self._to_id(Path(image_filename).name)
        image_id = image_id or name
        there = self._datastore.objects.get(image_id)
        if there is not None and there.labels:
            raise InputError(f"{image_id}: there is an image of this name with labels; give the new one another name")
        target = Path(self._datastore.image_path(), f"{image_id}{ending}")
        with self.changing() as listed:
            with whole_file(target) as unfinished:
                shutil.copyfile(image_filename, unfinished)
            info = {**(image_info or {}), "ts": int(time.time()), "name": target.name}
            listed.objects[image_id] = ImageLabelModel(image=DataModel(info=info, ext=ending))
        return image_id

    def keep_label(self, image_id: str, label_filename: str, label_tag: str, label_info: dict[str, Any]) -> str:
        """Keep a label map as it is; the file takes its place in one step, and others of this tag go."""
        tag, (_, ending) = check_tag(label_tag), self._to_id(Path(label_filename).name)
        with self.changing() as listed:
            image = listed.objects.get(image_id)
            if image is None:
                raise ImageNotFoundException(f"Image {image_id} not found")
            target = Path(listed.label_path(tag), f"{image_id}{ending}")
            make_folder(target.parent)
            with whole_file(target) as unfinished:
                shutil.copyfile(label_filename, unfinished)
            before = image.labels.get(tag)
            if before is not None and before.ext != ending:
                target.with_name(f"{image_id}{before.ext}").unlink(missing_ok=True)
            info = {**(label_info or {}), "ts": int(time.time()), "name": target.name}
            image.labels[tag] = DataModel(info=info, ext=ending)
        return image_id

    def save_label(self, image_id: str, label_filename: str, label_tag: str, label_info: dict[str, Any]) -> str:
        return self.keep_label(image_id, label_filename, label_tag, label_info)

    def said_of(self, image_id: str, label: str | Path) -> dict[str, Any]:
        """What a client said about the final label map of an image, of which ``label`` is a copy."""
        return dict(self.get_label_info(image_id, FINAL))

    def update_image_info(self, image_id: str, info: dict[str, Any]) -> None:
        with self.changing() as listed:
            image = listed.objects.get(image_id)
            if image is None:
                raise ImageNotFoundException(f"Image {image_id} not found")
            image.image.info.update(info)

    def update_label_info(self, label_id: str, label_tag: str, info: dict[str, Any]) -> None:
        with self.changing() as listed:
            label = listed.label(label_id, label_tag)
            if label is None:
                raise LabelNotFoundException(f"Label: {label_id} Tag: {label_tag} not found")
            label.info.update(info)


def look_first(name: str) -> Callable[..., Any]:
    """A method of the datastore that first looks what others have changed in the folder."""

    def method(self: SavedLabels, *arguments: Any, **options: Any) -> Any:
        self.look()
        return getattr(CarefulFiles, name)(self, *arguments, **options)

    return method


class SavedLabels(CarefulFiles):
    """A folder of scans. A final label map is kept with its names inside, once it is clear what it says.

    MONAI Label has a thread that watches the folder; it empties and fills the list while requests read it. Here a
    request looks for itself, which takes a few questions to the file system.

    Args:
        folder: of the scans.
        extensions: of their files.
        state: of the server.
    """

    def __init__(self, folder: str, extensions: Sequence[str], state: ServerState) -> None:
        self.state = state
        self.seen: list[int] = []
        super().__init__(folder, extensions=list(extensions), auto_reload=False)

    list_images = look_first("list_images")
    get_labeled_images = look_first("get_labeled_images")
    get_unlabeled_images = look_first("get_unlabeled_images")
    get_image_uri = look_first("get_image_uri")
    get_image_info = look_first("get_image_info")
    get_label_uri = look_first("get_label_uri")
    get_label_info = look_first("get_label_info")
    get_labels_by_image_id = look_first("get_labels_by_image_id")
    status = look_first("status")
    json = look_first("json")

    def said_of(self, image_id: str, label: str | Path) -> dict[str, Any]:
        """What stands in the file itself; of a map that others put there, what the list says."""
        return embedded_info(label) or super().said_of(image_id, label)

    def look(self) -> None:
        """Take over what changed in the folder since the last look."""
        if self.seen != self.times():
            self._reconcile_datastore()
            self.seen = self.times()

    def times(self) -> list[int]:
        """When the list, the folder and those of the labels were last changed."""
        labels = Path(self._datastore.label_path(None))
        places = [Path(self._datastore_config_path), Path(self._datastore.image_path()), labels, *labels.iterdir()]
        return [place.stat().st_mtime_ns for place in places if place.exists()]

    def save_label(self, image_id: str, label_filename: str, label_tag: str, label_info: dict[str, Any]) -> str:
        if label_tag != FINAL or image_id not in self._datastore.objects:
            return self.keep_label(image_id, label_filename, label_tag, label_info)
        info = label_info or {}
        image = self.get_image_uri(image_id)
        said = read_annotation(image_id, image, label_filename, info, self.state.vocabulary)
        with tempfile.TemporaryDirectory() as folder:
            whole = Path(folder, "label.nii.gz")
            # also where no names came: a map that was fetched from here and sent again has older ones inside
            embed_info(said, whole, named=info.get("label_info") is not None)
            return self.keep_label(image_id, str(whole), label_tag, info)
