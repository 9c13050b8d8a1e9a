# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts compare`: supervisions × cohorts × networks × seeds or folds from one YAML, with a report.

Every method starts from one stage-1 checkpoint per network and replicate and has the same number of iterations. What
is compared is in plan.py, the runs are in runs.py, what comes out of them in results.py.
"""

from __future__ import annotations

import time
from pathlib import Path

__all__ = ["compare"]


def compare(config: str = "configs/experiments/small.yaml", output: str | None = None) -> None:
    """Compare supervisions on the same data, with the same budget, and write tables, statistics and a report.

    Finished runs are kept: the same command goes on after an interruption.

    Args:
        config: what to compare; see configs/experiments/small.yaml.
        output: folder for everything; default eval/NAME of the config.
    """
    # Imported here: the help needs none of these.
    from bundle.evaluation.statistics import write_table
    from bundle.files import write_json
    from bundle.reports.comparison import write_comparison
    from scripts.common import check_writable
    from scripts.compare.plan import ComparisonPlan
    from scripts.compare.results import collect_rows, describe, facts_of
    from scripts.compare.runs import ComparisonRuns, make_cohorts
    from scripts.runs import ROOT, run_all_within

    started, path = time.time(), Path(str(config))
    plan = ComparisonPlan.read(path)
    plan.check_values(path)
    folder = (Path(str(output)) if output else ROOT / "eval" / path.stem).resolve()
    check_writable(folder)
    planned = ComparisonRuns(plan, folder, make_cohorts(plan, folder / "data"))
    runs = planned.all_runs()
    run_all_within(runs, plan.cores, plan.threads, plan.memory)
    write_table(folder / "scores.csv", collect_rows(planned))
    facts = facts_of(plan, runs, path, time.time() - started)
    write_json(folder / "comparison.json", describe(planned, facts), default=str)
    print(f"the report is {write_comparison(folder)}")
