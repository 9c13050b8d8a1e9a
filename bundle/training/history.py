# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a training did, as JSON lines: the handler that writes them, and how they are read."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from monai.utils import CommonKeys

from bundle.errors import InputError
from bundle.files import write_text
from bundle.training.pseudo_labels import Refresh
from bundle.training.trainer import PannEvents

__all__ = ["HistoryWriter", "read_history"]


class HistoryWriter:
    """Writes losses and p̄, averaged over ``interval`` iterations; duals, gradients, the learning rate; refreshes.

    Args:
        path: the file; what an earlier run of this stage left there goes.
        stage: name of the stage.
        interval: iterations per line.
        append: keep what other stages wrote, for a stage that follows them.
    """

    def __init__(self, path: str, stage: str, interval: int = 50, append: bool = False) -> None:
        self.path, self.stage, self.interval, self.append = Path(path), stage, int(interval), append
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.learning_rate: float | None = None

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_STARTED, self.note_learning_rate)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.collect)
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=self.interval), self.write)
        if engine.has_registered_events(PannEvents.REFRESHED):
            engine.add_event_handler(PannEvents.REFRESHED, self.write_refresh)

    def start(self, engine: Engine) -> None:
        kept = read_history(self.path) if self.append and self.path.is_file() else []
        lines = [json.dumps(record) + "\n" for record in kept if record["stage"] != self.stage]
        write_text(self.path, "".join(lines))

    def note_learning_rate(self, engine: Engine) -> None:
        """Before the iteration: its end is when schedulers change it, in whatever order."""
        if hasattr(engine, "optimizer"):
            self.learning_rate = engine.optimizer.param_groups[0]["lr"]

    def collect(self, engine: Engine) -> None:
        output = engine.state.output
        self.add("loss", output[CommonKeys.LOSS])
        for name, part in output.get("parts", {}).items():
            self.add(name, part)
        if output.get("proportions") is not None:
            self.add("proportions", output["proportions"])

    def add(self, name: str, value: Any) -> None:
        self.sums[name] = self.sums.get(name, 0) + value.detach().double()
        self.counts[name] = self.counts.get(name, 0) + 1

    def write(self, engine: Engine) -> None:
        record = {name: (total / self.counts[name]).tolist() for name, total in self.sums.items()}
        watched = dict(engine.state.output.get("watched") or {})
        if watched:
            pulls = watched.pop("gradients")
            record |= {name: value.tolist() for name, value in watched.items()}
            record["gradients"] = {name: pull.tolist() for name, pull in pulls.items()}
        if self.learning_rate is not None:
            record["learning_rate"] = self.learning_rate
        self.sums, self.counts = {}, {}
        if not math.isfinite(record["loss"]):
            raise InputError(
                f"{self.stage}: the loss became {record['loss']} before iteration {engine.state.iteration}; lower the "
                "learning rate, or look for scans that are not in Hounsfield units"
            )
        self.record("step", engine.state.iteration, **record)

    def write_refresh(self, engine: Engine) -> None:
        refresh: Refresh = engine.state.refresh
        values = {
            "proportions": refresh.proportions.tolist(),
            "by_cohort": refresh.by_cohort,
            "expected": refresh.expected,
        }
        if refresh.quality is not None:
            values["quality"] = refresh.quality
        self.record("refresh", engine.state.iteration, **values)

    def record(self, kind: str, iteration: int, **values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, "stage": self.stage, "iteration": iteration, **values}) + "\n")


def read_history(path: str | Path) -> list[dict[str, Any]]:
    """The records that a training wrote, in order."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
