# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What an adapter is: the description of a public dataset, and how the files of its official download are read."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.organs import ORGANS
from bundle.scans.finding import Source
from bundle.scans.grids import same_grid
from bundle.scans.reading import Scan, read_label_map

__all__ = [
    "ALL_ORGANS",
    "Adapter",
    "Annotation",
    "LeftOutError",
    "RawCase",
    "as_bytes",
    "find_files",
    "merge_masks",
    "natural_order",
    "pair_files",
    "read_pair",
]

ALL_ORGANS: dict[int, str] = {0: "background", **{organ.value: organ.name for organ in ORGANS}}


@dataclass(frozen=True)
class RawCase:
    """A case as it was downloaded.

    Args:
        name: unique in its dataset.
        image: a file, the folder of a DICOM series, or the files of one.
        labels: the files that annotate it; none for an unlabelled case.
        patient: where several cases may be of one person; the case itself if empty.
        section: `training` or `test`, as the dataset's makers split it.
        labelled: the organs annotated in it, where these are not all of the dataset's.
    """

    name: str
    image: Path | Source
    labels: tuple[Path, ...] = ()
    patient: str = ""
    section: str = "training"
    labelled: tuple[str, ...] | None = None

    @property
    def path(self) -> Path:
        """The file or folder of the image."""
        return self.image.path if isinstance(self.image, Source) else self.image


@dataclass
class Annotation:
    """A label map made from a case's files.

    Args:
        labels: X×Y×Z on the grid of ``affine``; values as in the adapter's ``labels``.
        affine: 4×4, voxel to RAS in mm; that of the image.
        labelled: the organs annotated in this case, where these are not all of the dataset's.
        notes: what a person should know about the case, one sentence each.
    """

    labels: NDArray[np.uint8]
    affine: NDArray[np.float64]
    labelled: list[str] | None = None
    notes: list[str] = field(default_factory=list)


class LeftOutError(Exception):
    """A case that cannot be used, though nothing is wrong with it; the message says why."""


class Adapter(ABC):
    """A public dataset. Subclasses say what it is and which files of its download belong together.

    Images in NIfTI are referred to, never copied; others are converted. A label map in NIfTI whose values have a name
    in ``labels`` is referred to as well; where that is not enough, `annotate` makes one.
    """

    name: ClassVar[str]  # on the command line
    title: ClassVar[str]
    labels: ClassVar[dict[int, str]]  # `labels` of the dataset.json: what each value of a label map means
    cases: ClassVar[int]  # labelled ones in the official download
    license: ClassVar[str]
    url: ClassVar[str]
    registration: ClassVar[bool]  # whether one must sign up, or sign, to get it
    layout: ClassVar[str]  # the files that show that a folder is this dataset
    seen: ClassVar[bool] = False  # tried on the real download, else built from its description
    fixes: ClassVar[str] = ""  # what is not as one would expect, and is put right

    @abstractmethod
    def find(self, source: Path) -> list[RawCase]:
        """The cases below ``source``, the folder of the download at whatever level; may be empty."""

    def annotate(self, case: RawCase, read_image: Callable[[], Scan]) -> Annotation | None:
        """The label map of a labelled case; None to refer to its one label file.

        Args:
            case: from `find`.
            read_image: reads the image; the second call costs nothing.

        Raises:
            InputError: when the files do not fit together.
            LeftOutError: when the case is of no use.
        """
        return None

    def find_cases(self, source: Path) -> list[RawCase]:
        """What `find` finds, in order; names are unique.

        Raises:
            InputError: when there is nothing, or a name twice.
        """
        if not source.is_dir():
            raise InputError(f"{source}: no such folder; give the folder that the download of {self.title} unpacks to")
        found = sorted(self.find(source), key=lambda case: natural_order(case.name))
        if not any(case.labels for case in found):
            raise InputError(
                f"{source}: expected the official download of {self.title} with {self.layout}, found no labelled case"
                f"; unpack it there, get it at {self.url}, or choose another NAME (`prepare --datasets`)"
            )
        for one, other in pairwise(found):
            if one.name == other.name:
                raise InputError(
                    f"{other.path}: case {other.name} is there twice, also as {one.path}; keep one of them"
                )
        return found


def natural_order(text: str) -> list[tuple[int, str]]:
    """Sorts `case2` before `case10`."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", text)]


def find_files(source: Path, pattern: str) -> dict[str, Path]:
    """Files below ``source`` whose path, `/` between its parts, ends in a match of ``pattern``, by its first group.

    Hidden files are left out: the archives of the Decathlon are full of `._` twins.

    Raises:
        InputError: when two files have one key.
    """
    ending = re.compile(rf"(?:^|/){pattern}$")
    found: dict[str, Path] = {}
    for path in sorted(source.rglob("*")):
        parts = path.relative_to(source).parts
        # the path with its folders above too, so that any level of the download can be given
        match = None if any(part.startswith(".") for part in parts) else ending.search(path.absolute().as_posix())
        if match is None:
            continue
        if match[1] in found:
            raise InputError(f"{path}: is there twice, also as {found[match[1]]}; keep one download in {source}")
        found[match[1]] = path
    return found


def pair_files(source: Path, image: str, label: str = "", section: str = "training", prefix: str = "") -> list[RawCase]:
    """A case for each image below ``source``, with the label map that has the same key, if there is one.

    Args:
        source: where to look.
        image: pattern of the images' paths as in `find_files`; its first group is the key.
        label: pattern of the label maps' paths, with the same key; empty where there are none.
        section: of all of these cases.
        prefix: before the key makes the case's name.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     for name in ("img1.nii.gz", "img2.nii.gz", "label2.nii.gz"):
    ...         Path(folder, name).touch()
    ...     cases = pair_files(Path(folder), "img([0-9]+).nii.gz", "label([0-9]+).nii.gz", prefix="case")
    >>> [(case.name, len(case.labels)) for case in cases]
    [('case1', 0), ('case2', 1)]
    """
    labels = find_files(source, label) if label else {}
    return [
        RawCase(prefix + key, path, (labels[key],) if key in labels else (), section=section)
        for key, path in find_files(source, image).items()
    ]


def read_pair(case: RawCase, read_image: Callable[[], Scan]) -> tuple[Scan, Scan]:
    """The image and the one label map of a case.

    Raises:
        InputError: when they are not on one grid.
    """
    image, label = read_image(), read_label_map(case.labels[0])
    if not same_grid(image, label):
        raise InputError(f"{label.path}: is not on the grid of its image {image.path}; unpack the download again")
    return image, label


def as_bytes(label: Scan) -> NDArray[np.uint8]:
    """The values of a label map, none of which is above 255."""
    if label.voxels.max() > 255:
        raise InputError(
            f"{label.path}: expected values up to 255, found {label.voxels.max()}; unpack the download again"
        )
    return label.voxels.astype(np.uint8)


def merge_masks(masks: dict[int, Path]) -> Annotation:
    """One label map of several files that mark one structure each; where two overlap, the greater value stays.

    Args:
        masks: the file of each value; every voxel that is not 0 is marked.
    """
    first: Scan | None = None
    for value, path in sorted(masks.items()):
        mask = read_label_map(path)
        if first is None:
            first, labels = mask, np.zeros(mask.voxels.shape, np.uint8, order="F")
        if not same_grid(first, mask):
            raise InputError(f"{path}: is not on the grid of {first.path}; unpack the download again")
        labels[mask.voxels > 0] = value
    if first is None:
        raise InputError("no file marks a structure; unpack the download again")
    return Annotation(labels, first.affine)
