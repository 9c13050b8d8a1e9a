# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Scores of folds, put together: over all cases, and how they differ from fold to fold."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bundle.evaluation.score_files import METRICS, Row
from bundle.evaluation.summaries import format_table, read_scores, summarize, write_scores
from bundle.evaluation.tables import number
from scripts.common import print_table
from scripts.crossval.plan import CrossValidation

__all__ = ["report_folds"]

HEADS = ("Dice", "ASD mm", "HD mm", "HD95 mm", "SD")  # of METRICS


def report_folds(plan: CrossValidation, folds: Sequence[int]) -> None:
    """Write and print the scores of all folds together, and how they differ from fold to fold."""
    rows: list[Row] = []
    parts: dict[int, dict[str, Any]] = {}
    vocabulary, tolerance = plan.vocabulary, float(plan.config["tolerance"])
    always = plan.validated_always()  # they would count once for each fold
    for fold in folds:
        scored, parts[fold] = read_scores(plan.scores(fold))
        mine = [row for row in scored if (row["cohort"], row["case"]) not in always]
        if len(mine) < len(scored):
            parts[fold] = summarize(mine, vocabulary, tolerance)
        rows += [{"fold": fold, **row} for row in mine]
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
    rows = [["fold", "cases", *HEADS]]
    for fold, part in summary["folds"].items():
        rows.append([fold, str(part["cases"]), *(number(part["mean"][metric]) for metric in METRICS)])
    for name, key in (("mean", "mean"), ("standard deviation", "spread")):
        rows.append([name, "", *(number(summary["over_folds"][metric][key]) for metric in METRICS)])
    return rows
