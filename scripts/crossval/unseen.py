# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Scans nobody trained on: segmented with the models of all folds, scored where there are labels, and packed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from monai.transforms import Compose

from bundle.checks.cases import check_cases
from bundle.cohorts.datalists import Case, read_cohort
from bundle.evaluation.score_files import Row
from bundle.evaluation.scores import score_case
from bundle.evaluation.summaries import format_table, summarize, write_scores
from bundle.files import whole_file
from bundle.scans.finding import find_scans
from bundle.scans.reading import read_label_map
from bundle.transforms.dictionary import LoadOnOwnGridd, MapLabelValuesd
from scripts.crossval.plan import CrossValidation
from scripts.segment import segment
from scripts.segment.jobs import check_target

__all__ = ["UnseenScans"]


class UnseenScans:
    """The scans given as --test, and what is made of them.

    Args:
        source: a scan or a folder of them. Labels are those that the dataset.json beside the folder names.
        target: folder for their label maps.
        plan: for the vocabulary.
    """

    def __init__(self, source: Path, target: Path, plan: CrossValidation) -> None:
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
        models = [str(path) for path in weights]
        segment(str(self.source), str(self.target), models, threads=threads, memory=memory)
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
