"""The config that runs: values that are not allowed or have no effect are refused, and what is in force is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from monai.bundle import ConfigParser

from bundle.configs import check_values, write_config
from bundle.errors import InputError, find_input_error
from tests.paths import CONFIGS


def parsed(*files: str, **values: Any) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / f"{name}.yaml") for name in files])
    parser.update(values)
    return parser


def act(parser: ConfigParser, target: str, **options: Any) -> None:
    """Let the config run one act; MONAI wraps what it raises."""
    parser["one_act"] = [{"_target_": f"bundle.configs.{target}", **options}]
    try:
        parser.get_parsed_content("one_act")
    except RuntimeError as error:
        raise find_input_error(error) or error from None


def refusal(*files: str, **values: Any) -> str:
    with pytest.raises(InputError) as caught:
        act(parsed(*files, **values), "check_values")
    return str(caught.value)


@pytest.mark.parametrize(
    "files",
    [
        ["train"], ["train", "evaluate"], ["inference"],
        *(["train", f"overlays/{path.stem}"] for path in sorted((CONFIGS / "overlays").glob("*.yaml"))
          if path.stem not in ("demo_3d", "resnet101")),
        ["train", "overlays/demo", "overlays/demo_3d"], ["train", "overlays/paper_2d", "overlays/resnet101"],
        ["train", "overlays/demo", "evaluate"],
    ],
    ids="+".join,
)  # fmt: skip
def test_what_is_shipped_is_allowed(files: list[str]) -> None:
    act(parsed(*files), "check_values")


def test_a_misspelled_value_is_refused_with_a_hint() -> None:
    sentence = refusal("train", suprevision="full")
    assert sentence == '--suprevision: nothing in this config uses a value "suprevision"; did you mean "supervision"?'
    assert "docs/reference/configs.md" in refusal("train", zzz=1)
    sentence = refusal("train", **{"warmup::learning_rate": 3})
    assert sentence.startswith('--warmup::learning_rate: nothing in this config uses a value "warmup::learning_rate"')


def test_a_value_whose_place_an_overlay_has_taken_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    act(parsed("train", augmentation=[]), "check_values")
    assert "nothing in this config uses rotation: setting these values has no effect here" in caplog.text


def test_inference_takes_an_overlay_for_training_but_no_misspelling() -> None:
    act(parsed("inference", "overlays/demo"), "check_values", strict=False)
    with pytest.raises(InputError, match='did you mean "window_batch"'):
        act(parsed("inference", window_bach=2), "check_values", strict=False)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("supervision", "fool", "--supervision: expected a word, one of full, semi, partial, marginal, ignore, pann"),
        ("confidence", 1.5, "--confidence: expected a number, from 0 to 1, found 1.5"),
        ("confidence", None, "found None"),
        ("marginal", "yes", "--marginal: expected a switch, true or false, found 'yes'"),
        ("batch_full", 0, "--batch_full: expected a whole number, from 1 on, found 0"),
        ("train_iterations", 2.5, "a whole number"),
        ("seed", True, "a whole number"),
        ("pixdim", [1.5, 1.5], "--pixdim: expected a list of 3 numbers, each from 0 on, found [1.5, 1.5]"),
        ("pixdim", "1.5", "a list of 3 numbers"),
        ("train_learning_rate", "1e-5", "--train_learning_rate: expected a number, above 0, found '1e-5'"),
        ("train_learning_rate", float("nan"), "a number"),
        ("cache_limit", -1, "above 0, or null"),
        ("flips", [0.5], "whole numbers"),
        ("train_scales", [], "one at least, each above 0"),
        ("scales", [0], "one at least, each above 0"),
        ("fold", "null", "or null, found 'null'; on a command line null is '$None'"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(name: str, value: Any, expected: str) -> None:
    assert expected in refusal("train", **{name: value})


def test_references_and_expressions_are_checked_by_what_they_stand_for() -> None:
    act(parsed("train", train_learning_rate="$2 * @warmup_learning_rate"), "check_values")
    assert "found 'cheese'" in refusal("train", seed="$'chee' + 'se'")


def test_every_effective_value_is_written(tmp_path: Path) -> None:
    parser = parsed("train", "overlays/paper_2d", bundle_root=str(tmp_path), device="cpu", supervision="partial")
    act(parser, "write_config", path=str(tmp_path / "config.json"))
    record = json.loads((tmp_path / "config.json").read_text())
    values = record["values"]
    assert (values["supervision"], values["device"], values["patch_size"]) == ("partial", "cpu", [512, 512, 1])
    assert values["output_dir"] == f"{tmp_path}/eval"
    assert (values["warmup_iterations"], values["poly_power"]) == (40_000, 0.9)
    assert record["config"]["network_def"]["backbone"] == "resnet50"
    assert record["versions"]["monai"]


def test_without_a_config_nothing_happens(tmp_path: Path) -> None:
    check_values()
    write_config(tmp_path / "config.json")
    assert not list(tmp_path.iterdir())
