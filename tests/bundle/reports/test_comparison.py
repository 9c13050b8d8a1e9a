"""The report of a comparison: numbers that can be checked by hand, and pictures only of what is there."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from matplotlib.image import imread

from bundle.errors import InputError
from bundle.evaluation.comparisons import Comparison, paper_table
from bundle.evaluation.scores import METRICS
from bundle.evaluation.statistics import write_table
from bundle.organs import Vocabulary
from bundle.reports.closeups import choose_regions, region_window
from bundle.reports.comparison import write_comparison
from bundle.reports.comparison_figures import plot_boxes, plot_gradients, plot_quality, plot_shares
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


@pytest.fixture
def folder(tmp_path: Path, tiny_cohorts: Path) -> Path:
    """A comparison without runs: two networks, two selections of cohorts, three methods and a variant."""
    rows = [row for method in DICE for row in scores(method)]
    rows += [row for method in ("full", "partial", "pann") for row in scores(method, selection="A")]
    rows = [row | {"dice": row["dice"] - 0.1} if row["selection"] == "A" and row["method"] != "full" else row
            for row in rows]  # fmt: skip
    rows += scores("pann", "resnet", lift=0.05)
    write_table(tmp_path / "scores.csv", rows)
    (tmp_path / "comparison.json").write_text(json.dumps(description(tiny_cohorts)))
    return tmp_path


def add_runs(folder: Path, cohorts: Path) -> None:
    """Segmentations of all methods (the truth itself), and what training of the reference noted."""
    for method in ("full", "partial", "pann"):
        run = folder / "runs" / "unet" / "A+B" / method / "seed0"
        shutil.copytree(cohorts / "test" / "labelsTs", run / "test" / "segmentations")
    PRIOR.save(run / "eval" / "prior.json")
    (run / "eval" / "history.jsonl").write_text("".join(json.dumps(record) + "\n" for record in HISTORY))


def cells(html: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]


def test_the_table_of_the_paper(folder: Path) -> None:
    write_comparison(folder)
    lines = [line.strip("| ").split(" | ") for line in (folder / "table.md").read_text().splitlines()[2:]]
    # What never sees the partial cohorts has one column.
    assert lines[0] == ["network", "Full", "Partial, A", "Partial, A+B", "Pann, A", "Pann, A+B"]
    assert lines[2] == ["unet", "60.00", "65.00", "75.00", "75.00", "**85.00**"]
    assert lines[3] == ["resnet", "–", "–", "–", "–", "90.00"]  # alone, it is not the best


def test_a_method_with_one_selection_keeps_its_name(folder: Path) -> None:
    write_table(folder / "scores.csv", [row for method in DICE for row in scores(method)])
    assert paper_table(Comparison.load(folder)).head == ["network", "Full, A+B", "Partial, A+B", "Pann, A+B"]


def test_the_report_states_the_result_and_its_doubt(folder: Path) -> None:
    html = write_comparison(folder).read_text()
    # Two cases cannot decide: the smallest p of Wilcoxon's test is 2/4, and twice that is 1.
    sentence = "Pann has a mean Dice of 85.00 % (unet, A+B): 25.00 points above Full (p = 1.00), 10.00 points above"
    assert sentence in html
    assert "cannot give a p below 0.50" in html
    table = cells(html)
    # By case 0.8 − 0.6 and 0.9 − 0.6; with two cases the ends of the interval are the cases themselves.
    assert ["Full", "60.00", "+25.00", "+20.00 to +30.00", "1.00", "2 of 2"] in table
    assert ["No prior", "prior_weight: 0", "80.00", "+5.00", "+0.00 to +10.00", "1.00", "1 of 2"] in table
    assert ["spleen", "40.0", "70.0", "85.0"] in table
    assert ["mean of the cases", "60.0", "75.0", "85.0"] in table
    assert '<td class="best">85.0</td>' in html
    assert "a &lt;small&gt; one" in html
    assert "<h1>Methods &amp; cohorts</h1>" in html


def test_a_reference_that_loses_says_so(folder: Path) -> None:
    given = json.loads((folder / "comparison.json").read_text()) | {"reference": "full"}
    (folder / "comparison.json").write_text(json.dumps(given))
    html = write_comparison(folder).read_text()
    assert "25.00 points below Pann" in html
    assert ["Pann", "85.00", "−25.00", "−30.00 to −20.00", "1.00", "0 of 2"] in cells(html)


def test_without_runs_there_are_no_pictures_of_them(folder: Path) -> None:
    html = write_comparison(folder).read_text()
    assert [path.name for path in (folder / "figures").iterdir()] == ["boxes.png"]
    assert "Inside training" not in html
    assert "Where the methods differ" not in html


def test_with_runs_every_figure_is_a_file_and_in_the_page(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    html = write_comparison(folder).read_text()
    names = ["boxes", "gradients", "proportions", "pseudo_labels", "slices"]
    assert sorted(path.stem for path in (folder / "figures").iterdir()) == names
    assert html.count("data:image/png") == len(names)
    assert not re.findall(r'(?:src|href)="(?!data:)', html)
    for name in names:
        assert imread(folder / "figures" / f"{name}.png")[..., :3].std() > 0.01


def test_boxes_show_every_case(folder: Path) -> None:
    spleen, _, means = plot_boxes(Comparison.load(folder), ["full", "pann"]).axes
    dots = [line for line in spleen.lines if line.get_marker() == "."]
    np.testing.assert_allclose([sorted(line.get_ydata()) for line in dots], [[30, 50], [80, 90]])  # type: ignore[type-var]
    dots = [line for line in means.lines if line.get_marker() == "."]
    np.testing.assert_allclose([sorted(line.get_ydata()) for line in dots], [[60, 60], [80, 90]])  # type: ignore[type-var]


# --- Regions ---------------------------------------------------------------------------------------------------------
def test_regions_are_where_the_reference_differs_most(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    comparison = Comparison.load(folder)
    keys = ["full", "partial", "pann"]
    # Spleen of the second case: 0.9 against 0.3 and 0.7. Of the first case another organ: 0.8 against 0.7 and 0.7.
    regions = choose_regions(comparison, keys)
    assert [(region.case, region.organ) for region in regions] == [("test_001", "spleen"), ("test_000", "liver")]
    assert regions[0].dice == {"full": 0.3, "partial": 0.7, "pann": 0.9}
    shutil.rmtree(comparison.run("pann", "seed0") / "test")
    assert choose_regions(comparison, keys) == []


def test_a_case_is_shown_as_the_fold_that_tested_it_saw_it(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    given = json.loads((folder / "comparison.json").read_text()) | {"replicates": ["fold0", "seed0"]}
    (folder / "comparison.json").write_text(json.dumps(given))
    regions = choose_regions(Comparison.load(folder), ["full", "pann"])
    assert [region.replicate for region in regions] == ["seed0", "seed0"]


def test_a_window_is_half_the_body_around_the_organ() -> None:
    image = np.full((40, 40, 6), -1000)
    image[4:36, 10:30] = 40  # a body of 32×20 voxels of 2 mm
    truth = np.zeros(image.shape, np.uint8)
    truth[12:16, 18:22, 1:5] = 1
    wrong = truth.copy()
    wrong[12:14, 18:22, 3] = 0
    x, y, z = region_window(image, [truth, truth, wrong], 1, (2.0, 2.0, 5.0))
    assert z == 3  # where they disagree
    assert (x, y) == (slice(6, 22), slice(12, 28))  # 16 voxels, the organ in the middle
    truth = np.roll(truth, -8, 0)
    x, _, _ = region_window(image, [truth, truth], 1, (2.0, 2.0, 5.0))
    assert x == slice(4, 20)  # not beyond the body


def test_a_map_on_another_grid_is_refused(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    path = folder / "runs" / "unet" / "A+B" / "full" / "seed0" / "test" / "segmentations" / "test_001.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4)), path)
    with pytest.raises(InputError, match=r"test_001.nii.gz: expected a label map of \(32, 32, 16\)"):
        write_comparison(folder)


# --- Diagnostics -----------------------------------------------------------------------------------------------------
def test_pseudo_label_quality_is_the_mean_of_the_cohorts_that_have_one() -> None:
    figure = plot_quality({"Pann": HISTORY, "Full": []}, {"Pann": "#000000", "Full": "#ffffff"}, ORGANS)
    assert figure is not None
    values = [[float(line.get_ydata()[0]) for line in axis.lines] for axis in figure.axes]  # type: ignore[index]
    np.testing.assert_allclose(values, [[60, 50], [60, 10]])  # precision and recall of spleen and liver
    assert plot_quality({"Full": HISTORY[1:]}, {"Full": "#ffffff"}, ORGANS) is None


def test_proportions_are_relative_to_the_prior() -> None:
    figure = plot_shares(HISTORY, PRIOR)
    assert figure is not None
    spleen, liver = figure.axes
    np.testing.assert_allclose(spleen.lines[1].get_ydata(), [0.5, 1])  # cohort A; line 0 is the prior itself
    np.testing.assert_allclose(liver.lines[1].get_ydata(), [2, 1])
    np.testing.assert_allclose(liver.lines[2].get_ydata(), [1])
    assert plot_shares([], PRIOR) is None


def test_gradients_are_compared_by_their_means() -> None:
    figure = plot_gradients(HISTORY, Vocabulary(ORGANS))
    assert figure is not None
    left, right = figure.axes
    dots = [float(line.get_xdata()[0]) for line in left.lines if line.get_marker() == "o"]  # type: ignore[index]
    assert dots == pytest.approx([(2 + 6) / (1 + 3), (1 + 1) / (4 + 0)])
    np.testing.assert_allclose(right.lines[0].get_ydata(), [2, 2])
    np.testing.assert_allclose(right.lines[1].get_ydata(), [0.25, np.nan])  # no cross-entropy: no ratio
    assert plot_gradients([], Vocabulary(ORGANS)) is None


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
    ],
)
def test_a_description_that_does_not_fit_is_refused(folder: Path, change: Callable[[Any], Any], message: str) -> None:
    given = json.loads((folder / "comparison.json").read_text())
    change(given)
    (folder / "comparison.json").write_text(json.dumps(given))
    with pytest.raises(InputError, match=message):
        write_comparison(folder)


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="comparison.json: expected the description of a comparison"):
        write_comparison(tmp_path)


def test_a_history_that_was_cut_off_is_named(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    path = folder / "runs" / "unet" / "A+B" / "pann" / "seed0" / "eval" / "history.jsonl"
    path.write_text('{"kind": "st')
    with pytest.raises(InputError, match="history.jsonl: expected one record per line"):
        write_comparison(folder)
