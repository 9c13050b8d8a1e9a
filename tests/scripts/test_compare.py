"""`python -m scripts compare`: what it plans, what it refuses; the whole of it, slowly, killed in between."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bundle.errors import InputError
from bundle.evaluation.statistics import read_table
from scripts.compare.plan import ComparisonPlan, replicate_name
from scripts.compare.runs import ComparisonRuns, ReplicateCohorts, make_cohorts
from scripts.runs import ROOT, Run

RunCommand = Callable[..., subprocess.CompletedProcess[str]]
PREPARED = {"btcv": "full", "msd_spleen": "spleen", "nih_pancreas": "pancreas", "msd_liver": "liver"}
EXPERIMENTS = sorted((ROOT / "configs" / "experiments").glob("*.yaml"))
METHODS = {"full": {"supervision": "full"}, "pann": {"supervision": "pann"}}


def write(folder: Path, **entries: Any) -> Path:
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"methods": METHODS, "phantoms": {"full": 2}, **entries}, sort_keys=False))
    return path


def option(run: Run, step: int, name: str) -> str:
    return run.steps[step][run.steps[step].index(f"--{name}") + 1]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"method": {}}, r"plan.yaml: expected methods and any of .*, found \['method'\]"),
        ({"methods": {"a b": {"supervision": "full"}}}, 'expected names of letters, .* found "a b"'),
        ({"methods": {"a": {"supervision": "weak"}}}, 'method a: expected a supervision of full, .* found "weak"'),
        ({"methods": {"a": None}}, 'method a: expected a supervision of full, .* found "None"'),
        ({"reference": "marginal"}, 'reference: expected one of full, pann, found "marginal"'),
        ({"phantoms": None}, "expected either dataset_dir or phantoms"),
        ({"dataset_dir": "data"}, "expected either dataset_dir or phantoms"),
        ({"folds": [0]}, "folds: synthetic cohorts have a test set"),
        ({"overlays": ["configs/none.yaml"]}, "configs/none.yaml: no such config"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ComparisonPlan.read(write(tmp_path, **entries))


def test_a_missing_or_broken_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"none.yaml: no such file; give a YAML such as configs/experiments/small.yaml"
    ):
        ComparisonPlan.read(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("methods: [")
    with pytest.raises(InputError, match=r"broken.yaml: not YAML"):
        ComparisonPlan.read(tmp_path / "broken.yaml")


@pytest.mark.parametrize("path", [path for path in EXPERIMENTS if "paper" not in path.stem], ids=lambda path: path.stem)
def test_the_experiments_on_phantoms_can_be_carried_out(path: Path) -> None:
    plan = ComparisonPlan.read(path)
    plan.check_values(path)
    assert plan.reference == "pann"


def test_a_plan_says_only_what_differs_from_its_base(tmp_path: Path) -> None:
    base = write(tmp_path, values={"a": 1, "b": 2}, seeds=[0, 1]).rename(tmp_path / "base.yaml")
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"base": base.name, "values": {"b": 3}, "seeds": [5]}))
    plan = ComparisonPlan.read(tmp_path / "other.yaml")
    assert (plan.values, plan.seeds, plan.phantoms) == ({"a": 1, "b": 3}, [5], {"full": 2})
    assert set(plan.methods) == set(METHODS)


@pytest.mark.parametrize(("name", "runs"), [("paper_2d", 2 * 5 * (1 + 4 * 6 + 1)), ("paper_3d", 5 * 8)])
def test_the_paper_s_protocol_can_be_planned(tiny_cohorts: Path, tmp_path: Path, name: str, runs: int) -> None:
    for cohort, like in PREPARED.items():
        (tmp_path / cohort).symlink_to(tiny_cohorts / like)
    read = yaml.safe_load((ROOT / "configs" / "experiments" / f"{name}.yaml").read_text())
    plan = ComparisonPlan.read(write(tmp_path, **read | {"dataset_dir": str(tmp_path), "phantoms": None}))
    planned = ComparisonRuns(plan, tmp_path / "out", make_cohorts(plan, tmp_path / "out"))
    assert len(planned.all_runs()) == runs  # per network and fold: stage 1, `full` once, the others for each selection


@pytest.fixture
def planned(tmp_path: Path) -> ComparisonRuns:
    plan = ComparisonPlan.read(
        write(
            tmp_path,
            seeds=[3, 4],
            selections={"A": ["full", "spleen"], "A+B": None},
            networks={"small": [], "large": []},
            ablations={"bare": {"supervision": "pann", "prior_weight": 0.0}},
            values={"train_iterations": 7},
        )
    )
    data = {
        replicate_name(one): ReplicateCohorts(tmp_path / f"train{one['seed']}", tmp_path / "test")
        for one in plan.replicates
    }
    return ComparisonRuns(plan, tmp_path / "out", data)


def test_all_methods_share_one_stage_one_and_one_budget(planned: ComparisonRuns) -> None:
    runs = planned.all_runs()
    warmups = [run for run in runs if not run.needs]
    assert len(warmups) == 4  # two networks, two seeds
    for run in runs:
        if run.needs:
            (warmup,) = run.needs
            assert warmup in {one.folder for one in warmups}
            assert option(run, 0, "warmup_checkpoint") == str(warmup / "models" / "warmup.pt")
            assert option(run, 0, "train_iterations") == "7"
            assert option(run, 1, "dataset_dir").endswith("/test")
        else:
            assert option(run, 0, "train_iterations") == "0"
    seeds = {(option(run, 0, "seed"), option(run, 0, "dataset_dir")[-1]) for run in runs}
    assert seeds == {("3", "3"), ("4", "4")}


def test_nothing_is_trained_twice(planned: ComparisonRuns) -> None:
    cells = [(network, selection, method) for network, selection, method, _ in planned.cells()]
    assert cells.count(("small", "A", "full")) == 0  # the same as in A+B
    assert cells.count(("small", "A+B", "full")) == cells.count(("large", "A+B", "full")) == 2
    assert cells.count(("small", "A", "pann")) == 2
    assert cells.count(("large", "A+B", "bare")) == 2  # ablations in the main cell only
    assert cells.count(("small", "A+B", "bare")) == 0
    assert len({run.folder for run in planned.all_runs()}) == len(planned.all_runs())


def test_folds_are_scored_on_what_they_hold_out(tiny_cohorts: Path, tmp_path: Path) -> None:
    plan = ComparisonPlan.read(write(tmp_path, phantoms=None, dataset_dir=str(tiny_cohorts), folds=[0, 2], seeds=[5]))
    planned = ComparisonRuns(plan, tmp_path / "out", make_cohorts(plan, tmp_path / "out" / "data"))
    runs = [run for run in planned.all_runs() if run.needs]
    assert [(option(run, 1, "section"), option(run, 1, "fold")) for run in runs][::2] == [("fold", "0"), ("fold", "2")]
    assert {option(run, 1, "dataset_dir") for run in runs} == {str(tiny_cohorts)}


def test_a_misspelled_value_is_refused_before_any_work(tmp_path: Path) -> None:
    path = write(tmp_path, ablations={"bare": {"supervision": "pann", "prior_wieght": 0.0}})
    with pytest.raises(
        InputError, match=r'plan.yaml: method bare: prior_wieght: the config has no .* did you mean "prior_weight"'
    ):
        ComparisonPlan.read(path).check_values(path)


def test_a_changed_config_makes_a_run_anew(planned: ComparisonRuns) -> None:
    before = planned.all_runs()[-1].settings
    planned.plan.values["overlap"] = 0.5
    assert planned.all_runs()[-1].settings != before
    assert list(before["configs"]) == ["configs/evaluate.yaml", "configs/train.yaml"]
    assert before["configs"]["configs/train.yaml"] == (ROOT / "configs" / "train.yaml").read_text()
    assert list(planned.all_runs()[0].settings["configs"]) == ["configs/train.yaml"]  # stage 1 is not scored


# --- The whole of it -------------------------------------------------------------------------------------------------
def tried(folder: Path) -> Path:
    """The smoke version, with a few iterations."""
    plan = yaml.safe_load((ROOT / "configs" / "experiments" / "smoke.yaml").read_text())
    plan["values"] |= {"warmup_iterations": 6, "train_iterations": 6, "refresh_interval": 3}
    plan["phantoms"] |= {"full": 2, "partial": 1, "test": 2, "grid": [32, 32, 16]}
    path = folder / "tried.yaml"
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
    return path


@pytest.mark.slow
def test_a_killed_comparison_goes_on_and_ends_in_a_report(run_command: RunCommand, tmp_path: Path) -> None:
    plan, folder = tried(tmp_path), tmp_path / "out"
    command = [sys.executable, "-m", "scripts", "compare", "--config", str(plan), "--output", str(folder)]
    first = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(folder.glob("runs/*/*/*/*/run.json")) and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    finished = {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}
    assert finished
    assert not (folder / "report.html").exists()

    done = run_command("-m", "scripts", "compare", "--config", plan, "--output", folder)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(path.stat().st_mtime_ns == when for path, when in finished.items())  # kept
    rows = read_table(folder / "scores.csv").to_dict("records")
    methods = yaml.safe_load(plan.read_text())["methods"]
    assert {row["method"] for row in rows} >= set(methods)
    assert len({row["case"] for row in rows}) == 2
    page = (folder / "report.html").read_text()
    assert page.count("<img") >= 4
    assert "pseudo-label" in page.lower()
    facts = json.loads((folder / "comparison.json").read_text())["facts"]
    assert "torch 2.13.0" in facts["versions"]


def test_a_misspelled_config_is_one_sentence(run_command: RunCommand) -> None:
    done = run_command("-m", "scripts", "compare", "--config", "configs/experiments/smal.yaml")
    assert done.returncode == 2
    assert done.stderr.strip().startswith("error: configs/experiments/smal.yaml: no such file")
