# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""MONAI Label's datastore over DICOMweb, so that an organ never gets a wrong name.

Images are the CT series of the archive, labels its DICOM SEGs; the newest SEG of a series counts. What is fetched is
kept in a folder as MONAI Label keeps it. Every question is asked anew: series and SEGs show up as they arrive.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dicomweb_client import DICOMwebClient
from monailabel.config import settings
from monailabel.datastore.dicom import DICOMWebDatastore
from monailabel.datastore.local import LocalDatastore
from monailabel.datastore.utils.convert import binary_to_image

from bundle.errors import InputError
from bundle.organs import WHOLE_VOCABULARY
from bundle.scans.reading import read_scan
from bundle.scans.writing import write_label_map, write_nifti
from label.annotations import is_complete
from label.client import StoredSeg, check_uid, connect, download, find_segs, find_series, store_seg
from label.datastore import FINAL, CarefulFiles
from label.segs import read_seg, read_series_grid, seg_of_label

__all__ = ["OrganDatastore", "open_archive"]

logger = logging.getLogger(__name__)

IMAGE_ENDINGS = (".nii.gz", ".nii", ".nrrd")
DESCRIBED = ("StudyDate", "StudyTime", "Modality", "RetrieveURL", "PatientID", "StudyInstanceUID")


def open_archive(url: str, cache_path: str | None = None) -> OrganDatastore:
    """The datastore of a DICOMweb server; nothing else is asked, and no program is fetched from the network.

    Args:
        url: of the server, such as `http://127.0.0.1:8042/dicom-web`.
        cache_path: where files are kept; MONAI Label's setting, or its folder in the home, where it is None.

    Raises:
        InputError: when there is no DICOMweb server.
    """
    return OrganDatastore(
        connect(url.strip().rstrip("/")),
        search_filter=settings.MONAI_LABEL_DICOMWEB_SEARCH_FILTER,
        cache_path=cache_path or settings.MONAI_LABEL_DICOMWEB_CACHE_PATH.strip() or None,
        fetch_by_frame=settings.MONAI_LABEL_DICOMWEB_FETCH_BY_FRAME,
        convert_to_nifti=settings.MONAI_LABEL_DICOMWEB_CONVERT_TO_NIFTI,
    )


class OrganDatastore(CarefulFiles, DICOMWebDatastore):
    """The stock datastore's arguments and files, with our own way from label maps to DICOM SEG and back.

    Args:
        client: of the archive.
        search_filter: which series are images.
        cache_path: where files are kept.
        fetch_by_frame: for archives that do not hand out whole files.
        convert_to_nifti: whether an image's address is a NIfTI file, else the folder of its series.
    """

    def __init__(
        self,
        client: DICOMwebClient,
        search_filter: dict[str, Any],
        cache_path: str | None = None,
        fetch_by_frame: bool = False,
        convert_to_nifti: bool = True,
    ) -> None:
        self._known_segs: dict[str, StoredSeg | None] = {}
        super().__init__(client, search_filter, cache_path, fetch_by_frame, convert_to_nifti)
        self._stop_watching()

    def _stop_watching(self) -> None:
        """End the thread that looks for files which others put into the folder: nobody does.

        It would empty and fill the list of images while requests read it.
        """
        self._auto_reload = False
        observer = getattr(self, "_observer", None)
        if observer is not None and observer.is_alive():
            observer.stop()
            observer.join()

    def _to_id(self, file: str) -> tuple[str, str]:
        """Name and ending of a file; UIDs are full of dots."""
        ending = next((ending for ending in IMAGE_ENDINGS if file.endswith(ending)), "")
        return (file.removesuffix(ending), ending) if ending else LocalDatastore._to_id(self, file)

    # --- Images ------------------------------------------------------------------------------------------------------
    def list_images(self) -> list[str]:
        """Series of the archive that match the filter."""
        filters = {name: str(value) for name, value in self._search_filter.items()}
        return [str(found.SeriesInstanceUID) for found in find_series(self._client, **filters)]

    def get_image_uri(self, image_id: str) -> str:
        """The image as NIfTI, or the folder of its series; fetched where it is not there yet."""
        folder = self.series_folder(image_id)
        if not self._convert_to_nifti:
            return str(folder)
        file = folder.with_name(f"{image_id}.nii.gz")
        if not file.exists() or image_id not in self._datastore.objects:
            scan = read_scan(folder)
            with tempfile.TemporaryDirectory() as temporary:
                write_nifti(Path(temporary, file.name), scan.voxels, scan.affine)
                self.add_image(image_id, str(Path(temporary, file.name)), self._dicom_info(image_id))
        return str(file)

    def series_folder(self, image_id: str) -> Path:
        """The folder with the DICOM files of an image."""
        folder = Path(self._datastore.image_path(), check_uid(image_id)).resolve()
        if not folder.is_dir():
            study = self._dicom_info(image_id)["StudyInstanceUID"]
            download(self._client, study, image_id, folder, self._fetch_by_frame)
        return folder

    def remove_image(self, image_id: str) -> None:
        """Refused: it would come back with the next question."""
        raise InputError(f"{self.name()}: images are the archive's; delete series {image_id} there")

    def _dicom_info(self, series_id: str) -> dict[str, Any]:
        found = find_series(self._client, SeriesInstanceUID=check_uid(series_id))
        if not found:
            raise InputError(f"{self.name()}: has no series {series_id}; choose one that is there")
        described = {name: str(found[0].get(name) or "UNK") for name in DESCRIBED}
        return {"SeriesInstanceUID": series_id, **described}

    # --- Labels that are there ---------------------------------------------------------------------------------------
    def get_labeled_images(self, label_tag: str | None = None, labels: list[str] | None = None) -> list[str]:
        """Images with a SEG in the archive."""
        labeled = {seg.image for seg in self.find_segs()}
        return [image for image in self.list_images() if image in labeled]

    def get_unlabeled_images(self, label_tag: str | None = None, labels: list[str] | None = None) -> list[str]:
        """Images without a SEG in the archive."""
        labeled = {seg.image for seg in self.find_segs()}
        return [image for image in self.list_images() if image not in labeled]

    def find_segs(self, study: str | None = None) -> list[StoredSeg]:
        """The SEGs of the archive, or of a study."""
        return find_segs(self._client, self._known_segs, study)

    def get_label_uri(self, label_id: str, label_tag: str, image_id: str = "") -> str:
        """The label map as a file, empty where there is none; a final one is that of the newest SEG.

        Args:
            label_id: UID of the image, as MONAI Label's clients have it, or of the SEG's series.
            label_tag: which of its labels.
            image_id: UID of the image, where label_id is not.
        """
        if label_tag == FINAL:
            image_id = image_id or self._image_of(label_id)
            self._refresh(image_id)
        return LocalDatastore.get_label_uri(self, image_id or label_id, label_tag)

    def get_label_info(self, label_id: str, label_tag: str) -> dict[str, Any]:
        """What is known of a label; ``label_info`` names its values."""
        if label_tag == FINAL:
            label_id = self._image_of(label_id)
            self._refresh(label_id)
        return LocalDatastore.get_label_info(self, label_id, label_tag)

    def get_labels_by_image_id(self, image_id: str) -> dict[str, str]:
        """Tags of an image's labels; a SEG that only the archive has is among them."""
        self._refresh(image_id)
        return LocalDatastore.get_labels_by_image_id(self, image_id)

    def datalist(self, full_path: bool = True) -> list[dict[str, Any]]:
        """Images and label maps for training, all of them fetched; what cannot be read is left out with a warning."""
        self._init_from_datastore_file()
        images = set(self.list_images())
        newest = newest_by_image(seg for seg in self.find_segs() if seg.image in images)
        for image_id in LocalDatastore.get_labeled_images(self):
            if image_id not in newest:
                self._drop_label(image_id)
        for image_id, seg in newest.items():
            try:
                self._fetch_label(image_id, seg)
            except InputError as error:
                logger.warning("%s: its SEG is left out: %s", image_id, error)
                self._drop_label(image_id)
        return LocalDatastore.datalist(self, full_path)

    def _image_of(self, label_id: str) -> str:
        """The image of a label that is named by its image or by its own series."""
        if check_uid(label_id) in self._datastore.objects:
            return label_id
        return next((seg.image for seg in self.find_segs() if seg.series == label_id), label_id)

    def _refresh(self, image_id: str) -> None:
        """Let the final label be that of the newest SEG; none where the archive has none."""
        self._init_from_datastore_file()  # a training in another process may have fetched it
        info = self.get_image_info(check_uid(image_id)) or self._dicom_info(image_id)
        study = info.get("StudyInstanceUID") or self._dicom_info(image_id)["StudyInstanceUID"]
        newest = newest_by_image(self.find_segs(study)).get(image_id)
        if newest is None:
            self._drop_label(image_id)
        else:
            self._fetch_label(image_id, newest)

    def _fetch_label(self, image_id: str, seg: StoredSeg) -> None:
        """Read a SEG into the final label map of its image, unless that was made from it or it from that."""
        label = self._datastore.label(image_id, FINAL)
        file = LocalDatastore.get_label_uri(self, image_id, FINAL)
        if label is not None and label.info.get("SeriesInstanceUID") == seg.series and Path(file).exists():
            return
        series = read_series_grid(self.series_folder(image_id))
        self.get_image_uri(image_id)
        with tempfile.TemporaryDirectory() as temporary:
            folder = download(self._client, seg.study, seg.series, Path(temporary, seg.series))
            (seg_file,) = sorted(folder.iterdir())[-1:]
            labels, label_info = read_seg(seg_file, series)
            write_label_map(Path(temporary, "label.nii.gz"), labels, series.affine, WHOLE_VOCABULARY)
            self._drop_label(image_id)
            info = {**self._dicom_info(seg.series), "label_info": label_info}
            self.keep_label(image_id, str(Path(temporary, "label.nii.gz")), FINAL, info)

    def _drop_label(self, image_id: str) -> None:
        """Forget the final label of an image and delete its file; the archive keeps what it has."""
        file = LocalDatastore.get_label_uri(self, image_id, FINAL)
        if file:
            self._datastore.objects[image_id].labels.pop(FINAL, None)
            self._update_datastore_file()
            Path(file).unlink(missing_ok=True)

    # --- Labels that are saved ---------------------------------------------------------------------------------------
    def save_label(
        self, image_id: str, label_filename: str, label_tag: str, label_info: dict[str, Any], label_id: str = ""
    ) -> str:
        """Keep a label map; a final one becomes a DICOM SEG of the archive first.

        Args:
            image_id: UID of the image.
            label_filename: the label map, on the image's grid.
            label_tag: which of its labels.
            label_info: ``label_info`` in it names the values of a final label map by ``idx``.
            label_id: not used, as MONAI Label's.

        Raises:
            InputError: for a final label map with a value that has no name, or none of the vocabulary, or on another
                grid; then nothing is stored.
        """
        self._init_from_datastore_file()
        image_file = self.get_image_uri(image_id)
        info = dict(label_info or {})
        made = ""
        try:
            if label_filename.endswith(".bin"):
                made = label_filename = binary_to_image(image_file, label_filename)
            if label_tag == FINAL:
                is_complete(info)  # refused before anything is stored, if it is neither yes nor no
                info |= self._store(image_id, label_filename, info)
                self._drop_label(image_id)
            return self.keep_label(image_id, label_filename, label_tag, info)
        finally:
            if made:
                Path(made).unlink(missing_ok=True)

    def _store(self, image_id: str, label_filename: str, info: dict[str, Any]) -> dict[str, Any]:
        """Store a label map as a SEG; what is known of that."""
        names = info.get("label_info") or []
        seg = seg_of_label(self.series_folder(image_id), label_filename, names, reviewed=True)
        try:
            series = store_seg(self._client, seg)
        finally:
            Path(seg).unlink(missing_ok=True)
        image_info = self.get_image_info(image_id)
        kept = {name: image_info.get(name) for name in ("Modality", "PatientID", "StudyInstanceUID")}
        return {"SeriesInstanceUID": series, **kept}

    def remove_label(self, label_id: str, label_tag: str) -> None:
        """Delete a label map; a final one is the archive's, and would come back from there."""
        if label_tag == FINAL:
            seg = LocalDatastore.get_label_info(self, label_id, FINAL).get("SeriesInstanceUID", "of this image")
            raise InputError(f"{self.name()}: final labels are the archive's; delete SEG series {seg} there")
        LocalDatastore.remove_label(self, label_id, label_tag)


def newest_by_image(segs: Iterable[StoredSeg]) -> dict[str, StoredSeg]:
    """The SEG of each image that was written last."""
    return {seg.image: seg for seg in sorted(segs, key=lambda seg: (seg.written, seg.series))}
