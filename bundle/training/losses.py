# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The losses: cross-entropy (or Dice + cross-entropy) on what is known, and the objective of stage 2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from monai.losses import DiceLoss
from torch import Tensor, nn

from bundle.errors import InputError
from bundle.organs import UNKNOWN
from bundle.training.duals import PriorTerm

__all__ = ["DeepSupervisionLoss", "Objective", "PannLoss", "SupervisedLoss", "predicted_proportions", "split_samples"]


def at_least_fp32(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def predicted_proportions(logits: Tensor) -> Tensor:
    """p̄ of a batch: the mean softmax output over all its voxels, at least fp32.

    The one place where the predictions of a batch become proportions: a mean over several processes enters here.

    Args:
        logits: B×C×spatial.
    """
    return at_least_fp32(logits).softmax(1).flatten(2).mean((0, 2))


def finest_head(logits: Tensor, label: Tensor) -> Tensor:
    """The full-resolution logits: the first of several heads (B×heads×C×spatial), or the only one."""
    return logits[:, 0] if logits.ndim > label.ndim else logits


def split_samples(tensor: Tensor, partial: Tensor) -> tuple[Tensor, Tensor]:
    """The fully labelled and the partially labelled samples of a batch."""
    count = int(partial.sum())
    if not bool(partial[: len(partial) - count].any()):  # full ones first, as batches come: no copy, cheap gradient
        full, rest = tensor.split([len(partial) - count, count])
        return full, rest
    return tensor[~partial], tensor[partial]


def spread_over(annotated: Tensor, logits: Tensor) -> Tensor:
    """B×C as B×C×1×1…, to meet B×C×spatial."""
    return annotated.reshape(*annotated.shape, *[1] * (logits.ndim - 2))


def marginal_cross_entropy(logits: Tensor, annotated: Tensor) -> Tensor:
    """−log of the probability that a voxel is none of the annotated organs, B×spatial.

    Args:
        logits: B×C×spatial.
        annotated: B×C, bool.
    """
    allowed = logits.masked_fill(spread_over(annotated, logits), -torch.inf)
    return logits.logsumexp(1) - allowed.logsumexp(1)


class SupervisedLoss(nn.Module):
    """Mean voxel cross-entropy, with or without Dice.

    Unknown voxels count for nothing, unless the loss is *marginal*: they are none of the annotated organs, and that
    alone is asked for, by −log of the summed probability of all that they may be.

    Args:
        kind: `ce` is the paper's; `dice_ce` adds the soft Dice of the organs, taken over the whole batch.
    """

    def __init__(self, kind: Literal["ce", "dice_ce"] = "ce") -> None:
        super().__init__()
        if kind not in ("ce", "dice_ce"):
            raise InputError(f'loss: expected "ce" or "dice_ce", found "{kind}"')
        self.dice = DiceLoss(include_background=False, batch=True) if kind == "dice_ce" else None

    def forward(self, logits: Tensor, label: Tensor, annotated: Tensor | None = None, marginal: bool = False) -> Tensor:
        """
        Args:
            logits: B×C×spatial.
            label: B×1×spatial.
            annotated: B×C, the channels of each sample's label set; None means all of them.
            marginal: whether unknown voxels count.
        """
        with torch.autocast(logits.device.type, enabled=False):
            logits, target = at_least_fp32(logits), label[:, 0].long()
            known = target < logits.shape[1]  # neither unknown nor ignored
            unknown = target == UNKNOWN if marginal else torch.zeros_like(known)
            target = target.where(known, UNKNOWN)
            loss = F.cross_entropy(logits, target, ignore_index=UNKNOWN, reduction="sum")
            if annotated is not None and marginal:
                loss = loss + marginal_cross_entropy(logits, annotated)[unknown].sum()
            # The mean over voxels that count; a batch with none of them has loss 0, not 0/0.
            loss = loss / (known | unknown).sum().clamp(min=1)
            if self.dice is not None:
                loss = loss + self.dice_loss(logits, target, known, unknown, annotated)
        return loss

    def dice_loss(
        self, logits: Tensor, target: Tensor, known: Tensor, unknown: Tensor, annotated: Tensor | None
    ) -> Tensor:
        assert self.dice is not None
        onehot = F.one_hot(target.where(known, 0), logits.shape[1]).movedim(-1, 1).to(logits.dtype)
        mask = known.unsqueeze(1)
        if annotated is not None:
            # An annotated organ is known to be absent from unknown voxels. One that is neither annotated nor
            # pseudo-labelled in a sample is not known to be absent: Dice with an empty truth would wipe it out.
            ours = spread_over(annotated, logits)
            seen = (onehot * mask).flatten(2).any(2).reshape(ours.shape)
            mask = (mask & (ours | seen)) | (unknown.unsqueeze(1) & ours)
        loss: Tensor = self.dice(logits.softmax(1) * mask, onehot * mask)
        return loss


class DeepSupervisionLoss(nn.Module):
    """A loss for networks that give several heads in training, as MONAI's DynUNet with deep supervision does.

    The mean of the loss of each head, with weights that halve from one head to the next coarser one.

    Args:
        loss: the loss of one head.
    """

    def __init__(self, loss: SupervisedLoss) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, logits: Tensor, label: Tensor, annotated: Tensor | None = None, marginal: bool = False) -> Tensor:
        """
        Args:
            logits: B×heads×C×spatial, finest head first, all of them at full size; or B×C×spatial.
            label: B×1×spatial.
            annotated: B×C, as for one head.
            marginal: as for one head.
        """
        heads = logits.unbind(1) if logits.ndim > label.ndim else (logits,)
        weights = [0.5**place for place in range(len(heads))]
        losses = [
            weight * self.loss(head, label, annotated, marginal) for weight, head in zip(weights, heads, strict=True)
        ]
        return torch.stack(losses).sum() / sum(weights)


@dataclass(frozen=True)
class Objective:
    """What the loss of stage 2 computed for a mini-batch.

    Args:
        parts: `labelled` (J_L), `partial` (λ1 J_P) and `prior` (λ2 J_C), those that the batch has.
        proportions: p̄ of the partially labelled samples (C), detached; None where there are none.
        partial_samples: how many there are.
        partial_logits: their logits, for `pulls`.
        channel_axis: of these logits.
    """

    parts: dict[str, Tensor]
    proportions: Tensor | None
    partial_samples: int
    partial_logits: Tensor
    channel_axis: int

    @property
    def total(self) -> Tensor:
        """J, the sum of the parts."""
        return torch.stack(list(self.parts.values())).sum()

    def pulls(self) -> dict[str, Tensor]:
        """How hard J_P and J_C pull at each channel (C): the summed size of their gradients on the logits.

        The graph is kept, so that `total` can still be differentiated.
        """
        return {
            name: pull_by_channel(self.parts[name], self.partial_logits, self.channel_axis)
            for name in ("partial", "prior")
            if name in self.parts
        }


def pull_by_channel(part: Tensor, logits: Tensor, axis: int) -> Tensor:
    (gradient,) = torch.autograd.grad(part, logits, retain_graph=True)
    return gradient.abs().movedim(axis, 0).flatten(1).sum(1)


class PannLoss(nn.Module):
    """J = J_L + λ1 J_P + λ2 J_C for a batch of fully and partially labelled samples.

    Args:
        supervised: loss on completed labels, used for J_L and J_P; of all heads where the network has several.
        prior_term: J_C.
        partial_weight: λ1.
        prior_weight: λ2; at 0 the term is not computed, but p̄ still is.
        marginal: unknown voxels of partially labelled samples have the marginal cross-entropy; else they are left out.
    """

    def __init__(
        self,
        supervised: SupervisedLoss | DeepSupervisionLoss,
        prior_term: PriorTerm,
        partial_weight: float = 1.0,
        prior_weight: float = 0.1,
        marginal: bool = False,
    ) -> None:
        super().__init__()
        self.supervised, self.prior_term, self.marginal = supervised, prior_term, bool(marginal)
        self.partial_weight, self.prior_weight = float(partial_weight), float(prior_weight)

    def forward(self, logits: Tensor, target: Mapping[str, Tensor]) -> Objective:
        """
        Args:
            logits: B×C×spatial, or B×heads×C×spatial for a `DeepSupervisionLoss`.
            target: `label` (B×1×spatial, completed), `partial` (B, bool) and `annotated` (B×C, bool; without it the
                completed labels are taken for the whole truth).
        """
        partial = target["partial"]
        (full_logits, partial_logits), (full_label, partial_label) = (
            split_samples(tensor, partial) for tensor in (logits, target["label"])
        )
        parts: dict[str, Tensor] = {}
        proportions = None
        if len(full_logits):
            parts["labelled"] = self.supervised(full_logits, full_label)
        if len(partial_logits):
            annotated = split_samples(target["annotated"], partial)[1] if "annotated" in target else None
            supervised = self.supervised(partial_logits, partial_label, annotated, self.marginal)
            parts["partial"] = self.partial_weight * supervised
            # p̄ has a gradient only if the prior needs one; the duals are float64, which autocast must not touch
            with torch.autocast(logits.device.type, enabled=False), torch.set_grad_enabled(self.prior_weight > 0):
                predicted = predicted_proportions(finest_head(partial_logits, partial_label))
                if self.prior_weight > 0:
                    parts["prior"] = self.prior_weight * self.prior_term(predicted)
            proportions = predicted.detach()
        axis = 1 + logits.ndim - target["label"].ndim  # behind the heads where there are several
        return Objective(parts, proportions, len(partial_logits), partial_logits, axis)
