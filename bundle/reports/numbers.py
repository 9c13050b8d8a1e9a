# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Dice, differences and p values as readers expect them."""

from __future__ import annotations

import math

from bundle.evaluation.tables import MISSING

__all__ = ["format_p", "percent", "points"]


def percent(value: float | None, digits: int = 2) -> str:
    """A share in percent, without the sign; a dash for None and NaN."""
    return MISSING if value is None or math.isnan(value) else f"{100 * value:.{digits}f}"


def points(value: float) -> str:
    """A difference in percentage points with its sign."""
    return f"{round(100 * value, 2) + 0.0:+.2f}".replace("-", "−")  # + 0.0: there is no −0.00


def format_p(p: float) -> str:
    """A p value with as many digits as mean something."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"
