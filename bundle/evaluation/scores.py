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

import warnings
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
from bundle.evaluation.score_files import METRICS, Row
from bundle.evaluation.summaries import format_table, read_scores, summarize, write_scores
from bundle.organs import IGNORED, WHOLE_VOCABULARY, Vocabulary

__all__ = ["METRICS", "OrganScores", "Row", "format_table", "read_scores", "score_case", "score_organ", "summarize"]


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

    Example:
        >>> truth, prediction = torch.zeros(2, 9, 9, 9, dtype=torch.bool)
        >>> truth[3:7, 3:7, 3:7] = prediction[5:9, 3:7, 3:7] = True
        >>> row = score_organ(prediction, truth, (1.5, 1.0, 1.0))
        >>> row["status"], row["dice"], row["hausdorff"]
        ('scored', 0.5, 3.0)
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
    """One row per organ of the vocabulary. What is predicted in ignored voxels counts neither for nor against.

    Args:
        prediction: X×Y×Z, channels of the vocabulary.
        truth: likewise; ignored voxels are `IGNORED`.
        spacing: voxel size in mm.
        vocabulary: the organs.
        labelled: the case's label set; None means all organs.
        tolerance: of the surface Dice, mm.

    Example:
        >>> truth = torch.zeros(9, 9, 9, dtype=torch.long)
        >>> truth[3:7, 3:7, 3:7] = 1
        >>> rows = score_case(truth, truth, (1, 1, 1), Vocabulary(["spleen", "liver"]), labelled=["spleen"])
        >>> [(row["organ"], row["status"], row["dice"]) for row in rows]
        [('spleen', 'scored', 1.0), ('liver', 'unlabelled', None)]
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
        summary = summarize(self.rows, self.vocabulary, self.tolerance)
        write_scores(self.output_dir, self.rows, summary)
        print(format_table(summary))
        print(f"scores are in {self.output_dir}")
