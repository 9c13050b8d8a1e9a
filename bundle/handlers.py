# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Ignite handlers around the network's step: pseudo-label refresh, dual step, history, progress with time left."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader
from monai.utils import CommonKeys
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from bundle.diagnostics import PseudoLabelQuality
from bundle.errors import InputError
from bundle.inferers import SlabInferer
from bundle.losses import PannLoss
from bundle.organs import Vocabulary
from bundle.priors import Prior, expected_proportions
from bundle.pseudo_labels import Decision, PseudoLabels, Refresh, doubtful_cohorts, refresh_pseudo_labels
from bundle.sampling import MixedBatches
from bundle.trainers import PannEvents

__all__ = ["DualStep", "History", "Progress", "PseudoLabelRefresh", "Teacher", "read_history"]


logger = logging.getLogger(__name__)


class Teacher:
    """The network whose predictions become pseudo-labels: the one in training, or a moving average of its weights.

    Only weights are kept, and put into the network for a while: not every network can be copied once it is trained.

    Args:
        network: the network in training.
        memory: of the average, iterations; 0 takes the network itself.
    """

    def __init__(self, network: nn.Module, memory: float = 0.0) -> None:
        self.network, self.memory = network, float(memory)
        self.average: dict[str, Tensor] | None = None

    def start(self, engine: Engine) -> None:
        """Begin with the present weights: stage 1 may have come before."""
        if self.memory > 0:
            self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    @torch.no_grad()
    def follow(self, engine: Engine) -> None:
        if self.average is None:
            return
        for name, value in self.network.state_dict().items():
            if value.is_floating_point():
                self.average[name].lerp_(value, 1 - math.exp(-1 / self.memory))
            else:
                self.average[name].copy_(value)

    @contextmanager
    def teaching(self) -> Iterator[nn.Module]:
        """The network with the averaged weights; it has its own again afterwards."""
        if self.average is None:
            yield self.network
            return
        own = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        self.network.load_state_dict(self.average)
        try:
            yield self.network
        finally:
            self.network.load_state_dict(own)


class PseudoLabelRefresh:
    """Refresh the pseudo-labels at the start, every ``interval`` iterations and at the end; anchor the duals there.

    The data loader starts anew after a refresh, so that no batch prefetched before it is used after it: what an
    iteration sees depends on its number alone, however many workers load it.

    A refresh also tells the loss what proportions to expect of the partially labelled data (see
    `bundle.priors.expected_proportions`), and from p̄ of the one before how decisions are to be corrected; the first
    one therefore looks twice.

    Args:
        network: the network in training.
        inferer: the inference engine.
        loader: stage 2's loader; its dataset's cases are completed.
        store: where completed labels are written.
        loss: whose duals are anchored.
        interval: K, iterations between refreshes.
        prior: q and its spread.
        confidence: share of the probability that a pseudo-label needs; None gives none.
        correction: how far decisions are corrected by the prior, 0 to 1.
        start: first iteration with pseudo-labels; before it the voxels in question stay unknown.
        teacher_memory: pseudo-labels come from weights averaged over so many iterations; 0 takes the present ones.
        fit: scale q to the partial cohorts' field of view.
        slack: distance from q that is not pulled at, in standard errors of q.
        quality: measures the pseudo-labels against a hidden truth.
    """

    def __init__(
        self,
        network: nn.Module,
        inferer: SlabInferer,
        loader: DataLoader,
        store: PseudoLabels,
        loss: PannLoss,
        interval: int,
        prior: Prior | None = None,
        confidence: float | None = 0.0,
        correction: float = 0.0,
        start: int = 0,
        teacher_memory: float = 0.0,
        fit: bool = False,
        slack: float = 0.0,
        quality: PseudoLabelQuality | None = None,
    ) -> None:
        self.teacher, self.inferer, self.loader, self.store = Teacher(network, teacher_memory), inferer, loader, store
        self.loss, self.interval = loss, int(interval)
        self.prior, self.decision, self.begin = prior, Decision(confidence, float(correction)), int(start)
        self.fit, self.slack, self.quality = bool(fit), float(slack), quality
        self.last: Refresh | None = None

    def attach(self, engine: Engine) -> None:
        if self.decision.confidence is not None or self.loss.prior_weight > 0:  # else nobody needs what it finds
            engine.add_event_handler(Events.STARTED, self.teacher.start)
            engine.add_event_handler(Events.ITERATION_COMPLETED, self.teacher.follow)
            engine.add_event_handler(Events.STARTED, self.refresh)
            engine.add_event_handler(Events.ITERATION_COMPLETED(every=self.interval), self.refresh_and_restart)
        engine.add_event_handler(Events.COMPLETED, self.refresh)

    def refresh(self, engine: Engine) -> None:
        confidence = self.decision.confidence if engine.state.iteration >= self.begin else None
        result = self.complete(confidence)
        if result is None:
            return
        if self.last is None and self.decision.correction > 0 and confidence is not None:
            self.last = result
            result = self.complete(confidence)
            assert result is not None
        self.last = result
        self.loss.prior.anchor(result.proportions)
        if engine.state.iteration == 0 and self.loss.prior_weight > 0:
            self.expect(result)
        if self.quality is not None and self.decision.confidence is not None:
            result.quality = self.quality()
        engine.state.refresh = result
        engine.fire_event(PannEvents.REFRESHED)

    def complete(self, confidence: float | None) -> Refresh | None:
        """Complete the labels; decisions are corrected by what the last refresh found."""
        factors = None
        if self.decision.correction > 0 and self.last is not None and self.prior is not None:
            aims = expected_proportions(self.prior, self.last.given, self.fit, self.slack, single=True)
            cases = self.loader.dataset.data
            factors = {
                index: self.decision.factors(found, aims[cases[index].get("cohort", "")])
                for index, found in self.last.by_case.items()
            }
        with self.teacher.teaching() as network:
            return refresh_pseudo_labels(network, self.inferer, self.loader.dataset, self.store, confidence, factors)

    def expect(self, result: Refresh) -> None:
        """Tell the loss what to expect of the mean over cohorts, and the user what is odd about them."""
        names = Vocabulary(self.loader.dataset.organs).channel_names
        for sentence in doubtful_cohorts(result.given, self.loss.prior.prior.tolist(), names):
            logger.warning(sentence)
        if self.prior is not None:
            aims = expected_proportions(self.prior, result.given, self.fit, self.slack).values()
            proportions, slack = (
                torch.as_tensor(np.mean([getattr(aim, part) for aim in aims], axis=0))
                for part in ("proportions", "slack")
            )
            self.loss.prior.expect(proportions, slack)

    def refresh_and_restart(self, engine: Engine) -> None:
        if engine.state.iteration >= (engine.state.max_epochs or 0) * (engine.state.epoch_length or 0):
            return  # the refresh at the end is the same one
        self.refresh(engine)
        sampler = self.loader.batch_sampler
        assert isinstance(sampler, MixedBatches)
        sampler.start = engine.state.iteration
        engine.set_data(self.loader)


class DualStep:
    """Step the duals after the network's step, with the batch it was made from.

    Args:
        loss: whose duals are stepped.
        optimizer: its learning rate, relative to the first, decays the rate of the `gradient` duals.
    """

    def __init__(self, loss: PannLoss, optimizer: Optimizer) -> None:
        self.loss, self.optimizer = loss, optimizer

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        if self.loss.proportions is None:
            return
        group = self.optimizer.param_groups[0]
        decay = group["lr"] / (group.get("initial_lr") or group["lr"])
        self.loss.prior.step_duals(self.loss.proportions, self.loss.partial_samples, decay)


class History:
    """What the training did, as JSON lines: losses, p̄, ν and μ, averaged over ``interval`` iterations; the
    learning rate; refreshes.

    Args:
        path: the file; what an earlier run of this stage left there goes.
        stage: name of the stage.
        interval: iterations per line.
        loss: stage 2's loss, for its parts and duals.
        append: keep what other stages wrote, for a stage that follows them.
    """

    def __init__(
        self, path: str, stage: str, interval: int = 50, loss: PannLoss | None = None, append: bool = False
    ) -> None:
        self.path, self.stage, self.interval, self.loss = Path(path), stage, int(interval), loss
        self.append = append
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.learning_rate: float | None = None

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_STARTED, self.note_learning_rate)
        engine.add_event_handler(Events.ITERATION_STARTED, self.watch)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.collect)
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=self.interval), self.write)
        if engine.has_registered_events(PannEvents.REFRESHED):
            engine.add_event_handler(PannEvents.REFRESHED, self.write_refresh)

    def start(self, engine: Engine) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = read_history(self.path) if self.append and self.path.is_file() else []
        lines = [json.dumps(record) + "\n" for record in kept if record["stage"] != self.stage]
        self.path.write_text("".join(lines))

    def note_learning_rate(self, engine: Engine) -> None:
        """Before the iteration: its end is when schedulers change it, in whatever order."""
        if hasattr(engine, "optimizer"):
            self.learning_rate = engine.optimizer.param_groups[0]["lr"]

    def watch(self, engine: Engine) -> None:
        """Gradients are looked at only in the iterations after which a line is written."""
        if self.loss is not None:
            self.loss.watched = engine.state.iteration % self.interval == 0

    def add(self, name: str, value: Any) -> None:
        self.sums[name] = self.sums.get(name, 0) + value
        self.counts[name] = self.counts.get(name, 0) + 1

    def collect(self, engine: Engine) -> None:
        self.add("loss", engine.state.output[CommonKeys.LOSS].detach().double())
        if self.loss is not None:
            for name, value in self.loss.parts.items():
                self.add(name, value.double())
            if self.loss.proportions is not None:
                self.add("proportions", self.loss.proportions.double())

    def write(self, engine: Engine) -> None:
        record = {name: (total / self.counts[name]).tolist() for name, total in self.sums.items()}
        if self.loss is not None:
            prior = self.loss.prior
            record |= {"tracked": prior.tracked.tolist(), "nu": prior.nu.tolist(), "mu": prior.mu.tolist()}
            record["gradients"] = {name: pull.tolist() for name, pull in self.loss.gradients.items()}
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
        values = {"proportions": refresh.proportions.tolist(), "by_cohort": refresh.by_cohort}
        if self.loss is not None:
            values["expected"] = self.loss.prior.prior.tolist()
        if refresh.quality is not None:
            values["quality"] = refresh.quality
        self.record("refresh", engine.state.iteration, **values)

    def record(self, kind: str, iteration: int, **values: Any) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, "stage": self.stage, "iteration": iteration, **values}) + "\n")


def read_history(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


class Progress:
    """A progress bar over all iterations of a stage, or all cases of an evaluation, with the time left.

    Ignite's ProgressBar counts one epoch at a time, so its time left is that of an epoch.

    Args:
        description: what stands before the bar.
        unit: what an iteration is.
    """

    def __init__(self, description: str, unit: str = "it") -> None:
        self.description, self.unit = description, unit
        self.bar: tqdm | None = None

    def attach(self, engine: Engine) -> None:
        engine.add_event_handler(Events.STARTED, self.start)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.advance)
        engine.add_event_handler(Events.COMPLETED | Events.EXCEPTION_RAISED, self.close)

    def start(self, engine: Engine) -> None:
        total = (engine.state.max_epochs or 1) * (engine.state.epoch_length or 0)
        self.bar = tqdm(total=total or None, desc=self.description, unit=self.unit, mininterval=0.5)

    def advance(self, engine: Engine) -> None:
        assert self.bar is not None
        output = engine.state.output
        if isinstance(output, dict) and CommonKeys.LOSS in output:
            self.bar.set_postfix(loss=f"{float(output[CommonKeys.LOSS].detach()):.3f}", refresh=False)
        self.bar.update()

    def close(self, engine: Engine, *error: Any) -> None:
        if self.bar is not None:
            self.bar.close()
        if error:
            # Ignite leaves an exception to its first handler. Raising it here, before a CheckpointSaver further down
            # the list sees it, keeps the weights of a broken run from being saved under a finished one's name.
            raise error[0]
