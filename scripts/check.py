# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""`python -m scripts check DATASET.json…`: an integrity report over all cohorts, before training.

What takes long to import is imported when the check runs, so that its help is quick.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.errors import EXIT_CODE, InputError
from bundle.files import write_json
from bundle.organs import Vocabulary
from scripts.common import check_writable

if TYPE_CHECKING:  # else imported where they are used: the help needs none of these
    from bundle.checks.results import CaseCheck
    from bundle.cohorts.datalists import Case

STRICT_CODE = 1


def check(
    *datasets: str,
    output: str = "eval/check",
    organs: str | Sequence[str] | None = None,
    strict: bool = False,
    workers: int | None = None,
) -> None:
    """Examine every case of the cohorts: files, geometry, values, sides, sizes, copies of one scan.

    Exit code 0 if the data can be trained on, 1 if there are warnings and --strict is given, 2 if there are errors.

    Args:
        datasets: dataset.json files, folders of cohorts, or a folder that holds several of them.
        output: folder for report.html and report.json.
        organs: the vocabulary, for instance liver,spleen; all organs if not given.
        strict: let warnings count.
        workers: processes; all cores if not given.
    """
    from bundle.checks.cases import examine_cases
    from bundle.reports.check import cohort_table, draw_thumbnail, write_check_page

    folder = Path(str(output))
    check_writable(folder)
    vocabulary = Vocabulary(organs)
    cases = load_all(datasets, vocabulary)
    checks = examine_cases(cases, vocabulary, draw_thumbnail, workers=workers)
    label_sets = describe_label_sets(cases)
    errors, warnings = (sum(len(getattr(one, kind)) for one in checks) for kind in ("errors", "warnings"))
    verdict = f"{counted(len(checks), 'case')}: {counted(errors, 'error')}, {counted(warnings, 'warning')}"
    write_record(folder / "report.json", checks, errors, warnings)
    write_check_page(folder / "report.html", checks, label_sets, verdict)
    print(cohort_table(checks, label_sets).text())
    print_findings(checks)
    print(f"{verdict}; see {folder / 'report.html'}")
    if errors:
        sys.exit(EXIT_CODE)
    if warnings and strict:
        sys.exit(STRICT_CODE)


def load_all(datasets: Sequence[str], vocabulary: Vocabulary) -> list[Case]:
    """The cases of all sections."""
    from bundle.cohorts.datalists import SECTIONS, cohort_files, load_cases

    files = [str(file) for file in cohort_files(datasets)]
    cases = [case for section in SECTIONS for case in load_cases(".", files, vocabulary, section)]
    if not cases:
        raise InputError(f"{', '.join(map(str, datasets))}: no case is listed there; see docs/how-to/data.md")
    return cases


def describe_label_sets(cases: Sequence[Case]) -> dict[str, str]:
    """The most frequent label set of each cohort, in words."""
    found: dict[str, Counter[str]] = {}
    for case in cases:
        words = ", ".join(case["labelled"]) if len(case["labelled"]) < 6 else f"{len(case['labelled'])} organs"
        found.setdefault(case["cohort"], Counter())[words or "nothing"] += 1
    return {
        cohort: sets.most_common(1)[0][0] + (f" and {len(sets) - 1} more label sets" if len(sets) > 1 else "")
        for cohort, sets in found.items()
    }


def counted(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'' if number == 1 else 's'}"


def write_record(path: Path, checks: Sequence[CaseCheck], errors: int, warnings: int) -> None:
    """What was found, for programs."""
    from bundle.checks.results import as_json

    record = {"errors": errors, "warnings": warnings, "cases": [as_json(one) for one in checks]}
    write_json(path, record)


def print_findings(checks: Sequence[CaseCheck]) -> None:
    """Errors first, each in a line of its own."""
    for kind in ("errors", "warnings"):
        for one in checks:
            for finding in getattr(one, kind):
                print(f"{kind[:-1]}: {finding.message}", file=sys.stderr)
