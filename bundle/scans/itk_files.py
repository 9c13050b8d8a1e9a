# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Headers and voxels of image files of any format, by ITK, and the files that MetaImage and NRRD keep their voxels in.

ITK takes a second to import, so it is imported where it is used.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError
from bundle.scans.headers import DEFLATE, check_data_size, check_memory
from bundle.untrusted import shown

__all__ = ["check_data", "decode", "find_data", "open_with_itk", "refuse_pixels", "unreadable"]


HEADER_BYTES = 2**20  # in which the header of a MetaImage or NRRD file ends

CHUNK = 2**20  # bytes that are unpacked at a time


def refuse_pixels(path: Path, found: str) -> NoReturn:
    """Raise the error for a file whose pixels are not one number each."""
    raise InputError(f"{path}: expected one HU value for each voxel, found {found}; export the scan as gray values")


def unreadable(path: Path | str, error: Exception) -> InputError:
    """The error for a file that a library could not read, with the library's reason in one line."""
    # ITK puts source file, line and address before what happened, and a stale system error behind it
    if isinstance(error, InputError):
        return error
    if isinstance(error, PermissionError):
        return InputError(f"{path}: cannot be opened (permission is denied); allow reading it or move it away")
    reason = " ".join(re.sub(r"\S+\.[ch]xx:\d+:", "", str(error).split("): ", 1)[-1].split("Reason:")[0]).split())
    reason = reason or type(error).__name__
    return InputError(f"{path}: cannot be read as an image ({reason[:200]}); replace the file")


def open_with_itk(path: Path | str, reader: str) -> Any:
    """The header of a file, as the image IO of ITK with this name."""
    import itk

    io = getattr(itk, reader).New()
    io.SetFileName(str(path))
    try:
        io.ReadImageInformation()
    except RuntimeError as error:
        raise unreadable(path, error) from None
    return io


class ItkPixels:
    """Lets numpy use an image's memory and keep the image alive: plain views of ITK's own array do not."""

    def __init__(self, image: Any) -> None:
        import itk

        self.image = image
        self.__array_interface__ = itk.array_view_from_image(image).__array_interface__


def decode(path: Path | str, io: Any) -> NDArray[Any]:
    """X×Y×Z voxels of a file whose header is read."""
    import itk

    if io.GetNumberOfComponents() != 1:
        kind = io.GetPixelTypeAsString(io.GetPixelType())
        refuse_pixels(Path(path), f"{io.GetNumberOfComponents()} ({kind} pixels)")
    component = io.GetComponentTypeAsString(io.GetComponentType())
    kinds = {"char": itk.SS, "unsigned_char": itk.UC, "short": itk.SS, "unsigned_short": itk.US}
    kinds |= {"int": itk.SI, "unsigned_int": itk.UI}
    reader = itk.ImageFileReader[itk.Image[kinds.get(component, itk.F), 3]].New()
    reader.SetFileName(str(path))
    reader.SetImageIO(io)
    try:
        reader.Update()
    except RuntimeError as error:
        raise unreadable(path, error) from None
    return np.asarray(ItkPixels(reader.GetOutput())).T


# --- Where MetaImage and NRRD keep their voxels ----------------------------------------------------------------------
@dataclass(frozen=True)
class DataFile:
    """Where the voxels of a MetaImage or NRRD file are.

    Args:
        path: of the file itself, or of one beside its header.
        start: byte at which they begin; of a raw file they may begin later.
        zlib: MetaImage's packing, which its reader does not check.
        packing: how much smaller than the volume they may be; None where that is not known.
    """

    path: Path
    start: int
    zlib: bool
    packing: int | None


def find_data(path: Path) -> DataFile:
    """Where the voxels of a MetaImage or NRRD file are, by its header, before anything opens them.

    Raises:
        InputError: when they are in several files, in another folder, or nowhere.
    """
    fields, end = read_fields(path)
    name = fields.get("elementdatafile", fields.get("datafile", "LOCAL"))
    packed = fields.get("compresseddata", "").lower().startswith("t")
    packing = {"raw": 1, "bz2": None, "bzip2": None}.get(fields.get("encoding", "raw").lower(), DEFLATE)
    if packed:
        packing = DEFLATE
    if name.upper() == "LOCAL":
        return DataFile(path, end, packed, packing)
    if name.upper().startswith("LIST") or "%" in name:
        raise InputError(f"{path}: expected voxels in one file, found {shown(name)}; convert the scan to NIfTI")
    inside = os.path.normpath(name)
    if os.path.isabs(inside) or inside.split(os.sep)[0] == "..":
        raise InputError(
            f"{path}: expected its voxels in a file beside it, found {shown(name)}, which is in another folder; put "
            "both into one folder and correct the header"
        )
    data = path.parent / inside
    if not os.path.isfile(data):
        raise InputError(f"{path}: its voxels should be in {shown(inside)}, which is not there; copy it as well")
    return DataFile(data, 0, packed, packing)


def read_fields(path: Path) -> tuple[dict[str, str], int]:
    """The fields of a header, their names without blanks and in lower case, and the byte at which it ends.

    A MetaImage's ends with `ElementDataFile`, one of NRRD with an empty line or with the file.
    """
    try:
        with path.open("rb") as file:
            start = file.read(HEADER_BYTES)
    except OSError as error:
        raise unreadable(path, error) from None
    fields: dict[str, str] = {}
    end, nrrd = 0, start.startswith(b"NRRD")
    for line in start.splitlines(keepends=True):
        end += len(line)
        text = line.decode("latin-1").strip()
        if nrrd and not text:
            break
        name, mark, value = text.partition(":" if nrrd else "=")
        if mark and not value.startswith("="):  # := stands for a remark
            fields.setdefault("".join(name.lower().split()), value.strip())
        if not nrrd and "elementdatafile" in text.lower():
            if not re.match(r"ElementDataFile\s*=", text):  # what ITK makes of another spelling is not known
                raise unreadable(path, ValueError("expected ElementDataFile = …"))
            break
    else:
        if not nrrd or len(start) == HEADER_BYTES:
            raise unreadable(path, ValueError("its header has no end"))
    return fields, end


def check_data(data: DataFile, path: Path, shape: Sequence[int], itemsize: int) -> None:
    """Refuse data that is too short, damaged, or too much for the memory; ``path`` is that of the header."""
    if data.packing is not None:
        check_data_size(path, shape, itemsize, data.path.stat().st_size - data.start, data.packing)
    check_memory(path, shape, itemsize)
    if data.zlib:
        found = unpacked_size(data, path)
        if found != int(np.prod([int(size) for size in shape])) * itemsize:
            raise unreadable(path, ValueError(f"its packed voxels are {found} bytes, not what its header announces"))


def unpacked_size(data: DataFile, path: Path) -> int:
    """Bytes of packed voxels; they are unpacked piece by piece and forgotten."""
    unpack, total = zlib.decompressobj(zlib.MAX_WBITS | 32), 0
    try:
        with data.path.open("rb") as file:
            file.seek(data.start)
            while not unpack.eof and (piece := unpack.unconsumed_tail or file.read(CHUNK)):
                total += len(unpack.decompress(piece, CHUNK))
    except zlib.error as error:
        raise unreadable(path, error) from None
    return total
