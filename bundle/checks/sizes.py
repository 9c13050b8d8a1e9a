# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""How large organs are in the training cases, and whether the volumes of a segmentation are plausible beside that."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from bundle.checks.cases import examine_cases
from bundle.cohorts.datalists import Case
from bundle.organs import WHOLE_VOCABULARY, Vocabulary, find_organ
from bundle.scans.volumes import OrganVolume, Volumes
from bundle.untrusted import is_number, is_whole, shown

__all__ = ["Plausibility", "Sizes", "judge_volumes", "organ_sizes", "sizes_problem"]

Sizes = Mapping[
    str, Mapping[str, float]
]  # organ: {"cases": how many, "ml": geometric mean, "spread": of the logarithm}

SMALLEST_SPREAD = 0.2  # of the logarithm: sizes of a few cases are not known better than by a fifth
USUAL, ODD = 2.0, 3.5  # spreads from the mean, up to which a volume is usual, and up to which it is only odd
ENTRIES = {"cases", "ml", "spread"}


# --- What the training cases show ------------------------------------------------------------------------------------
def organ_sizes(
    cases: Sequence[Case], vocabulary: Vocabulary = WHOLE_VOCABULARY, remembered: str | Path | None = None
) -> dict[str, dict[str, float]]:
    """Of each organ: in how many cases it is whole, the geometric mean of its volumes, the spread of their logarithm.

    Organs outside a case's label set do not count, nor absent ones, nor those that the border of the scan cuts; an
    organ of which that leaves nothing is left out. The spread is a standard deviation (n - 1), 0 for one case.

    Args:
        cases: what is trained on.
        vocabulary: the organs of the run.
        remembered: the file in which the data check keeps its results: what it has read is not read again.
    """
    marked = [case for case in cases if "label" in case and case["labelled"]]
    logs: dict[str, list[float]] = {name: [] for name in vocabulary.names}
    checks = examine_cases(marked, vocabulary, remembered=remembered) if marked else []
    for case, check in zip(marked, checks, strict=True):
        for name, ml in check.volumes.items():
            if name in case["labelled"] and name not in check.cut and ml > 0:
                logs[name].append(math.log(ml))
    return {
        name: {
            "cases": len(values),
            "ml": math.exp(fmean(values)),
            "spread": stdev(values) if len(values) > 1 else 0.0,
        }
        for name, values in logs.items()
        if values
    }


def sizes_problem(sizes: Any, organs: Sequence[str]) -> str:
    """Why plain data are no sizes of these organs, as `organ_sizes` gives them; empty where they are.

    >>> sizes_problem({"liver": {"cases": 2, "ml": 1500.0, "spread": 0.2}}, ["liver", "spleen"])
    ''
    >>> sizes_problem({"lung": {"cases": 2, "ml": 1500.0, "spread": 0.2}}, ["liver"])
    'names and sizes of organs of the model, found "lung"'
    """
    if not isinstance(sizes, Mapping):
        return f"names and sizes of organs, found {shown(sizes)}"
    for name, size in sizes.items():
        if name not in organs:
            return f"names and sizes of organs of the model, found {shown(name)}"
        if not isinstance(size, Mapping) or set(size) != ENTRIES:
            return f"cases, ml and spread of the {name}, found {shown(size)}"
        if not is_whole(size["cases"]) or size["cases"] < 1:
            return f"1 case or more of the {name}, found {shown(size['cases'])}"
        if not is_number(size["ml"]) or size["ml"] <= 0 or not is_number(size["spread"]) or size["spread"] < 0:
            return f"a volume above 0 and a spread from 0 on of the {name}, found {shown(size)}"
    return ""


# --- What a segmentation shows ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Plausibility:
    """Whether the volume of an organ is one that the training cases lead to expect.

    Args:
        ml: its volume.
        expected_ml: that of the training cases; None where they show none.
        spreads: how far off it is, in spreads of the training cases; negative where it is smaller. None where it is not
            judged by them.
        flag: `usual`, `odd`, `implausible`; `missing` (no voxel); `cut` (smaller, and at the border of the scan: not
            judged); `unknown` (no size to compare with).
        why: one sentence.
    """

    ml: float
    expected_ml: float | None
    spreads: float | None
    flag: str
    why: str


def judge_volumes(volumes: Volumes, sizes: Sizes) -> dict[str, Plausibility]:
    """Of each organ, whether its volume is plausible.

    Args:
        volumes: of a label map.
        sizes: from `organ_sizes`, as weights carry them.

    >>> found = Volumes(1.0, {"spleen": OrganVolume(1, 912_000, 912.0, False)})
    >>> judge_volumes(found, {"spleen": {"cases": 14, "ml": 296.0, "spread": 0.4}})["spleen"].why
    'spleen: 912 ml, 3.1 times the 296 ml of 14 training cases'
    """
    return {
        name: judge_known(name, found, sizes[name]) if name in sizes else judge_unknown(name, found)
        for name, found in volumes.organs.items()
    }


def judge_known(name: str, found: OrganVolume, size: Mapping[str, float]) -> Plausibility:
    """A volume beside those of training cases."""
    expected, count = float(size["ml"]), int(size["cases"])
    among = f"the {in_ml(expected)} of {count} training case{'s' if count > 1 else ''}"
    if not found.voxels:
        return Plausibility(0.0, expected, None, "missing", f"{name}: not found, beside {among}")
    if found.touches_border and found.ml < expected:
        why = f"{name}: {in_ml(found.ml)}, cut by the border of the scan, beside {among}"
        return Plausibility(found.ml, expected, None, "cut", why)
    spreads = math.log(found.ml / expected) / max(float(size["spread"]), SMALLEST_SPREAD)
    flag = "usual" if abs(spreads) <= USUAL else "odd" if abs(spreads) <= ODD else "implausible"
    why = f"{name}: {in_ml(found.ml)}, {times(found.ml / expected)} {among}"
    return Plausibility(found.ml, expected, spreads, flag, why)


def judge_unknown(name: str, found: OrganVolume) -> Plausibility:
    """A volume beside what is usual in people, ill ones included."""
    organ = find_organ(name)
    low, high = (0.0, math.inf) if organ is None else organ.volume_ml
    usual = f"where {low:g} to {high:g} are usual, and no training case shows it whole"
    if not found.voxels:
        flag, why = "missing", f"{name}: not found, and no training case shows it whole"
    elif found.touches_border and found.ml < low:
        flag, why = "cut", f"{name}: {in_ml(found.ml)}, cut by the border of the scan, {usual}"
    else:
        flag = "unknown" if low <= found.ml <= high else "odd"
        why = f"{name}: {in_ml(found.ml)}, {usual}"
    return Plausibility(found.ml, None, None, flag, why)


def in_ml(volume: float) -> str:
    """A volume in words: as many digits as one wants to read.

    >>> in_ml(1523.4), in_ml(4.06)
    ('1523 ml', '4.1 ml')
    """
    return f"{volume:.0f} ml" if volume >= 10 else f"{volume:.2g} ml"


def times(ratio: float) -> str:
    """A ratio in words.

    >>> times(12.3), times(3.08), times(0.0456)
    ('12 times', '3.1 times', '0.046 times')
    """
    return f"{ratio:.0f} times" if ratio >= 10 else f"{ratio:.2g} times"
