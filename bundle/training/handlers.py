# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Ignite handlers around the network's step."""

from __future__ import annotations

import logging

import numpy as np
import torch
from ignite.engine import Engine, Events
from monai.data import DataLoader
from torch import nn
from torch.optim import Optimizer

from bundle.inference.inferers import SlabInferer
from bundle.training.batches import MixedBatches
from bundle.training.losses import PannLoss
from bundle.training.prior import Prior, expected_proportions
from bundle.training.pseudo_labels import Decision, PseudoLabels, Refresh, doubtful_cohorts, refresh_pseudo_labels
from bundle.training.quality import PseudoLabelQuality
from bundle.training.teacher import Teacher
from bundle.training.trainer import PannEvents

__all__ = ["DualStep", "PseudoLabelRefresh"]


logger = logging.getLogger(__name__)


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
        names = self.loader.dataset.vocabulary.channel_names
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
