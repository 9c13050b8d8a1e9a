# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Examples in the docstrings of what needs no MONAI Label."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["annotations", "choosing", "gate", "naming", "planning"])
def test_examples(name: str) -> None:
    result = doctest.testmod(import_module(f"label.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
