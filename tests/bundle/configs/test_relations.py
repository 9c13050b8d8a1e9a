"""Values beside each other: contradictions are named, and values that have no effect."""

from typing import Any

import pytest
import yaml

from bundle.configs.relations import find_contradictions, switched_off
from bundle.configs.values import VALUES
from tests.paths import CONFIGS

DEFAULTS: dict[str, Any] = {
    name: value
    for name, value in yaml.safe_load((CONFIGS / "train.yaml").read_text()).items()
    if name in {entry.name for entry in VALUES}
}


def test_the_defaults_do_not_contradict_each_other() -> None:
    assert find_contradictions(DEFAULTS) == []
    assert find_contradictions({}) == []


@pytest.mark.parametrize(
    ("values", "about"),
    [
        ({"hu_window": [275, -125]}, "hu_window"),
        ({"hu_window": [0, 0]}, "hu_window"),
        ({"intensity": [1, 0]}, "intensity"),
        ({"organs": ["liver", "lver"]}, "organs"),
        ({"organs": "liver,Liver"}, "organs"),
        ({"patch_size": [1, 1, 64]}, "patch_size"),
        ({"context": 1}, "context"),
        ({"empty_rate": 0.5}, "empty_rate"),
        ({"warmup_iterations": 0, "train_iterations": 0}, "train_iterations"),
        ({"warmup_checkpoint": "warmup.pt", "train_iterations": 0}, "train_iterations"),
        ({"pseudo_start": 100_000}, "pseudo_start"),
        ({"batch_partial": 0}, "batch_partial"),
        ({"resume": True, "overwrite": True}, "overwrite"),
        ({"section": "fold", "fold": None}, "section"),
    ],
)
def test_a_contradiction_is_named_once(values: dict[str, Any], about: str) -> None:
    [mistake] = find_contradictions({**DEFAULTS, **values})
    assert mistake.ids[0] == about


@pytest.mark.parametrize(
    "values",
    [
        {"context": 1, "patch_size": [64, 64, 1]},
        {"empty_rate": 0.5, "patch_size": [1, 64, -1]},
        {"warmup_iterations": 0},
        {"warmup_checkpoint": "warmup.pt"},
        {"warmup_iterations": 0, "train_iterations": 0, "checkpoint": "model.pt"},  # what is evaluated is not trained
        {"pseudo_start": 100_000, "supervision": "ignore"},
        {"batch_partial": 0, "supervision": "full"},
        {"organs": None},
        {"section": "fold"},
    ],
)
def test_what_goes_together_is_left_alone(values: dict[str, Any]) -> None:
    assert find_contradictions({**DEFAULTS, **values}) == []


@pytest.mark.parametrize(
    ("values", "off", "on"),
    [
        ({}, {"dual_rate"}, {"dual_memory", "prior_weight", "confidence"}),
        ({"duals": "gradient"}, {"dual_memory"}, {"dual_rate"}),
        ({"supervision": "partial"}, {"prior_weight", "prior_fit", "duals"}, {"confidence", "partial_weight"}),
        ({"supervision": "marginal"}, {"confidence", "refresh_interval", "prior_weight"}, {"partial_weight"}),
        ({"supervision": "full"}, {"partial_weight", "truth_dir"}, {"batch_partial"}),
        ({"warmup_checkpoint": "a.pt"}, {"warmup_iterations", "warmup_learning_rate"}, {"train_learning_rate"}),
        ({"train_iterations": 0}, {"train_learning_rate"}, {"warmup_learning_rate"}),
    ],
)
def test_values_that_others_switch_off(values: dict[str, Any], off: set[str], on: set[str]) -> None:
    found = set(switched_off({**DEFAULTS, **values}))
    assert off <= found
    assert not on & found
