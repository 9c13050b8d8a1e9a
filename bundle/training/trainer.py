# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The two stages. Stage 1 (`warmup`) is MONAI's SupervisedTrainer; stage 2 (`train`) is the paper's algorithm."""

from __future__ import annotations

import logging
from typing import Any

import torch
from ignite.engine import Events
from monai.engines import SupervisedTrainer
from monai.engines.utils import IterationEvents
from monai.utils import CommonKeys
from torch import Tensor, nn

from bundle.inference.weights import load_weights
from bundle.organs import WHOLE_VOCABULARY, Vocabulary
from bundle.training.batches import MixedBatches
from bundle.training.checkpoints import StageSaver
from bundle.training.events import PannEvents
from bundle.training.losses import Objective, PannLoss
from bundle.training.numbers import NumbersWatch
from bundle.training.prior import doubt_shares
from bundle.training.pseudo_labels import PseudoLabeler, Refresh

__all__ = ["PannTrainer", "check_replacement", "prepare_partial_batch", "run_stage"]

logger = logging.getLogger(__name__)


def prepare_partial_batch(
    batch: dict[str, Tensor], device: str | torch.device | None = None, non_blocking: bool = False, **kwargs: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Image, and a target that says which samples are partially labelled, and with what.

    >>> batch = {"image": torch.zeros(2, 1, 4, 4), "label": torch.zeros(2, 1, 4, 4, dtype=torch.uint8)}
    >>> batch["partial"] = torch.tensor([False, True])
    >>> batch["annotated"] = torch.tensor([[False, True, True], [False, True, False]])  # background, liver, spleen
    >>> image, target = prepare_partial_batch(batch, "cpu")
    >>> list(target), target["partial"].tolist()
    (['label', 'partial', 'annotated'], [False, True])
    """
    target = {key: batch[key].to(device, non_blocking=non_blocking) for key in ("label", "partial", "annotated")}
    return batch["image"].to(device, non_blocking=non_blocking, **kwargs), target


class PannTrainer(SupervisedTrainer):
    """Stage 2, as the paper's algorithm has it (Zhou et al., ICCV 2019, algorithm 1):

        Y' ← pseudo-labels of the partially labelled cases, from Θ
        for t = 1 … T
            take a mini-batch of fully and partially labelled samples
            J ← J_L(Θ) + λ1 J_P(Θ, Y') + λ2 J_C(Θ, ν, μ)
            Θ ← Θ − η ∂J/∂Θ
            ν, μ ← ascent on J_C with the p̄ of this mini-batch
            if t mod K = 0: Y' ← pseudo-labels from Θ

    What an iteration found is its output: `parts` (of J), `proportions` (p̄), and every ``watch_interval`` iterations
    `watched` (how hard J_P and J_C pull at each channel, and the duals). Handlers read it there, in any order.

    Args:
        loss_function: J and its parts.
        labeler: makes Y'.
        refresh_interval: K.
        pseudo_start: iterations without pseudo-labels at the beginning: the voxels in question stay unknown.
        watch_interval: iterations between two looks at gradients and duals.
        options: as for MONAI's SupervisedTrainer.
    """

    loss_function: PannLoss

    def __init__(
        self,
        loss_function: PannLoss,
        labeler: PseudoLabeler,
        refresh_interval: int,
        pseudo_start: int = 0,
        watch_interval: int = 50,
        **options: Any,
    ) -> None:
        ours: dict[str, Any] = {"prepare_batch": prepare_partial_batch, "decollate": False, "event_names": [PannEvents]}
        super().__init__(loss_function=loss_function, **(ours | options))
        self.labeler, self.pseudo_start, self.watch_interval = labeler, int(pseudo_start), int(watch_interval)
        # Nobody needs pseudo-labels or p̄ on the way where there is neither a decision to make nor a prior.
        if labeler.decision.confidence is not None or loss_function.prior_weight > 0:
            self.add_event_handler(Events.STARTED, self.begin)
            self.add_event_handler(Events.ITERATION_COMPLETED(every=int(refresh_interval)), self.refresh_and_restart)
        self.add_event_handler(Events.COMPLETED, self.refresh)

    def _iteration(self, engine: SupervisedTrainer, batchdata: dict[str, Tensor]) -> dict[str, Any]:
        """One iteration of the algorithm."""
        image, target = self.prepare_batch(batchdata, self.state.device, self.non_blocking, **self.to_kwargs)
        self.state.output = {CommonKeys.IMAGE: image, CommonKeys.LABEL: target}
        objective = self.objective(image, target)  # J = J_L + λ1 J_P + λ2 J_C
        pulls = objective.pulls() if self.watched else {}
        self.step_weights(self.state.output[CommonKeys.LOSS])  # Θ
        self.step_duals(objective)  # ν, μ: after Θ, or the gradient of J_C would be biased again
        self.labeler.teacher.follow()
        if self.watched:
            self.state.output["watched"] = {"gradients": pulls, **self.loss_function.prior_term.duals_now()}
        self.fire_event(IterationEvents.MODEL_COMPLETED)
        output: dict[str, Any] = self.state.output
        return output

    @property
    def watched(self) -> bool:
        """Whether gradients and duals are looked at in this iteration."""
        return bool(self.state.iteration % self.watch_interval == 0)

    def objective(self, image: Tensor, target: dict[str, Tensor]) -> Objective:
        """The network's prediction and J for a mini-batch; both are put into the iteration's output."""
        output = self.state.output
        self.network.train()
        self.optimizer.zero_grad(set_to_none=self.optim_set_to_none)
        with torch.autocast(self.state.device.type, enabled=self.amp, **self.amp_kwargs):
            output[CommonKeys.PRED] = self.inferer(image, self.network)
            self.fire_event(IterationEvents.FORWARD_COMPLETED)
            objective: Objective = self.loss_function(output[CommonKeys.PRED], target)
        output[CommonKeys.LOSS] = objective.total
        output["parts"] = {name: part.detach() for name, part in objective.parts.items()}
        output["proportions"] = objective.proportions
        self.fire_event(IterationEvents.LOSS_COMPLETED)
        return objective

    def step_weights(self, loss: Tensor) -> None:
        """A step of the network's weights down the gradient; scaled where MONAI trains in half precision."""
        if self.scaler is None:
            loss.backward()
        else:
            self.scaler.scale(loss).backward()
        self.fire_event(IterationEvents.BACKWARD_COMPLETED)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def step_duals(self, objective: Objective) -> None:
        """A step of the duals with the batch that the network has just stepped with."""
        if objective.proportions is None:
            return
        group = self.optimizer.param_groups[0]
        decay = group["lr"] / (group.get("initial_lr") or group["lr"])  # the paper decays the dual rate alike
        self.loss_function.prior_term.step(objective.proportions, objective.partial_samples, decay)

    # --- Y' ----------------------------------------------------------------------------------------------------------
    def begin(self) -> None:
        """The first pseudo-labels, from the weights of stage 1; a stage that goes on has them."""
        if self.labeler.started:
            if not self.labeler.is_intact():
                logger.warning("pseudo-labels are gone or damaged: they are made anew, from the teacher as it is now")
                self.refresh()
            return
        self.labeler.start()
        found = self.refresh()
        if found is not None and self.loss_function.prior_weight > 0:
            self.warn_of_doubtful_cohorts(found)

    def refresh(self) -> Refresh | None:
        """Make the pseudo-labels anew; the exact p̄ that this yields corrects the duals."""
        found = self.labeler.refresh(self.state.iteration, wait=self.state.iteration < self.pseudo_start)
        if found is None:
            return None
        term = self.loss_function.prior_term
        term.anchor(found.proportions)
        if self.state.iteration == 0 and self.loss_function.prior_weight > 0:
            aim = self.labeler.size_prior.of_mean(found.marked)
            term.expect(torch.as_tensor(aim.proportions), torch.as_tensor(aim.slack))
        found.expected = term.q.tolist()
        self.state.refresh = found
        self.fire_event(PannEvents.REFRESHED)
        return found

    def refresh_and_restart(self) -> None:
        """Start the data loader anew, so that no batch that was prefetched before a refresh is used after it.

        What an iteration sees depends on its number alone, however many workers load it.
        """
        if self.state.iteration >= (self.state.max_epochs or 0) * (self.state.epoch_length or 0):
            return  # the refresh at the end is the same one
        self.refresh()
        sampler = self.data_loader.batch_sampler
        assert isinstance(sampler, MixedBatches)
        sampler.start = self.state.iteration
        self.set_data(self.data_loader)

    def warn_of_doubtful_cohorts(self, found: Refresh) -> None:
        prior = self.labeler.size_prior.prior
        for cohort, shares in found.marked.items():
            named = {prior.names[channel]: share for channel, share in shares.items()}
            for sentence in doubt_shares(prior, cohort, named):
                logger.warning(sentence)


def check_replacement(network: nn.Module, checkpoint: str | None, vocabulary: Vocabulary = WHOLE_VOCABULARY) -> None:
    """Refuse weights that cannot replace a stage, before any data is read.

    Args:
        network: into which they are loaded, here already.
        checkpoint: the weights; None where the stage is trained.
        vocabulary: the organs that they must have been trained for.

    Raises:
        InputError: as `load_weights` does.
    """
    if checkpoint is not None:
        load_weights(network, checkpoint, vocabulary)


def run_stage(
    trainer: SupervisedTrainer,
    saver: StageSaver,
    iterations: int,
    checkpoint: str | None = None,
    vocabulary: Vocabulary = WHOLE_VOCABULARY,
) -> None:
    """Run a stage, from where an interruption left it; or take its result from weights; or skip it, for 0 iterations.

    Args:
        trainer: of the stage.
        saver: its checkpoints.
        iterations: as planned; 0 skips the stage.
        checkpoint: weights that replace the stage.
        vocabulary: the organs that these weights must have been trained for.
    """
    if saver.run.is_past(saver.stage):
        return
    if checkpoint is not None:
        load_weights(trainer.network, checkpoint, vocabulary)
        logger.info("the stage is replaced by %s", checkpoint)
    elif iterations > 0 and not saver.restore(trainer):
        NumbersWatch(saver.stage).attach(trainer)
        saver.attach(trainer)
        with saver.stopping_gently():
            trainer.run()
