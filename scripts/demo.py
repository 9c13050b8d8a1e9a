# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts demo`: the whole method on synthetic cohorts, from NIfTI files to a report, in a few minutes.

What takes seconds to import is imported when the demo runs, so that its help is quick.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import InputError
from scripts.common import listed
from scripts.configs import check_config
from scripts.phantom import check_phantoms
from scripts.runs import ROOT, bundle_command

TRAIN, EVALUATE, OVERLAY = (str(ROOT / "configs" / f"{name}.yaml") for name in ("train", "evaluate", "overlays/demo"))
MARKER = ".demo"


def run_bundle(run_id: str, configs: Sequence[str], **values: object) -> None:
    """`python -m scripts run`; what goes wrong there ends this command too."""
    finished = subprocess.run(bundle_command(run_id, configs, **values), cwd=ROOT)
    if finished.returncode:
        sys.exit(finished.returncode)


def demo(
    output: str = "eval/demo",
    seed: int = 0,
    supervision: str = "pann",
    overlays: Sequence[str] = (),
    full: int = 6,
    partial: int = 8,
    test: int = 8,
    grid: tuple[int, int, int] | None = None,
) -> None:
    """Make synthetic cohorts, train both stages, segment and score held-out cases, and write a report.

    Args:
        output: folder for everything that is made.
        seed: seed of the cohorts and of the training.
        supervision: full, semi, partial, marginal, ignore or pann.
        overlays: further config files, for instance a shorter training.
        full: cases of the fully labelled cohort.
        partial: cases of each partially labelled cohort.
        test: cases held out for the scores.
        grid: voxels of a scan; those of the command phantom if not given.
    """
    from bundle.cohorts.phantoms import GRID, make_phantoms
    from bundle.reports.demo import STAGES, write_demo

    check_phantoms(full, partial, test, grid)
    extra = [str(Path(overlay).resolve()) for overlay in listed(overlays)]
    configs, values = [TRAIN, OVERLAY, *extra], {"seed": seed, "supervision": supervision}
    check_config([*configs, EVALUATE], values, typed=True)  # before anything is made
    check_config(configs, values, typed=True)
    started, folder = time.time(), empty_folder(Path(output).resolve())
    data = make_phantoms(str(folder / "data"), seed, full, partial, test, GRID if grid is None else grid)
    common = {"dataset_dir": data, "bundle_root": folder, **values}
    run_bundle("training", configs, **common)
    for name, checkpoint in STAGES.items():
        print(f"scores of {name}")
        run_bundle(
            "evaluating",
            [*configs, EVALUATE],
            **common,
            output_dir=folder / checkpoint,
            checkpoint=folder / "models" / f"{checkpoint}.pt",
        )
    print(f"the report is {write_demo(folder, supervision, time.time() - started)}")


def empty_folder(folder: Path) -> Path:
    """The folder, emptied if an earlier demo made it; any other folder with something in it is left alone."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise InputError(f"{folder}: exists and was not made by the demo; choose another --output")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).write_text("made by python -m scripts demo, which empties this folder when it runs again\n")
    return folder
