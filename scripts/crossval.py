# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts crossval`: every fold trained and scored, and a submission of the folds together."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import statistics
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from monai.transforms import Compose

from bundle.checks.cases import check_cases, check_cohorts
from bundle.cohorts.datalists import Case, find_cohorts, read_cohort
from bundle.cohorts.selection import training_cases, validation_cases
from bundle.configs import check_options, run_config
from bundle.errors import InputError
from bundle.evaluation.scores import METRICS, Row, format_table, read_scores, score_case, summarize
from bundle.files import whole_file
from bundle.organs import Vocabulary
from bundle.scans.finding import find_scans
from bundle.scans.reading import read_label_map
from bundle.transforms.dictionary import LoadOnOwnGridd, MapLabelValuesd
from scripts.common import check_writable, listed, print_table
from scripts.runs import ROOT, Run, bundle_command, check_budget, check_folders, run_all_within
from scripts.segment import check_target, segment

TRAIN, EVALUATE = (ROOT / "configs" / f"{name}.yaml" for name in ("train", "evaluate"))
OURS = ("bundle_root", "dataset_dir", "output_dir", "cache_dir", "fold", "section", "checkpoint")  # set for each fold
SCORING = ("tolerance",)  # values that training has none of
HEADS = ("Dice", "ASD mm", "HD mm", "HD95 mm", "SD")  # of METRICS
Folds = Sequence[int | None]  # None trains on all cases


def crossval(
    dataset_dir: str,
    output: str = "eval/crossval",
    overlays: str | Sequence[str] = (),
    folds: int | Sequence[int] = 5,
    set: str | Sequence[str] | Mapping[str, Any] = (),
    test: str | None = None,
    all: bool = False,
    zip: bool = False,
    cores: int | None = None,
    threads: int | None = None,
    memory: float | None = None,
) -> None:
    """Train and score every fold, then put the scores together. What is finished is kept: run it again to go on.

    A fold is scored with its last weights: the best ones were chosen on the very cases that are scored.

    Args:
        dataset_dir: folder of the cohorts; `python -m scripts folds` stores folds in a dataset.json.
        output: folder for scores.csv, scores.json, and the folds' weights and segmentations.
        overlays: config files on configs/train.yaml, for instance configs/demo.yaml.
        folds: how many, or which: 0,1,2.
        set: further values of the config: supervision=partial,seed=1
        test: scans that all folds' models segment together, into OUTPUT/ensemble; scored if they have labels.
        all: instead of folds train once, on all cases, and segment the test scans with that, into OUTPUT/all.
        zip: with test, also write OUTPUT/submission.zip; img0001 becomes label0001, as BTCV wants it.
        cores: to use in all; all there are if not given.
        threads: of one run; 1 if not given, or all with a GPU, where one run at a time is best.
        memory: GB to use in all; 80 % of what is available if not given.
    """
    if zip and test is None:
        raise InputError("zip: expected scans to segment beside it, found none; give their folder as --test")
    chosen: Folds = [None] if all else chosen_folds(folds)
    plan = Plan(
        Path(str(dataset_dir)).resolve(),
        Path(str(output)).resolve(),
        tuple(str(Path(str(overlay)).resolve()) for overlay in listed(overlays)),
        chosen_values(set),
    )
    cores = os.cpu_count() or 1 if cores is None else cores
    threads = (cores if torch.cuda.is_available() else 1) if threads is None else threads
    check_budget(cores, threads, memory)
    plan.check(chosen)
    target = plan.output / ("all" if all else "ensemble")
    tested = None if test is None else Tested(Path(str(test)).resolve(), target, plan)
    plan.check_data(chosen)
    run_all_within(plan.runs(chosen), cores, threads, memory)
    if not all:
        report_folds(plan, [fold for fold in chosen if fold is not None])
    if tested is None:
        print(f"weights are {', '.join(str(plan.weights(fold)) for fold in chosen)}")
        return
    tested.segment([plan.weights(fold) for fold in chosen], cores, memory)
    if zip:
        tested.write_submission(plan.output / "submission.zip")


# --- What is asked for -----------------------------------------------------------------------------------------------
def chosen_folds(folds: Any) -> list[int]:
    """`5` are the folds 0 to 4; `0,2` and `[3]` are these."""
    numbers = list(range(folds)) if isinstance(folds, int) and not isinstance(folds, bool) else listed(folds)
    whole = all(isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in numbers)
    if not numbers or not whole or len(numbers) != len(set(numbers)):
        raise InputError(f"folds: expected how many, such as 5, or which, such as 0,1,2, found {folds}")
    return numbers


def chosen_values(given: Any) -> dict[str, str]:
    """`seed=1,pixdim=[4,4,6]`, a list of such parts, or a mapping, as options of a command line."""
    if isinstance(given, Mapping):
        return {str(name): str(value) for name, value in given.items()}
    # a comma in brackets belongs to its value
    parts = re.split(r",(?![^\[(]*[\])])", given) if isinstance(given, str) else [str(part) for part in listed(given)]
    values = {}
    for part in parts:
        name, sign, value = (text.strip() for text in part.partition("="))
        if not name or not sign or not value:
            raise InputError(f'set: expected values such as supervision=partial,seed=1, found "{part}"')
        values[name] = value
    return values


@dataclass(frozen=True)
class Plan:
    """What is trained and scored, and where.

    Args:
        dataset_dir: folder of the cohorts.
        output: folder for everything that is made.
        overlays: config files on configs/train.yaml.
        values: further values of the config, as on a command line.
    """

    dataset_dir: Path
    output: Path
    overlays: tuple[str, ...]
    values: dict[str, str]

    def folder(self, fold: int | None) -> Path:
        return self.output / "folds" / ("all" if fold is None else f"fold{fold}")

    def scores(self, fold: int) -> Path:
        return self.output / "scores" / f"fold{fold}"

    def weights(self, fold: int | None) -> Path:
        """The last ones; of stage 1 where there is no stage 2."""
        return self.folder(fold) / "models" / ("model.pt" if self.config["train_iterations"] > 0 else "warmup.pt")

    def common(self, fold: int | None) -> dict[str, Any]:
        """Values of both commands; what is preprocessed for one fold serves the others."""
        made = {"bundle_root": self.folder(fold), "cache_dir": self.output / "cache"}
        return {**made, "dataset_dir": self.dataset_dir, "fold": fold}

    @property
    def scoring_configs(self) -> list[str | Path]:
        return [TRAIN, *self.overlays, EVALUATE]

    @property
    def training_values(self) -> dict[str, str]:
        return {name: value for name, value in self.values.items() if name not in SCORING}

    def training(self, fold: int | None) -> Run:
        command = bundle_command("training", [TRAIN, *self.overlays], **self.training_values, **self.common(fold))
        name = "training on all cases" if fold is None else f"training of fold {fold}"
        return Run(name, self.folder(fold), (command,), {**self.settings, "fold": fold})

    def scoring(self, fold: int) -> Run:
        folder = self.scores(fold)
        made = {"section": "fold", "checkpoint": self.weights(fold), "output_dir": folder}
        command = bundle_command("evaluating", self.scoring_configs, **self.values, **self.common(fold), **made)
        settings = {"evaluate": digest([EVALUATE]), "values": self.values}
        return Run(f"scores of fold {fold}", folder, (command,), settings, (self.folder(fold),))

    def runs(self, folds: Folds) -> list[Run]:
        """Trainings first: they take the longest."""
        return [self.training(fold) for fold in folds] + [self.scoring(fold) for fold in folds if fold is not None]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What weights depend on."""
        cohorts = find_cohorts(self.dataset_dir, self.config["cohorts"])
        return {
            "configs": digest([TRAIN, *self.overlays]),
            "values": self.training_values,
            "cohorts": {str(path): digest([path]) for path in cohorts},
        }

    @cached_property
    def config(self) -> dict[str, Any]:
        """Those values of the config that matter here."""
        for overlay in self.overlays:
            if not Path(overlay).is_file():
                raise InputError(f"{overlay}: no such config; give the path of an overlay")
        command = bundle_command("evaluating", self.scoring_configs, **self.values)[5:]
        names = ("cohorts", "organs", "supervision", "tolerance", "train_iterations")
        try:
            check_options(command)
            parser = run_config(command)
            assert parser is not None
            return {name: parser.get_parsed_content(name) for name in names}
        except InputError:
            raise
        except Exception as error:  # YAML, JSON and MONAI's parser raise a dozen kinds
            files, reason = " + ".join([TRAIN.name, *self.overlays]), " ".join(str(error).split())
            raise InputError(f"{files}: cannot be read as a config ({reason}); mend the overlay or --set") from None

    def check(self, folds: Folds) -> None:
        """What can be refused at once."""
        for name in self.values:
            if name in OURS:
                raise InputError(f"set: {name} differs from fold to fold and is set by this command; leave it out")
        check_writable(self.output)
        for fold in folds:
            held = validation_cases(self.dataset_dir, self.config["cohorts"], self.vocabulary, fold)
            if fold is not None and not held:
                raise InputError(f"{self.dataset_dir}: fold {fold} holds out no case; add cases, or train with --all")
        check_folders(self.runs(folds))

    def check_data(self, folds: Folds) -> None:
        """Look at all scans once, before hours of work; the runs are told what was found."""
        cohorts, supervision = self.config["cohorts"], self.config["supervision"]
        training_cases(self.dataset_dir, cohorts, self.vocabulary, supervision, folds[0])
        check_cohorts(self.dataset_dir, cohorts, self.vocabulary, self.checks)

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.config["organs"])

    @property
    def checks(self) -> Path:
        return self.output / "cache" / "checks.json"


def digest(paths: Sequence[str | Path]) -> str:
    """What tells whether the text of files is still the same."""
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in paths)).hexdigest()[:16]


# --- Scores of the folds ---------------------------------------------------------------------------------------------
def report_folds(plan: Plan, folds: Sequence[int]) -> None:
    """Write and print the scores of all folds together, and how they differ from fold to fold."""
    rows: list[Row] = []
    parts: dict[int, dict[str, Any]] = {}
    for fold in folds:
        mine, parts[fold] = read_scores(plan.scores(fold))
        rows += [{"fold": fold, **row} for row in mine]
    vocabulary, tolerance = plan.vocabulary, float(plan.config["tolerance"])
    summary = summarize(rows, vocabulary, tolerance)
    summary["folds"] = {str(fold): {"cases": part["cases"], "mean": part["mean"]} for fold, part in parts.items()}
    summary["over_folds"] = {metric: mean_and_spread([parts[fold]["mean"][metric] for fold in folds])
                             for metric in METRICS}  # fmt: skip
    write_scores(plan.output, rows, summary)
    print(format_table(summary))
    print()
    print_table(fold_rows(summary), numbers=True)
    print(f"scores of {summary['cases']} held-out cases are in {plan.output}")


def mean_and_spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean and standard deviation (n - 1) over folds; a single fold has no spread."""
    known = [value for value in values if value is not None]
    return {
        "mean": statistics.mean(known) if known else None,
        "spread": statistics.stdev(known) if len(known) > 1 else None,
    }


def fold_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """A row for each fold, then their mean and standard deviation."""

    def cells(values: Sequence[float | None]) -> list[str]:
        return ["–" if value is None else f"{value:.3f}" for value in values]

    rows = [["fold", "cases", *HEADS]]
    for fold, part in summary["folds"].items():
        rows.append([fold, str(part["cases"]), *cells([part["mean"][metric] for metric in METRICS])])
    for name, key in (("mean", "mean"), ("standard deviation", "spread")):
        rows.append([name, "", *cells([summary["over_folds"][metric][key] for metric in METRICS])])
    return rows


def write_scores(folder: Path, rows: Sequence[Row], summary: Mapping[str, Any]) -> None:
    """scores.csv and scores.json, as an evaluation leaves them."""
    with whole_file(folder / "scores.csv") as unfinished, unfinished.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with whole_file(folder / "scores.json") as unfinished:
        unfinished.write_text(json.dumps(summary, indent=2) + "\n")


# --- Scans nobody trained on -----------------------------------------------------------------------------------------
class Tested:
    """The scans given as --test, and what is made of them.

    Args:
        source: a scan or a folder of them. Labels are those that the dataset.json beside the folder names.
        target: folder for their label maps.
        plan: for the vocabulary.
    """

    def __init__(self, source: Path, target: Path, plan: Plan) -> None:
        self.source, self.target, self.scans = source, target, find_scans(source)
        check_target(source, target, single=False)
        self.vocabulary, self.tolerance = plan.vocabulary, float(plan.config["tolerance"])
        self.cases = self.labelled_cases()
        check_cases(list(self.cases.values()), self.vocabulary, plan.checks)

    def labelled_cases(self) -> dict[str, Case]:
        """The scans that the section `test` has labels of, by name."""
        folder = self.source if self.source.is_dir() else self.source.parent
        datalist = folder.parent / "dataset.json"
        if not datalist.is_file():
            return {}
        cases = read_cohort(datalist, self.vocabulary, "test")
        labelled = {Path(case["image"]).resolve(): case for case in cases if "label" in case}
        paths = {name: Path(scan.path).resolve() for name, scan in self.scans.items()}
        return {name: labelled[path] for name, path in paths.items() if path in labelled}

    def segment(self, weights: Sequence[Path], threads: int, memory: float | None) -> None:
        """Segment with the mean of the models; scans that are finished are kept."""
        segment(str(self.source), str(self.target), [str(path) for path in weights], threads=threads, memory=memory)
        if self.cases:
            self.score()

    def score(self) -> None:
        vocabulary, read = self.vocabulary, Compose([LoadOnOwnGridd(keys="label"), MapLabelValuesd()])
        rows: list[Row] = []
        for name, case in self.cases.items():
            truth = read({key: case[key] for key in ("label", "values", "cohort")})["label"]
            spacing = torch.as_tensor(truth.affine)[:3, :3].norm(dim=0).tolist()
            labels = torch.as_tensor(read_label_map(self.target / f"{name}.nii.gz").voxels)
            scored = score_case(labels, truth.as_tensor()[0], spacing, vocabulary, case["labelled"], self.tolerance)
            rows += [{"cohort": case["cohort"], "case": case["case"], **row} for row in scored]
        summary = summarize(rows, vocabulary, self.tolerance)
        write_scores(self.target, rows, summary)
        print(format_table(summary))
        print(f"scores of {len(self.cases)} test scans are in {self.target}")

    def write_submission(self, path: Path) -> None:
        """The label maps, and nothing else, in one archive."""
        with whole_file(path) as unfinished, zipfile.ZipFile(unfinished, "w") as archive:  # they are packed already
            for name in self.scans:
                archive.write(self.target / f"{name}.nii.gz", f"{submitted_name(name)}.nii.gz")
        values = ", ".join(f"{value} {organ}" for value, organ in enumerate(self.vocabulary.names, start=1))
        print(f"{path} holds {len(self.scans)} label maps, with {values}")


def submitted_name(name: str) -> str:
    """What Synapse expects for the scan `img0061`: `label0061`."""
    return re.sub(r"^img(?=\d)", "label", name)
