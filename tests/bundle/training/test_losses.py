"""The losses: hand-computed values and exact gradients."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from monai.networks.nets import DynUNet

from bundle.errors import InputError
from bundle.organs import IGNORED, UNKNOWN
from bundle.training.duals import PriorTerm
from bundle.training.losses import DeepSupervisionLoss, PannLoss, SupervisedLoss, predicted_proportions
from tests.bundle.training.test_duals import coefficients


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
    loss = PannLoss(SupervisedLoss("dice_ce"), PriorTerm(Q))
    target = {"label": label, "partial": torch.tensor([False, True])}
    plain = loss(logits, target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(logits, target)
        low = loss(logits.bfloat16(), target)
    assert inside.total.dtype == low.total.dtype == torch.float32
    assert float(inside.total) == pytest.approx(float(plain.total), rel=1e-6)
    assert low.proportions is not None
    assert low.proportions.dtype == torch.float32


def test_proportions_are_the_mean_softmax() -> None:
    logits = batch(3)
    expected = np.exp(logits.numpy())
    expected = (expected / expected.sum(1, keepdims=True)).mean(axis=(0, 2, 3, 4))
    np.testing.assert_allclose(predicted_proportions(logits).numpy(), expected, rtol=1e-6)


def test_unknown_losses_are_refused() -> None:
    with pytest.raises(InputError, match=r'expected "ce" or "dice_ce", found "dice"'):
        SupervisedLoss("dice")  # type: ignore[arg-type]


# --- All terms together ----------------------------------------------------------------------------------------------
def test_terms_are_separate_means_with_their_weights() -> None:
    logits = batch(4)
    label = torch.randint(0, 4, (4, 1, 5, 4, 3), generator=torch.Generator().manual_seed(1))
    partial = torch.tensor([False, True, False, False])
    prior = PriorTerm(Q)
    prior.anchor(torch.tensor([0.4, 0.4, 0.15, 0.05]))
    loss = PannLoss(SupervisedLoss("ce"), prior, partial_weight=2.0, prior_weight=0.3)
    objective = loss(logits, {"label": label, "partial": partial})
    full_term = F.cross_entropy(logits[[0, 2, 3]], label[[0, 2, 3], 0])
    partial_term = F.cross_entropy(logits[[1]], label[[1], 0])
    prior_term = prior(logits[[1]].softmax(1).mean((0, 2, 3, 4)))
    expected = full_term + 2 * partial_term + 0.3 * prior_term
    assert float(objective.total) == pytest.approx(float(expected), rel=1e-5)
    parts = {"labelled": full_term, "partial": 2 * partial_term, "prior": 0.3 * prior_term}
    assert {name: float(value) for name, value in objective.parts.items()} == pytest.approx(
        {name: float(value) for name, value in parts.items()}, rel=1e-5
    )
    assert objective.partial_samples == 1


def test_without_weight_the_prior_leaves_the_gradient_alone_but_p_is_followed() -> None:
    logits = batch(2).requires_grad_()
    target = {"label": torch.zeros(2, 1, 5, 4, 3, dtype=torch.uint8), "partial": torch.tensor([False, True])}
    prior = PriorTerm(Q)
    prior.anchor(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    loss = PannLoss(SupervisedLoss(), prior, prior_weight=0.0)
    objective = loss(logits, target)
    (ours,) = torch.autograd.grad(objective.total, logits)
    zero = torch.zeros(1, 5, 4, 3, dtype=torch.long)
    plain = F.cross_entropy(logits[:1], zero) + F.cross_entropy(logits[1:], zero)
    (expected,) = torch.autograd.grad(plain, logits)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-8)
    assert objective.proportions is not None
    assert not objective.proportions.requires_grad
    assert "prior" not in objective.parts


@pytest.mark.parametrize("partial", [[False, False], [True, True]])
def test_batches_of_one_kind_work(partial: list[bool]) -> None:
    loss = PannLoss(SupervisedLoss(), PriorTerm(Q))
    target = {"label": torch.zeros(2, 1, 5, 4, 3, dtype=torch.uint8), "partial": torch.tensor(partial)}
    objective = loss(batch(2), target)
    assert torch.isfinite(objective.total)
    assert (objective.proportions is not None) == partial[0]


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
    prior = PriorTerm(Q)
    prior.anchor(torch.tensor([0.4, 0.4, 0.15, 0.05]))
    loss = PannLoss(DeepSupervisionLoss(SupervisedLoss()), prior, partial_weight=2.0, prior_weight=0.3)
    objective = loss(heads, {"label": label, "partial": torch.tensor([False, False, True])})
    fine, coarse = heads.unbind(1)
    terms = []
    for samples in (slice(0, 2), slice(2, 3)):
        entropies = [F.cross_entropy(head[samples], label[samples, 0]) for head in (fine, coarse)]
        terms.append((2 * entropies[0] + entropies[1]) / 3)
    proportions = fine[2:].softmax(1).mean((0, 2, 3, 4))
    expected = terms[0] + 2 * terms[1] + 0.3 * prior(proportions)
    assert float(objective.total) == pytest.approx(float(expected), rel=1e-5)
    assert objective.proportions is not None
    torch.testing.assert_close(objective.proportions, proportions.detach())
    torch.testing.assert_close(*(torch.autograd.grad(value, heads)[0] for value in (objective.total, expected)))


def test_the_heads_of_dynunet_are_recognized() -> None:
    network = DynUNet(2, 1, 4, [3] * 4, [1, 2, 2, 2], [2] * 3, filters=[4] * 4, deep_supervision=True, deep_supr_num=2)
    image, label = torch.randn(2, 1, 16, 16), torch.zeros(2, 1, 16, 16, dtype=torch.uint8)
    loss = PannLoss(DeepSupervisionLoss(SupervisedLoss("dice_ce")), PriorTerm(Q))
    target = {"label": label, "partial": torch.tensor([False, True])}
    objective = loss(network(image), target)
    objective.total.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())  # the coarse heads' too
    assert objective.proportions is not None
    assert float(objective.proportions.sum()) == pytest.approx(1)
    assert torch.isfinite(loss(network.eval()(image), target).total)


def test_the_pull_of_each_part_is_that_of_the_formulas() -> None:
    logits = batch(3).requires_grad_()
    label = torch.randint(0, 4, (3, 1, 5, 4, 3), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    prior = PriorTerm(Q)
    prior.anchor(torch.tensor([0.6, 0.3, 0.09, 0.01], dtype=torch.float64))
    loss = PannLoss(SupervisedLoss("ce"), prior, partial_weight=2.0, prior_weight=0.3)
    target = {"label": label, "partial": torch.tensor([False, True, True])}
    objective = loss(logits, target)
    pulls = objective.pulls()
    p = logits.detach()[1:].softmax(1)
    onehot = F.one_hot(label[1:, 0].long(), 4).movedim(-1, 1)
    voxels = 2 * 5 * 4 * 3
    torch.testing.assert_close(pulls["partial"], (2.0 * (p - onehot) / voxels).abs().sum((0, 2, 3, 4)))
    c = coefficients(prior).reshape(1, 4, 1, 1, 1)
    pull = 0.3 * p * (c - (c * p).sum(1, keepdim=True)) / voxels
    torch.testing.assert_close(pulls["prior"], pull.abs().sum((0, 2, 3, 4)), rtol=1e-4, atol=1e-9)
    objective.total.backward()  # the graph is still there
