"""Configs as MONAI would run them: overlays, values, and what is refused."""

from pathlib import Path

import pytest

from bundle.errors import InputError
from scripts.configs import TRAIN, check_config, config_values, merge_files, read_config, set_values


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
    with pytest.raises(InputError, match=r"nowhere.yaml: no such config; give the path of a config file"):
        read_config([*files, "nowhere.yaml"])
    (tmp_path / "bad.yaml").write_text("size: [1")
    with pytest.raises(InputError, match=r"^[^ ]*bad.yaml: cannot be read as a config \(.*\); correct the"):
        read_config([files[0], tmp_path / "bad.yaml"])
    with pytest.raises(InputError, match=r"cannot be read as a config \(.*\); correct the overlay or the value"):
        config_values(["edges"], files, {"size": "@nothing"})


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("networc::bias", 'networc: the config has no "networc"; did you mean "network"?'),
        ("network::blocks::0", 'network::blocks::0: the config has no "network::blocks"; it has channels, bias'),
        ("network::channels::7", 'network::channels::7: the list "network::channels" has 2 parts, counted from 0'),
        ("network::channels::first", 'the list "network::channels" has 2 parts, counted from 0'),
        ("size::x", 'size::x: "size" is 3, which has no parts; set it as a whole'),
    ],
)
def test_an_id_whose_parent_is_not_there_is_named(files: list[Path], name: str, sentence: str) -> None:
    [found] = set_values(merge_files(files), {name: 1}, "--")
    assert found.startswith("--")
    assert found.endswith(sentence)


def test_all_mistakes_of_files_are_named_at_once(files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("nettwork::bias: 1\nsize: 1\nsize: 2\n")
    with pytest.raises(InputError) as caught:
        merge_files([*files, "nowhere.yaml", tmp_path / "wrong.yaml"])
    head, *lines = str(caught.value).splitlines()
    assert head == "3 mistakes in the config:"
    assert [line.strip().removeprefix(f"{tmp_path}/") for line in lines] == [
        "nowhere.yaml: no such config; give the path of a config file",
        "wrong.yaml: size (line 3): stands there twice, and only the last would count; remove one",
        'wrong.yaml: nettwork::bias: the config has no "nettwork"; did you mean "network"?',
    ]


def test_a_config_is_checked_as_its_run_would(tmp_path: Path) -> None:
    (tmp_path / "overlay.yaml").write_text("confidence: 2\n")
    with pytest.raises(InputError) as caught:
        check_config([TRAIN, tmp_path / "overlay.yaml"], {"seed": "abc", "patch_size": "[64,64,0]"}, prefix="--")
    assert [line.split(": expected")[0].strip() for line in str(caught.value).splitlines()[1:]] == [
        "--seed", "--patch_size", f"{tmp_path}/overlay.yaml: confidence",
    ]  # fmt: skip
    check_config([TRAIN])
