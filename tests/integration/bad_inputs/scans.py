# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Bad scans and label maps: files that are broken, headers that lie, series with gaps, voxels that are no CT."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from tests.integration.bad_inputs.record import CHECK, EVALUATING, SEGMENT, TRAINING, BadInput, Plant, bundle_command
from tests.scan_files import save_mha, save_multiframe, save_series

__all__ = ["SCANS"]

IMAGE = "data/spleen/imagesTr/spleen_000.nii.gz"
LABEL = "data/spleen/labelsTr/spleen_000.nii.gz"
FULL_LABEL = "data/full/labelsTr/full_000.nii.gz"
SIZE, KIND, SLOPE, FIRST_AXIS = 42, 70, 112, 280  # where a NIfTI header has them
Voxels = NDArray[Any]


# --- Faults of NIfTI files -------------------------------------------------------------------------------------------
def voxels(change: Callable[[Voxels], Voxels], name: str = "scan.nii.gz", kind: type | None = None) -> Plant:
    """Other voxels under the same affine."""

    def plant(folder: Path) -> None:
        image = nib.load(folder / name)
        changed = change(np.asanyarray(image.dataobj).copy())
        nib.save(nib.Nifti1Image(changed.astype(kind or changed.dtype), image.affine), folder / name)

    return plant


def with_value(value: float, kind: type = np.float32) -> Callable[[Voxels], Voxels]:
    def change(old: Voxels) -> Voxels:
        new: Voxels = old.astype(kind)
        new[3, 3, 3] = value
        return new

    return change


def affine(change: Callable[[Voxels], Voxels], name: str = "scan.nii.gz") -> Plant:
    """The same voxels under another affine."""

    def plant(folder: Path) -> None:
        image = nib.load(folder / name)
        nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj), change(image.affine.copy())), folder / name)

    return plant


def scaled(*factors: float) -> Callable[[Voxels], Voxels]:
    return lambda old: old @ np.diag([*factors, 1])


def shifted(old: Voxels) -> Voxels:
    old[0, 3] += 40
    return old


def flattened(old: Voxels) -> Voxels:
    old[:3, 1] = old[:3, 0]
    return old


def header(offset: int, kind: str, *values: float, name: str = "scan.nii") -> Plant:
    """Bytes of an uncompressed NIfTI header that are overwritten: libraries would not write such a one."""

    def plant(folder: Path) -> None:
        image = nib.load(folder / "scan.nii.gz")
        nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj), image.affine), folder / name)
        (folder / "scan.nii.gz").unlink()
        content = bytearray((folder / name).read_bytes())
        content[offset : offset + struct.calcsize(kind)] = struct.pack(kind, *values)
        (folder / name).write_bytes(content)

    return plant


def content(data: bytes, name: str = "scan.nii.gz") -> Plant:
    def plant(folder: Path) -> None:
        (folder / name).write_bytes(data)

    return plant


def cut(name: str = "scan.nii.gz") -> Plant:
    def plant(folder: Path) -> None:
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])

    return plant


def damaged(folder: Path) -> None:
    whole = bytearray((folder / "scan.nii.gz").read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    (folder / "scan.nii.gz").write_bytes(whole)


def colors(folder: Path) -> None:
    kind = np.dtype([("R", "u1"), ("G", "u1"), ("B", "u1")])
    nib.save(nib.Nifti1Image(np.zeros((8, 8, 8), kind), np.eye(4)), folder / "scan.nii.gz")


def two_of_a_name(folder: Path) -> None:
    (folder / "scans").mkdir()
    (folder / "scan.nii.gz").rename(folder / "scans" / "ct.nii.gz")
    nib.save(nib.load(folder / "scans" / "ct.nii.gz"), folder / "scans" / "ct.nii")


def empty_folder(folder: Path) -> None:
    (folder / "scans").mkdir()


def only_text(folder: Path) -> None:
    empty_folder(folder)
    (folder / "scans" / "readme.txt").write_text("scans are elsewhere")


# --- Faults of DICOM series ------------------------------------------------------------------------------------------
def series(change: Callable[[Any, int], None] = lambda header, index: None, **options: Any) -> Plant:
    """A series of five slices in `scans` that is changed slice by slice."""

    def plant(folder: Path) -> None:
        save_series(folder / "scans", change=change, **options)

    return plant


def tags(**values: Any) -> Callable[[Any, int], None]:
    """Tags of the third slice."""

    def change(header: Any, index: int) -> None:
        for name, value in values.items() if index == 2 else ():
            setattr(header, name, value)

    return change


def all_tags(**values: Any) -> Callable[[Any, int], None]:
    def change(header: Any, index: int) -> None:
        for name, value in values.items():
            setattr(header, name, value)

    return change


def no_tag(name: str) -> Callable[[Any, int], None]:
    return lambda header, index: delattr(header, name)


def short_pixels(header: Any, index: int) -> None:
    if index == 2:
        header.PixelData = header.PixelData[:20]


def no_pixels(header: Any, index: int) -> None:
    if index == 2:
        del header.PixelData


def cut_slice(folder: Path) -> None:
    save_series(folder / "scans")
    cut("scans/002.dcm")(folder)


def junk_slice(folder: Path) -> None:
    save_series(folder / "scans")
    path = folder / "scans" / "002.dcm"
    path.write_bytes(path.read_bytes()[:140] + b"\xff" * 400)


def frames(folder: Path) -> None:
    save_multiframe(folder / "scan.dcm", [0, 3, 6], last_intercept=5)


def uneven_frames(folder: Path) -> None:
    save_multiframe(folder / "scan.dcm", [0, 3, 9], last_intercept=-100)


# --- Faults of MetaImage and NRRD files ------------------------------------------------------------------------------
def metaimage(**fields: object) -> Plant:
    return lambda folder: save_mha(folder / "scan.mha", **fields)  # type: ignore[arg-type]


def nrrd(text: str, data: bytes = bytes(1000)) -> Plant:
    return content(text.encode() + b"\n\n" + data, "scan.nrrd")


NRRD = (
    "NRRD0004\ntype: short\ndimension: 3\nsizes: {sizes}\nencoding: raw\nendian: little\n"
    "space: left-posterior-superior\nspace directions: ({x},0,0) (0,1,0) (0,0,1)\nspace origin: (0,0,0)"
)
MHD = b"ObjectType = Image\nNDims = 3\nDimSize = 4 4 4\nElementType = MET_SHORT\nElementDataFile = gone.raw\n"
FOLDER = "scripts segment scans out --model models/model.pt"


def segment(name: str) -> str:
    return f"scripts segment {name} out --model models/model.pt"


SEGMENTED: dict[str, tuple[str, Plant]] = {  # with the command that meets them
    "a scan that does not exist": (segment("nowhere.nii.gz"), lambda folder: None),
    "a folder without files": (FOLDER, empty_folder),
    "a folder without scans": (FOLDER, only_text),
    "an empty file": (SEGMENT, content(b"")),
    "text in a file of scans": (SEGMENT, content(b"not a scan")),
    "half a scan": (SEGMENT, cut()),
    "a scan with a damaged byte": (SEGMENT, damaged),
    "a web page that was saved as a scan": (SEGMENT, content(b"<html><body>Please log in</body></html>")),
    "a picture": (segment("scan.png"), content(b"\x89PNG\r\n\x1a\n", "scan.png")),
    "an archive of scans": (segment("scans.zip"), content(b"PK\x03\x04", "scans.zip")),
    "one slice": (SEGMENT, voxels(lambda old: old[:, :, 3])),
    "a series over time": (SEGMENT, voxels(lambda old: np.stack([old, old], axis=-1))),
    "a volume of colors": (SEGMENT, colors),
    "a volume of complex numbers": (SEGMENT, voxels(lambda old: old, kind=np.complex64)),
    "a voxel that is NaN": (SEGMENT, voxels(with_value(np.nan))),
    "a voxel that is infinite": (SEGMENT, voxels(with_value(-np.inf))),
    "a scan of one value": (SEGMENT, voxels(np.zeros_like)),
    "an axis of no spacing": (segment("scan.nii"), header(FIRST_AXIS, "<f", 0.0)),
    "an affine with NaN": (segment("scan.nii"), header(FIRST_AXIS, "<f", float("nan"))),
    "an affine whose axes lie in a plane": (SEGMENT, affine(flattened)),
    "voxels of 10 m": (SEGMENT, affine(scaled(1000, 1000, 1000))),
    "voxels of a micrometer": (SEGMENT, affine(scaled(1e-4, 1e-4, 1e-4))),
    "a spacing in meters": (SEGMENT, affine(scaled(1e-3, 1e-3, 1e-3))),
    "a header that claims no voxels": (segment("scan.nii"), header(SIZE, "<3h", 0, 32, 16)),
    "a header that claims more voxels than the file has": (segment("scan.nii"), header(SIZE, "<3h", 32, 32, 100)),
    "a header that claims 30000³ voxels": (segment("scan.nii"), header(SIZE, "<3h", 30000, 30000, 30000)),
    "a header of an unknown kind of numbers": (segment("scan.nii"), header(KIND, "<h", 999)),
    "a header whose intercept is infinite": (segment("scan.nii"), header(SLOPE, "<2f", 1.0, float("inf"))),
    "a header whose slope is infinite": (segment("scan.nii"), header(SLOPE, "<2f", float("inf"), 0.0)),
    "two scans of one name": (FOLDER, two_of_a_name),
    "one slice of a DICOM series": (segment("scans/002.dcm"), series()),
    "a series of magnetic resonance": (FOLDER, series(all_tags(Modality="MR"))),
    "a series with a gap": (FOLDER, series(positions=[(0, 0, z) for z in (0, 3, 6, 12, 15)])),
    "two slices at one place": (FOLDER, series(positions=[(0, 0, z) for z in (0, 3, 3, 6, 9)])),
    "a tilted gantry": (FOLDER, series(positions=[(0, z, 3 * z) for z in range(5)])),
    "slices of two sizes": (FOLDER, series(tags(Rows=3, Columns=16))),
    "slices of two spacings": (FOLDER, series(tags(PixelSpacing=[2, 2]))),
    "slices that look into two directions": (FOLDER, series(tags(ImageOrientationPatient=[0, 1, 0, 0, 0, 1]))),
    "a slice with too little pixel data": (FOLDER, series(short_pixels)),
    "a slice without pixel data": (FOLDER, series(no_pixels)),
    "a slice that is cut off": (FOLDER, cut_slice),
    "a slice that is broken": (FOLDER, junk_slice),
    "slices without a position": (FOLDER, series(no_tag("ImagePositionPatient"))),
    "slices without a spacing": (FOLDER, series(no_tag("PixelSpacing"))),
    "slices without rows": (FOLDER, series(no_tag("Rows"))),
    "slices with a spacing of 0": (FOLDER, series(all_tags(PixelSpacing=[0, 0]))),
    "slices with a spacing below 0": (FOLDER, series(all_tags(PixelSpacing=[-0.9, -0.7]))),
    "slices without a plane": (FOLDER, series(all_tags(ImageOrientationPatient=[1, 0, 0, 1, 0, 0]))),
    "slices whose slope is 0": (FOLDER, series(all_tags(RescaleSlope=0))),
    "frames of two intercepts": (segment("scan.dcm"), frames),
    "frames with a gap": (segment("scan.dcm"), uneven_frames),
    "a MetaImage of two axes": (segment("scan.mha"), metaimage(size=(6, 20))),
    "a MetaImage with too little data": (segment("scan.mha"), metaimage(size=(60, 50, 40))),
    "a MetaImage of no spacing": (segment("scan.mha"), metaimage(ElementSpacing="0 1 1")),
    "a MetaImage of no size": (segment("scan.mha"), metaimage(size=(0, 5, 4))),
    "a MetaImage of several channels": (segment("scan.mha"), metaimage(ElementNumberOfChannels=3)),
    "a MetaImage without its data file": (segment("scan.mhd"), content(MHD, "scan.mhd")),
    "a MetaImage that is text": (segment("scan.mha"), content(b"not a scan", "scan.mha")),
    "an NRRD file with too little data": (segment("scan.nrrd"), nrrd(NRRD.format(sizes="64 64 64", x=1))),
    "an NRRD file of no spacing": (segment("scan.nrrd"), nrrd(NRRD.format(sizes="4 5 6", x=0))),
    "an NRRD file that is text": (segment("scan.nrrd"), content(b"not a scan", "scan.nrrd")),
}  # fmt: skip
TRAINED_ON: dict[str, Plant] = {  # what the check before a training finds
    "half a scan among the cases": cut(IMAGE),
    "half a label map": cut(LABEL),
    "a scan with NaN among the cases": voxels(with_value(np.nan), IMAGE),
    "a label map of another shape": voxels(lambda old: old[:, :, :-1], LABEL),
    "a label map at another place": affine(shifted, LABEL),
    "a label map of another spacing": affine(scaled(1, 1, 2), LABEL),
    "a label map with an undeclared value": voxels(with_value(9, np.uint8), LABEL),
    "a label map with a value far beyond": voxels(with_value(2_000_000_000, np.int32), LABEL),
    "a label map with half a label": voxels(with_value(0.5), LABEL),
    "a label map with a label below 0": voxels(with_value(-1, np.int16), LABEL),
    "a label map with NaN": voxels(with_value(np.nan), LABEL),
    "a label map without labels": voxels(np.zeros_like, LABEL),
    "a label map of a full case without labels": voxels(np.zeros_like, FULL_LABEL),
    "an image that is no CT": voxels(lambda old: (old - old.min()) * 255.0 / np.ptp(old), IMAGE, np.uint8),
    "an image without its sign": voxels(lambda old: old + 1024, IMAGE, np.uint16),
    "an image whose voxels are far too large": affine(scaled(100, 100, 100), IMAGE),
    "an image as its own label map": lambda folder: (folder / LABEL).write_bytes((folder / IMAGE).read_bytes()),
}
IMAGES = bundle_command("inferring", "configs/inference.yaml", "tiny.yaml", data="scans") + " --output_dir out"


def among_scans(plant: Plant) -> Plant:
    """The scan alone in a folder, with a fault."""

    def move(folder: Path) -> None:
        plant(folder)
        (folder / "scans").mkdir()
        for scan in folder.glob("scan.nii*"):
            scan.rename(folder / "scans" / scan.name)

    return move


SCANS = [
    *(BadInput(wrong, command, plant, about=("scan",), trained=True) for wrong, (command, plant) in SEGMENTED.items()),
    *(BadInput(wrong, TRAINING, plant, about=("_000.nii.gz",)) for wrong, plant in TRAINED_ON.items()),
    BadInput("half a label map, for check", CHECK, cut(LABEL)),
    BadInput("half a scan at inference", IMAGES, among_scans(cut()), trained=True),
    BadInput("an axis of no spacing at inference", IMAGES, among_scans(header(FIRST_AXIS, "<f", 0.0)), trained=True),
    BadInput("voxels of 10 m at inference", IMAGES, among_scans(affine(scaled(1000, 1000, 1000))), trained=True),
    BadInput("half a scan in an evaluation", EVALUATING, cut("data/test/imagesTs/test_000.nii.gz"), trained=True),
    BadInput("a true label map of another shape", EVALUATING, trained=True,
             plant=voxels(lambda old: old[:, :, :-1], "data/test/labelsTs/test_000.nii.gz")),
]  # fmt: skip
