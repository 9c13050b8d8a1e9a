"""The losses: hand-computed values, exact gradients, and the behaviour of the duals that method and paper promise."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from monai.networks.nets import DynUNet

from bundle.errors import InputError
from bundle.organs import IGNORED, UNKNOWN
from bundle.training.duals import PriorLoss
from bundle.training.losses import DeepSupervisionLoss, PannLoss, SupervisedLoss, predicted_proportions


def divergence(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Σ_l KL(q_l ‖ p_l), one class against the rest, by its definition."""
    return (q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()).sum()


def batch(count: int, classes: int = 4, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(count, classes, 5, 4, 3, generator=generator, dtype=torch.float64)


Q = torch.tensor([0.7, 0.2, 0.0995, 0.0005], dtype=torch.float64)


# --- Cross-entropy and Dice ------------------------------------------------------------------------------------------
def test_cross_entropy_by_hand() -> None:
    # Two voxels, two classes: softmax (1, 3)/4 and (1, 1)/2; the third voxel is unknown.
    logits = torch.tensor([[[0.0, 0.0, 9.0], [math.log(3), 0.0, -9.0]]])
    label = torch.tensor([[[1, 0, UNKNOWN]]], dtype=torch.uint8)
    expected = (-math.log(3 / 4) - math.log(1 / 2)) / 2
    assert float(SupervisedLoss("ce")(logits, label)) == pytest.approx(expected, rel=1e-6)


def test_dice_counts_known_voxels_of_organs_only() -> None:
    logits = torch.tensor([[[0.0, 0.0, 9.0], [math.log(3), 0.0, -9.0]]])
    label = torch.tensor([[[1, 0, UNKNOWN]]], dtype=torch.uint8)
    # organ: intersection 3/4, sums 3/4 + 1/2 predicted and 1 true
    dice = 2 * 0.75 / (0.75 + 0.5 + 1)
    cross_entropy = (-math.log(3 / 4) - math.log(1 / 2)) / 2
    assert float(SupervisedLoss("dice_ce")(logits, label)) == pytest.approx(cross_entropy + 1 - dice, rel=1e-4)


@pytest.mark.parametrize("value", [UNKNOWN, IGNORED])
@pytest.mark.parametrize("kind", ["ce", "dice_ce"])
def test_a_batch_of_unknown_or_ignored_voxels_pulls_nowhere(kind: str, value: int) -> None:
    logits = batch(2).float().requires_grad_()
    SupervisedLoss(kind)(logits, torch.full((2, 1, 5, 4, 3), value, dtype=torch.uint8)).backward()  # type: ignore[arg-type]
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad.abs().max() < 1e-6


def test_marginal_cross_entropy_by_hand() -> None:
    # Three voxels, three classes; class 1 is annotated. Unknown voxels are class 0 or 2: 1 − p_1.
    probabilities = torch.tensor([[[0.5, 0.2, 0.1], [0.3, 0.7, 0.1], [0.2, 0.1, 0.8]]])
    label = torch.tensor([[[UNKNOWN, 1, UNKNOWN]]], dtype=torch.uint8)
    annotated = torch.tensor([[False, True, False]])
    expected = -(math.log(0.7) + math.log(0.7) + math.log(0.9)) / 3
    assert float(SupervisedLoss("ce")(probabilities.log(), label, annotated, marginal=True)) == pytest.approx(
        expected, rel=1e-6
    )
    # Dice of class 1 counts all voxels, since it is known to be absent from unknown ones; that of class 2 none.
    both = expected + (1 - 2 * 0.7 / (0.3 + 0.7 + 0.1 + 1)) / 2
    assert float(SupervisedLoss("dice_ce")(probabilities.log(), label, annotated, marginal=True)) == pytest.approx(
        both, rel=1e-3
    )


def test_dice_counts_an_unannotated_organ_only_where_it_is_pseudo_labelled() -> None:
    probabilities = torch.tensor([[[0.5, 0.2, 0.1], [0.3, 0.7, 0.1], [0.2, 0.1, 0.8]]])
    annotated = torch.tensor([[False, True, False]])
    marked = torch.tensor([[[0, 1, UNKNOWN]]], dtype=torch.uint8)
    guessed = torch.tensor([[[0, 1, 2]]], dtype=torch.uint8)
    cross_entropy = -(math.log(0.5) + math.log(0.7)) / 2
    one = (1 - 2 * 0.7 / (0.3 + 0.7 + 1)) / 2  # class 1 over the known voxels; class 2 may be anywhere
    assert float(SupervisedLoss("dice_ce")(probabilities.log(), marked, annotated)) == pytest.approx(
        cross_entropy + one, rel=1e-4
    )
    cross_entropy = -(math.log(0.5) + math.log(0.7) + math.log(0.8)) / 3
    two = (1 - 2 * 0.7 / (0.3 + 0.7 + 0.1 + 1) + 1 - 2 * 0.8 / (0.2 + 0.1 + 0.8 + 1)) / 2
    assert float(SupervisedLoss("dice_ce")(probabilities.log(), guessed, annotated)) == pytest.approx(
        cross_entropy + two, rel=1e-4
    )


def test_the_marginal_loss_of_an_unlabelled_sample_is_nothing() -> None:
    logits = batch(1).float()
    label = torch.full((1, 1, 5, 4, 3), UNKNOWN, dtype=torch.uint8)
    nothing = torch.zeros(1, 4, dtype=torch.bool)
    assert float(SupervisedLoss("ce")(logits, label, nothing, marginal=True)) == pytest.approx(0, abs=1e-6)


def test_the_marginal_loss_never_asks_which_organ_it_is() -> None:
    logits = batch(1).float().requires_grad_()
    label = torch.full((1, 1, 5, 4, 3), UNKNOWN, dtype=torch.uint8)
    annotated = torch.tensor([[False, True, False, False]])
    SupervisedLoss("ce")(logits, label, annotated, marginal=True).backward()
    assert logits.grad is not None
    assert (logits.grad[:, 1] > 0).all()  # the annotated organ is pushed down
    # the others go up together: their shares among themselves stay, so gradients are as their probabilities
    shares = logits.detach().softmax(1)[:, [0, 2, 3]]
    torch.testing.assert_close(
        logits.grad[:, [0, 2, 3]] / shares, (logits.grad[:, :1] / shares[:, :1]).expand(-1, 3, -1, -1, -1)
    )


def test_ignored_voxels_stay_out_of_the_marginal_loss() -> None:
    logits = batch(1).float().requires_grad_()
    annotated = torch.tensor([[False, True, False, False]])
    label = torch.full((1, 1, 5, 4, 3), IGNORED, dtype=torch.uint8)
    SupervisedLoss("dice_ce")(logits, label, annotated, marginal=True).backward()
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1e-6


def test_losses_stay_fp32_inside_autocast() -> None:
    logits = batch(2).float()
    label = torch.zeros(2, 1, 5, 4, 3, dtype=torch.uint8)
    loss = PannLoss(SupervisedLoss("dice_ce"), PriorLoss(Q))
    target = {"label": label, "partial": torch.tensor([False, True])}
    plain = loss(logits, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(logits, target)
        low = loss(logits.bfloat16(), target)
    assert inside.dtype == low.dtype == torch.float32
    assert float(inside) == pytest.approx(float(plain), rel=1e-6)
    assert loss.proportions is not None
    assert loss.proportions.dtype == torch.float32


# --- The prior term --------------------------------------------------------------------------------------------------
def test_proportions_are_the_mean_softmax() -> None:
    logits = batch(3)
    expected = np.exp(logits.numpy())
    expected = (expected / expected.sum(1, keepdims=True)).mean(axis=(0, 2, 3, 4))
    np.testing.assert_allclose(predicted_proportions(logits).numpy(), expected, rtol=1e-6)


def test_gradient_at_the_optimal_duals_is_the_exact_one() -> None:
    logits = batch(2).requires_grad_()
    proportions = predicted_proportions(logits)
    loss = PriorLoss(Q, floor=0)
    loss.anchor(proportions.detach())
    (ours,) = torch.autograd.grad(loss(proportions), logits)

    exact = logits.detach().requires_grad_()
    (expected,) = torch.autograd.grad(divergence(Q, exact.softmax(1).flatten(2).mean((0, 2))), exact)
    error = (ours - expected).norm() / expected.norm()
    assert float(error) < 1e-4


def test_value_at_the_optimal_duals_is_the_divergence_and_a_lower_bound_elsewhere() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    loss = PriorLoss(Q, floor=0)
    assert float(loss(p)) < float(divergence(Q, p))
    loss.anchor(p)
    assert float(loss(p)) == pytest.approx(float(divergence(Q, p)), rel=1e-9)


def mean_of_batch_gradients(loss: PriorLoss, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
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
    moved = PriorLoss(Q, "natural")
    moved.anchor(torch.tensor([0.4, 0.4, 0.15, 0.05]))
    ours, full = mean_of_batch_gradients(moved, logits)
    assert float((ours - full).norm() / full.norm()) < 1e-5
    ours, full = mean_of_batch_gradients(PriorLoss(Q, "biased"), logits)
    assert float((ours - full).norm() / full.norm()) > 0.05


@pytest.mark.parametrize("q", [1e-5, 1e-4, 1e-2, 0.3, 0.9])
@pytest.mark.parametrize("samples", [1, 4])
def test_natural_duals_converge_in_five_memories(q: float, samples: int) -> None:
    loss = PriorLoss([1 - q, q], "natural", memory=200)
    p = torch.tensor([1 - q / 2, q / 2], dtype=torch.float64)
    for _ in range(5 * 200 // samples):
        loss.step_duals(p, samples)
    assert float(loss.nu[1]) == pytest.approx(-2 / q, rel=0.01)
    assert float(loss.mu[1]) == pytest.approx(-1 / (1 - q / 2), rel=0.01)


@pytest.mark.parametrize("q", [1e-4, 0.02])
def test_the_paper_s_dual_step_stands_still(q: float) -> None:
    # method: after 30 000 steps the coefficient is −2e-5 (q = 1e-4) or −4e-3 (q = 0.02); the exact one is about −1
    loss = PriorLoss([1 - q, q], "gradient", rate=2e-5)
    assert loss.coefficients().abs().max() < 1e-9
    p = torch.tensor([1 - q / 2, q / 2], dtype=torch.float64)
    for _ in range(30_000):
        loss.step_duals(p)
    exact = -q / (q / 2) + (1 - q) / (1 - q / 2)
    assert exact < -0.98
    assert -0.01 < float(loss.coefficients()[1]) < 0


def test_sparse_organs_feel_no_pull_from_a_perfect_model() -> None:
    # An organ of q = 1e-4 is in 3 % of the crops; the model is right, so the mean of coefficient × p̄ should be 0.
    q, rate = 1e-4, 0.03
    loss = PriorLoss([1 - q, q])  # the default memory and floor
    rng = np.random.default_rng(0)
    present = rng.random(60_000) < rate
    shares = np.where(present, q / rate * rng.uniform(0.5, 1.5, len(present)), 0.0)
    shares *= q / shares.mean()
    pull = []
    for share in shares:
        pull.append(float(loss.coefficients()[1]) * share)  # the network steps first, with the duals of earlier batches
        loss.step_duals(torch.tensor([1 - share, share], dtype=torch.float64))
    assert abs(np.mean(pull) / q) < 0.05


def test_stepping_the_duals_first_would_bias_the_same_pull() -> None:
    q, rate = 1e-4, 0.03
    loss = PriorLoss([1 - q, q], memory=20)
    rng = np.random.default_rng(0)
    pull = []
    for share in np.where(rng.random(20_000) < rate, q / rate, 0.0):
        loss.step_duals(torch.tensor([1 - share, share], dtype=torch.float64))
        pull.append(float(loss.coefficients()[1]) * share)
    assert abs(np.mean(pull) / q) > 0.2


def test_duals_stay_at_most_minus_one_and_bounded() -> None:
    for kind in ("natural", "gradient"):
        loss = PriorLoss([0.5, 0.5 - 1e-3, 1e-3], kind, memory=1, rate=10.0)  # type: ignore[arg-type]
        for p in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]):
            for _ in range(50):
                loss.step_duals(torch.tensor(p, dtype=torch.float64), 10)
            assert (loss.nu <= -1).all()
            assert (loss.mu <= -1).all()
            assert torch.isfinite(loss.coefficients()).all()
            if kind == "natural":
                assert (loss.coefficients() >= -10).all()  # −q/u with u floored at q/10
                assert (loss.coefficients() <= 10).all()


@pytest.mark.parametrize("kind", ["natural", "gradient", "biased"])
def test_an_organ_never_seen_does_not_divide_by_zero(kind: str) -> None:
    loss = PriorLoss([0.6, 0.4, 0.0], kind)  # type: ignore[arg-type]
    logits = batch(1, classes=3).requires_grad_()
    value = loss(predicted_proportions(logits))
    value.backward()
    loss.step_duals(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    loss.anchor(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert torch.isfinite(value)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert torch.isfinite(loss.nu).all()


def test_duals_are_state() -> None:
    loss, other = PriorLoss(Q), PriorLoss([0.25] * 4)
    loss.step_duals(torch.tensor([0.1, 0.2, 0.3, 0.4]), 500)
    other.load_state_dict(loss.state_dict())
    torch.testing.assert_close(other.nu, loss.nu)
    torch.testing.assert_close(other.prior, loss.prior)


def test_the_gradient_s_rate_decays_with_the_learning_rate() -> None:
    p = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    whole, half = PriorLoss(Q, "gradient", rate=1e-3), PriorLoss(Q, "gradient", rate=1e-3)
    start = whole.nu.clone()
    whole.step_duals(p)
    half.step_duals(p, decay=0.5)
    torch.testing.assert_close(half.nu - start, (whole.nu - start) / 2, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("q", [[0.5, 0.6], [1.5, -0.5], [[0.5, 0.5]]])
def test_a_prior_that_is_no_distribution_is_refused(q: list[float]) -> None:
    with pytest.raises(InputError, match="sum to 1"):
        PriorLoss(q)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match=r'expected "natural", "gradient" or "biased", found "fast"'):
        PriorLoss(Q, "fast")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r'expected "ce" or "dice_ce", found "dice"'):
        SupervisedLoss("dice")  # type: ignore[arg-type]


# --- All terms together ----------------------------------------------------------------------------------------------
def test_terms_are_separate_means_with_their_weights() -> None:
    logits = batch(4)
    label = torch.randint(0, 4, (4, 1, 5, 4, 3), generator=torch.Generator().manual_seed(1))
    partial = torch.tensor([False, True, False, False])
    prior = PriorLoss(Q)
    prior.anchor(torch.tensor([0.4, 0.4, 0.15, 0.05]))
    loss = PannLoss(SupervisedLoss("ce"), prior, partial_weight=2.0, prior_weight=0.3)
    total = loss(logits, {"label": label, "partial": partial})
    full_term = F.cross_entropy(logits[[0, 2, 3]], label[[0, 2, 3], 0])
    partial_term = F.cross_entropy(logits[[1]], label[[1], 0])
    prior_term = prior(logits[[1]].softmax(1).mean((0, 2, 3, 4)))
    expected = full_term + 2 * partial_term + 0.3 * prior_term
    assert float(total) == pytest.approx(float(expected), rel=1e-5)
    parts = {"labelled": full_term, "partial": 2 * partial_term, "prior": 0.3 * prior_term}
    assert {name: float(value) for name, value in loss.parts.items()} == pytest.approx(
        {name: float(value) for name, value in parts.items()}, rel=1e-5
    )
    assert loss.partial_samples == 1


def test_without_weight_the_prior_leaves_the_gradient_alone_but_p_is_followed() -> None:
    logits = batch(2).requires_grad_()
    target = {"label": torch.zeros(2, 1, 5, 4, 3, dtype=torch.uint8), "partial": torch.tensor([False, True])}
    prior = PriorLoss(Q)
    prior.anchor(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    loss = PannLoss(SupervisedLoss(), prior, prior_weight=0.0)
    (ours,) = torch.autograd.grad(loss(logits, target), logits)
    zero = torch.zeros(1, 5, 4, 3, dtype=torch.long)
    plain = F.cross_entropy(logits[:1], zero) + F.cross_entropy(logits[1:], zero)
    (expected,) = torch.autograd.grad(plain, logits)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)
    assert loss.proportions is not None
    assert "prior" not in loss.parts


@pytest.mark.parametrize("partial", [[False, False], [True, True]])
def test_batches_of_one_kind_work(partial: list[bool]) -> None:
    loss = PannLoss(SupervisedLoss(), PriorLoss(Q))
    target = {"label": torch.zeros(2, 1, 5, 4, 3, dtype=torch.uint8), "partial": torch.tensor(partial)}
    assert torch.isfinite(loss(batch(2), target))
    assert (loss.proportions is not None) == partial[0]


# --- Networks with several heads -------------------------------------------------------------------------------------
def test_heads_weigh_half_as_much_as_the_one_before() -> None:
    # One voxel of class 1; the heads give it probability 3/4, 1/2 and 1/4.
    odds = torch.tensor([3.0, 1.0, 1 / 3]).log()
    logits = torch.stack([torch.zeros(3), odds], 1).view(1, 3, 2, 1, 1)  # B×heads×C×spatial
    label = torch.ones(1, 1, 1, 1, dtype=torch.uint8)
    expected = -(4 * math.log(3 / 4) + 2 * math.log(1 / 2) + 1 * math.log(1 / 4)) / 7
    assert float(DeepSupervisionLoss(SupervisedLoss())(logits, label)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("kind", ["ce", "dice_ce"])
def test_without_heads_deep_supervision_changes_nothing(kind: str) -> None:
    logits, label = batch(2), torch.randint(0, 4, (2, 1, 5, 4, 3), generator=torch.Generator().manual_seed(1))
    loss = SupervisedLoss(kind)  # type: ignore[arg-type]
    torch.testing.assert_close(DeepSupervisionLoss(loss)(logits, label), loss(logits, label))
    equal_heads = logits.unsqueeze(1).expand(-1, 3, -1, -1, -1, -1)
    torch.testing.assert_close(DeepSupervisionLoss(loss)(equal_heads, label), loss(logits, label))


def test_the_prior_sees_the_finest_head_only() -> None:
    heads = torch.stack([batch(3, seed=seed) for seed in range(2)], 1).requires_grad_()
    label = torch.randint(0, 4, (3, 1, 5, 4, 3), generator=torch.Generator().manual_seed(1))
    prior = PriorLoss(Q)
    prior.anchor(torch.tensor([0.4, 0.4, 0.15, 0.05]))
    loss = PannLoss(DeepSupervisionLoss(SupervisedLoss()), prior, partial_weight=2.0, prior_weight=0.3)
    total = loss(heads, {"label": label, "partial": torch.tensor([False, False, True])})
    fine, coarse = heads.unbind(1)
    terms = []
    for samples in (slice(0, 2), slice(2, 3)):
        entropies = [F.cross_entropy(head[samples], label[samples, 0]) for head in (fine, coarse)]
        terms.append((2 * entropies[0] + entropies[1]) / 3)
    proportions = fine[2:].softmax(1).mean((0, 2, 3, 4))
    expected = terms[0] + 2 * terms[1] + 0.3 * prior(proportions)
    assert float(total) == pytest.approx(float(expected), rel=1e-5)
    assert loss.proportions is not None
    torch.testing.assert_close(loss.proportions, proportions.detach())
    torch.testing.assert_close(*(torch.autograd.grad(value, heads)[0] for value in (total, expected)))


def test_the_heads_of_dynunet_are_recognised() -> None:
    network = DynUNet(2, 1, 4, [3] * 4, [1, 2, 2, 2], [2] * 3, filters=[4] * 4, deep_supervision=True, deep_supr_num=2)
    image, label = torch.randn(2, 1, 16, 16), torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    loss = PannLoss(DeepSupervisionLoss(SupervisedLoss("dice_ce")), PriorLoss(Q))
    target = {"label": label, "partial": torch.tensor([False, True])}
    loss(network(image), target).backward()
    assert all(parameter.grad is not None for parameter in network.parameters())  # the coarse heads' too
    assert loss.proportions is not None
    assert float(loss.proportions.sum()) == pytest.approx(1)
    assert torch.isfinite(loss(network.eval()(image), target))


# --- A prior that knows how uncertain it is, and what pulls how hard -------------------------------------------------
def test_within_the_slack_nothing_pulls_and_beyond_it_the_edge_does() -> None:
    prior = PriorLoss([0.6, 0.3, 0.1])
    prior.expect(prior.prior.clone(), torch.tensor([0.0, 0.05, 0.02], dtype=torch.float64))
    prior.anchor(torch.tensor([0.6, 0.27, 0.13], dtype=torch.float64))
    q, u = torch.tensor([0.6, 0.27, 0.12]), torch.tensor([0.6, 0.27, 0.13])  # the third one lies beyond 0.1 + 0.02
    expected = -q / u + (1 - q) / (1 - u)
    torch.testing.assert_close(prior.coefficients().float(), expected, rtol=1e-4, atol=1e-6)
    assert float(prior.coefficients()[2]) > 0.05


def test_the_pull_of_each_part_is_that_of_the_formulas() -> None:
    logits = batch(3).requires_grad_()
    label = torch.randint(0, 4, (3, 1, 5, 4, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    prior = PriorLoss(Q)
    prior.anchor(torch.tensor([0.6, 0.3, 0.09, 0.01], dtype=torch.float64))
    loss = PannLoss(SupervisedLoss("ce"), prior, partial_weight=2.0, prior_weight=0.3)
    target = {"label": label, "partial": torch.tensor([False, True, True])}
    loss(logits, target)
    assert loss.gradients == {}
    loss.watched = True
    total = loss(logits, target)
    p = logits.detach()[1:].softmax(1)
    onehot = F.one_hot(label[1:, 0].long(), 4).movedim(-1, 1)
    voxels = 2 * 5 * 4 * 3
    torch.testing.assert_close(loss.gradients["partial"], (2.0 * (p - onehot) / voxels).abs().sum((0, 2, 3, 4)))
    c = prior.coefficients().reshape(1, 4, 1, 1, 1)
    pull = 0.3 * p * (c - (c * p).sum(1, keepdim=True)) / voxels
    torch.testing.assert_close(loss.gradients["prior"], pull.abs().sum((0, 2, 3, 4)), rtol=1e-4, atol=1e-9)
    total.backward()  # the graph is still there
