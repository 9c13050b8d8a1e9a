# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts segment SCANS OUTPUT`: CT scans in, label maps out. The work on a scan is in jobs.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bundle.errors import EXIT_CODE
from scripts.configs import INFERENCE
from scripts.runs import ROOT

__all__ = ["segment"]

MODEL = ROOT / "models" / "model.pt"
INTERRUPTED = 130  # what shells report for Ctrl-C


def segment(
    scans: str,
    output: str,
    model: str | Sequence[str] = str(MODEL),
    organs: str | Sequence[str] | None = None,
    device: str | None = None,
    threads: int | None = None,
    memory: float | None = None,
    backend: str = "auto",
    flips: int | Sequence[int] = (),
    scales: float | Sequence[float] | None = None,
    clean: bool = False,
    preview: bool = False,
    dicom_seg: bool = False,
    skip_air: bool = True,
    overwrite: bool = False,
    overlays: str | Sequence[str] = (),
) -> None:
    """Segment a CT scan, or all scans of a folder. Cases that are finished are skipped: run it again to go on.

    Args:
        scans: a NIfTI, MetaImage or NRRD file, the folder of a DICOM series, or a folder of such files and folders.
        output: a folder for NAME.nii.gz and NAME.json (volumes in ml); for one scan also the name of a .nii.gz file.
        model: weights, or their folder; several separated by commas are averaged.
        organs: write these only, for instance liver,spleen.
        device: cpu, cuda or cuda:1; a GPU if there is one, else the CPU.
        threads: threads to use; all cores if not given.
        memory: GB the process may take; sums that exceed it are held in temporary files.
        backend: torch, openvino, or auto, which takes OpenVINO where it is installed and the device is the CPU.
        flips: axes mirrored and averaged (0 right, 1 anterior, 2 superior), for models trained with flips.
        scales: sizes of a window that are averaged, for instance 0.75,1,1.25; those of the model if not given.
        clean: keep the largest connected part of each organ only.
        preview: also write NAME.png.
        dicom_seg: also write NAME.seg.dcm for DICOM series.
        skip_air: leave out windows without body.
        overwrite: segment finished cases again.
        overlays: config files on configs/inference.yaml, for weights that do not say what they are.
    """
    # Imported here: the help needs none of these.
    from bundle.files import fingerprint_files, remove_unfinished
    from bundle.inference.segmenters import load_segmenter, set_threads
    from bundle.processes import check_device
    from bundle.scans.finding import find_scans
    from scripts.common import check_writable, listed
    from scripts.segment.jobs import ScanJob, SegmentingRun, check_target, wanted_organs

    set_threads(threads)
    found, target = find_scans(str(scans)), Path(str(output))
    check_target(Path(str(scans)), target, len(found) == 1)
    values: dict[str, Any] = {"backend": backend, "skip_air": skip_air, "flips": listed(flips)}
    if scales is not None:
        values["scales"] = listed(scales)
    chosen = {} if device is None else {"device": f"$torch.device({check_device(str(device))!r})"}
    segmenter = load_segmenter(model, INFERENCE, listed(overlays), clean, memory, {**values, **chosen})
    settings: dict[str, Any] = {
        "model": fingerprint_files(segmenter.files),
        "organs": wanted_organs(segmenter, organs),
        "clean": clean,
        "dicom_seg": dicom_seg,
        **values,
    }
    jobs = [ScanJob(name, source, target, len(found) == 1, settings, preview) for name, source in found.items()]
    check_writable(jobs[0].label_map.parent)
    remove_unfinished(jobs[0].label_map.parent)
    run = SegmentingRun(segmenter, jobs, overwrite)
    try:
        run.go()
    except KeyboardInterrupt:
        run.report(target)
        print("interrupted; the same command goes on from here", file=sys.stderr)
        sys.exit(INTERRUPTED)
    run.report(target)
    if run.failed:
        sys.exit(EXIT_CODE)
