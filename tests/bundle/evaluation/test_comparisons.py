"""Comparisons as data: what describes one and what does not, and means that can be checked by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.errors import InputError
from bundle.evaluation.comparisons import Comparison, mean_dice, organ_table, paper_table
from bundle.evaluation.statistics import write_table
from tests.bundle.evaluation.small_comparison import DICE, add_runs, scores, write_small_comparison


@pytest.fixture
def folder(tmp_path: Path, tiny_cohorts: Path) -> Path:
    write_small_comparison(tmp_path, tiny_cohorts)
    return tmp_path


def change_description(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    given = json.loads((folder / "comparison.json").read_text())
    change(given)
    (folder / "comparison.json").write_text(json.dumps(given))


# --- Means -----------------------------------------------------------------------------------------------------------
def test_the_table_of_the_paper_has_a_row_for_each_network(folder: Path) -> None:
    table = paper_table(Comparison.load(folder))
    # What never sees the partial cohorts has one column.
    assert list(table.columns) == ["Full", "Partial, A", "Partial, A+B", "Pann, A", "Pann, A+B"]
    assert table.loc["unet"].tolist() == pytest.approx([0.6, 0.65, 0.75, 0.75, 0.85])
    np.testing.assert_allclose(table.loc["resnet"].to_numpy(dtype=float), [np.nan] * 4 + [0.9])


def test_a_method_with_one_selection_keeps_its_name(folder: Path) -> None:
    write_table(folder / "scores.csv", [row for method in DICE for row in scores(method)])
    assert list(paper_table(Comparison.load(folder)).columns) == ["Full, A+B", "Partial, A+B", "Pann, A+B"]


def test_organs_are_averaged_over_cases(folder: Path) -> None:
    comparison = Comparison.load(folder)
    table = organ_table(comparison, ["full", "pann"])
    assert table.index.tolist() == ["spleen", "liver", "mean of the cases"]
    assert table["Full"].tolist() == pytest.approx([0.4, 0.8, 0.6])
    assert table["Pann"].tolist() == pytest.approx([0.85, 0.85, 0.85])
    assert mean_dice(comparison.rows, "nobody") is None


def test_variants_of_the_reference_are_no_competitors(folder: Path) -> None:
    comparison = Comparison.load(folder)
    assert comparison.scored(ablations=False) == ["full", "partial", "pann"]
    assert comparison.others(ablations=False) == ["full", "partial"]
    assert comparison.others(ablations=True) == ["no_prior"]


def test_runs_may_lack_what_training_leaves(folder: Path, tiny_cohorts: Path) -> None:
    comparison = Comparison.load(folder)
    assert comparison.history("pann") == []
    assert comparison.prior("pann") is None
    add_runs(folder, tiny_cohorts)
    assert [record["iteration"] for record in comparison.history("pann")] == [0, 10, 20, 20]
    assert (comparison.history("full"), comparison.prior("full")) == ([], None)


# --- Errors ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given.pop("organs"), "expected an entry 'organs'"),
        (lambda given: given.update(reference="best"), "expected a reference out of full, partial, pann, found 'best'"),
        (lambda given: given.update(replicates=[]), "at least one replicate"),
        (lambda given: given.update(main={"network": "vnet", "selection": "A"}), "found network 'vnet'"),
        (lambda given: given.update(main={"network": "resnet", "selection": "A"}), "expected scores of 'pann'"),
        (lambda given: given.update(methods=["pann"]), "found another"),
        (lambda given: given["methods"]["full"].update(title="Pann"), "title of its own"),
        (lambda given: given["methods"].update(full=5), "null in the place of a text"),
        (lambda given: given["methods"]["full"].update(title=5), "5 in the place of a text"),
        (lambda given: given.update(replicates=[1]), "1 in the place of a text"),
        (lambda given: given.update(networks="unet"), "found another .networks: "),
        (lambda given: given.update(cases={"a": {"image": None}}), "null in the place of a text"),
        (lambda given: given.update(cases={"a": 5}), "null in the place of a text"),
        (lambda given: given.update(facts={"machine": {}}), "in the place of a text"),
        (lambda given: given.update(main={}), "null in the place of a text"),
        (lambda given: given.update(organs=["lever"]), "is not in the vocabulary"),
        (lambda given: given.update(organs=[]), "expected a list of different organ names"),
    ],
)
def test_a_description_that_does_not_fit_is_refused(folder: Path, change: Callable[[Any], Any], message: str) -> None:
    change_description(folder, change)
    with pytest.raises(InputError, match=message):
        Comparison.load(folder)


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="comparison.json: expected the description of a comparison"):
        Comparison.load(tmp_path)
    for text in ("[]", "[" * 100_000, "\0", '{"a": NaN}'):
        (tmp_path / "comparison.json").write_text(text)
        with pytest.raises(InputError, match="comparison.json: "):
            Comparison.load(tmp_path)


def test_a_history_that_was_cut_off_is_named(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    path = folder / "runs" / "unet" / "A+B" / "pann" / "seed0" / "eval" / "history.jsonl"
    path.write_text('{"kind": "st')
    with pytest.raises(InputError, match="history.jsonl: expected one record per line"):
        Comparison.load(folder).history("pann")
