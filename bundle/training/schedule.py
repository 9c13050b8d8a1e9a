# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Iterations, epochs and intervals: a stage is planned in iterations, Ignite runs it in epochs of equal length."""

from __future__ import annotations

__all__ = ["count_epochs", "iterations_per_epoch", "scaled_interval", "teacher_memory"]


def count_epochs(iterations: int, longest: int) -> int:
    """Epochs of a stage, each of at most ``longest`` iterations.

    >>> count_epochs(1400, 500)
    3
    """
    return max(1, -(-iterations // longest))


def iterations_per_epoch(iterations: int, longest: int) -> int:
    """Iterations of each epoch, so that all of them together are at least ``iterations``.

    >>> iterations_per_epoch(1400, 500)
    467
    """
    return max(1, -(-iterations // count_epochs(iterations, longest)))


def scaled_interval(interval: int, planned: int, epochs: int, epoch_length: int) -> int:
    """An interval that keeps its share of a stage when a caller, such as MONAI Label, changes the number of epochs.

    Args:
        interval: iterations, in a stage of the planned length.
        planned: iterations of that stage.
        epochs: of the stage that runs.
        epoch_length: iterations of each of these epochs.

    >>> scaled_interval(interval=100, planned=400, epochs=2, epoch_length=100)
    50
    """
    return max(1, interval * epochs * epoch_length // max(1, planned))


def teacher_memory(intervals: float, interval: int) -> int:
    """Iterations over which the teacher's weights are averaged, given in refresh intervals.

    >>> teacher_memory(0.5, 175)
    87
    """
    return int(intervals * interval)
