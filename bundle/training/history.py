# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a training did, as JSON lines: the handler that writes them, and how they are read."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from monai.utils import CommonKeys
from torch import Tensor

from bundle.cohorts.datalists import Case
from bundle.errors import InputError
from bundle.files import append_text, write_text
from bundle.training.events import PannEvents
from bundle.training.pseudo_labels import Refresh
from bundle.training.run_folder import TrainingRun, identity_of

__all__ = ["History", "HistoryWriter", "read_history"]

logger = logging.getLogger(__name__)

HEAD = "run"  # kind of the first line


def full_name(case: Case) -> str:
    """COHORT/CASE; the image, where another program gives no names."""
    return f"{case['cohort']}/{case['case']}" if "cohort" in case and "case" in case else str(case["image"])


class History:
    """The history of a run: one file for both stages, and the sums of the line that is not yet written.

    The first line says whose it is, and what was taken as annotated in each case. What another run left there goes when
    this one begins to write.

    Args:
        run: whose history it is.
        cases: of stage 2.
    """

    def __init__(self, run: TrainingRun, cases: Sequence[Case] = ()) -> None:
        self.run, self.path = run, run.history
        self.label_sets = {full_name(case): list(case["labelled"]) for case in cases}
        self.stage: str | None = None
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}

    def start(self, stage: str) -> None:
        """Begin a stage: what an interruption left of it goes, unless it goes on from a checkpoint."""
        if self.stage == stage:
            return
        self.stage = stage
        self.rewrite([line for line in self.own_lines() if json.loads(line)["stage"] != stage])

    def own_lines(self) -> list[str]:
        """Lines that this run has written, without the first."""
        return self.path.read_text().splitlines()[1:] if identity_of(self.path) == self.run.identity else []

    def rewrite(self, lines: Sequence[str]) -> None:
        head = json.dumps({"kind": HEAD, "run": self.run.identity, "label_sets": self.label_sets})
        write_text(self.path, "".join(f"{line}\n" for line in (head, *lines)))

    def add(self, name: str, value: Tensor) -> None:
        """Take a value into the mean of the next line."""
        value, before = value.detach().double(), self.sums.get(name)
        self.sums[name] = value if before is None else before.to(value.device) + value
        self.counts[name] = self.counts.get(name, 0) + 1

    def take_means(self) -> dict[str, Any]:
        means = {name: (total / self.counts[name]).tolist() for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means

    def record(self, kind: str, iteration: int, **values: Any) -> None:
        """Write a line."""
        line = json.dumps({"kind": kind, "stage": self.stage, "iteration": iteration, **values})
        append_text(self.path, f"{line}\n")

    # --- Checkpoints -------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "lines": len(self.own_lines()), "sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lines after the checkpoint go: they will be written again."""
        self.stage, self.sums, self.counts = state["stage"], dict(state["sums"]), dict(state["counts"])
        lines = self.own_lines()
        if len(lines) < state["lines"]:
            logger.warning("%s: lines have been lost since the checkpoint; the history has a gap", self.path)
        self.rewrite(lines[: state["lines"]])


class HistoryWriter:
    """Writes losses and p̄, averaged over ``interval`` iterations; duals, gradients, the learning rate; refreshes.

    Args:
        history: where to.
        stage: name of the stage.
        interval: iterations per line.
    """

    def __init__(self, history: History, stage: str, interval: int = 50) -> None:
        self.history, self.stage, self.interval = history, stage, int(interval)
        self.learning_rate: float | None = None

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_STARTED, self.note_learning_rate)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.collect)
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=self.interval), self.write)
        if engine.has_registered_events(PannEvents.REFRESHED):
            engine.add_event_handler(PannEvents.REFRESHED, self.write_refresh)

    def start(self, engine: Engine) -> None:
        self.history.start(self.stage)

    def note_learning_rate(self, engine: Engine) -> None:
        """Before the iteration: its end is when schedulers change it, in whatever order."""
        if hasattr(engine, "optimizer"):
            self.learning_rate = engine.optimizer.param_groups[0]["lr"]

    def collect(self, engine: Engine) -> None:
        output = engine.state.output
        self.history.add("loss", output[CommonKeys.LOSS])
        for name, part in output.get("parts", {}).items():
            self.history.add(name, part)
        if output.get("proportions") is not None:
            self.history.add("proportions", output["proportions"])

    def write(self, engine: Engine) -> None:
        record = self.history.take_means()
        watched = dict(engine.state.output.get("watched") or {})
        if watched:
            pulls = watched.pop("gradients")
            record |= {name: value.tolist() for name, value in watched.items()}
            record["gradients"] = {name: pull.tolist() for name, pull in pulls.items()}
        if self.learning_rate is not None:
            record["learning_rate"] = self.learning_rate
        self.history.record("step", engine.state.iteration, **record)

    def write_refresh(self, engine: Engine) -> None:
        refresh: Refresh = engine.state.refresh
        values = {
            "proportions": refresh.proportions.tolist(),
            "by_cohort": refresh.by_cohort,
            "expected": refresh.expected,
        }
        if refresh.quality is not None:
            values["quality"] = refresh.quality
        self.history.record("refresh", engine.state.iteration, **values)


def read_history(path: str | Path) -> list[dict[str, Any]]:
    """The records that a training wrote, in order.

    Raises:
        InputError: naming the file, when it is no history.
    """
    try:
        records = [json.loads(line) for line in Path(path).read_text().splitlines()]
        return [record for record in records if record["kind"] != HEAD]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{path}: expected one record per line, as training writes them ({error})") from None
