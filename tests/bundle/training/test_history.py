"""The history: its first line says whose it is and what was taken as annotated."""

import json
from pathlib import Path
from typing import Any

from bundle.training.history import History, read_history
from tests.runs import run_in

CASES: list[Any] = [
    {"image": "a.nii.gz", "cohort": "livers", "case": "a", "labelled": ["liver"]},
    {"image": "b.nii.gz", "cohort": "livers", "case": "b", "labelled": []},
    {"image": "c.nii.gz", "labelled": ["liver", "spleen"]},  # of another program
]


def test_the_first_line_says_what_was_annotated_also_after_an_interruption(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    history = History(run, CASES)
    history.start("train")
    history.record("step", 1, loss=0.5)
    state = history.state_dict()
    history.record("step", 2, loss=0.25)
    resumed = History(run, CASES)
    resumed.load_state_dict(state)
    head, *lines = map(json.loads, run.history.read_text().splitlines())
    assert head == {
        "kind": "run",
        "run": run.identity,
        "label_sets": {"livers/a": ["liver"], "livers/b": [], "c.nii.gz": ["liver", "spleen"]},
    }
    assert [line["iteration"] for line in lines] == [1]
    assert read_history(run.history) == lines
