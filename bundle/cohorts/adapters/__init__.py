# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Public datasets as they are downloaded, one file each, and the one registry of them."""

from __future__ import annotations

import difflib

from bundle.cohorts.adapters.amos22 import Amos22
from bundle.cohorts.adapters.base import Adapter
from bundle.cohorts.adapters.btcv import Btcv
from bundle.cohorts.adapters.chaos import Chaos
from bundle.cohorts.adapters.flare22 import Flare22
from bundle.cohorts.adapters.kits import Kits
from bundle.cohorts.adapters.lits import Lits
from bundle.cohorts.adapters.msd import MsdLiver, MsdPancreas, MsdSpleen
from bundle.cohorts.adapters.nih_pancreas import NihPancreas
from bundle.cohorts.adapters.sliver07 import Sliver07
from bundle.cohorts.adapters.totalsegmentator import TotalSegmentator
from bundle.cohorts.adapters.visceral import Visceral
from bundle.cohorts.adapters.word import Word
from bundle.errors import InputError

__all__ = ["ADAPTERS", "find_adapter"]

ADAPTERS: dict[str, Adapter] = {
    adapter.name: adapter
    for adapter in (
        Btcv(),
        TotalSegmentator(),
        MsdSpleen(),
        MsdLiver(),
        MsdPancreas(),
        NihPancreas(),
        Chaos(),
        Lits(),
        Sliver07(),
        Visceral(),
        Amos22(),
        Flare22(),
        Word(),
        Kits(),
    )
}


def find_adapter(name: str) -> Adapter:
    """The adapter of this name.

    Raises:
        InputError: when there is none.
    """
    if name not in ADAPTERS:
        close = difflib.get_close_matches(str(name), ADAPTERS, n=1)
        hint = f'did you mean "{close[0]}"?' if close else "`prepare --datasets` shows them"
        raise InputError(f"{name}: no dataset has this name (known are {', '.join(ADAPTERS)}); {hint}")
    return ADAPTERS[name]
