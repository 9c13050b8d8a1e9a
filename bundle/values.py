# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The plain values of the configs: kind, range and meaning of each. Their defaults are in configs/.

A value is checked before a run starts, and docs/reference/configs.md is made from this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bundle.errors import InputError

__all__ = ["VALUES", "Value"]

Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Value:
    """A value that a user may set.

    Args:
        name: its id.
        kind: what it is, in words.
        allowed: range or choices, in words.
        about: what it does.
        test: whether a value is allowed.
    """

    name: str
    kind: str
    allowed: str
    about: str
    test: Test

    def check(self, value: Any) -> None:
        """Raises an InputError for a value that is not allowed."""
        if self.test(value):
            return
        # MONAI drops None from a command line, and takes null for a word
        hint = "; on a command line null is '$None'" if value in ("null", "None") else ""
        raise InputError(f"--{self.name}: expected {self.kind}, {self.allowed}, found {value!r}{hint}")


# --- Kinds -----------------------------------------------------------------------------------------------------------
def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def in_words(low: float, high: float) -> str:
    return f"from {low:g} on" if high == math.inf else f"from {low:g} to {high:g}"


def number(name: str, about: str, low: float = 0, high: float = math.inf, above: bool = False) -> Value:
    allowed = f"above {low:g}" if above and high == math.inf else in_words(low, high)
    return Value(
        name, "a number", allowed, about,
        lambda value: is_number(value) and (low < value if above else low <= value) and value <= high,
    )  # fmt: skip


def whole(name: str, about: str, low: int = 0) -> Value:
    return Value(name, "a whole number", in_words(low, math.inf), about, lambda value: is_whole(value) and value >= low)


def flag(name: str, about: str) -> Value:
    return Value(name, "a switch", "true or false", about, lambda value: isinstance(value, bool))


def choice(name: str, about: str, choices: Sequence[str]) -> Value:
    return Value(name, "a word", "one of " + ", ".join(choices), about, lambda value: value in choices)


def numbers(name: str, about: str, count: int | None = None, low: float = -math.inf, whole_only: bool = False) -> Value:
    """A list of ``count`` numbers, or of any length."""
    kind = f"a list of {count or 'some'} {'whole ' if whole_only else ''}numbers"
    single = is_whole if whole_only else is_number
    return Value(
        name, kind, "of any size" if low == -math.inf else f"each from {low:g} on", about,
        lambda value: (
            isinstance(value, list | tuple)
            and len(value) == (len(value) if count is None else count)
            and all(single(item) and item >= low for item in value)
        ),
    )  # fmt: skip


def scales(name: str, about: str) -> Value:
    """A list of one factor or more."""
    return Value(
        name, "a list of numbers", "one at least, each above 0", about,
        lambda value: (
            isinstance(value, list | tuple) and len(value) > 0 and all(is_number(item) and item > 0 for item in value)
        ),
    )  # fmt: skip


def text(name: str, about: str) -> Value:
    return Value(name, "text", "such as a path", about, lambda value: isinstance(value, str))


def names(name: str, about: str) -> Value:
    return Value(
        name, "a list of names", "or names separated by commas", about,
        lambda value: isinstance(value, str) or (
            isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        ),
    )  # fmt: skip


def optional(value: Value) -> Value:
    """The same, or null."""
    return Value(
        value.name, value.kind, f"{value.allowed}, or null", value.about,
        lambda given: given is None or value.test(given),
    )  # fmt: skip


def either(first: Value, second: Value) -> Value:
    """What one of two kinds allows."""
    return Value(
        first.name, f"{first.kind} or {second.kind}", f"{first.allowed}", first.about,
        lambda given: first.test(given) or second.test(given),
    )  # fmt: skip


# --- The table -------------------------------------------------------------------------------------------------------
VALUES: tuple[Value, ...] = (
    text("bundle_root", "Folder that models/ and eval/ are written to."),
    text("dataset_dir", "Folder with one folder per cohort, each with its dataset.json; for inference, scans."),
    optional(names("cohorts", "Cohorts to use; null takes every one in dataset_dir.")),
    optional(names("organs", "The vocabulary, in the order of the channels; null takes all 13 organs.")),
    optional(whole("fold", "Fold of the fully labelled cohort that is held out; null trains on all of it.")),
    choice(
        "supervision", "Which information of partially labelled cases is used.",
        ("full", "semi", "partial", "marginal", "ignore", "pann"),
    ),
    optional(text("truth_dir", "Complete labels of partial cases, COHORT/CASE.nii.gz: only to measure pseudo-labels.")),
    text("output_dir", "Folder for everything but weights."),
    text("cache_dir", "Folder of preprocessed cases, mapped into memory; safe to delete."),
    optional(number("cache_limit", "GB that cache_dir may hold; null sets no limit.", above=True)),
    text("device", "Device of the network: cpu, cuda, cuda:1; a GPU if there is one."),
    whole("workers", "Processes that load data; 0 loads in the main process."),
    whole("seed", "Seed of weights, draws and augmentation."),
    numbers("hu_window", "HU values between which intensities are kept.", 2),
    numbers("intensity", "What the window becomes; networks that do not normalize their input prefer [0, 1].", 2),
    numbers("rotation", "Largest angle of the random rotation about each axis, radians.", 3),
    numbers("patch_size", "Voxels of a patch and of a window; an axis of size 1 makes slices, -1 is the whole axis.", 3,
            low=-1, whole_only=True),
    either(numbers("patch_margin", "Voxels read around a patch and cut off after the rotation.", 3, 0, True),
           whole("patch_margin", "")),
    numbers("pixdim", "Voxel size of the network's grid, mm; 0 keeps the scan's own.", 3, low=0),
    whole("warmup_iterations", "Iterations of stage 1; 0 skips it."),
    number("warmup_learning_rate", "Learning rate of stage 1.", above=True),
    optional(text("warmup_checkpoint", "Weights that replace stage 1.")),
    whole("train_iterations", "Iterations of stage 2; 0 skips it."),
    number("train_learning_rate", "Learning rate of stage 2.", above=True),
    number("poly_power", "Exponent of the learning rate's decay per iteration; 0 keeps it fixed."),
    whole("batch_full", "Fully labelled samples of a mini-batch.", 1),
    whole("batch_partial", "Partially labelled samples of a mini-batch."),
    number("partial_weight", "λ1, the weight of the loss on partially labelled samples."),
    number("prior_weight", "λ2, the weight of the prior term; only pann has a prior."),
    choice("duals", "How the duals of the prior term are optimized.", ("natural", "gradient", "biased")),
    number("dual_rate", "Ascent rate of the duals `gradient`."),
    number("dual_memory", "Memory of the duals `natural`, in partially labelled samples.", above=True),
    choice("loss", "Cross-entropy, or Dice and cross-entropy.", ("ce", "dice_ce")),
    number("organ_rate", "Share of fully labelled patches that are centered on a random organ.", 0, 1),
    number("empty_rate", "2D: how often a slice without any organ is drawn, compared with others.", 0, 1),
    whole("context", "2D: slices on either side that are further input channels."),
    scales("train_scales", "Sizes of a patch in training; each mini-batch draws one."),
    number("confidence", "Share of the probability that a pseudo-label needs, at least.", 0, 1),
    flag("marginal", "A voxel without a pseudo-label is still known to be none of the annotated organs."),
    whole("pseudo_start", "Iteration of stage 2 from which there are pseudo-labels."),
    number("teacher_memory", "Refresh intervals over which the teacher's weights are averaged; 0: present weights."),
    flag("prior_fit", "Scale q to the field of view of the partial cohorts, as their annotated organs show it."),
    number("prior_slack", "Standard errors of q within which nothing pulls."),
    number("prior_correction", "Exponent of expected ÷ predicted proportion in a pseudo-label's decision."),
    whole("epoch_length", "Iterations per epoch, at most; an epoch is only a unit of reporting.", 1),
    whole("refresh_interval", "K, the iterations between two refreshes of the pseudo-labels.", 1),
    whole("val_interval", "Epochs between two validations.", 1),
    whole("save_interval", "Epochs between two checkpoints of a stage under way."),
    whole("history_interval", "Iterations per line of history.jsonl.", 1),
    number("overlap", "Share of a window that the next one covers again.", 0, 0.99),
    optional(whole("window_batch", "Windows evaluated together; null takes 1 on a CPU and 4 on a GPU.", 1)),
    flag("skip_air", "Lay windows over the body only."),
    numbers("flips", "Axes mirrored at test time: 0 right, 1 anterior, 2 superior; for models trained with flips.",
            low=0, whole_only=True),
    scales("scales", "Sizes of a window at test time, averaged."),
    choice("backend", "What evaluates the network.", ("torch", "openvino", "auto")),
    choice("label_grid", "The grid of label maps.", ("network", "scan")),
    choice("section", "Section of the dataset.json files that is evaluated; fold: what training held out.",
           ("test", "validation", "training", "fold")),
    text("checkpoint", "Weights to evaluate or to segment with."),
    number("tolerance", "Tolerance of the surface Dice, mm.", above=True),
    choice("view", "2D: the plane that slices lie in.", ("axial", "coronal", "sagittal")),
    numbers("slice_size", "2D: pixels of a slice.", 2, low=1, whole_only=True),
)  # fmt: skip
