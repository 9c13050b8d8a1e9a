# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts demo`: the whole method on synthetic cohorts, from NIfTI files to a report, in a few minutes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bundle.errors import InputError
from scripts.phantom import GRID
from scripts.runs import ROOT, bundle_command

TRAIN, EVALUATE, OVERLAY = (str(ROOT / "configs" / f"{name}.yaml") for name in ("train", "evaluate", "overlays/demo"))
MARKER = ".demo"
STAGES = {"stage 1": "warmup", "stage 2": "model"}  # what the report calls a model, and its checkpoint


def run_bundle(run_id: str, configs: Sequence[str], **values: object) -> None:
    """`python -m monai.bundle run`; what goes wrong there ends this command too."""
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
    grid: Sequence[int] = GRID,
) -> None:
    """Make synthetic cohorts, train both stages, segment and score held-out cases, and write a report.

    Args:
        output: folder for everything that is made.
        seed: seed of the cohorts and of the training.
        supervision: full, semi, partial or pann.
        overlays: further config files, for instance a shorter training.
        full: cases of the fully labelled cohort.
        partial: cases of each partially labelled cohort.
        test: cases held out for the scores.
        grid: voxels of a scan.
    """
    from bundle.cohorts.phantoms import make_phantoms  # here: the help does not need it

    started, folder = time.time(), empty_folder(Path(output).resolve())
    data = make_phantoms(str(folder / "data"), seed, full, partial, test, grid)
    extra = [str(Path(overlay).resolve()) for overlay in ([overlays] if isinstance(overlays, str) else overlays)]
    common = {"dataset_dir": data, "bundle_root": folder, "seed": seed, "supervision": supervision}
    run_bundle("training", [TRAIN, OVERLAY, *extra], **common)
    for name, checkpoint in STAGES.items():
        print(f"scores of {name}")
        run_bundle(
            "evaluating",
            [TRAIN, OVERLAY, *extra, EVALUATE],
            **common,
            output_dir=folder / checkpoint,
            checkpoint=folder / "models" / f"{checkpoint}.pt",
        )
    report = write_report(folder, supervision, time.time() - started)
    print(f"the report is {report}")


def empty_folder(folder: Path) -> Path:
    """The folder, emptied if an earlier demo made it; any other folder with something in it is left alone."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).is_file():
        raise InputError(f"{folder}: exists and was not made by the demo; choose another --output")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).write_text("made by python -m scripts demo, which empties this folder when it runs again\n")
    return folder


def write_report(folder: Path, supervision: str, seconds: float) -> Path:
    """`report.html` of a demo that has run in ``folder``."""
    # Imported here: the help needs none of these.
    from bundle.evaluation.scores import read_scores
    from bundle.organs import Vocabulary
    from bundle.reports.demo import plot_before_after, plot_losses, plot_proportions, score_table
    from bundle.reports.pages import Page
    from bundle.reports.slices import plot_slices
    from bundle.training.history import read_history
    from bundle.training.prior import Prior

    history, prior = read_history(folder / "eval" / "history.jsonl"), Prior.load(folder / "eval" / "prior.json")
    rows, after = read_scores(folder / "model")
    _, before = read_scores(folder / "warmup")
    page = Page("PaNN on synthetic cohorts")
    page.text(
        f"Mean Dice over {len(after['organs'])} organs on {after['cases']} held-out cases: "
        f"{before['mean']['dice']:.3f} after stage 1 (fully labelled cases only), "
        f"{after['mean']['dice']:.3f} after stage 2 (all cases, supervision “{supervision}”).",
        "big",
    )
    page.text(
        f"Synthetic CT: these figures show that the method runs, not how well it does on patients. "
        f"{len(prior.cases)} fully labelled cases; everything took {seconds / 60:.1f} minutes.",
        "note",
    )
    page.heading("Scores per organ")
    score_table(page, before, after)
    page.heading("Segmentations of held-out cases")
    names = list(dict.fromkeys(row["case"] for row in rows))[:4]
    images = [(name, folder / "data" / "test" / "imagesTs" / f"{name}.nii.gz") for name in names]
    columns = {"truth": [folder / "data" / "test" / "labelsTs" / f"{name}.nii.gz" for name in names]}
    for stage, checkpoint in STAGES.items():
        columns[stage] = [folder / checkpoint / "segmentations" / f"{name}.nii.gz" for name in names]
    slices = plot_slices(images, columns, Vocabulary(prior.names[1:]))
    slices.savefig(folder / "slices.png", dpi=90)
    page.figure(slices, "The axial slice that shows the most organs.")
    page.heading("Losses")
    page.figure(plot_losses(history), "Means over a few iterations each.")
    if any(record["kind"] == "refresh" for record in history):
        page.heading("Organ proportions in the partially labelled data")
        page.figure(plot_proportions(history, prior), "What the network predicts during stage 2, against the prior.")
        page.figure(
            plot_before_after(history, prior), "Exact proportions relative to the prior, over all partial cases."
        )
    return page.save(folder / "report.html")
