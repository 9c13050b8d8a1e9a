"""A miniature of every dataset's official download, by the name of its adapter."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.bundle.cohorts.adapters import (
    test_amos22,
    test_btcv,
    test_chaos,
    test_flare22,
    test_kits,
    test_lits,
    test_msd,
    test_nih_pancreas,
    test_sliver07,
    test_totalsegmentator,
    test_visceral,
    test_word,
)

MINIATURES: dict[str, Callable[[Path], None]] = {
    "btcv": test_btcv.download,
    "totalsegmentator": test_totalsegmentator.download,
    **{name: partial(test_msd.download, name=name) for name in test_msd.TASKS},
    "nih_pancreas": test_nih_pancreas.download,
    "chaos": test_chaos.download,
    "lits": test_lits.download,
    "sliver07": test_sliver07.download,
    "visceral": test_visceral.download,
    "amos22": test_amos22.download,
    "flare22": test_flare22.download,
    "word": test_word.download,
    "kits": test_kits.download,
}
