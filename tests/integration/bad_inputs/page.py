# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""docs/errors.md: a table of what is wrong and what is then said, for each group of bad inputs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tests.integration.bad_inputs.record import BadInput
from tests.paths import ROOT

__all__ = ["PAGE", "REFRESH", "write_page"]

PAGE = ROOT / "docs" / "errors.md"
REFRESH = "PANN_WRITE_ERRORS"  # an environment variable
HEAD = f"""# Errors

<!-- Written by `{REFRESH}=1 pytest -m slow tests/integration/test_errors.py`; do not edit. -->

A mistake is answered with one sentence and exit code 2: what was expected, what was found, in which file, what to do.
Below is what the commands say to {{count}} of them. A test makes each of these mistakes in a folder with tiny synthetic
cohorts (`data`), a scan and, where needed, a trained model (`models`), runs the real command, and compares the page.
`training`, `evaluating` and `inferring` stand for `python -m monai.bundle run` with the configs of that name; all
others are commands of `python -m scripts`.
"""


def code(text: str) -> str:
    """Text as Markdown shows it unchanged inside a table."""
    text = re.sub(r"\S{300,}", lambda word: f"{word[0][:20]}…{word[0][-20:]}", text)
    lines = [line.strip().replace("|", "\\|") for line in text.splitlines() if line.strip()]
    return "<br>".join(f"`` {line} ``" if "`" in line else f"`{line}`" for line in lines)


def row(bad: BadInput, sentence: str) -> str:
    return f"| {bad.wrong} | {code(bad.shown)} | {code(sentence)} |"


def write_page(groups: Mapping[str, Sequence[tuple[BadInput, str]]]) -> str:
    """The page.

    Args:
        groups: name of each group, and its bad inputs with the sentence that each gets.
    """
    parts = [HEAD.format(count=sum(len(rows) for rows in groups.values()))]
    for name, rows in groups.items():
        table = ["| what is wrong | command | what is said |", "|---|---|---|"]
        table += [row(bad, sentence) for bad, sentence in sorted(rows, key=lambda pair: pair[0].wrong.lower())]
        parts.append(f"## {name.capitalize()}\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)
