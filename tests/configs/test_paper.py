"""The paper's overlays have the numbers that are printed in Zhou et al., ICCV 2019, section 4.1, and its recipe."""

import math
from typing import Any

import pytest
import yaml

from tests.paths import CONFIGS

BOTH = {
    "hu_window": [-125, 275], "intensity": [0, 255], "loss": "ce", "batch_full": 3, "batch_partial": 1,
    "partial_weight": 1.0, "prior_weight": 0.1, "dual_rate": 2e-5, "refresh_interval": 10_000,
    # no selection of pseudo-labels, no averaged teacher, and nothing of the prior but its term
    "confidence": 0.0, "marginal": False, "teacher_memory": 0, "prior_fit": False, "prior_slack": 0.0,
    "prior_correction": 0.0,
}  # fmt: skip
PRINTED: dict[str, dict[str, Any]] = {
    "paper": {
        "patch_size": [64, 64, 64], "warmup_iterations": 80_000, "warmup_learning_rate": 5e-4,
        "train_iterations": 100_000, "train_learning_rate": 1e-5, "poly_power": 0.0,
    },
    "paper_2d": {
        "warmup_iterations": 40_000, "warmup_learning_rate": 2e-5, "train_iterations": 30_000,
        "train_learning_rate": 1e-5, "poly_power": 0.9, "train_scales": [0.75, 1.0, 1.25, 1.5, 1.75, 2.0],
        "scales": [0.75, 1.0, 1.25, 1.5, 1.75, 2.0], "view": "axial",
    },
}  # fmt: skip


@pytest.mark.parametrize("overlay", PRINTED)
def test_the_printed_numbers(overlay: str) -> None:
    values = yaml.safe_load((CONFIGS / "overlays" / f"{overlay}.yaml").read_text())
    expected = {**BOTH, **PRINTED[overlay]}
    assert {name: values[name] for name in expected} == expected
    assert max(values["rotation"]) == pytest.approx(math.radians(15), abs=1e-4)


def test_the_3d_overlay_has_nothing_else() -> None:
    values = yaml.safe_load((CONFIGS / "overlays" / "paper.yaml").read_text())
    assert set(values) == {*BOTH, *PRINTED["paper"], "rotation"}
