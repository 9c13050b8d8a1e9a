# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Checkpoints of a run under way, from which it goes on exactly, and the weights that a stage leaves.

A checkpoint is taken between two iterations, when all that follows from the last one is done: validation, refreshes,
lines of the history. What a batch holds depends on its number alone, so the position in the data is one number.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from ignite.engine import Engine, Events
from monai.engines import Evaluator, Trainer
from torch import nn

from bundle.errors import Terminated, let_loaders_end
from bundle.files import whole_file
from bundle.inference.records import ModelRecord
from bundle.inference.weights import check_finite, write_model_json, write_weights
from bundle.training.events import PannEvents
from bundle.training.random_states import random_states, restore_random_states
from bundle.training.run_folder import TrainingRun

__all__ = ["BestMetric", "BestWeightsSaver", "StageSaver"]

logger = logging.getLogger(__name__)

SECONDS = 60.0  # in a minute


class Stateful(Protocol):
    """What can be saved and restored, as PyTorch's modules and optimizers can."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


# --- A stage ---------------------------------------------------------------------------------------------------------
class StageSaver:
    """Saves a stage every few minutes and after each refresh, restores it, and writes its weights when it is complete.

    Args:
        run: whose files these are.
        stage: name of the stage.
        parts: everything that changes in the stage; each has `state_dict` and `load_state_dict`. `network` is one.
        record: what the model is.
        weights: file name of the weights that the stage leaves.
        minutes: between two checkpoints; 0 saves after every iteration.
    """

    def __init__(
        self,
        run: TrainingRun,
        stage: str,
        parts: Mapping[str, Stateful],
        record: ModelRecord,
        weights: str,
        minutes: float = 30.0,
    ) -> None:
        self.run, self.stage, self.parts, self.record, self.weights = run, stage, dict(parts), record, weights
        self.minutes = float(minutes)
        self.last = time.monotonic()
        self.due = False
        self.asked_to_stop: KeyboardInterrupt | None = None
        self.process = os.getpid()

    @property
    def network(self) -> nn.Module:
        network = self.parts["network"]
        assert isinstance(network, nn.Module)
        return network

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.ITERATION_STARTED, self.between_iterations)
        engine.add_event_handler(Events.COMPLETED, self.complete)
        if engine.has_registered_events(PannEvents.REFRESHED):
            engine.add_event_handler(PannEvents.REFRESHED, self.note_refresh)

    def note_refresh(self, engine: Engine) -> None:
        self.due = True  # what a refresh cost is not to be paid twice, and older pseudo-labels can go

    def between_iterations(self, engine: Engine) -> None:
        """At the beginning of an iteration nothing is left to do of the one before; at that one's own end there is."""
        if self.due or self.asked_to_stop is not None or time.monotonic() - self.last >= SECONDS * self.minutes:
            self.save(engine, engine.state.iteration - 1)
        if self.asked_to_stop is not None:
            let_loaders_end()
            raise self.asked_to_stop

    def complete(self, engine: Engine) -> None:
        training = {**self.run.summary, "stage": self.stage, "iteration": engine.state.iteration}
        write_weights(self.run.models / self.weights, self.network, self.record, **training)
        write_model_json(self.run.models, self.record)
        self.save(engine, engine.state.iteration, complete=True)

    def save(self, engine: Engine, iteration: int, complete: bool = False) -> None:
        """Replace the run's checkpoint in one step."""
        check_finite(self.network.state_dict(), self.run.checkpoint)
        scaler = getattr(engine, "scaler", None)
        state = {
            "run": self.run.identity,
            "stage": self.stage,
            "iteration": iteration,
            "complete": complete,
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": random_states(),
        }
        with whole_file(self.run.checkpoint) as unfinished:
            torch.save(state, unfinished)
        for part in self.parts.values():
            if hasattr(part, "saved"):
                part.saved()  # what only an older checkpoint needed can go
        self.last, self.due = time.monotonic(), False

    def restore(self, engine: Trainer) -> bool:
        """Put the stage where the run's checkpoint left it, if it has one of this stage; whether it is complete."""
        state = self.run.state_of(self.stage)
        if state is None:
            return False
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        if state["complete"]:
            restore_random_states(state["random"])
            return True
        iteration = int(state["iteration"])
        engine.state.iteration, engine.state.epoch = iteration, iteration // engine.state.epoch_length
        engine.data_loader.batch_sampler.start = iteration

        def continue_random(engine: Trainer) -> None:
            """Once the data loader has been started, which draws a number that the undisturbed run did not draw."""
            restore_random_states(state["random"])
            if engine.scaler is not None and state["scaler"] is not None:
                engine.scaler.load_state_dict(state["scaler"])

        engine.add_event_handler(Events.ITERATION_STARTED(once=iteration + 1), continue_random)
        return False

    @contextmanager
    def stopping_gently(self) -> Iterator[None]:
        """Ctrl-C, or SIGTERM of a scheduler, saves a checkpoint before it stops; a second one stops at once."""
        if threading.current_thread() is not threading.main_thread():  # others cannot have handlers
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self.ask_to_stop) for number in signals]
        try:
            yield
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)
        if self.asked_to_stop is not None:  # in the last iteration, or while its weights were written
            raise self.asked_to_stop

    def ask_to_stop(self, number: int, frame: Any) -> None:
        if os.getpid() != self.process:  # a process that loads data has inherited this
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return  # the data of the last iteration are still wanted
        if self.asked_to_stop is not None:
            let_loaders_end()
            raise self.asked_to_stop
        self.asked_to_stop = Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
        logger.warning("stopping after this iteration, with a checkpoint; once more stops at once")


# --- The best weights ------------------------------------------------------------------------------------------------
class BestMetric:
    """The best metric of an evaluator, as a part of a checkpoint.

    Args:
        evaluator: MONAI's, which keeps it.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator

    def state_dict(self) -> dict[str, Any]:
        state = self.evaluator.state
        return {"metric": float(state.best_metric), "epoch": int(state.best_metric_epoch)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evaluator.state.best_metric = state["metric"]
        self.evaluator.state.best_metric_epoch = state["epoch"]


class BestWeightsSaver:
    """Writes the weights whenever the evaluator's key metric is the best so far.

    Args:
        run: whose file it is.
        network: whose weights.
        record: what the model is.
    """

    def __init__(self, run: TrainingRun, network: nn.Module, record: ModelRecord) -> None:
        self.run, self.network, self.record = run, network, record

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.EPOCH_COMPLETED, self.save_best)

    def save_best(self, engine: Engine) -> None:
        state = engine.state
        if state.best_metric_epoch != state.epoch:  # MONAI's own handler, the first one, has compared
            return
        training = {**self.run.summary, "stage": "train", "epoch": state.epoch, "dice": float(state.best_metric)}
        write_weights(self.run.models / "model_best.pt", self.network, self.record, **training)
        write_model_json(self.run.models, self.record)
