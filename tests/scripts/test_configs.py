"""Configs as MONAI would run them: overlays, values, and what is refused."""

from pathlib import Path

import pytest

from bundle.errors import InputError
from scripts.configs import config_values, read_config


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    base, overlay = tmp_path / "base.yaml", tmp_path / "overlay.yaml"
    base.write_text("size: 2\nedges: $[@size] * 3\nnetwork: {channels: [4, 8], bias: true}\n")
    overlay.write_text("size: 3\nnetwork::bias: false\n")
    return [base, overlay]


def test_a_later_file_overlays_an_earlier_one_and_values_overlay_both(files: list[Path]) -> None:
    assert config_values(["size", "edges"], files[:1]) == {"size": 2, "edges": [2, 2, 2]}
    assert config_values(["edges", "network"], files) == {
        "edges": [3, 3, 3],
        "network": {"channels": [4, 8], "bias": False},
    }
    values = {"size": 5, "network::channels": "[1,2]", "network#bias": "None"}
    assert config_values(["edges", "network"], files, values) == {
        "edges": [5, 5, 5],
        "network": {"channels": [1, 2], "bias": None},
    }


def test_text_is_read_as_on_a_command_line(files: list[Path]) -> None:
    for text, value in {"1e-3": 1e-3, "full": "full", "a,b": ("a", "b"), "False": False}.items():
        assert read_config(files, {"size": text}).get("size") == value


def test_what_cannot_be_used_is_refused(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'sice: the config has no "sice"; did you mean "size"\?'):
        read_config(files, {"sice": 1})
    with pytest.raises(InputError, match=r'networks: the config has no "networks"; did you mean "network"\?'):
        read_config(files, {"networks::bias": 1})
    with pytest.raises(InputError, match=r"nowhere.yaml: no such config; give the path of an overlay"):
        read_config([*files, "nowhere.yaml"])
    (tmp_path / "bad.yaml").write_text("size: [1")
    with pytest.raises(InputError, match=r"base.yaml \+ .*bad.yaml: cannot be read as a config \(.*\); correct the"):
        read_config([files[0], tmp_path / "bad.yaml"])
    with pytest.raises(InputError, match=r"cannot be read as a config \(.*\); correct the overlay or the value"):
        config_values(["edges"], files, {"size": "@nothing"})
