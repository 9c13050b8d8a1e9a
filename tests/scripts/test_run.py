"""`python -m scripts run`: what MONAI would answer with a traceback is one sentence; the rest is handed over."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import InputError
from scripts import run as module
from scripts.configs import TRAIN
from scripts.run import run

RunCommand = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What MONAI is called with."""
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(module, "hand_over", lambda **arguments: calls.append(arguments))
    return calls


def test_what_was_typed_is_handed_over(handed: list[dict[str, Any]], tmp_path: Path) -> None:
    args = tmp_path / "args.json"
    args.write_text(f'{{"run_id": "training", "config_file": "{TRAIN}", "seed": 1}}')
    run(args_file=str(args), fold=None, **{"network_def#channels": [4, 8]})
    run("training", config_file=[str(TRAIN)], logging_file=None)
    assert handed == [
        {
            "run_id": "training", "config_file": [str(TRAIN)], "args_file": str(args),
            "fold": "$None", "network_def#channels": [4, 8],
        },
        {"run_id": "training", "config_file": [str(TRAIN)], "args_file": None, "logging_file": None},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "config_file: expected the path of a config, found none"),
        ({"config_file": "nowhere.yaml"}, "nowhere.yaml: no such config; give the path of a config file"),
        ({"config_file": f"['{TRAIN}'"}, "--config_file: expected a path or a list of paths, such as \"['configs/tr"),
        ({"run_id": "evaluating"}, "it has training; evaluating needs configs/evaluate.yaml in --config_file too"),
        ({"train::optimiser::lr": 1}, 'the config has no "train::optimiser"; did you mean "optimizer"?'),
        ({"run_id": "trainin"}, "trainin: the config has nothing of this name to run; it has training"),
        ({"run_id": "seed"}, "seed: the config has nothing of this name to run"),
        ({"args_file": "nowhere.json"}, "nowhere.json: no such config"),
        ({"logging_file": "nowhere.conf"}, "--logging_file: nowhere.conf: no such file"),
        ({"netwrk_def::channels": 1}, '--netwrk_def: the config has no "netwrk_def"; did you mean "network_def"?'),
        ({"network::channels": 1}, "which has no parts; set it as a whole"),
        ({"augmentation#3#prob": 1}, '--augmentation::3::prob: the list "augmentation" has 1 parts, counted from 0'),
        ({"network_def": "%nowhere.yaml"}, "train.yaml: cannot be read as a config"),
    ],
)
def test_what_breaks_before_our_code_is_refused(
    handed: list[dict[str, Any]], arguments: dict[str, Any], sentence: str
) -> None:
    files = {"config_file": str(TRAIN)} if arguments and "config_file" not in arguments else {}
    with pytest.raises(InputError) as caught:
        run(**{**files, **arguments})
    assert sentence in str(caught.value)
    assert not handed


@pytest.mark.parametrize("text", ["", "- 1", "a: [1", "seed: 1\nseed: 2\n", "nothing::here: 1"])
def test_an_overlay_that_is_none_is_refused(handed: list[dict[str, Any]], tmp_path: Path, text: str) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        run("training", config_file=f"{TRAIN},{path}")
    assert str(caught.value).startswith(f"{path}: ")
    assert not handed


def test_an_overlay_alone_is_told_what_it_overlays(handed: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "overlay.yaml"
    path.write_text("network_def::channels: [4, 8]\n")
    with pytest.raises(InputError, match=r"has no \"network_def\"; name the config that this overlays before it"):
        run("training", config_file=str(path))
    assert not handed


def test_all_mistakes_of_a_command_line_are_named_at_once(run_command: RunCommand, tmp_path: Path) -> None:
    overlay, args = tmp_path / "overlay.yaml", tmp_path / "args.yaml"
    overlay.write_text("confidence: 2\nnetwork_def#chanels: [1]\n")
    args.write_text(f"config_file: [{TRAIN}, {overlay}]\nhu_window: [3, 1]\n")
    done = run_command(
        "-m", "scripts", "run", "training", "--args_file", args, "-seed", "abc", "--suprevision=full",
        "--train::optimzer", "x",
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    *_, head, a, b, c, d, e, f = done.stderr.strip().splitlines()
    assert head == "error: 6 mistakes in the config:"
    assert [a, b, c, d, e, f] == [
        '  --suprevision: nothing in this config uses a value "suprevision"; did you mean "supervision"?',
        '  --train::optimzer: nothing in this config uses a value "train::optimzer"; did you mean "train::optimizer"?',
        f'  {overlay}: network_def::chanels: UNet has no argument "chanels"; did you mean "channels"?',
        "  --seed: expected a whole number, from 0 to 4294967295, found 'abc'",
        f"  {overlay}: confidence: expected a number, from 0 to 1, found 2",
        f"  {args}: hu_window: expected the lower end first, found [3, 1]; write [1, 3]",
    ]
    assert "Traceback" not in done.stderr
