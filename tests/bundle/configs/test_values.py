"""The table of values: what is allowed, how a mistake reads, and that any value at all is either allowed or named."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle.configs.values import VALUES, Value, shown

BY_NAME = {value.name: value for value in VALUES}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["1e-5", "null"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(value=JSON, name=st.sampled_from(sorted(BY_NAME)))
@settings(max_examples=200, deadline=None)
def test_any_value_is_allowed_or_refused_in_one_line(name: str, value: Any) -> None:
    entry = BY_NAME[name]
    mistake = entry.mistake(value)
    assert (mistake is None) == entry.test(value)
    if mistake is not None:
        assert mistake.startswith(f"expected {entry.kind}, {entry.allowed}, found ")
        assert len(mistake) < 1000
    if isinstance(value, float) and not math.isfinite(value):
        assert mistake is not None  # no value may be NaN or infinite


@given(number=st.integers())
@settings(max_examples=50, deadline=None)
def test_seeds_are_those_of_numpy(number: int) -> None:
    assert BY_NAME["seed"].test(number) == (0 <= number < 4294967296)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("patch_size", [[64, 64, -1], [1, 4096, 3]], [[0, 1, 1], [-2, 1, 1], [4097, 1, 1], [64, 64], [1.0, 2, 2], 64]),
        ("flips", [[], [0], [2, 0, 1]], [[3], [-1], [0, 0], [True], 0, None]),
        ("device", ["cpu", "cuda", "cuda:1"], ["gpu", "cuda:", "cuda:x", "", None, 0]),
        ("organs", [None, "liver", "liver,spleen", ["liver"]], [[], "", [1], ["liver", "liver"], "liver,,spleen"]),
        ("patch_margin", [0, [1, 2, 3]], [-1, [1, 2], 1.5, 10**6]),
        ("scales", [[1], [0.5, 2.0]], [[], [0], [100], 1.0]),
        ("hu_window", [[-1000, 400]], [[0], [0, 10**400], ["a", 1]]),
        ("fold", [None, 0, 4], [True, -1, 1.0, "0"]),
        ("dataset_dir", ["data"], ["", "  ", 5, None]),
        ("save_minutes", [0, 0.5, 30], [-1, None, math.inf]),
        ("confidence", [0, 1, 0.5], [2, -0.1, math.nan, "0.5", True]),
        ("train_learning_rate", [1e-5], [0, 11, -1e-5]),
    ],
)
def test_kinds_and_ranges(name: str, allowed: list[Any], refused: list[Any]) -> None:
    assert [value for value in allowed if not BY_NAME[name].test(value)] == []
    assert [value for value in refused if BY_NAME[name].test(value)] == []


@pytest.mark.parametrize(
    ("name", "value", "ending"),
    [
        ("train_learning_rate", "1e-5", "found '1e-5'; YAML takes that for text: write 1.0e-05"),
        ("train_learning_rate", "2.5E-4", "write 2.5e-04"),
        ("confidence", "0.5", "that is text: write it without quotes"),
        ("seed", "7", "that is text: write it without quotes"),
        ("seed", "abc", "found 'abc'"),
        ("fold", "null", "on a command line null is '$None'"),
        ("duals", "none", "found 'none'"),
        ("marginal", "true", "on a command line write True, in a file true without quotes"),
    ],
)
def test_what_was_probably_meant_is_said(name: str, value: Any, ending: str) -> None:
    mistake = BY_NAME[name].mistake(value)
    assert mistake is not None
    assert mistake.endswith(ending)


def test_what_a_hint_says_is_allowed() -> None:
    import yaml

    assert yaml.safe_load("1.0e-05") == 1e-5
    assert yaml.safe_load("2.5e-04") == 2.5e-4


def test_a_long_value_is_shown_briefly() -> None:
    assert len(shown("x" * 10_000)) < 200
    assert len(shown([["x"] * 1000] * 1000)) < 5000


def test_every_value_is_described() -> None:
    for value in VALUES:
        assert isinstance(value, Value)
        assert value.about.endswith(".")
