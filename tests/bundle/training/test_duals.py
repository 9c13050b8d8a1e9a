"""J_C: exact gradients, and the behavior of the duals that method and paper promise."""

import numpy as np
import pytest
import torch

from bundle.errors import InputError
from bundle.training.duals import PriorTerm
from bundle.training.losses import predicted_proportions


def divergence(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Σ_l KL(q_l ‖ p_l), one class against the rest, by its definition."""
    return (q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()).sum()


def batch(count: int, classes: int = 4, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, classes, 5, 4, 3, generator=generator, dtype=torch.float64)


def coefficients(term: PriorTerm) -> torch.Tensor:
    """∂J_C/∂p̄ for the present duals, by its formula: q ν − (1 − q) μ."""
    return term.target * term.nu - (1 - term.target) * term.mu


Q = torch.tensor([0.7, 0.2, 0.0995, 0.0005], dtype=torch.float64)


def test_gradient_at_the_optimal_duals_is_the_exact_one() -> None:
    logits = batch(2).requires_grad_()
    proportions = predicted_proportions(logits)
    loss = PriorTerm(Q, floor=0)
    loss.anchor(proportions.detach())
    (ours,) = torch.autograd.grad(loss(proportions), logits)

    exact = logits.detach().requires_grad_()
    (expected,) = torch.autograd.grad(divergence(Q, exact.softmax(1).flatten(2).mean((0, 2))), exact)
    error = (ours - expected).norm() / expected.norm()
    assert float(error) < 1e-4


def test_value_at_the_optimal_duals_is_the_divergence_and_a_lower_bound_elsewhere() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    loss = PriorTerm(Q, floor=0)
    assert float(loss(p)) < float(divergence(Q, p))
    loss.anchor(p)
    assert float(loss(p)) == pytest.approx(float(divergence(Q, p)), rel=1e-9)


def mean_of_batch_gradients(loss: PriorTerm, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a shared shift of the logits: mean over mini-batches, and full batch."""

    def gradient(part: torch.Tensor) -> torch.Tensor:
        shift = torch.zeros(part.shape[1], 1, 1, 1, dtype=part.dtype, requires_grad=True)
        (result,) = torch.autograd.grad(loss(predicted_proportions(part + shift)), shift)
        return result.flatten()

    batches = [gradient(part) for part in logits.split(1)]
    return torch.stack(batches).mean(0), gradient(logits)


def test_batch_gradients_are_unbiased_for_fixed_duals_and_biased_without() -> None:
    # batches of different content, as crops of a volume are: each with a class of its own in front
    logits = torch.cat([batch(1, seed=seed) + 3 * torch.eye(4)[seed % 4].view(4, 1, 1, 1) for seed in range(6)])
    # at the start the coefficients are 0: move the duals away from there
    moved = PriorTerm(Q, "natural")
    moved.anchor(torch.tensor([0.4, 0.4, 0.15, 0.05]))
    ours, full = mean_of_batch_gradients(moved, logits)
    assert float((ours - full).norm() / full.norm()) < 1e-5
    ours, full = mean_of_batch_gradients(PriorTerm(Q, "biased"), logits)
    assert float((ours - full).norm() / full.norm()) > 0.05


@pytest.mark.parametrize("q", [1e-5, 1e-4, 1e-2, 0.3, 0.9])
@pytest.mark.parametrize("samples", [1, 4])
def test_natural_duals_converge_in_five_memories(q: float, samples: int) -> None:
    loss = PriorTerm([1 - q, q], "natural", memory=200)
    p = torch.tensor([1 - q / 2, q / 2], dtype=torch.float64)
    for _ in range(5 * 200 // samples):
        loss.step(p, samples)
    assert float(loss.nu[1]) == pytest.approx(-2 / q, rel=0.01)
    assert float(loss.mu[1]) == pytest.approx(-1 / (1 - q / 2), rel=0.01)


@pytest.mark.parametrize("q", [1e-4, 0.02])
def test_the_paper_s_dual_step_stands_still(q: float) -> None:
    # method: after 30 000 steps the coefficient is −2e-5 (q = 1e-4) or −4e-3 (q = 0.02); the exact one is about −1
    loss = PriorTerm([1 - q, q], "gradient", rate=2e-5)
    assert coefficients(loss).abs().max() < 1e-9
    p = torch.tensor([1 - q / 2, q / 2], dtype=torch.float64)
    for _ in range(30_000):
        loss.step(p)
    exact = -q / (q / 2) + (1 - q) / (1 - q / 2)
    assert exact < -0.98
    assert -0.01 < float(coefficients(loss)[1]) < 0


def test_sparse_organs_feel_no_pull_from_a_perfect_model() -> None:
    # An organ of q = 1e-4 is in 3 % of the crops; the model is right, so the mean of coefficient × p̄ should be 0.
    q, rate = 1e-4, 0.03
    loss = PriorTerm([1 - q, q])  # the default memory and floor
    rng = np.random.default_rng(0)
    present = rng.random(60_000) < rate
    shares = np.where(present, q / rate * rng.uniform(0.5, 1.5, len(present)), 0.0)
    shares *= q / shares.mean()
    pull = []
    for share in shares:
        pull.append(float(coefficients(loss)[1]) * share)  # the network steps first, with the duals of earlier batches
        loss.step(torch.tensor([1 - share, share], dtype=torch.float64))
    assert abs(np.mean(pull) / q) < 0.05


def test_stepping_the_duals_first_would_bias_the_same_pull() -> None:
    q, rate = 1e-4, 0.03
    loss = PriorTerm([1 - q, q], memory=20)
    rng = np.random.default_rng(0)
    pull = []
    for share in np.where(rng.random(20_000) < rate, q / rate, 0.0):
        loss.step(torch.tensor([1 - share, share], dtype=torch.float64))
        pull.append(float(coefficients(loss)[1]) * share)
    assert abs(np.mean(pull) / q) > 0.2


def test_duals_stay_at_most_minus_one_and_bounded() -> None:
    for kind in ("natural", "gradient"):
        loss = PriorTerm([0.5, 0.5 - 1e-3, 1e-3], kind, memory=1, rate=10.0)  # type: ignore[arg-type]
        for p in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]):
            for _ in range(50):
                loss.step(torch.tensor(p, dtype=torch.float64), 10)
            assert (loss.nu <= -1).all()
            assert (loss.mu <= -1).all()
            assert torch.isfinite(coefficients(loss)).all()
            if kind == "natural":
                assert (coefficients(loss) >= -10).all()  # −q/u with u floored at q/10
                assert (coefficients(loss) <= 10).all()


@pytest.mark.parametrize("kind", ["natural", "gradient", "biased"])
def test_an_organ_never_seen_does_not_divide_by_zero(kind: str) -> None:
    loss = PriorTerm([0.6, 0.4, 0.0], kind)  # type: ignore[arg-type]
    logits = batch(1, classes=3).requires_grad_()
    value = loss(predicted_proportions(logits))
    value.backward()
    loss.step(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    loss.anchor(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert torch.isfinite(value)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(loss.nu).all()


def test_duals_are_state() -> None:
    loss, other = PriorTerm(Q), PriorTerm([0.25] * 4)
    loss.step(torch.tensor([0.1, 0.2, 0.3, 0.4]), 500)
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other.nu, loss.nu)
    torch.testing.assert_close(other.q, loss.q)


def test_the_gradient_s_rate_decays_with_the_learning_rate() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    whole, half = PriorTerm(Q, "gradient", rate=1e-3), PriorTerm(Q, "gradient", rate=1e-3)
    start = whole.nu.clone()
    whole.step(p)
    half.step(p, decay=0.5)
    torch.testing.assert_close(half.nu - start, (whole.nu - start) / 2, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("q", [[0.5, 0.6], [1.5, -0.5], [[0.5, 0.5]]])
def test_a_prior_that_is_no_distribution_is_refused(q: list[float]) -> None:
    with pytest.raises(InputError, match="sum to 1"):
        PriorTerm(q)


def test_unknown_duals_are_refused() -> None:
    with pytest.raises(InputError, match=r'expected "natural", "gradient" or "biased", found "fast"'):
        PriorTerm(Q, "fast")  # type: ignore[arg-type]


def test_within_the_slack_nothing_pulls_and_beyond_it_the_edge_does() -> None:
    prior = PriorTerm([0.6, 0.3, 0.1])
    prior.expect(prior.q.clone(), torch.tensor([0.0, 0.05, 0.02], dtype=torch.float64))
    prior.anchor(torch.tensor([0.6, 0.27, 0.13], dtype=torch.float64))
    q, u = torch.tensor([0.6, 0.27, 0.12]), torch.tensor([0.6, 0.27, 0.13])  # the third one lies beyond 0.1 + 0.02
    expected = -q / u + (1 - q) / (1 - u)
    torch.testing.assert_close(coefficients(prior).float(), expected, rtol=1e-4, atol=1e-6)
    assert float(coefficients(prior)[2]) > 0.05
