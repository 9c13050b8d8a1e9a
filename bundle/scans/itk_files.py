# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Headers and voxels of image files of any format, by ITK; the lowest layer of `bundle.scans`.

ITK takes a second to import, so it is imported where it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from bundle.errors import InputError

__all__ = ["decode", "open_with_itk", "refuse_pixels", "unreadable"]


def refuse_pixels(path: Path, found: str) -> NoReturn:
    """Raise the error for a file whose pixels are not one number each."""
    raise InputError(f"{path}: expected one HU value for each voxel, found {found}; export the scan as gray values")


def unreadable(path: Path | str, error: Exception) -> InputError:
    """The error for a file that a library could not read, with the library's reason in one line."""
    # ITK puts source file, line and address before what happened, and a stale system error behind it
    reason = " ".join(str(error).split("): ", 1)[-1].split("Reason:")[0].split())
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
