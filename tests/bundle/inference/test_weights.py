"""Weights: loaded or refused with a sentence."""

from pathlib import Path

import pytest
import torch
from monai.bundle import ConfigParser
from torch import nn

from bundle.errors import InputError
from bundle.inference.weights import load_weights, read_model_config, record_model
from bundle.organs import Vocabulary
from tests.paths import CONFIGS


def test_weights_load_with_and_without_a_key(tmp_path: Path) -> None:
    source = nn.Linear(3, 2)
    for content in (source.state_dict(), {"model": source.state_dict()}):
        torch.save(content, tmp_path / "model.pt")
        target = nn.Linear(3, 2)
        load_weights(target, tmp_path / "model.pt")
        torch.testing.assert_close(target.weight, source.weight)


def test_missing_and_foreign_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model.pt: no such weights; train first"):
        load_weights(nn.Linear(3, 2), tmp_path / "model.pt")
    torch.save(nn.Linear(4, 2).state_dict(), tmp_path / "model.pt")
    with pytest.raises(
        InputError, match=r"not the weights of this network.*size mismatch.*give the overlays and values"
    ):
        load_weights(nn.Linear(3, 2), tmp_path / "model.pt")
    (tmp_path / "model.pt").write_text("no checkpoint")
    with pytest.raises(InputError, match="not the weights of this network"):
        load_weights(nn.Linear(3, 2), tmp_path / "model.pt")


def test_weights_of_other_organs_are_refused(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "model.pt")
    record_model(tmp_path, Vocabulary(["liver", "spleen"]))
    load_weights(nn.Linear(3, 2), tmp_path / "model.pt", Vocabulary(["liver", "spleen"]))
    with pytest.raises(InputError, match=r"trained for the organs \['liver', 'spleen'\]; give them as --organs"):
        load_weights(nn.Linear(3, 2), tmp_path / "model.pt", Vocabulary(["spleen", "liver"]))


def test_the_record_has_the_network_as_the_config_that_runs_declares_it(tmp_path: Path) -> None:
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / "train.yaml"), str(CONFIGS / "overlays" / "paper_2d.yaml")])
    parser.update({"network_def::pretrained": "resnet50.pth", "organs": ["liver", "spleen"], "context": 1})
    record = {"_target_": "bundle.inference.weights.record_model", "directory": str(tmp_path)}
    parser["act"] = {**record, "vocabulary": "@vocabulary"}
    parser.get_parsed_content("act")
    config = read_model_config(tmp_path / "model.pt")
    assert config["organs"] == ["liver", "spleen"]
    network_def = config["network_def"]
    assert network_def["backbone"] == "resnet50"
    assert (network_def["in_channels"], network_def["out_channels"]) == (3, 3)  # numbers, not expressions
    assert network_def["pretrained"] is None  # the trained weights replace them, and their file may be gone by then
