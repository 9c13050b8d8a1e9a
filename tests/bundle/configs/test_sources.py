"""Config files as they are typed: what cannot be read, what stands twice, and where an id was set."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle.configs.sources import ConfigFile, ConfigSources, listed_files, normal_id
from bundle.errors import InputError


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.yaml", "", "expected ids and their values, such as `seed: 1`, found nothing"),
        ("a.yaml", "- 1\n", "found a list"),
        ("a.json", "3", "found a single value; correct it"),
        ("a.yaml", "a: 1\n5: 2\n", "found 5 in place of an id; correct it"),
        ("a.yaml", "a: [1\n", "cannot be read as a config"),
        ("a.yaml", "a: 2026-99-99\n", "cannot be read as a config"),
        ("a.json", "{", "cannot be read as a config"),
        ("a.json", "[" * 100_000, "cannot be read as a config"),
        ("a.txt", "a: 1\n", "a file that ends with .json, .yaml, .yml"),
    ],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, name: str, text: str, sentence: str) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        ConfigFile.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert sentence in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "a.yaml", tmp_path):
        with pytest.raises(InputError, match=r"no such config|expected a config"):
            ConfigFile.read(path)


@given(content=st.binary(max_size=60), suffix=st.sampled_from([".yaml", ".json"]))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_a_config_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{suffix}"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        assert isinstance(ConfigFile.read(path).content, dict)


def test_keys_that_stand_twice_are_named_at_any_depth(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "seed: 1\nnet:\n  a: 1\n  a: 2\nseed: 2\nnet::b: 1\n'net#b': 2\n")
    assert sorted(ConfigFile.read(path).repeated) == ["a (line 4)", "net#b (line 7)", "seed (line 5)"]
    path = write(tmp_path / "a.json", '{"seed": 1, "net": {"a": 1, "a": 2}, "seed": 2}')
    assert sorted(ConfigFile.read(path).repeated) == ["a", "seed"]
    [first, _] = ConfigSources(paths=(path,)).repeated()
    assert first == f"{path}: a: stands there twice, and only the last would count; remove one"


def test_merge_keys_of_yaml_are_no_repetition(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", "base: &base {a: 1}\nother: &other {b: 1}\nmine:\n  <<: *base\n  <<: *other\n")
    assert ConfigFile.read(path).repeated == ()


def test_the_last_place_that_set_an_id_is_named(tmp_path: Path) -> None:
    base = write(tmp_path / "base.yaml", "seed: 0\nnet: {a: 1, b: 2}\nloss: ce\nfold: 0\n")
    overlay = write(tmp_path / "overlay.yaml", "'net#a': 3\nloss: dice_ce\n")
    args = write(tmp_path / "args.json", '{"loss": "ce", "config_file": "x.yaml"}')
    sources = ConfigSources((base, overlay), {"fold": 1}, args)
    assert sources.place("fold") == "--fold"
    assert sources.place("loss") == f"{args}: loss"
    assert sources.place("net::a") == f"{overlay}: net::a"
    assert sources.place("net::b") == f"{base}: net::b"
    assert sources.place("seed") == f"{base}: seed"
    assert sources.place("nowhere") == "nowhere"
    assert sources.rank("seed") < sources.rank("net::a") < sources.rank("loss") < sources.rank("fold")
    assert sources.chosen == {"fold", "loss", "config_file"}
    assert sources.is_new("nowhere")
    assert not sources.is_new("net::a")
    assert not ConfigSources().is_new("nowhere")


def test_the_arguments_of_a_run_are_found_on_the_call_stack(tmp_path: Path) -> None:
    path = write(tmp_path / "base.yaml", "seed: 0\n")
    args = write(tmp_path / "args.json", f'{{"config_file": "{path}", "run_id": "training"}}')
    space: dict[str, Any] = {"__name__": "monai.bundle.scripts", "find": ConfigSources.find}
    code = "def run(run_id=None, config_file=None, args_file=None, **override):\n    return find()\n"
    exec(code, space)  # stands in for MONAI's function of this name
    found = space["run"](args_file=args, **{"network_def#channels": [1]})
    assert (found.paths, found.run_ids) == ((path,), ("training", "initialize", "finalize"))
    assert dict(found.typed) == {"network_def::channels": [1]}
    assert space["run"]("evaluating", f"{path},{path}").paths == (path, path)
    assert ConfigSources.find() == ConfigSources()


def test_small_things() -> None:
    assert normal_id("+a#b::c") == "a::b::c"
    assert listed_files("a.yaml, b.yaml") == ["a.yaml", "b.yaml"]
    assert listed_files(("a", "b")) == ["a", "b"]
