# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The report that every training of the server leaves: what was saved, what it learned, and whether it is served."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.cohorts.selection import validation_cases
from bundle.errors import InputError
from bundle.evaluation.tables import MISSING, Table, number
from bundle.organs import Vocabulary
from bundle.reports.demo import plot_losses
from bundle.reports.figures import COLORS, grid_of_axes, plain_axes
from bundle.reports.pages import Picture, draw_picture, write_page
from bundle.reports.slices import plot_slices
from bundle.training.history import read_history

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_learning", "write_training_report"]

MODELS = {"served": "served model", "candidate": "candidate"}  # folders of their scores, and what the report calls them
SHOWN = 3  # cases in the picture
SMALL_CHANGE = 0.005  # of a Dice; not marked as a gain or a loss


def write_training_report(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write `report.html` of a training that has ended, well or not.

    Args:
        folder: of the training.
        record: what is recorded of it.
    """
    plan, comparison = record.get("plan") or {}, record.get("comparison") or {}
    label_sets = plan.get("label_sets", {})
    return write_page(
        folder / "report.html",
        "label.html",
        title=f"Training {record.get('number')}",
        record=record,
        comparison=comparison,
        version=record.get("version"),
        error=record.get("error", ""),
        refused=record.get("refused", []),
        saved=label_table(label_sets),
        cases=len(label_sets),
        scores=score_table(comparison) if comparison.get("candidate") else None,
        slices=draw_answers(folder, plan, comparison),
        losses=draw_losses(folder),
        values=value_table(plan.get("values", {})),
    )


def label_table(label_sets: Mapping[str, list[str]]) -> Table:
    """Which organs were annotated in how many saved cases, and in which."""
    counts = Counter(organ for organs in label_sets.values() for organ in organs)
    rows = [
        [organ, str(count), ", ".join(case for case, organs in label_sets.items() if organ in organs)]
        for organ, count in counts.most_common()
    ]
    return Table(["organ", "cases", "which"], rows, texts=3)


def score_table(comparison: Mapping[str, Any]) -> Table:
    """Dice of each organ before and after."""
    served, candidate, margin = comparison["served"], comparison["candidate"], comparison["margin"]
    rows, kinds = [], []
    for organ, new in candidate.items():
        old = served.get(organ)
        change = None if old is None or new is None else new - old
        kind = "" if change is None or abs(change) < SMALL_CHANGE else "up" if change > 0 else "down"
        rows.append([organ, number(old), number(new), MISSING if change is None else f"{change:+.3f}"])
        kinds.append(["", "", "", kind])
    return Table(["organ", "served model", "candidate", f"change (may lose {margin:g})"], rows, kinds=kinds)


def draw_answers(folder: Path, plan: Mapping[str, Any], comparison: Mapping[str, Any]) -> Picture | None:
    """Held-out cases as both models segment them."""
    columns = {head: folder / "scores" / name / "segmentations" for name, head in MODELS.items()}
    columns = {head: maps for head, maps in columns.items() if maps.is_dir()}
    if not columns or not comparison.get("candidate"):
        return None
    values, vocabulary = plan["values"], Vocabulary(list(comparison["candidate"]))
    held_out = validation_cases(values["dataset_dir"], values["cohorts"], vocabulary, values["fold"])
    cases = [case for case in held_out if case["image"].endswith((".nii.gz", ".nii"))][:SHOWN]
    if not cases:
        return None
    images = [(case["case"], case["image"]) for case in cases]
    maps = {head: [place / f"{case['case']}.nii.gz" for case in cases] for head, place in columns.items()}
    return draw_picture(plot_slices(images, maps, vocabulary), "The axial slice that shows the most organs.")


def value_table(values: Mapping[str, Any]) -> Table:
    rows = [[name, str(value)] for name, value in values.items() if name not in ("cohorts",)]
    return Table(["value", "set to"], rows, texts=2)


def draw_losses(folder: Path) -> Picture | None:
    """The losses, as far as the training came."""
    try:
        history = read_history(folder / "eval" / "history.jsonl")
    except InputError:
        return None
    return draw_picture(plot_losses(history), "Means over a few iterations each.") if history else None


def plot_learning(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Mean Dice of what servers serve, from the start over rounds of annotating and training.

    Args:
        curves: by name; the first value is that of the model they all begin with.
    """
    figure, (axis,) = grid_of_axes(1, 1, 7.0, 3.8)
    for (name, curve), color in zip(curves.items(), COLORS, strict=False):
        axis.plot(range(len(curve)), curve, "o-", color=color, label=name)
    rounds = max(len(curve) for curve in curves.values())
    axis.set_xticks(range(rounds), ["start", *(f"round {turn}" for turn in range(1, rounds))])
    axis.set(ylabel="mean Dice, held-out cases", ylim=(0, None))
    axis.legend(frameon=False)
    plain_axes(axis, "y")
    return figure
