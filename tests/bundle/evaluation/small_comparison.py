"""A small finished comparison for tests: two networks, two selections of cohorts, three methods and a variant."""

import json
import shutil
from pathlib import Path
from typing import Any

from bundle.evaluation.score_files import METRICS
from bundle.evaluation.statistics import write_table
from bundle.training.prior import Prior

ORGANS = ["spleen", "liver"]
CASES = ("test_000", "test_001")
# Dice of spleen and liver in the two cases.
DICE = {
    "full": ((0.5, 0.7), (0.3, 0.9)),  # mean 0.6
    "partial": ((0.7, 0.7), (0.7, 0.9)),  # mean 0.75
    "pann": ((0.8, 0.8), (0.9, 0.9)),  # mean 0.85
    "no_prior": ((0.8, 0.8), (0.8, 0.8)),  # mean 0.8
}
PRIOR = Prior(["background", *ORGANS], [0.9, 0.04, 0.06], [0, 0.01, 0.02], ["a"], {})
HISTORY: list[dict[str, Any]] = [
    {"kind": "refresh", "stage": "train", "iteration": 0, "by_cohort": {"A": [0.9, 0.02, 0.12], "B": [0.9, 0.04, 0.06]},
     "quality": {"A": {"precision": [0.9, None, 0.4], "recall": [0.9, None, 0.1]},
                 "B": {"precision": [0.9, 0.6, 0.8], "recall": [0.9, 0.5, None]}}},
    {"kind": "step", "stage": "train", "iteration": 10, "gradients": {"partial": [1, 1, 4], "prior": [1, 2, 1]}},
    {"kind": "step", "stage": "train", "iteration": 20, "gradients": {"partial": [1, 3, 0], "prior": [1, 6, 1]}},
    {"kind": "refresh", "stage": "train", "iteration": 20, "by_cohort": {"A": [0.9, 0.04, 0.06]}},
]  # fmt: skip


def scores(method: str, network: str = "unet", selection: str = "A+B", lift: float = 0.0) -> list[dict[str, Any]]:
    names = {"network": network, "selection": selection, "method": method, "replicate": "seed0", "cohort": "test"}
    return [
        {**names, "case": case, "organ": organ, "status": "scored", **dict.fromkeys(METRICS), "dice": dice + lift}
        for case, row in zip(CASES, DICE[method], strict=True)
        for organ, dice in zip(ORGANS, row, strict=True)
    ]


def description(cohorts: Path) -> dict[str, Any]:
    files = {
        name: {
            "image": str(cohorts / "test" / "imagesTs" / f"{name}.nii.gz"),
            "label": str(cohorts / "test" / "labelsTs" / f"{name}.nii.gz"),
        }
        for name in CASES
    }
    methods = {key: {"title": key.title(), "values": {}, "ablation": False} for key in ("full", "partial", "pann")}
    methods["no_prior"] = {"title": "No prior", "values": {"prior_weight": 0}, "ablation": True}
    return {
        "title": "Methods & cohorts", "reference": "pann", "methods": methods, "replicates": ["seed0"],
        "networks": ["unet", "resnet"], "selections": {"A": ["A"], "A+B": None},
        "main": {"network": "unet", "selection": "A+B"}, "organs": ORGANS, "cases": files,
        "facts": {"machine": "a <small> one"},
    }  # fmt: skip


def write_small_comparison(folder: Path, cohorts: Path) -> None:
    """scores.csv and comparison.json, without runs."""
    rows = [row for method in DICE for row in scores(method)]
    rows += [row for method in ("full", "partial", "pann") for row in scores(method, selection="A")]
    rows = [row | {"dice": row["dice"] - 0.1} if row["selection"] == "A" and row["method"] != "full" else row
            for row in rows]  # fmt: skip
    rows += scores("pann", "resnet", lift=0.05)
    write_table(folder / "scores.csv", rows)
    (folder / "comparison.json").write_text(json.dumps(description(cohorts)))


def add_runs(folder: Path, cohorts: Path) -> None:
    """Segmentations of all methods (the truth itself), and what training of the reference noted."""
    for method in ("full", "partial", "pann"):
        run = folder / "runs" / "unet" / "A+B" / method / "seed0"
        shutil.copytree(cohorts / "test" / "labelsTs", run / "test" / "segmentations")
    PRIOR.save(run / "eval" / "prior.json")
    (run / "eval" / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in HISTORY))
