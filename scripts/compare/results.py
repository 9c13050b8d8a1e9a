# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a comparison has found, for its report: the scores of all runs, the test cases, and how to do it again."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bundle.cohorts.selection import evaluation_cases
from bundle.evaluation.scores import read_scores
from bundle.organs import Vocabulary
from scripts.compare.plan import ComparisonPlan, replicate_name
from scripts.compare.runs import ComparisonRuns
from scripts.runs import Run, read_record

__all__ = ["collect_rows", "describe", "facts_of"]


def collect_rows(runs: ComparisonRuns) -> list[dict[str, Any]]:
    """The scores of all runs, each row with where it comes from."""
    rows = []
    for network, selection, method, replicate in runs.cells():
        where = {"network": network, "selection": selection, "method": method}
        scores, _ = read_scores(runs.run_folder(network, selection, method, replicate) / "test")
        rows += [{**where, "replicate": replicate_name(replicate), **row} for row in scores]
    return rows


def held_out_cases(runs: ComparisonRuns, vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    """Image and true label map of each test case, and what the values of the map mean."""
    cases = {}
    for replicate in runs.plan.replicates:
        folder = runs.cohorts[replicate_name(replicate)].test
        section = "test" if replicate["fold"] is None else "fold"
        for case in evaluation_cases(folder, None, vocabulary, section, replicate["fold"]):
            cases[case["case"]] = {key: case[key] for key in ("image", "label", "values", "cohort")}
    return cases


def processor() -> str:
    """What the machine calls its processor; psutil does not say."""
    table = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", table.read_text()) if table.is_file() else []
    return names[0] if names else platform.processor() or platform.machine()


def facts_of(plan: ComparisonPlan, runs: Sequence[Run], config: Path, seconds: float) -> dict[str, str]:
    """What anyone needs to do it again."""
    records = [read_record(run.folder) or {} for run in runs]
    busy = sum(float(record.get("seconds", 0)) for record in records)
    peak = max(float(record.get("peak_memory_gb", 0)) for record in records)
    return {
        "command": f"python -m scripts compare --config {config}",
        "runs": f"{len(runs)}, {busy / 3600:.2f} hours in all, {plan.cores // plan.threads} at a time",
        "this call": f"{seconds / 60:.0f} minutes",
        "largest run": f"{peak:.2f} GB",
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in ("torch", "monai", "pytorch-ignite", "numpy")),
        "Python": platform.python_version(),
    }


def describe(runs: ComparisonRuns, facts: Mapping[str, str]) -> dict[str, Any]:
    """comparison.json: what the report needs beside the scores."""
    plan = runs.plan
    vocabulary = Vocabulary(plan.values.get("organs"))
    return {
        "title": plan.title,
        "reference": plan.reference,
        "methods": {
            name: {"title": name.replace("_", " "), "values": values, "ablation": name in plan.ablations}
            for name, values in plan.variants.items()
        },
        "replicates": [replicate_name(replicate) for replicate in plan.replicates],
        "networks": list(plan.networks),
        "selections": plan.selections,
        "main": plan.main,
        "organs": vocabulary.names,
        "cases": held_out_cases(runs, vocabulary),
        "facts": facts,
    }
