# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Bad options of the commands of `python -m scripts`."""

from __future__ import annotations

from pathlib import Path

from tests.integration.bad_inputs.record import SEGMENT, BadInput, Plant

__all__ = ["COMMANDS"]


def experiment(text: str) -> Plant:
    def plant(folder: Path) -> None:
        (folder / "mine.yaml").write_text(text)

    return plant


COMPARE = "scripts compare --config mine.yaml --output out"
METHODS = "phantoms: {full: 2, partial: 1, test: 1}\nseeds: [0]\n"

LINES = {
    "a command that does not exist": "scripts segmnt scan.nii.gz out",
    "a benchmark that does not exist": "scripts bench speed",
    "an option that does not exist": f"{SEGMENT} --oragns liver",
    "an option of an earlier version": "scripts segment --input scan.nii.gz --output out",
    "no scan and no folder": "scripts segment",
    "no folder for the label maps": "scripts segment scan.nii.gz",
    "one argument too many": f"{SEGMENT} more",
    "label maps over the scan itself": "scripts segment scan.nii.gz scan.nii.gz --model models",
    "label maps of a kind that is not written": "scripts segment scan.nii.gz out.mha --model models",
    "several scans into one file": "scripts segment data/test/imagesTs out.nii.gz --model models",
    "an organ that the vocabulary does not have": f"{SEGMENT} --organs brain",
    "a flip of an axis that does not exist": f"{SEGMENT} --flips 5",
    "a scale of 0": f"{SEGMENT} --scales 0",
    "a scale that is a word": f"{SEGMENT} --scales large",
    "no thread": f"{SEGMENT} --threads 0",
    "a thread that is a word": f"{SEGMENT} --threads all",
    "no memory": f"{SEGMENT} --memory 0",
    "memory that is a word": f"{SEGMENT} --memory much",
    "a backend that does not exist": f"{SEGMENT} --backend tensorrt",
    "a switch with a word": f"{SEGMENT} --clean maybe",
    "an overlay that does not exist": f"{SEGMENT} --overlays nowhere.yaml",
    "a grid of two numbers": "scripts phantom out --grid 96,96",
    "a grid of words": "scripts phantom out --grid a,b,c",
    "a difficulty of 0": "scripts phantom out --difficulty 0",
    "no phantom at all": "scripts phantom out --full 0 --partial 0 --test 0",
    "a share above 1": "scripts phantom out --drop_labels 3 --fraction 2 --grid 32,32,16",
    "more organs to forget than there are": "scripts phantom out --drop_labels 99 --grid 32,32,16",
    "a dataset that does not exist": "scripts prepare btvc downloads --output out",
    "a download that does not exist": "scripts prepare btcv nowhere --output out",
    "a download of another dataset": "scripts prepare btcv data --output out",
    "no dataset": "scripts prepare",
    "data to check that does not exist": "scripts check nowhere",
    "data to check that is no dataset.json": "scripts check tiny.yaml --output out",
    "nothing to check": "scripts check",
    "more folds than patients": "scripts folds data/full/dataset.json --folds 50",
    "one fold": "scripts folds data/full/dataset.json --folds 1",
    "folds that are a word": "scripts folds data/full/dataset.json --folds many",
    "cohorts without a prior": "scripts prior data/spleen --output out",
    "a prior of an unknown organ": "scripts prior data --organs brain --output out",
    "a cross-validation of a fold that does not exist": "scripts crossval data --folds 0,9 --output out",
    "a cross-validation of folds that are a word": "scripts crossval data --folds many --output out",
    "a cross-validation with a misspelled value": "scripts crossval data --values sed=1 --output out",
    "a cross-validation with a value without a name": "scripts crossval data --values partial --output out",
    "a cross-validation with a bad value": "scripts crossval data --folds 2 --values confidence=2 --output out",
    "a cross-validation that sets the fold": "scripts crossval data --values fold=1 --output out",
    "a cross-validation of no data": "scripts crossval nowhere --output out",
    "a cross-validation with an overlay that does not exist": "scripts crossval data --overlays no.yaml --output out",
    "a cross-validation of test scans that do not exist": "scripts crossval data --folds 3 --test nowhere --output out",
    "a demo of a supervision that does not exist": "scripts demo --supervision nonsense --output out",
    "a demo with an overlay that does not exist": "scripts demo --overlays nowhere.yaml --output out",
    "an experiment that does not exist": "scripts compare --config nowhere.yaml --output out",
}
EXPERIMENTS = {
    "an experiment that is no YAML": "methods: [",
    "an experiment that is a list": "- pann",
    "an empty experiment": "",
    "an experiment with a misspelled key": METHODS + "methds: {pann: {supervision: pann}}\n",
    "an experiment with a misspelled value": METHODS
    + "methods: {pann: {supervision: pann, confidense: 0.5}}\nreference: pann\n",
    "an experiment with a bad value": METHODS
    + "methods: {pann: {supervision: pann, confidence: 2}}\nreference: pann\n",
    "an experiment without its reference": METHODS + "methods: {pann: {supervision: pann}}\nreference: full\n",
    "an experiment without data": "seeds: [0]\nmethods: {pann: {supervision: pann}}\nreference: pann\n",
    "an experiment whose method leaves its folder": METHODS + "methods: {../x: {supervision: pann}}\nreference: ../x\n",
}

COMMANDS = [
    *(BadInput(wrong, line, trained="segment" in line, untouched=True) for wrong, line in LINES.items()),
    *(BadInput(wrong, COMPARE, experiment(text), untouched=True) for wrong, text in EXPERIMENTS.items()),
]
