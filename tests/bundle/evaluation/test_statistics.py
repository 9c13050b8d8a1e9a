"""Statistics of a comparison: the case is the unit, pairs are honest, and p values are those of the textbooks."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from bundle.errors import InputError
from bundle.evaluation.score_files import METRICS, scores_of
from bundle.evaluation.statistics import (
    COLUMNS,
    bootstrap_interval,
    case_means,
    cell,
    compare_methods,
    correct_holm,
    organ_values,
    paired_test,
    read_table,
    write_table,
)


def row(method: str, case: str, dice: float | None, organ: str = "liver", replicate: str = "seed0") -> dict[str, Any]:
    names = {"network": "unet", "selection": "A", "method": method, "replicate": replicate}
    scores = dict.fromkeys(METRICS) | {"dice": dice}
    return {**names, "cohort": "test", "case": case, "organ": organ, "status": "scored", **scores}


def rows_with(method: str, *values: float) -> list[dict[str, Any]]:
    return [row(method, f"case{index}", value) for index, value in enumerate(values)]


def table_of(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return scores_of(rows, COLUMNS)


# --- The table -------------------------------------------------------------------------------------------------------
def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    rows = [row("pann", "a, b", 0.1 + 0.2), row("pann", "c", None) | {"status": "absent"}]
    write_table(tmp_path / "scores.csv", rows)
    pd.testing.assert_frame_equal(read_table(tmp_path / "scores.csv"), table_of(rows), check_exact=True)


def test_a_table_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_table(tmp_path / "scores.csv", [row("pann", "a", 0.5)])
    with pytest.raises(ValueError, match="unknown"):
        write_table(tmp_path / "scores.csv", [row("pann", "b", 0.5), {"unknown": 1}])
    assert read_table(tmp_path / "scores.csv")["case"].tolist() == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["scores.csv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("cohort,case\na,b\n", "no column network, selection"),
        (",".join(COLUMNS) + "\nunet,A\n", "line 2: expected 13 fields"),
        (",".join(COLUMNS) + "\n" + "x," * 8 + "good,,,,\n", "line 2: expected a number"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "scores.csv"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_table(path)


def test_a_cell_is_one_network_and_selection() -> None:
    rows = [row("pann", "a", 0.1), row("pann", "a", 0.2) | {"network": "other"},
            row("pann", "a", 0.3) | {"selection": "B"}]  # fmt: skip
    assert cell(table_of(rows), "unet", "A")["dice"].tolist() == [0.1]


# --- Means -----------------------------------------------------------------------------------------------------------
def test_a_case_is_averaged_over_organs_then_replicates() -> None:
    rows = [
        row("pann", "a", 0.8, "liver"), row("pann", "a", 0.4, "spleen"), row("pann", "a", None, "aorta"),
        # The second seed knows one organ only: it still weighs as much as the first.
        row("pann", "a", 1.0, "liver", "seed1"),
        row("pann", "b", 0.5, "liver", "seed1"),  # in one fold only
        row("pann", "c", None, "liver"),
        row("full", "a", 0.1),
    ]  # fmt: skip
    table = table_of(rows)
    assert case_means(table, "pann").to_dict() == pytest.approx({("test", "a"): (0.6 + 1.0) / 2, ("test", "b"): 0.5})
    assert organ_values(table, "pann", "liver").to_dict() == pytest.approx({("test", "a"): 0.9, ("test", "b"): 0.5})
    assert case_means(table, "nobody").empty


# --- Tests -----------------------------------------------------------------------------------------------------------
def test_wilcoxon_of_five_gains_is_two_in_thirty_two() -> None:
    assert paired_test([0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(2 / 32)
    assert paired_test([-0.1, -0.2, -0.3, -0.4, -0.5]) == pytest.approx(2 / 32)


def test_wilcoxon_counts_the_signs_that_are_as_extreme() -> None:
    # The loss has rank 1: sums of negative ranks of at most 1 are {} and {1}, on both sides 4 of 2^5.
    assert paired_test([-0.1, 0.2, 0.3, 0.4, 0.5]) == pytest.approx(4 / 32)


def test_methods_that_never_differ_have_p_one() -> None:
    assert paired_test([0.0, 0.0, 0.0]) == 1.0
    assert paired_test([1e-17, -1e-17]) == 1.0  # the rounding of means is no difference
    assert paired_test([0.3]) == 1.0  # one case decides nothing


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.03, 0.04: times 3, 2 and 1 is 0.03, 0.06, 0.04, and the last may not fall below 0.06.
    assert correct_holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert correct_holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    assert correct_holm([]) == []


def test_the_interval_is_the_normal_one_for_many_cases() -> None:
    values = np.random.default_rng(3).normal(0.02, 0.1, 400)
    half = norm.ppf(0.975) * values.std() / np.sqrt(len(values))
    assert bootstrap_interval(values) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.05 * half)
    assert bootstrap_interval(values, seed=5) == bootstrap_interval(values, seed=5)
    assert bootstrap_interval([0.25, 0.25]) == (0.25, 0.25)
    assert bootstrap_interval([0.25]) == (0.25, 0.25)


def test_the_interval_of_few_cases_by_hand() -> None:
    # The mean of three draws of 0 and 3 is 0, 1, 2 or 3; 0 and 3 have 1/8 each, more than the tails of 95 %.
    assert bootstrap_interval([0.0, 3.0, 0.0], resamples=2000)[0] == 0.0
    assert bootstrap_interval([0.0, 3.0], resamples=2000) == (0.0, 3.0)


# --- Comparisons -----------------------------------------------------------------------------------------------------
def test_methods_are_paired_by_case_whatever_their_order() -> None:
    rows = rows_with("pann", 0.91, 0.82, 0.73, 0.64, 0.55)
    rows += rows_with("partial", 0.9, 0.8, 0.7, 0.6, 0.5)[::-1]  # 0.01 … 0.05 worse
    rows += rows_with("same", 0.91, 0.82, 0.73, 0.64, 0.55)
    partial, same = compare_methods(table_of(rows), "pann", ["partial", "same"])
    assert partial.mean == pytest.approx(0.03)
    assert 0.01 < partial.low < 0.03 < partial.high < 0.05
    assert (partial.p, partial.p_holm) == pytest.approx((2 / 32, 4 / 32))
    assert (partial.better, partial.cases) == (5, 5)
    assert (same.mean, same.low, same.high, same.p, same.p_holm, same.better) == (0, 0, 0, 1, 1, 0)


def test_a_smaller_distance_is_better() -> None:
    rows = [
        one | {"surface_distance": 10 * one["dice"]}
        for one in rows_with("pann", 0.1, 0.2) + rows_with("full", 0.3, 0.1)
    ]
    (difference,) = compare_methods(table_of(rows), "pann", ["full"], "surface_distance")
    assert difference.mean == pytest.approx(-0.5)
    assert (difference.better, difference.cases) == (1, 2)


def test_only_common_cases_count_and_none_is_an_error() -> None:
    rows = rows_with("pann", 0.9, 0.8, 0.1) + rows_with("full", 0.7, 0.7)
    (difference,) = compare_methods(table_of(rows), "pann", ["full"])
    assert (difference.mean, difference.cases) == (pytest.approx(0.15), 2)
    with pytest.raises(InputError, match="pann and absent to be scored on the same cases"):
        compare_methods(table_of(rows), "pann", ["absent"])
