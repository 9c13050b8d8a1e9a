"""What training, evaluation and inference have in common is the same in the files that declare it."""

from typing import Any

import pytest
import yaml
from monai.bundle import ConfigParser

from bundle.configs.values import VALUES
from bundle.organs import Vocabulary
from tests.paths import CONFIGS

SHARED = (
    "organs", "hu_window", "intensity", "patch_size", "pixdim", "context", "overlap", "window_batch", "skip_air",
    "flips", "scales", "backend", "inferer",
)  # fmt: skip


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    return found


@pytest.mark.parametrize("name", SHARED)
def test_inference_declares_what_training_does(name: str) -> None:
    assert read("inference")[name] == read("train")[name]


def test_the_image_transforms_are_one_list() -> None:
    assert read("inference")["preprocessing"]["transforms"] == read("train")["image_transforms"]


def test_the_networks_are_one() -> None:
    parsers = []
    for name in ("train", "inference"):
        parser = ConfigParser()
        parser.read_config(str(CONFIGS / f"{name}.yaml"))
        parsers.append(parser)
    assert parsers[0]["network_def"] == parsers[1]["network_def"]
    assert [parser.get_parsed_content("out_channels") for parser in parsers] == [14, 14]


def test_the_vocabulary_is_that_of_the_library() -> None:
    assert read("train")["organs"] == Vocabulary().names


def is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(is_plain(item) for item in value)
    return not isinstance(value, dict)


@pytest.mark.parametrize("name", ["train", "evaluate", "inference"])
def test_every_plain_value_has_a_kind_and_a_range(name: str) -> None:
    known = {value.name for value in VALUES}
    acts = {"imports", "initialize", "training", "evaluating", "inferring", "run", "out_channels", "network"}
    plain = {key for key, value in read(name).items() if is_plain(value) and "::" not in key}
    assert plain - acts <= known


def test_no_value_is_a_program() -> None:
    """Expressions join paths, choose the device and take one value of an object: nothing else."""
    texts = [line for line in (CONFIGS / "train.yaml").read_text().splitlines() if "$" in line.split("#")[0]]
    assert not [line for line in texts if " if " in line and "torch.device" not in line]
    assert not [line for line in texts if "//" in line]
