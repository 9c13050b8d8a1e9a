# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The plain values of the configs: kind, range and meaning of each. Their defaults are in configs/.

A value is checked before a run starts, and docs/reference/configs.md is made from this table. What values have to do
with each other is in `bundle.configs.relations`.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["VALUES", "Value", "shown"]

Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Value:
    """A value that a user may set.

    Args:
        name: its id.
        kind: what it is, in words.
        allowed: range or choices, in words.
        about: what it does.
        test: whether a value is allowed; never raises, whatever it is given.
    """

    name: str
    kind: str
    allowed: str
    about: str
    test: Test

    def mistake(self, value: Any) -> str | None:
        """What is wrong with a value: what was expected and what was found; None if it is allowed.

        >>> number("confidence", "", 0, 1).mistake(2)
        'expected a number, from 0 to 1, found 2'
        """
        if self.test(value):
            return None
        return f"expected {self.kind}, {self.allowed}, found {shown(value)}{self.hint(value)}"

    def hint(self, value: Any) -> str:
        """How to write what was probably meant."""
        if not isinstance(value, str):
            return ""
        if value.lower() in ("null", "none") and self.test(
            None
        ):  # MONAI drops None from a command line, and takes null for a word
            return "; on a command line null is '$None'"
        if value.lower() in ("true", "false") and self.test(value.lower() == "true"):
            return f"; on a command line write {value.capitalize()}, in a file {value.lower()} without quotes"
        meant = as_number(value)
        if meant is None or not self.test(meant):
            return ""
        if "e" in value.lower():
            mantissa, exponent = f"{meant:e}".split("e")
            return f"; YAML takes that for text: write {mantissa.rstrip('0').ljust(3, '0')}e{exponent}"
        return "; that is text: write it without quotes"


def shown(value: Any) -> str:
    """A value in an error: in one line, and not too long."""
    brief = reprlib.Repr()
    brief.maxlist = brief.maxtuple = 20
    brief.maxdict, brief.maxlong, brief.maxstring, brief.maxother = 8, 60, 120, 120
    return brief.repr(value)


def as_number(text: str) -> float | None:
    """The number that a text spells, or None."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


# --- Kinds -----------------------------------------------------------------------------------------------------------
def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return is_whole(value) or (isinstance(value, float) and math.isfinite(value))


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def in_words(low: float, high: float, above: bool = False) -> str:
    start = f"above {low:.10g}" if above else f"from {low:.10g}"
    if high == math.inf:
        return start if above else f"{start} on"
    return f"{start}, up to {high:.10g}" if above else f"{start} to {high:.10g}"


def within(low: float, high: float, above: bool = False) -> Test:
    return lambda value: (low < value if above else low <= value) and value <= high


def number(name: str, about: str, low: float = 0, high: float = math.inf, above: bool = False) -> Value:
    fits = within(low, high, above)
    return Value(
        name, "a number", in_words(low, high, above), about, lambda value: is_number(value) and fits(value)
    )  # fmt: skip


def whole(name: str, about: str, low: int = 0, high: float = math.inf) -> Value:
    fits = within(low, high)
    return Value(name, "a whole number", in_words(low, high), about, lambda value: is_whole(value) and fits(value))


def flag(name: str, about: str) -> Value:
    return Value(name, "a switch", "true or false", about, lambda value: isinstance(value, bool))


def choice(name: str, about: str, choices: Sequence[str]) -> Value:
    return Value(
        name, "a word", "one of " + ", ".join(choices), about,
        lambda value: isinstance(value, str) and value in choices,
    )  # fmt: skip


def numbers(
    name: str,
    about: str,
    count: int,
    low: float,
    high: float,
    whole_only: bool = False,
) -> Value:
    """A list of ``count`` numbers."""
    kind = f"a list of {count} {'whole ' if whole_only else ''}numbers"
    single, fits = is_whole if whole_only else is_number, within(low, high)
    return Value(
        name, kind, f"each {in_words(low, high)}", about,
        lambda value: is_list(value) and len(value) == count and all(single(item) and fits(item) for item in value),
    )  # fmt: skip


def scales(name: str, about: str) -> Value:
    """A list of one factor or more."""
    fits = within(0.1, 10)
    return Value(
        name, "a list of numbers", "one at least, each from 0.1 to 10", about,
        lambda value: is_list(value) and len(value) > 0 and all(is_number(item) and fits(item) for item in value),
    )  # fmt: skip


def sizes(name: str, about: str) -> Value:
    """Voxels along three axes."""
    fits = within(1, LARGEST_SIZE)
    return Value(
        name, "a list of 3 whole numbers", f"each from 1 to {LARGEST_SIZE}, or -1", about,
        lambda value: (
            is_list(value) and len(value) == 3
            and all(is_whole(item) and (item == -1 or fits(item)) for item in value)
        ),
    )  # fmt: skip


def axes(name: str, about: str) -> Value:
    return Value(
        name, "a list of axes", "each 0, 1 or 2, none twice", about,
        lambda value: (
            is_list(value) and all(is_whole(item) and 0 <= item <= 2 for item in value)
            and len(set(value)) == len(value)
        ),
    )  # fmt: skip


def text(name: str, about: str) -> Value:
    return Value(name, "text", "such as a path", about, lambda value: isinstance(value, str) and bool(value.strip()))


def device(name: str, about: str) -> Value:
    return Value(
        name, "a device", "such as cpu, cuda or cuda:1", about,
        lambda value: isinstance(value, str) and re.fullmatch(r"(cpu|mps|cuda(:\d{1,3})?)", value) is not None,
    )  # fmt: skip


def names(name: str, about: str) -> Value:
    def fits(value: Any) -> bool:
        parts = value.split(",") if isinstance(value, str) else value
        return (
            is_list(parts) and len(parts) > 0 and all(isinstance(part, str) and part.strip() for part in parts)
            and len({part.strip() for part in parts}) == len(parts)
        )  # fmt: skip

    return Value(name, "a list of names", "or names separated by commas, none twice", about, fits)


def optional(value: Value) -> Value:
    """The same, or null."""
    return replace(value, allowed=f"{value.allowed}, or null", test=lambda given: given is None or value.test(given))


def either(first: Value, second: Value) -> Value:
    """What one of two kinds allows."""
    return replace(
        first,
        kind=f"{first.kind} or {second.kind}",
        test=lambda given: first.test(given) or second.test(given),
    )


# --- The table -------------------------------------------------------------------------------------------------------
# Upper limits are far beyond what anybody needs: they are there to find a slip of the keyboard.
LARGEST_SIZE = 4096  # voxels along an axis
LARGEST_SEED = 2**32 - 1  # of numpy
ITERATIONS = 10**9
BATCH = 4096
WEIGHT = 1e6

VALUES: tuple[Value, ...] = (
    text("bundle_root", "Folder that models/ and eval/ are written to."),
    text("dataset_dir", "Folder with one folder per cohort, each with its dataset.json; for inference, scans."),
    optional(names("cohorts", "Cohorts to use; null takes every one in dataset_dir.")),
    optional(names("organs", "The vocabulary, in the order of the channels; null takes all 13 organs.")),
    optional(whole("fold", "Fold of the fully labelled cohort that is held out; null trains on all of it.", 0, 999)),
    choice(
        "supervision", "Which information of partially labelled cases is used.",
        ("full", "semi", "partial", "marginal", "ignore", "pann"),
    ),
    optional(text("truth_dir", "Complete labels of partial cases, COHORT/CASE.nii.gz: only to measure pseudo-labels.")),
    text("output_dir", "Folder for everything but weights."),
    text("cache_dir", "Folder of preprocessed cases, mapped into memory; safe to delete."),
    optional(number("cache_limit", "GB that cache_dir may hold; null sets no limit.", above=True)),
    flag("resume", "Go on with an unfinished run although the program or a library has changed since."),
    flag("overwrite", "Remove what an earlier run left in this folder."),
    device("device", "Device of the network; a GPU if there is one."),
    whole("workers", "Processes that load data; 0 loads in the main process.", 0, 256),
    whole("seed", "Seed of weights, draws and augmentation.", 0, LARGEST_SEED),
    numbers("hu_window", "HU values between which intensities are kept, ascending.", 2, -32768, 65535),
    numbers("intensity", "What the window becomes, ascending; networks that do not normalize their input prefer "
            "[0, 1].", 2, -WEIGHT, WEIGHT),
    numbers("rotation", "Largest angle of the random rotation about each axis, radians.", 3, 0, 3.1416),
    sizes("patch_size", "Voxels of a patch and of a window; an axis of size 1 makes slices, -1 is the whole axis."),
    either(numbers("patch_margin", "Voxels read around a patch and cut off after the rotation.", 3, 0, 512, True),
           whole("patch_margin", "", 0, 512)),
    numbers("pixdim", "Voxel size of the network's grid, mm; 0 keeps the scan's own.", 3, 0, 100),
    whole("warmup_iterations", "Iterations of stage 1; 0 skips it.", 0, ITERATIONS),
    number("warmup_learning_rate", "Learning rate of stage 1.", 0, 10, above=True),
    optional(text("warmup_checkpoint", "Weights that replace stage 1.")),
    whole("train_iterations", "Iterations of stage 2; 0 skips it.", 0, ITERATIONS),
    number("train_learning_rate", "Learning rate of stage 2.", 0, 10, above=True),
    number("poly_power", "Exponent of the learning rate's decay per iteration; 0 keeps it fixed.", 0, 10),
    whole("batch_full", "Fully labelled samples of a mini-batch.", 1, BATCH),
    whole("batch_partial", "Partially labelled samples of a mini-batch.", 0, BATCH),
    number("partial_weight", "λ1, the weight of the loss on partially labelled samples.", 0, WEIGHT),
    number("prior_weight", "λ2, the weight of the prior term; only pann has a prior.", 0, WEIGHT),
    optional(text("prior_file", "prior.json of an earlier training; null measures q on the fully labelled cases.")),
    choice("duals", "How the duals of the prior term are optimized.", ("natural", "gradient", "biased")),
    number("dual_rate", "Ascent rate of the duals `gradient`.", 0, WEIGHT),
    number("dual_memory", "Memory of the duals `natural`, in partially labelled samples.", 0, ITERATIONS, above=True),
    choice("loss", "Cross-entropy, or Dice and cross-entropy.", ("ce", "dice_ce")),
    number("organ_rate", "Share of fully labelled patches that are centered on a random organ.", 0, 1),
    number("empty_rate", "2D: how often a slice without any organ is drawn, compared with others.", 0, 1),
    whole("context", "2D: slices on either side that are further input channels.", 0, 64),
    scales("train_scales", "Sizes of a patch in training; each mini-batch draws one."),
    number("confidence", "Share of the probability that a pseudo-label needs, at least.", 0, 1),
    flag("marginal", "A voxel without a pseudo-label is still known to be none of the annotated organs."),
    whole("pseudo_start", "Iteration of stage 2 from which there are pseudo-labels.", 0, ITERATIONS),
    number("teacher_memory", "Refresh intervals over which the teacher's weights are averaged; 0: present weights.",
           0, 1000),
    flag("prior_fit", "Scale q to the field of view of the partial cohorts, as their annotated organs show it."),
    number("prior_slack", "Standard errors of q within which nothing pulls.", 0, 1000),
    number("prior_correction", "Exponent of expected ÷ predicted proportion in a pseudo-label's decision.", 0, 10),
    whole("epoch_length", "Iterations per epoch, at most; an epoch is only a unit of reporting.", 1, ITERATIONS),
    whole("refresh_interval", "K, the iterations between two refreshes of the pseudo-labels.", 1, ITERATIONS),
    whole("val_interval", "Epochs between two validations.", 1, ITERATIONS),
    number("save_minutes", "Minutes between two checkpoints of a run under way.", 0, 10080),
    whole("history_interval", "Iterations per line of history.jsonl.", 1, ITERATIONS),
    number("overlap", "Share of a window that the next one covers again.", 0, 0.99),
    optional(whole("window_batch", "Windows evaluated together; null takes 1 on a CPU and 4 on a GPU.", 1, BATCH)),
    flag("skip_air", "Lay windows over the body only."),
    axes("flips", "Axes mirrored at test time: 0 right, 1 anterior, 2 superior; for models trained with flips."),
    scales("scales", "Sizes of a window at test time, averaged."),
    choice("backend", "What evaluates the network.", ("torch", "openvino", "auto")),
    choice("label_grid", "The grid of label maps.", ("network", "scan")),
    choice("section", "Section of the dataset.json files that is evaluated; fold: what training held out.",
           ("test", "validation", "training", "fold")),
    text("checkpoint", "Weights to evaluate or to segment with."),
    number("tolerance", "Tolerance of the surface Dice, mm.", 0, 1000, above=True),
    choice("view", "2D: the plane that slices lie in.", ("axial", "coronal", "sagittal")),
    numbers("slice_size", "2D: pixels of a slice.", 2, 1, LARGEST_SIZE, whole_only=True),
)  # fmt: skip
