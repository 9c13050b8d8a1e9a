"""What each supervision makes of the values that are configured."""

import pytest

from bundle.errors import InputError
from bundle.training.pseudo_labels import Decision
from bundle.training.recipe import Recipe

VALUES = {"confidence": 0.7, "marginal": True, "prior_weight": 0.5, "prior_correction": 0.5}


@pytest.mark.parametrize(
    ("supervision", "decision", "marginal", "weight"),
    [
        ("semi", Decision(0.7), True, 0.0),
        ("partial", Decision(0.7), True, 0.0),
        ("marginal", Decision(None), True, 0.0),
        ("ignore", Decision(None), False, 0.0),
        ("pann", Decision(0.7, 0.5), True, 0.5),
    ],
)
def test_the_table_of_supervisions(supervision: str, decision: Decision, marginal: bool, weight: float) -> None:
    recipe = Recipe(supervision, **VALUES)  # type: ignore[arg-type]
    assert (recipe.decision, recipe.effective_marginal, recipe.effective_prior_weight) == (decision, marginal, weight)


def test_values_that_pseudo_labels_have_are_in_force_without_a_prior_too() -> None:
    recipe = Recipe("partial", confidence=0.0, marginal=False)
    assert recipe.decision == Decision(0.0)
    assert not recipe.effective_marginal


def test_a_confidence_beyond_one_is_refused() -> None:
    with pytest.raises(InputError, match="confidence: expected a number from 0 to 1, found 1.5"):
        Recipe("pann", confidence=1.5)
