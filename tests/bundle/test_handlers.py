"""What happens around the network's step: the order of dual steps and refreshes, and what is written down."""

from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigParser

from bundle.errors import InputError
from bundle.handlers import read_history
from bundle.losses import PriorLoss
from bundle.pseudo_labels import PseudoLabels

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = [str(ROOT / "configs" / "train.yaml"), str(ROOT / "tests" / "integration" / "tiny.yaml")]


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
    step, anchor, write = PriorLoss.step_duals, PriorLoss.anchor, PseudoLabels.write
    monkeypatch.setattr(PriorLoss, "step_duals", lambda *a, **k: (calls.append("step"), step(*a, **k))[1])
    monkeypatch.setattr(PriorLoss, "anchor", lambda *a, **k: (calls.append("anchor"), anchor(*a, **k))[1])
    monkeypatch.setattr(PseudoLabels, "write", lambda *a, **k: (calls.append("write"), write(*a, **k))[1])
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
    handlers = parser.get_parsed_content("train::handlers")
    assert [handler.interval for handler in handlers if type(handler).__name__ == "PseudoLabelRefresh"] == [10]


def test_a_second_run_replaces_the_history_of_its_stage(parser: ConfigParser, tmp_path: Path) -> None:
    for _ in range(2):
        parser.parse(reset=True)
        parser.get_parsed_content("train::trainer").run()
    assert len(read_history(tmp_path / "eval" / "history.jsonl")) == 5


def test_a_loss_that_is_no_number_ends_the_run_without_weights(parser: ConfigParser, tmp_path: Path) -> None:
    parser.update({"train_learning_rate": float("inf")})
    parser.parse(reset=True)
    with pytest.raises(InputError, match="the loss became nan before iteration 2; lower the learning rate"):
        parser.get_parsed_content("train::trainer").run()
    assert not (tmp_path / "models" / "model.pt").exists()
