"""`python -m scripts crossval`: what it asks of runs, how scores come together, what it refuses; the whole, slowly."""

import csv
import json
import shutil
import statistics
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bundle.cohorts.datalists import load_cases
from bundle.cohorts.selection import full_cases
from bundle.errors import InputError
from bundle.evaluation.scores import METRICS, read_scores, summarize
from bundle.organs import Vocabulary
from scripts.crossval import crossval
from scripts.crossval.plan import CrossValidation, chosen_folds, chosen_values
from scripts.crossval.results import report_folds
from scripts.crossval.unseen import UnseenScans, submitted_name
from scripts.runs import Run
from tests.paths import ROOT

TINY = str(ROOT / "tests" / "integration" / "tiny.yaml")
ORGANS = Vocabulary().names
RunCommand = Callable[..., subprocess.CompletedProcess[str]]


def option(run: Run, name: str) -> str:
    (command,) = run.steps
    return command[command.index(f"--{name}") + 1]


# --- What is asked for -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "numbers"), [(5, [0, 1, 2, 3, 4]), ((0, 2), [0, 2]), ([3], [3]), (1, [0])]
)  # what Fire makes of 5, 0,2, [3] and 1
def test_folds_are_a_number_or_a_list(given: Any, numbers: list[int]) -> None:
    assert chosen_folds(given) == numbers


@pytest.mark.parametrize("given", [0, -1, True, "all", (0, 0), (0, "a"), 2.5, []])
def test_other_folds_are_refused(given: Any) -> None:
    with pytest.raises(InputError, match="folds: expected how many, such as 5, or which, such as 0,1,2, found"):
        chosen_folds(given)


def test_values_may_hold_commas_in_brackets() -> None:
    values = {"supervision": "partial", "pixdim": "[4,4,6]", "organs": "['liver','spleen']", "seed": "1"}
    assert chosen_values("supervision=partial,pixdim=[4,4,6], organs=['liver','spleen'],seed=1") == values
    assert chosen_values(["seed=1", "duals=natural"]) == {"seed": "1", "duals": "natural"}
    assert chosen_values({"seed": 1}) == {"seed": "1"}
    assert chosen_values(()) == {}
    for wrong in ("seed", "seed=", "=1", "a=1,,b=2"):
        with pytest.raises(InputError, match="values: expected values such as supervision=partial,seed=1, found"):
            chosen_values(wrong)


def test_each_fold_is_trained_and_its_last_weights_scored_on_what_was_held_out(
    tiny_cohorts: Path, tmp_path: Path
) -> None:
    plan = CrossValidation(tiny_cohorts, tmp_path, (TINY,), {"seed": "3", "tolerance": "1.5"})
    trained, _, scored, _ = plan.runs([0, 2])
    folder = tmp_path / "folds" / "fold0"
    assert option(trained, "fold") == option(scored, "fold") == "0"
    assert option(trained, "bundle_root") == str(folder)
    assert option(trained, "seed") == option(scored, "seed") == "3"
    assert option(scored, "checkpoint") == str(folder / "models" / "model.pt")
    assert option(scored, "section") == "fold"
    assert scored.needs == (trained.folder,)
    assert "--tolerance" not in trained.steps[0]  # training knows none
    other = CrossValidation(tiny_cohorts, tmp_path, (TINY,), {"seed": "3", "tolerance": "2"})
    assert other.training(0).settings == trained.settings
    assert other.scoring(0).settings != scored.settings
    assert CrossValidation(tiny_cohorts, tmp_path, (TINY,), {"seed": "4"}).training(0).settings != trained.settings


def test_all_cases_and_a_training_without_stage_two(tiny_cohorts: Path, tmp_path: Path) -> None:
    plan = CrossValidation(tiny_cohorts, tmp_path, (TINY,), {"train_iterations": "0"})
    (run,) = plan.runs([None])
    assert option(run, "fold") == "None"
    assert plan.weights(None) == tmp_path / "folds" / "all" / "models" / "warmup.pt"


# --- Scores ----------------------------------------------------------------------------------------------------------
def write_fold(folder: Path, dices: Sequence[float]) -> None:
    """Scores as an evaluation leaves them: one case for each Dice, which all organs have."""
    folder.mkdir(parents=True)
    empty = dict.fromkeys(METRICS)
    rows = [
        {"cohort": "full", "case": f"{folder.name}_{number}", "organ": organ, "status": "missed", **empty, "dice": dice}
        for number, dice in enumerate(dices)
        for organ in ORGANS
    ]
    with (folder / "scores.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    (folder / "scores.json").write_text(json.dumps(summarize(rows, Vocabulary())))


def test_scores_of_folds_come_together(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dices = {0: [0.2, 0.4], 1: [0.6], 2: [0.9]}

    def pretend(runs: Sequence[Run], cores: int, threads: int, memory: float | None) -> None:
        assert (len(runs), cores, threads, memory) == (6, 2, 2, 8)
        for fold, values in dices.items():
            write_fold(tmp_path / "scores" / f"fold{fold}", values)

    monkeypatch.setattr("scripts.runs.run_all_within", pretend)
    crossval(str(tiny_cohorts), str(tmp_path), TINY, folds=3, cores=2, threads=2, memory=8)
    rows, summary = read_scores(tmp_path)
    assert len(rows) == 4 * len(ORGANS)
    assert {(row["fold"], row["case"]) for row in rows} == {
        ("0", "fold0_0"), ("0", "fold0_1"), ("1", "fold1_0"), ("2", "fold2_0"),
    }  # fmt: skip
    assert summary["cases"] == 4
    assert summary["mean"]["dice"] == pytest.approx(2.1 / 4)  # over cases: the larger fold counts more
    assert summary["over_folds"]["dice"]["mean"] == pytest.approx((0.3 + 0.6 + 0.9) / 3)
    assert summary["over_folds"]["dice"]["spread"] == pytest.approx(statistics.stdev([0.3, 0.6, 0.9]))
    assert summary["over_folds"]["hausdorff"] == {"mean": None, "spread": None}
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["0", "2", "0.300", "–", "–", "–", "–"] in printed
    assert ["standard", "deviation", "0.300", "–", "–", "–", "–"] in printed


def test_the_section_validation_counts_with_no_fold(tiny_cohorts: Path, tmp_path: Path) -> None:
    """Every fold is scored on it too; with all of them together it would weigh as much as the folds do."""
    data = Path(shutil.copytree(tiny_cohorts, tmp_path / "data"))
    path = data / "full" / "dataset.json"
    datalist = json.loads(path.read_text())
    datalist["validation"] = [{**datalist["training"].pop(), "case": "fold0_1"}]
    path.write_text(json.dumps(datalist))
    plan = CrossValidation(data, tmp_path / "out", (TINY,), {})
    write_fold(plan.scores(0), [0.2, 0.4])  # two cases, of which fold0_1 is of the section
    write_fold(plan.scores(1), [0.6])
    report_folds(plan, [0, 1])
    rows, summary = read_scores(tmp_path / "out")
    assert {row["case"] for row in rows} == {"fold0_0", "fold1_0"}
    assert summary["mean"]["dice"] == pytest.approx(0.4)
    assert summary["folds"]["0"]["cases"] == 1
    assert summary["folds"]["0"]["mean"]["dice"] == pytest.approx(0.2)


# --- Scans nobody trained on -----------------------------------------------------------------------------------------
def test_a_submission_holds_the_label_maps_under_the_names_that_synapse_wants(
    tiny_cohorts: Path, tmp_path: Path
) -> None:
    scans, out = tmp_path / "scans", tmp_path / "out"
    scans.mkdir()
    for name in ("img0061", "img0062"):
        (scans / f"{name}.nii.gz").write_bytes((tiny_cohorts / "test" / "imagesTs" / "test_000.nii.gz").read_bytes())
    unseen = UnseenScans(scans, out / "ensemble", CrossValidation(tiny_cohorts, out, (TINY,), {}))
    assert not unseen.cases  # no dataset.json, no labels
    (out / "ensemble").mkdir(parents=True)
    for name in ("img0061", "img0062", "left_from_before"):
        (out / "ensemble" / f"{name}.nii.gz").write_text(name)
    unseen.write_submission(out / "submission.zip")
    with zipfile.ZipFile(out / "submission.zip") as archive:
        assert archive.namelist() == ["label0061.nii.gz", "label0062.nii.gz"]
        assert archive.read("label0061.nii.gz") == b"img0061"
    (out / "ensemble" / "img0062.nii.gz").unlink()
    before = (out / "submission.zip").read_bytes()
    with pytest.raises(FileNotFoundError):
        unseen.write_submission(out / "submission.zip")
    assert (out / "submission.zip").read_bytes() == before  # whole or not at all


def test_names_of_other_scans_stay() -> None:
    assert [submitted_name(name) for name in ("img0061", "image3", "amos_1")] == ["label0061", "image3", "amos_1"]


def test_labelled_test_scans_are_scored(tiny_cohorts: Path, tmp_path: Path) -> None:
    unseen = UnseenScans(
        tiny_cohorts / "test" / "imagesTs", tmp_path / "ensemble", CrossValidation(tiny_cohorts, tmp_path, (TINY,), {})
    )
    assert list(unseen.cases) == ["test_000", "test_001"]
    (tmp_path / "ensemble").mkdir()
    for name, case in unseen.cases.items():
        truth = nib.load(case["label"])
        voxels = np.asanyarray(truth.dataobj).astype(np.uint8)
        voxels[voxels == 6] = 0  # a model that finds everything but the liver
        nib.save(nib.Nifti1Image(voxels, truth.affine), tmp_path / "ensemble" / f"{name}.nii.gz")
    unseen.score()
    _, summary = read_scores(tmp_path / "ensemble")
    assert summary["cases"] == 2
    assert summary["organs"]["liver"]["dice"] == 0
    assert summary["organs"]["liver"]["missed"] == 2
    assert summary["organs"]["spleen"]["dice"] == 1
    assert summary["organs"]["spleen"]["hausdorff"] == 0


# --- What is refused, before any work --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"folds": 4}, "fold: expected one of 0, 1, 2, or null to hold nothing out, found 3"),
        (
            {"submission": True},
            "submission: expected scans to segment beside it, found none; give",
        ),
        ({"values": "fold=1"}, "values: fold differs from fold to fold"),
        ({"values": "suprevision=full"}, 'did you mean "supervision"'),
        ({"values": "supervision=weak"}, "values: supervision: expected a word, one of .*, found 'weak'"),
        ({"overlays": "nowhere.yaml"}, "nowhere.yaml: no such config"),
        ({"test": "nowhere"}, "nowhere: no such file or folder"),
        ({"cores": 0}, "cores: expected a whole number from 1 on, found 0"),
        ({"dataset_dir": "nowhere"}, "nowhere: no such folder"),
    ],
)
def test_bad_input_is_refused_before_any_work(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("scripts.runs.run_all_within", lambda *_: pytest.fail("worked"))
    given = {"dataset_dir": str(tiny_cohorts), "output": str(tmp_path), "overlays": TINY, "folds": 3, **options}
    with pytest.raises(InputError, match=said):
        crossval(**given)


def test_a_broken_overlay_is_named(tiny_cohorts: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("fold: [0")
    with pytest.raises(InputError, match=r"^[^ ]*bad.yaml: cannot be read as a config .*"):
        crossval(str(tiny_cohorts), str(tmp_path / "out"), str(tmp_path / "bad.yaml"))


def test_a_misspelled_option_is_one_sentence(run_command: RunCommand) -> None:
    finished = run_command("-m", "scripts", "crossval", "--dataset_dir", "nowhere", "--fold", 3)
    assert finished.returncode == 2
    assert finished.stderr.splitlines() == ["error: --fold: there is no such option; did you mean --folds?"]


# --- The whole -------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_real_command_crosses_goes_on_and_submits(
    run_command: RunCommand, tiny_cohorts: Path, tmp_path: Path
) -> None:
    command = [
        "-m", "scripts", "crossval", "--dataset_dir", tiny_cohorts, "--output", tmp_path, "--overlays", TINY,
        "--values", "cohorts=[full,spleen],seed=2", "--cores", 2,
    ]  # fmt: skip
    first = run_command(*command, "--folds", "[1]")
    assert first.returncode == 0, first.stderr[-3000:]
    trained = tmp_path / "folds" / "fold1" / "models" / "model.pt"
    made = trained.stat().st_mtime_ns
    images = tiny_cohorts / "test" / "imagesTs"
    finished = run_command(*command, "--folds", 3, "--test", images, "--submission")
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert trained.stat().st_mtime_ns == made
    rows, summary = read_scores(tmp_path)
    full = full_cases(load_cases(tiny_cohorts))
    assert sorted({row["case"] for row in rows}) == sorted(case["case"] for case in full)  # each once
    assert len(rows) == len(full) * len(ORGANS)
    assert set(summary["folds"]) == {"0", "1", "2"}
    for fold in range(3):
        mine = {row["case"] for row in rows if row["fold"] == str(fold)}
        made_maps = (tmp_path / "scores" / f"fold{fold}" / "segmentations").glob("*.nii.gz")
        assert {path.name.removesuffix(".nii.gz") for path in made_maps} == mine
    with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
        assert archive.namelist() == ["test_000.nii.gz", "test_001.nii.gz"]
    assert read_scores(tmp_path / "ensemble")[1]["cases"] == 2
    once = run_command(*command, "--all_cases", "--test", images)
    assert once.returncode == 0, once.stderr[-3000:]
    assert len(list((tmp_path / "all").glob("*.nii.gz"))) == 2
