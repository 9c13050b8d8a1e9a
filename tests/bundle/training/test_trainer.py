"""Stage 2: the order of weight steps, dual steps and refreshes, and what is written down."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser

from bundle.errors import InputError
from bundle.organs import UNKNOWN
from bundle.training.duals import PriorTerm
from bundle.training.history import read_history
from bundle.training.label_store import PseudoLabelStore
from bundle.training.trainer import run_stage
from tests.paths import ROOT

CONFIGS = [str(ROOT / "configs" / "train.yaml"), str(ROOT / "tests" / "integration" / "tiny.yaml")]

SMALL_DYNUNET = {
    "network_def::kernel_size": [3, 3, 3],
    "network_def::strides": [1, 2, 2],
    "network_def::upsample_kernel_size": [2, 2],
    "network_def::filters": [4, 8, 8],
    "network_def::deep_supr_num": 1,
}


@pytest.fixture
def parser(tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config(CONFIGS)
    parser.update({"dataset_dir": str(tiny_cohorts), "bundle_root": str(tmp_path), "fold": None, "device": "cpu"})
    return parser


def test_refreshes_and_dual_steps_come_in_order(
    parser: ConfigParser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    step, anchor, write = PriorTerm.step, PriorTerm.anchor, PseudoLabelStore.write
    monkeypatch.setattr(PriorTerm, "step", lambda *a, **k: (calls.append("step"), step(*a, **k))[1])
    monkeypatch.setattr(PriorTerm, "anchor", lambda *a, **k: (calls.append("anchor"), anchor(*a, **k))[1])
    monkeypatch.setattr(PseudoLabelStore, "write", lambda *a, **k: (calls.append("write"), write(*a, **k))[1])
    parser.get_parsed_content("train::trainer").run()
    refresh = ["write"] * 6 + ["anchor"]  # two cases of each of three cohorts
    twice = ["write"] * 6  # the first one looks at p̄ before it decides
    assert calls == [*twice, *refresh, "step", "step", *refresh, "step", "step", *refresh]

    history = read_history(tmp_path / "eval" / "history.jsonl")
    assert [(record["kind"], record["iteration"]) for record in history] == [
        ("refresh", 0), ("step", 2), ("refresh", 2), ("step", 4), ("refresh", 4),
    ]  # fmt: skip
    first = history[0]
    assert set(first["by_cohort"]) == {"spleen", "pancreas", "liver"}
    assert sum(first["proportions"]) == pytest.approx(1)
    last = history[3]
    assert len(last["proportions"]) == len(last["nu"]) == len(last["mu"]) == 14
    assert last["loss"] == pytest.approx(last["labelled"] + last["partial"] + last["prior"], rel=1e-5)


def test_training_is_the_same_twice_and_with_workers(parser: ConfigParser, tmp_path: Path) -> None:
    weights = []
    for run, workers in enumerate((0, 0, 2)):
        parser.update({"output_dir": str(tmp_path / str(run)), "workers": workers})
        parser.parse(reset=True)
        torch.manual_seed(0)
        network = parser.get_parsed_content("network")
        parser.get_parsed_content("train::trainer").run()
        weights.append(torch.cat([value.flatten() for value in network.state_dict().values()]))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)
    torch.testing.assert_close(weights[2], weights[0], rtol=0, atol=0)


def test_the_refresh_interval_keeps_its_share_when_epochs_change(parser: ConfigParser) -> None:
    parser.update({"train::trainer::max_epochs": 10})  # 20 iterations instead of 4
    parser.parse(reset=True)
    assert parser.get_parsed_content("train::trainer::refresh_interval") == 10


def test_a_second_run_replaces_the_history_of_its_stage(parser: ConfigParser, tmp_path: Path) -> None:
    for _ in range(2):
        parser.parse(reset=True)
        parser.get_parsed_content("train::trainer").run()
    assert len(read_history(tmp_path / "eval" / "history.jsonl")) == 5


def run_train(parser: ConfigParser, stage: str = "train") -> None:
    """A stage as the config's list of acts runs it."""
    trainer, saver = (parser.get_parsed_content(f"{stage}::{part}") for part in ("trainer", "saver"))
    run_stage(trainer, saver, iterations=4)


def test_a_number_that_is_none_ends_the_run_at_once_and_leaves_the_last_good_checkpoint(
    parser: ConfigParser, tmp_path: Path
) -> None:
    parser.update({"train_learning_rate": float("inf"), "save_minutes": 0})
    parser.parse(reset=True)
    with pytest.raises(InputError, match="stage train, iteration 1: expected finite numbers, found a weight") as caught:
        run_train(parser)
    sampler = parser.get_parsed_content("train::dataloader").batch_sampler
    data = parser.get_parsed_content("train::dataset").data
    for draw in sampler.batch(0):  # the cases of the batch are named
        assert f"{data[draw.number]['cohort']}/{data[draw.number]['case']}" in str(caught.value)
    assert not (tmp_path / "models" / "model.pt").exists()
    checkpoint = torch.load(tmp_path / "models" / "checkpoint.pt", weights_only=True)
    assert checkpoint["iteration"] == 0
    assert all(value.isfinite().all() for value in checkpoint["parts"]["network"].values())


def test_nothing_is_made_of_weights_that_are_no_numbers(parser: ConfigParser, tmp_path: Path) -> None:
    parser.update({"train_learning_rate": float("inf"), "train::trainer::refresh_interval": 1})
    parser.parse(reset=True)
    with pytest.raises(InputError, match="stage train, iteration 1: expected finite numbers, found a weight"):
        run_train(parser)
    assert [record["iteration"] for record in read_history(tmp_path / "eval" / "history.jsonl")] == [0]  # one refresh


def test_predictions_that_are_no_numbers_end_the_run_before_a_checkpoint_holds_them(
    parser: ConfigParser, tmp_path: Path
) -> None:
    sgd = {"_target_": "torch.optim.SGD", "params": "$@network.parameters()", "lr": 1e38}  # huge weights, but finite
    parser.update({"train::optimizer": sgd, "train::trainer::refresh_interval": 1, "save_minutes": 0})
    parser.parse(reset=True)
    with pytest.raises(InputError, match="pseudo-labels of .*/.*: expected finite predictions"):
        run_train(parser)
    checkpoint = torch.load(tmp_path / "models" / "checkpoint.pt", weights_only=True)
    assert checkpoint["parts"]["prior_term"]["nu"].isfinite().all()


def test_a_loss_that_is_no_number_is_named(parser: ConfigParser) -> None:
    network = parser.get_parsed_content("network")
    with torch.no_grad():
        next(network.parameters()).fill_(float("nan"))
    with pytest.raises(InputError, match="stage warmup, iteration 1: expected finite numbers, found a loss of nan"):
        run_train(parser, "warmup")


def test_networks_that_cannot_be_copied_have_teachers_too(parser: ConfigParser, tmp_path: Path) -> None:
    dataset_dir = parser["dataset_dir"]
    parser.read_config([*CONFIGS, str(ROOT / "configs" / "overlays" / "dynunet.yaml")])
    parser.update({"bundle_root": str(tmp_path), "dataset_dir": dataset_dir, "fold": None, "device": "cpu"})
    parser.update(SMALL_DYNUNET)
    network = parser.get_parsed_content("network")
    run_train(parser, "warmup")
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(network)
    run_train(parser)
    assert (tmp_path / "models" / "model.pt").is_file()


@pytest.mark.parametrize(
    ("supervision", "completed", "unknown"),
    [("partial", True, False), ("semi", True, False), ("marginal", False, True), ("ignore", False, True)],
)
def test_what_stands_on_unannotated_voxels(
    parser: ConfigParser, tmp_path: Path, supervision: str, completed: bool, unknown: bool
) -> None:
    parser.update({"supervision": supervision, "confidence": 0.0, "marginal": False})
    parser.parse(reset=True)
    trainer = parser.get_parsed_content("train::trainer")
    trainer.run()
    last = max((tmp_path / "eval" / "pseudo_labels").glob("*/*"))
    labels = [np.load(path)["00000"] for path in last.rglob("*.npz")]
    assert len(labels) == 6
    assert all((label == UNKNOWN).any() == unknown for label in labels)
    assert trainer.loss_function.marginal == (supervision == "marginal")
    assert trainer.loss_function.prior_weight == 0


def test_pseudo_labels_can_wait(parser: ConfigParser, tmp_path: Path) -> None:
    parser.update({"pseudo_start": 2, "truth_dir": str(Path(parser["dataset_dir"]) / "truth"), "confidence": 0.0})
    parser.parse(reset=True)
    parser.get_parsed_content("train::trainer").run()
    refreshes = [r for r in read_history(tmp_path / "eval" / "history.jsonl") if r["kind"] == "refresh"]
    recall = [record["quality"]["spleen"]["recall"] for record in refreshes]
    assert set(recall[0]) <= {0.0, None}
    assert recall[1][0] > 0


def test_a_doubtful_cohort_is_warned_of(parser: ConfigParser, caplog: pytest.LogCaptureFixture) -> None:
    prior = parser.get_parsed_content("prior")
    channel = prior.names.index("spleen")
    prior.proportions[channel], prior.spread[channel] = 10 * prior.proportions[channel], 0.0
    prior.proportions[0] = 1 - sum(prior.proportions[1:])
    parser.get_parsed_content("train::trainer").run()
    assert "cohort spleen: the spleen takes" in caplog.text


def test_the_order_of_handlers_does_not_matter(parser: ConfigParser, tmp_path: Path) -> None:
    weights, lines = [], []
    for run, turned in enumerate((False, True)):
        parser.update({"output_dir": str(tmp_path / str(run))})
        if turned:
            history, schedule, *others = parser["train::handlers"]
            parser["train::handlers"] = [schedule, *others, history]
        parser.parse(reset=True)
        torch.manual_seed(0)
        network = parser.get_parsed_content("network")
        parser.get_parsed_content("train::trainer").run()
        weights.append(torch.cat([value.flatten() for value in network.state_dict().values()]))
        lines.append(read_history(tmp_path / str(run) / "history.jsonl"))
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)
    assert lines[1] == lines[0]
