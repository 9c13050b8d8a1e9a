# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a server learns from one saved organ per case: this app beside the usual rule, that all else is background.

A scripted annotator opens a case, takes the model's answer, deletes all but one organ, corrects that one, and saves, as
Slicer sends it. After a round of cases the server trains. Scores are those of phantoms that no server has seen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bundle.cohorts.phantoms import make_phantoms
from bundle.errors import InputError
from bundle.evaluation.summaries import read_scores
from bundle.evaluation.tables import Table, number
from bundle.files import make_folder, write_json, write_text
from bundle.reports.pages import draw_picture
from label.reports import plot_learning
from label.viewer import Viewer, draw_organs, running_server
from scripts.configs import EVALUATE, TRAIN
from scripts.runs import ROOT, bundle_command

__all__ = ["ARMS", "run"]

OVERLAY = ROOT / "configs" / "overlays" / "demo.yaml"
ORGANS = (  # of the cases, in turn
    "liver", "spleen", "pancreas", "left kidney", "stomach", "right kidney", "aorta", "gallbladder",
    "inferior vena cava", "esophagus", "portal and splenic vein", "left adrenal gland",
)  # fmt: skip
# What is compared: whether the reference is seen again, and whether what is not drawn counts as background.
ARMS: dict[str, dict[str, bool]] = {
    "this app": {"reference": True, "background": False},
    "this app, no reference": {"reference": False, "background": False},
    "all else is background": {"reference": False, "background": True},
    "all else is background, with reference": {"reference": True, "background": True},
}


def run(demo: str, output: str, cases: int, rounds: int, epochs: int, test: int) -> None:
    folder, root = Path(output).resolve(), Path(demo).resolve()
    if not (root / "models" / "model.pt").is_file():
        raise InputError(f"{root}: no trained demo is there; run `python -m scripts demo --output {demo}` first")
    scans = make_phantoms(str(make_folder(folder) / "scans"), seed=7, full=0, partial=0, test=cases)
    unseen = make_phantoms(str(folder / "unseen"), seed=8, full=0, partial=0, test=0, validation=4)
    held_out = make_phantoms(str(folder / "held_out"), seed=9, full=0, partial=0, test=test)
    start = score(root / "models" / "model.pt", held_out, folder / "scores" / "start")
    curves = {}
    for arm, rule in ARMS.items():
        place = make_folder(folder / arm.replace(" ", "_").replace(",", ""))
        reference = f"{root / 'data'},{unseen}" if rule["reference"] else ""
        dice = learn(root, place, scans, reference, rule["background"], rounds, epochs, held_out)
        curves[arm] = [start, *dice]
        print(f"{arm}: {' '.join(number(value) for value in curves[arm])}", flush=True)
    report(folder, curves, cases, rounds, epochs, test)


def learn(
    demo: Path, place: Path, scans: Path, reference: str, background: bool, rounds: int, epochs: int, held_out: Path
) -> list[float]:
    """One server: rounds of answering, saving and training; the mean Dice of what it serves after each."""
    studies, truth = make_folder(place / "studies"), scans / "test" / "labelsTs"
    images = sorted(path.name for path in (scans / "test" / "imagesTs").glob("*.nii.gz"))
    for name in images:
        if not (studies / name).exists():
            os.link(scans / "test" / "imagesTs" / name, studies / name)
    options = ["--model", demo / "models", "--overlays", OVERLAY, *(["--reference", reference] if reference else [])]
    dice = []
    with running_server(studies, place / "state", *options) as viewer:
        for turn in range(rounds):
            share = images[turn * len(images) // rounds : (turn + 1) * len(images) // rounds]
            for place_in_list, name in enumerate(share, start=turn * len(images) // rounds):
                annotate(viewer, name, truth, ORGANS[place_in_list % len(ORGANS)], background, place)
            # The usual rule has no comparison with the served model: its candidates are always taken.
            task = viewer.train(max_epochs=epochs, resume="no", **({"margin": 1.0} if background else {}))
            if task["status"] != "DONE":
                raise InputError(f"training ended as {task['status']}: {' '.join(task['details'])[-500:]}")
            version = viewer.get("/pann/versions").json()["served"]
            weights = place / "state" / "versions" / f"{version:04d}" / "model.pt"
            dice.append(score(weights, held_out, place / "scores" / str(turn + 1)))
    return dice


def annotate(viewer: Viewer, name: str, truth: Path, organ: str, background: bool, place: Path) -> None:
    """Open a case, keep one organ, correct it, save."""
    image = name.removesuffix(".nii.gz")
    viewer.infer(image, make_folder(place / "answers"))
    label, info = draw_organs(truth / name, [organ], place / "drawn.nii.gz")
    viewer.check(viewer.save(image, label, label_info=info, complete=background))


def score(weights: Path, held_out: Path, output: Path) -> float:
    """Mean Dice over organs on the held-out cases."""
    places = {"dataset_dir": held_out, "bundle_root": output, "output_dir": output}
    command = bundle_command("evaluating", [TRAIN, OVERLAY, EVALUATE], **places, checkpoint=weights)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return float(read_scores(output)[1]["mean"]["dice"])


def report(
    folder: Path, curves: Mapping[str, Sequence[float]], cases: int, rounds: int, epochs: int, test: int
) -> None:
    head = ["rule", "start", *(f"after round {turn + 1}" for turn in range(rounds))]
    table = Table(head, [[arm, *(number(value) for value in curve)] for arm, curve in curves.items()])
    about = (
        f"Mean Dice over organs on {test} held-out phantoms; {cases} cases with one saved organ each, in {rounds} "
        f"rounds, with {epochs} epochs of training after each."
    )
    print(f"\n{table.text()}\n\n{about}")
    write_text(folder / "learning.md", f"{table.markdown()}\n{about}\n")
    write_json(
        folder / "learning.json", {"curves": {arm: list(curve) for arm, curve in curves.items()}, "about": about}
    )
    draw_picture(plot_learning(curves), "learning", folder / "learning.png")
    print(f"table and figure are in {folder}")
