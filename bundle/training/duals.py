# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""J_C, the prior term, as a min-max problem with its duals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from bundle.errors import InputError
from bundle.training.prior import Prior

__all__ = ["PriorTerm"]


Duals = Literal["natural", "gradient", "biased"]

EPSILON = 1e-12


class PriorTerm(nn.Module):
    """The prior term J_C as a min-max problem, with its duals ν and μ as state.

    With duals fixed, the value is linear in p̄, so that mini-batch gradients are unbiased:

        Σ_l q_l (p̄_l ν_l + 1 + log(−ν_l)) + (1 − q_l) ((1 − p̄_l) μ_l + 1 + log(−μ_l)) − H(q)

    It is a lower bound of the Kullback-Leibler divergence Σ_l KL(q_l ‖ p̄_l), tight at ν = −1/p̄, μ = −1/(1 − p̄).

    Duals: `natural` (ascent preconditioned by the curvature: −1/ν is a moving average of p̄), `gradient` (the paper's
    plain ascent) or `biased` (no duals: the divergence of the mini-batch's own p̄). Call `step` *after* the
    network's step, with the batch that it was made from.

    q comes from a few cases. With a ``slack`` around it, only what lies beyond pulls: q gives way to the value nearest
    to the remembered p̄ within q ± slack.

    Args:
        prior: q, or a `Prior`.
        duals: how the duals are optimized.
        memory: memory of the natural duals in partially labelled samples.
        floor: −1/ν never falls below this share of q, nor −1/μ below this share of 1 − q: bounded coefficients.
        rate: ascent rate of `gradient`.
    """

    q: Tensor
    slack: Tensor
    nu: Tensor
    mu: Tensor

    def __init__(
        self,
        prior: Prior | Sequence[float] | Tensor,
        duals: Duals = "natural",
        memory: float = 1000.0,
        floor: float = 0.1,
        rate: float = 2e-5,
    ) -> None:
        super().__init__()
        if duals not in ("natural", "gradient", "biased"):
            raise InputError(f'duals: expected "natural", "gradient" or "biased", found "{duals}"')
        q = torch.as_tensor(prior.proportions if isinstance(prior, Prior) else prior, dtype=torch.float64)
        if q.ndim != 1 or (q < 0).any() or abs(float(q.sum()) - 1) > 1e-4:
            raise InputError(f"prior: expected proportions of at least 0 that sum to 1, found {q.tolist()}")
        self.duals, self.memory, self.floor, self.rate = duals, float(memory), float(floor), float(rate)
        self.register_buffer("q", q)
        self.register_buffer("slack", torch.zeros_like(q))
        self.register_buffer("nu", -1 / q.clamp(EPSILON, 1))
        self.register_buffer("mu", -1 / (1 - q).clamp(EPSILON, 1))

    @property
    def tracked(self) -> Tensor:
        """u = −1/ν: the predicted proportions as the natural duals remember them."""
        return -1 / self.nu

    @property
    def target(self) -> Tensor:
        """q; with a slack, the nearest to what is remembered that is within it."""
        return self.tracked.clamp(self.q - self.slack, self.q + self.slack).clamp(0, 1)

    def duals_now(self) -> dict[str, Tensor]:
        """The duals, and the proportions that they remember."""
        return {"tracked": self.tracked, "nu": self.nu.clone(), "mu": self.mu.clone()}

    @torch.no_grad()
    def expect(self, proportions: Tensor, slack: Tensor) -> None:
        """Replace q, and how far p̄ may be from it without being pulled."""
        self.q.copy_(proportions)
        self.slack.copy_(slack)

    def forward(self, proportions: Tensor) -> Tensor:
        """The prior term for the predicted proportions (C) of a batch."""
        q, p = self.target, proportions.double()
        entropy = -(torch.xlogy(q, q) + torch.xlogy(1 - q, 1 - q))
        if self.duals == "biased":
            p = p.clamp(EPSILON, 1 - EPSILON)
            terms = -(q * p.log() + (1 - q) * (1 - p).log())
        else:
            terms = q * (p * self.nu + 1 + (-self.nu).log()) + (1 - q) * ((1 - p) * self.mu + 1 + (-self.mu).log())
        return (terms - entropy).sum().to(proportions.dtype)

    @torch.no_grad()
    def step(self, proportions: Tensor, samples: int = 1, decay: float = 1.0) -> None:
        """Move the duals towards their optimum for the batch that the network has just stepped with.

        Args:
            proportions: p̄ of the batch (C).
            samples: partially labelled samples in it.
            decay: present learning rate relative to the first; scales the rate of `gradient`.
        """
        p = proportions.double()
        if self.duals == "natural":
            # u ← u + η (p̄ − u), with η so that a memory's worth of samples weighs 1 − 1/e in whatever batches it comes
            eta = -torch.expm1(torch.tensor(-samples / self.memory, dtype=torch.float64))
            self.remember(self.tracked + eta * (p - self.tracked))
        elif self.duals == "gradient":
            q, rate = self.q, self.rate * decay
            self.nu += rate * q * (p + 1 / self.nu)
            self.mu += rate * (1 - q) * ((1 - p) + 1 / self.mu)
            self.nu.clamp_(max=-1)
            self.mu.clamp_(max=-1)

    @torch.no_grad()
    def anchor(self, proportions: Tensor) -> None:
        """Set the natural duals to the optimum for the exact p̄, known whenever pseudo-labels are refreshed."""
        if self.duals == "natural":
            self.remember(proportions.double())

    def remember(self, proportions: Tensor) -> None:
        q = self.q
        u = proportions.to(q.device).clamp(min=(self.floor * q).clamp(min=EPSILON), max=1 - self.floor * (1 - q))
        self.nu.copy_((-1 / u).clamp(max=-1))
        self.mu.copy_((-1 / (1 - u).clamp(min=EPSILON)).clamp(max=-1))
