# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""CHAOS, the CT part: a DICOM series for each patient and a PNG of the liver for each slice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bundle.cohorts.adapters.base import Adapter, Annotation, RawCase, find_files, natural_order
from bundle.errors import InputError
from bundle.scans.dicom import decode, open_with_itk
from bundle.scans.finding import Source
from bundle.scans.reading import Scan

__all__ = ["Chaos"]


class Chaos(Adapter):
    name = "chaos"
    title = "CHAOS, CT"
    labels: ClassVar[dict[int, str]] = {0: "background", 1: "liver"}
    cases = 20
    license = "CC BY-NC-SA 4.0"
    url = "https://zenodo.org/records/3431873"
    registration = False
    layout = "Train_Sets/CT/1/DICOM_anon/*.dcm and Train_Sets/CT/1/Ground/liver_GT_000.png"
    fixes = (
        "DICOM is converted. The PNGs belong to the slices in the order of the file names, which runs from the head "
        "down or from the feet up; the DICOM positions say where each lies. MR is left out. `Test_Sets` are the "
        "section `test`."
    )

    def find(self, source: Path) -> list[RawCase]:
        def series(folder: str) -> dict[str, Path]:
            return find_files(source, rf"{folder}/CT/(\d+)/DICOM_anon")

        training = [RawCase(f"CT_{key}", slices(path), pictures(path)) for key, path in series("Train_Sets").items()]
        test = [RawCase(f"CT_{key}", slices(path), section="test") for key, path in series("Test_Sets").items()]
        return training + test

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        image = read_image()
        if len(case.labels) != len(image.slices):
            raise InputError(
                f"{case.labels[0].parent}: expected a PNG for each of the {len(image.slices)} slices in {case.path}, "
                f"found {len(case.labels)}; unpack the download again"
            )
        labels = np.zeros(image.voxels.shape, np.uint8, order="F")
        place = {file: index for index, file in enumerate(image.slices)}
        by_name = sorted(image.slices, key=lambda file: natural_order(Path(file).name))
        for picture, file in zip(case.labels, by_name, strict=True):
            labels[:, :, place[file]] = read_picture(picture, image)
        return Annotation(labels, image.affine)


def slices(series: Path) -> Source:
    """All files of a folder as one series: anonymization may have given them several."""
    return Source(series, tuple(str(path) for path in sorted(series.glob("[!.]*.dcm"))))


def pictures(series: Path) -> tuple[Path, ...]:
    """The PNGs beside a training series, in the order of their numbers."""
    found = [path for path in (series.parent / "Ground").glob("*.png") if not path.name.startswith(".")]
    return tuple(sorted(found, key=lambda path: natural_order(path.name)))


def read_picture(path: Path, image: Scan) -> NDArray[np.bool_]:
    """Columns × rows, as the slices of a `Scan`; every pixel that is not 0 is liver."""
    pixels = decode(path, open_with_itk(path, "PNGImageIO"))[:, :, 0]
    columns, rows = image.voxels.shape[:2]
    if pixels.shape != (columns, rows):
        raise InputError(
            f"{path}: expected {columns}×{rows} pixels as in the CT slices, found {pixels.shape[0]}×{pixels.shape[1]}; "
            "unpack the download again"
        )
    marked: NDArray[np.bool_] = pixels > 0
    return marked
