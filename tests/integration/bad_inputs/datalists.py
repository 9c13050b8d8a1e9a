# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Bad datalists: what a dataset.json should not say."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.integration.bad_inputs.record import CHECK, EVALUATING, TRAINING, BadInput, Plant, both

__all__ = ["DATALISTS"]

SPLEEN = "data/spleen/dataset.json"
FULL = "data/full/dataset.json"


# --- Faults ----------------------------------------------------------------------------------------------------------
def text(content: str | bytes, name: str = SPLEEN) -> Plant:
    """A file with this content in place of a dataset.json."""

    def plant(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return plant


def edit(change: Callable[[dict[str, Any]], object], name: str = SPLEEN) -> Plant:
    """A dataset.json that is changed."""

    def plant(folder: Path) -> None:
        datalist = json.loads((folder / name).read_text())
        change(datalist)
        (folder / name).write_text(json.dumps(datalist))

    return plant


def fields(name: str = SPLEEN, **values: Any) -> Plant:
    """Fields of the whole list."""
    return edit(lambda datalist: datalist.update(values), name)


def entry(name: str = SPLEEN, **values: Any) -> Plant:
    """Fields of the first training case."""
    return edit(lambda datalist: datalist["training"][0].update(values), name)


def without(*keys: str) -> Plant:
    return edit(lambda datalist: [datalist.pop(key, None) for key in keys])


def drop(key: str) -> Plant:
    """A field that the first training case has no more."""
    return edit(lambda datalist: datalist["training"][0].pop(key))


def no_cohort(folder: Path) -> None:
    for name in (folder / "data").glob("*/dataset.json"):
        name.unlink()


def no_full_cohort(folder: Path) -> None:
    shutil.rmtree(folder / "data" / "full")


def datalist_folder(folder: Path) -> None:
    (folder / SPLEEN).unlink()
    (folder / SPLEEN).mkdir()


def broken_link(folder: Path) -> None:
    (folder / SPLEEN).unlink()
    (folder / SPLEEN).symlink_to("gone.json")


def same_case(datalist: dict[str, Any]) -> None:
    datalist["training"].append(dict(datalist["training"][0]))


def one_fold(datalist: dict[str, Any]) -> None:
    for case in datalist["training"]:
        case["fold"] = 0


def image_folder(folder: Path) -> None:
    (folder / "data" / "spleen" / "empty").mkdir()
    entry(image="./empty")(folder)


def deep(levels: int) -> str:
    return '{"labels": {"1": "spleen"}, "training": ' + "[" * levels + "]" * levels + "}"


# --- Bad inputs ------------------------------------------------------------------------------------------------------
FAULTS: dict[str, Plant] = {
    "no dataset.json anywhere": no_cohort,
    "an empty dataset.json": text(""),
    "broken JSON": text('{"labels": {"1": "spleen"}, "training": ['),
    "JSON with single quotes": text("{'labels': {'1': 'spleen'}}"),
    "a list instead of an object": text("[]"),
    "text that is not UTF-8": text(b'{"labels": {"1": "spleen \xff"}}'),
    "JSON nested too deep": text(deep(100_000)),
    "a dataset.json that is a folder": datalist_folder,
    "a dataset.json that is a broken link": broken_link,
    "no labels": without("labels"),
    "labels as a list": fields(labels=["background", "spleen"]),
    "labels that are null": fields(labels=None),
    "no label at all": fields(labels={}),
    "a label value that is a word": fields(labels={"background": "zero", "spleen": "one"}),
    "a label value below 0": fields(labels={"0": "background", "-1": "spleen"}),
    "a label value that is no whole number": fields(labels={"background": 0, "spleen": 1.5}),
    "a label value beyond all": fields(labels={"background": 0, "spleen": 10**30}),
    "a label name that is a list": fields(labels={"0": "background", "1": ["spleen"]}),
    "a misspelled organ": fields(labels={"0": "background", "1": "spleeen"}),
    "two organs with one value": fields(labels={"background": 0, "spleen": 1, "liver": 1}),
    "a value that is declared twice": text(
        '{"labels": {"0": "background", "1": "spleen", "1": "liver"}, "training": []}'
    ),
    "an organ with the value of the background": fields(labels={"0": "spleen", "1": "liver"}),
    "a tumor of no organ": fields(labels={"0": "background", "1": "liver", "2": "spleen", "3": "tumor"}),
    "no list of cases": without("training", "test", "validation"),
    "cases as an object": fields(training={"spleen_000": "imagesTr/spleen_000.nii.gz"}),
    "cases that are numbers": fields(training=[1, 2]),
    "cases that are text": fields(training="imagesTr"),
    "a case without an image": drop("image"),
    "a case whose image is a number": entry(image=5),
    "a case whose image is a list": entry(image=["./imagesTr/spleen_000.nii.gz"]),
    "a case whose label is a number": entry(label=7),
    "an image that does not exist": entry(image="./imagesTr/gone.nii.gz"),
    "an image name too long for any disk": entry(image="./" + "x" * 300 + ".nii.gz"),
    "an image name with a null byte": entry(image="./imagesTr/a\0b.nii.gz"),
    "a label map that does not exist": entry(label="./labelsTr/gone.nii.gz"),
    "a misspelled key of a case": entry(labeled=["spleen"]),
    "a label set with an unknown organ": entry(labelled=["brain"]),
    "a label set with an organ that has no value": entry(labelled=["liver"]),
    "a label set that is text": entry(labelled="spleen"),
    "a label set without a label map": entry(label=None, labelled=["spleen"]),
    "a fold that is a word": entry(FULL, fold="first"),
    "a fold below 0": entry(FULL, fold=-1),
    "a fold that is a switch": entry(FULL, fold=True),
    "a fold of a half": entry(FULL, fold=0.5),
    "an accepted finding that does not exist": entry(accept=["mirored"]),
    "accepted findings that are text": entry(accept="mirrored"),
    "accepted findings that are lists": entry(accept=[["mirrored"]]),
    "an unreadable scan that is accepted": entry(accept=["unreadable"]),
    "a case that leaves the folder": entry(case="../../x"),
    "a case with an absolute path": entry(case="/proc/x"),
    "a case that is two dots": entry(case=".."),
    "a case with a null byte": entry(case="a\0b"),
    "a case with a line break": entry(case="a\nb"),
    "a case that clears the screen": entry(case="\x1b[2J"),
    "a case name of 300 letters": entry(case="x" * 300),
    "a case name that is a list": entry(case=["x"]),
    "a patient that is a list": entry(patient=["x"]),
    "an ending of files that is a number": both(fields(file_ending=5), without("training")),
}  # fmt: skip
OTHERS: dict[str, Plant] = {  # where more than the dataset.json is at fault
    "an image that is an empty folder": image_folder,
    "a case whose image is empty text": entry(image=""),
    "all cases in the fold that is held out": edit(one_fold, FULL),
    "one case twice": edit(same_case),
    "no fully labelled case": no_full_cohort,
}

DATALISTS = [
    *(BadInput(wrong, TRAINING, plant, about=("dataset.json",)) for wrong, plant in FAULTS.items()),
    *(BadInput(wrong, TRAINING, plant, about=("data",)) for wrong, plant in OTHERS.items()),
    BadInput("no such label map, to overwrite a training", f"{TRAINING} --overwrite True", trained=True,
             plant=FAULTS["a label map that does not exist"]),
    BadInput("broken JSON, for check", CHECK, text("{")),
    BadInput("a case that leaves the folder, for check", CHECK, entry(case="../../x")),
    BadInput("two organs with one value, for check", CHECK, FAULTS["two organs with one value"]),
    BadInput(
        "a test case that leaves the folder, for an evaluation", EVALUATING, trained=True,
        plant=edit(lambda datalist: datalist["test"][0].update(case="../../x"), "data/test/dataset.json"),
    ),
    BadInput(
        "no labelled test case", EVALUATING, trained=True,
        plant=edit(lambda datalist: [case.pop("label") for case in datalist["test"]], "data/test/dataset.json"),
    ),
    BadInput("broken JSON, for folds", f"scripts folds {FULL}", text("{", FULL)),
    BadInput("no fully labelled case, for folds", f"scripts folds {SPLEEN}"),
    BadInput("a misspelled organ, for prior", "scripts prior data --output out", FAULTS["a misspelled organ"]),
]  # fmt: skip
