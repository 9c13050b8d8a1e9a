"""Numbers as text: digits that mean something, signs that are seen."""

import math

from bundle.reports.numbers import format_p, percent, points


def test_shares_are_percent() -> None:
    assert [percent(0.85), percent(0.8567, 1), percent(None), percent(math.nan)] == ["85.00", "85.7", "–", "–"]


def test_differences_have_a_sign_and_no_negative_zero() -> None:
    assert [points(0.25), points(-0.1), points(-1e-9)] == ["+25.00", "−10.00", "+0.00"]


def test_p_values_have_the_digits_that_matter() -> None:
    assert [format_p(p) for p in (0.0004, 0.0123, 0.25, 1.0)] == ["< 0.001", "0.012", "0.25", "1.00"]
