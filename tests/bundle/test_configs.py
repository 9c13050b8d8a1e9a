"""Misspelt options are refused; everything a config has is not."""

import pytest

from bundle.configs import check_options, config_files, option_names
from bundle.errors import InputError
from tests.paths import CONFIGS

TRAIN = ["run", "training", "--config_file", str(CONFIGS / "train.yaml")]
BOTH = ["run", "--config_file", f"['{CONFIGS / 'train.yaml'}', '{CONFIGS / 'evaluate.yaml'}']"]


def test_names_and_files_are_read_as_fire_reads_them() -> None:
    assert option_names(["--a::b::c", "1", "--x=3", "--train#trainer#max_epochs", "2", "value"]) == ["a", "x", "train"]
    assert config_files(["run", "--config_file", "['a.yaml', 'b.yaml']"]) == ["a.yaml", "b.yaml"]
    assert config_files(["run", "--config_file=a.yaml"]) == ["a.yaml"]


@pytest.mark.parametrize(
    "options",
    [
        [*TRAIN, "--supervision", "full", "--train::trainer::max_epochs", "3", "--network_def#channels", "[4, 8]"],
        [*BOTH, "--checkpoint", "model.pt", "--logging_file", "x.conf"],
        ["start_server", "--app", "monaibundle", "--config_file", "x"],
        ["-q", "tests"],
    ],
)
def test_known_options_and_other_programs_pass(options: list[str]) -> None:
    check_options(options)


def test_a_misspelt_option_is_refused_with_a_hint() -> None:
    with pytest.raises(
        InputError, match=r'--suprevision: the config has no "suprevision"; did you mean "supervision"\?'
    ):
        check_options([*TRAIN, "--suprevision", "full"])
    with pytest.raises(InputError, match=r"see the ids at the top of .*train.yaml"):
        check_options([*TRAIN, "--zzz", "1"])
    with pytest.raises(InputError, match="checkpoint"):
        check_options([*TRAIN, "--checkpoint", "model.pt"])  # that belongs to evaluation
