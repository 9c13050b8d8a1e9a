# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The picture of OHIF in the documentation: a phantom in an archive, and what a served model finds in it.

python -m label.pictures eval/demo/models docs/figures/ohif.png
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bundle.inference.weights import read_checkpoint
from bundle.organs import Vocabulary
from label.archive import running_orthanc, upload
from label.screenshot import take_screenshot
from label.series import write_phantom_series
from label.viewer import running_server

__all__ = ["show_answer"]

GRID = (192, 192, 64)


def show_answer(model: str | Path, output: str | Path, grid: tuple[int, int, int] = GRID) -> Path:
    """Segment a phantom on a server with Orthanc behind it, store the answer as DICOM SEG, and take a picture of OHIF.

    Args:
        model: weights, or their folder.
        output: the PNG.
        grid: voxels of the phantom.
    """
    weights = Path(model) / "model.pt" if Path(model).is_dir() else Path(model)
    record, _ = read_checkpoint(weights).describe()
    vocabulary = Vocabulary(None if record is None else record.organs)
    names = [{"name": organ.name, "idx": channel} for channel, organ in enumerate(vocabulary, start=1)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study, series, _, _ = write_phantom_series(folder / "ct", number=3, grid=grid)
        with running_orthanc(folder / "orthanc") as url:
            upload(url, folder / "ct")
            with running_server(url, folder / "state", "--model", weights) as viewer:
                answer = viewer.infer(series, folder)
                viewer.check(viewer.save(series, answer, label_info=names))
                return take_screenshot(viewer.url, study, output)


if __name__ == "__main__":
    print(show_answer(sys.argv[1], sys.argv[2]))
