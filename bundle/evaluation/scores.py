# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Scores per organ and case: Dice, surface distances in mm and surface Dice, with honest rules for empty organs.

| organ is                                  | status     | Dice | distances and surface Dice |
|-------------------------------------------|------------|------|----------------------------|
| outside the case's label set              | unlabelled | –    | –                          |
| absent from truth and prediction          | absent     | –    | –                          |
| absent from the truth, but predicted      | invented   | 0    | –                          |
| in the truth, but not predicted           | missed     | 0    | –                          |
| in both                                   | scored     | ✓    | ✓                          |
"""

from __future__ import annotations

import csv
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.metrics import (
    compute_average_surface_distance,
    compute_dice,
    compute_hausdorff_distance,
    compute_surface_dice,
)
from monai.utils import CommonKeys
from numpy.typing import NDArray
from torch import Tensor

from bundle.cohorts.datalists import Case
from bundle.organs import IGNORED, WHOLE_VOCABULARY, Vocabulary

__all__ = ["METRICS", "OrganScores", "Row", "format_table", "read_scores", "score_case", "score_organ", "summarize"]


METRICS = ("dice", "surface_distance", "hausdorff", "hausdorff95", "surface_dice")

Row = dict[str, Any]


def bounding_box(mask: Tensor, margin: int = 1) -> tuple[slice, ...]:
    """The part of the volume around a mask, with a margin so that its surface stays inside."""
    corners = [axis.aminmax() for axis in mask.nonzero(as_tuple=True)]
    return tuple(slice(max(0, int(low) - margin), int(high) + 1 + margin) for low, high in corners)


def score_organ(prediction: Tensor, truth: Tensor, spacing: Sequence[float], tolerance: float = 2.0) -> Row:
    """Scores of one organ.

    Args:
        prediction: X×Y×Z, bool.
        truth: X×Y×Z, bool.
        spacing: voxel size in mm.
        tolerance: of the surface Dice, mm.
    """
    predicted, present = bool(prediction.any()), bool(truth.any())
    row: Row = {"status": "scored", **dict.fromkeys(METRICS)}
    if not (predicted or present):
        return row | {"status": "absent"}
    if not (predicted and present):
        return row | {"status": "missed" if present else "invented", "dice": 0.0}
    box = bounding_box(prediction | truth)
    pair = {"y_pred": prediction[box][None, None].float(), "y": truth[box][None, None].float()}
    space = [float(step) for step in spacing]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MONAI's metrics use an argument that MONAI deprecates
        return row | surface_scores(pair, space, tolerance)


def surface_scores(pair: dict[str, Tensor], space: list[float], tolerance: float) -> Row:
    """All metrics of two masks (1×1×X×Y×Z) that both have voxels."""
    surface: dict[str, Any] = {**pair, "include_background": True, "spacing": space}
    return {
        "dice": float(compute_dice(**pair, include_background=True)),
        "surface_distance": float(compute_average_surface_distance(**surface, symmetric=True)),
        "hausdorff": float(compute_hausdorff_distance(**surface)),
        "hausdorff95": float(compute_hausdorff_distance(**surface, percentile=95)),
        "surface_dice": float(compute_surface_dice(**surface, class_thresholds=[tolerance])),
    }


def score_case(
    prediction: Tensor,
    truth: Tensor,
    spacing: Sequence[float],
    vocabulary: Vocabulary,
    labelled: Sequence[str] | None = None,
    tolerance: float = 2.0,
) -> list[Row]:
    """One row per organ of the vocabulary. ``labelled`` is the case's label set; None means all organs.

    What is predicted in ignored voxels counts neither for nor against.
    """
    rows = []
    prediction = prediction.where(truth != IGNORED, 0)
    for channel, name in enumerate(vocabulary.names, start=1):
        if labelled is not None and name not in labelled:
            row: Row = {"status": "unlabelled", **dict.fromkeys(METRICS)}
        else:
            row = score_organ(prediction == channel, truth == channel, spacing, tolerance)
        rows.append({"organ": name, **row})
    return rows


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def summarize(rows: Sequence[Row], vocabulary: Vocabulary, tolerance: float = 2.0) -> dict[str, Any]:
    """Means per organ over cases, and of those over organs; how often each status occurred."""
    table = {}
    for organ in vocabulary.names:
        mine = [row for row in rows if row["organ"] == organ]
        table[organ] = {
            **{metric: mean_of([row[metric] for row in mine]) for metric in METRICS},
            **Counter(row["status"] for row in mine),
        }
    return {
        "cases": len({(row["cohort"], row["case"]) for row in rows}),
        "surface_dice_tolerance_mm": tolerance,
        "mean": {metric: mean_of([table[organ][metric] for organ in vocabulary.names]) for metric in METRICS},
        "status": dict(Counter(row["status"] for row in rows)),
        "organs": table,
    }


def format_table(summary: dict[str, Any]) -> str:
    """The summary as text for a terminal."""

    def cell(value: float | None) -> str:
        return f"{'–':>10}" if value is None else f"{value:10.3f}"

    head = ("organ", "Dice", "ASD mm", "HD mm", "HD95 mm", f"SD {summary['surface_dice_tolerance_mm']:g} mm")
    lines = [f"{head[0]:<26}" + "".join(f"{title:>10}" for title in head[1:])]
    for organ, row in [*summary["organs"].items(), ("mean over organs", summary["mean"])]:
        lines.append(f"{organ:<26}" + "".join(cell(row[metric]) for metric in METRICS))
    return "\n".join(lines)


class OrganScores:
    """Handler that scores every case an evaluator segments, and writes scores.csv and scores.json at the end.

    Args:
        cases: the evaluator's cases, for names and label sets.
        output_dir: folder to write to.
        vocabulary: the organs.
        tolerance: of the surface Dice, mm.
    """

    def __init__(
        self, cases: Sequence[Case], output_dir: str, vocabulary: Vocabulary = WHOLE_VOCABULARY, tolerance: float = 2.0
    ) -> None:
        self.cases = {case["image"]: case for case in cases}
        self.output_dir, self.vocabulary, self.tolerance = Path(output_dir), vocabulary, float(tolerance)
        self.rows: list[Row] = []

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.score)
        engine.add_event_handler(Events.COMPLETED, self.write)

    def start(self, engine: Engine) -> None:
        self.rows = []

    def score(self, engine: Engine) -> None:
        for item in engine.state.output:
            prediction, truth = item[CommonKeys.PRED], item[CommonKeys.LABEL]
            case = self.cases[item[CommonKeys.IMAGE].meta["filename_or_obj"]]
            spacing: NDArray[Any] = np.linalg.norm(np.asarray(truth.affine)[:3, :3], axis=0)
            rows = score_case(
                torch.as_tensor(prediction)[0],
                torch.as_tensor(truth)[0],
                spacing.tolist(),
                self.vocabulary,
                case["labelled"],
                self.tolerance,
            )
            self.rows += [{"cohort": case["cohort"], "case": case["case"], **row} for row in rows]

    def write(self, engine: Engine) -> None:
        self.output_dir.mkdir(parents=True, exist_ok=True)
        with (self.output_dir / "scores.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["cohort", "case", "organ", "status", *METRICS])
            writer.writeheader()
            writer.writerows(self.rows)
        summary = summarize(self.rows, self.vocabulary, self.tolerance)
        (self.output_dir / "scores.json").write_text(json.dumps(summary, indent=2) + "\n")
        print(format_table(summary))
        print(f"scores are in {self.output_dir}")


def read_scores(directory: str | Path) -> tuple[list[Row], dict[str, Any]]:
    """Rows and summary as `OrganScores` wrote them."""
    with (Path(directory) / "scores.csv").open() as file:
        rows = [
            {key: (float(value) if value else None) if key in METRICS else value for key, value in row.items()}
            for row in csv.DictReader(file)
        ]
    return rows, json.loads((Path(directory) / "scores.json").read_text())
