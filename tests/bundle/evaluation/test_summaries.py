"""Summaries of scores: what does not apply is left out and counted, and files come back as they were written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import InputError
from bundle.evaluation.score_files import METRICS
from bundle.evaluation.summaries import format_table, read_scores, summarize, write_scores
from bundle.organs import Vocabulary


def rows_with(values: list[float]) -> list[dict[str, Any]]:
    empty = dict.fromkeys(METRICS)
    names = {"cohort": "t", "organ": "spleen", "status": "scored"}
    return [{**names, **empty, "case": f"case{index}", "dice": value} for index, value in enumerate(values)]


def test_a_summary_leaves_out_what_does_not_apply_and_counts_it() -> None:
    empty = dict.fromkeys(METRICS)
    rows = [
        {"cohort": "t", "case": "a", "organ": "spleen", **empty, "status": "scored", "dice": 0.8, "hausdorff": 4.0},
        {"cohort": "t", "case": "b", "organ": "spleen", **empty, "status": "missed", "dice": 0.0},
        {"cohort": "t", "case": "a", "organ": "liver", **empty, "status": "absent"},
        {"cohort": "t", "case": "b", "organ": "liver", **empty, "status": "unlabelled"},
    ]
    summary = summarize(rows, Vocabulary(["spleen", "liver"]))
    assert summary["cases"] == 2
    assert summary["organs"]["spleen"]["dice"] == pytest.approx(0.4)
    assert summary["organs"]["spleen"]["hausdorff"] == pytest.approx(4.0)
    assert summary["organs"]["liver"]["dice"] is None
    assert summary["mean"]["dice"] == pytest.approx(0.4)
    assert summary["status"] == {"scored": 1, "missed": 1, "absent": 1, "unlabelled": 1}
    assert "–" in format_table(summary)


def test_means_are_those_of_numpy_to_the_last_digit() -> None:
    values = np.random.default_rng(0).random(1000).tolist()
    assert summarize(rows_with(values), Vocabulary("spleen"))["organs"]["spleen"]["dice"] == float(np.mean(values))


def test_no_cases_have_no_means() -> None:
    summary = summarize([], Vocabulary("spleen"))
    assert (summary["cases"], summary["status"], summary["mean"]["dice"]) == (0, {}, None)


def test_a_table_for_a_terminal_has_a_line_for_each_organ_and_the_mean() -> None:
    lines = format_table(summarize(rows_with([0.5, 0.25]), Vocabulary("spleen,liver"))).splitlines()
    assert [line.split() for line in lines] == [
        ["organ", "Dice", "ASD", "mm", "HD", "mm", "HD95", "mm", "SD", "2", "mm"],
        ["spleen", "0.375", "–", "–", "–", "–"],
        ["liver", "–", "–", "–", "–", "–"],
        ["mean", "over", "organs", "0.375", "–", "–", "–", "–"],
    ]
    assert len({len(line) for line in lines}) == 1  # all columns end at the same place


def test_scores_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = [{"fold": "0", **row} for row in rows_with([0.1 + 0.2, 1 / 3])]
    summary = summarize(rows, Vocabulary("spleen"))
    write_scores(tmp_path, rows, summary)
    assert read_scores(tmp_path) == (rows, summary)
    assert (tmp_path / "scores.csv").read_bytes().startswith(b"fold,cohort,organ,status,dice,")
    write_scores(tmp_path / "none", [], summarize([], Vocabulary("spleen")))
    assert read_scores(tmp_path / "none")[0] == []


@pytest.mark.parametrize(
    "change",
    [
        {"cases": 3}, {"mean": {}}, {"mean": None}, {"organs": {"lever": {}}}, {"organs": []}, {"organs": {}},
        {"surface_dice_tolerance_mm": "2"}, {"surface_dice_tolerance_mm": True}, {"status": {"scored": 1}},
    ],
)  # fmt: skip
def test_a_summary_of_other_scores_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    rows = rows_with([0.5, 0.25])
    write_scores(tmp_path, rows, {**summarize(rows, Vocabulary("spleen")), **change})
    with pytest.raises(
        InputError, match="scores.json: expected the means of scores.csv beside it, found something else"
    ):
        read_scores(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "5", "[" * 100_000, '{"organs": 5}'])
def test_what_is_no_summary_is_refused(tmp_path: Path, text: str) -> None:
    write_scores(tmp_path, rows_with([0.5]), {})
    (tmp_path / "scores.json").write_text(text)
    with pytest.raises(InputError, match="scores.json: "):
        read_scores(tmp_path)


def test_a_summary_may_say_more(tmp_path: Path) -> None:
    rows = rows_with([0.5, 0.25])
    write_scores(tmp_path, rows, {**summarize(rows, Vocabulary("spleen")), "folds": {"0": 1}})
    assert read_scores(tmp_path)[1]["folds"] == {"0": 1}


def test_scores_that_were_cut_off_are_named(tmp_path: Path) -> None:
    write_scores(tmp_path, rows_with([0.5, 0.25]), {})
    path = tmp_path / "scores.csv"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InputError, match="scores.csv, line 3: expected 9 fields, found fewer; was it cut off?"):
        read_scores(tmp_path)
