"""Runs for tests of what belongs to one."""

from pathlib import Path

from bundle.training.run_folder import TrainingRun

__all__ = ["run_in"]


def run_in(folder: Path) -> TrainingRun:
    """A run whose folders are in ``folder``; it has not begun."""
    return TrainingRun(folder / "models", folder / "eval")
