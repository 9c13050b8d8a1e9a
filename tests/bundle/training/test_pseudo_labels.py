"""Pseudo-labels on 4×4 examples that can be followed by hand."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from monai.inferers import SlidingWindowInferer
from monai.networks.nets import UNet

from bundle.inference.inferers import SlabInferer
from bundle.organs import UNKNOWN, Vocabulary
from bundle.training.dataset import annotated_channels
from bundle.training.patches import Patches
from bundle.training.prior import Expectation
from bundle.training.pseudo_labels import Decision, complete_case, complete_labels

U = UNKNOWN

# What the network says on a 4×4 image, best class first in each voxel: 0 background, 1 spleen, 2 liver.
BEST = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 2], [0, 0, 2, 2]])
SECOND = torch.tensor([[1, 2, 2, 0], [2, 2, 0, 1], [2, 0, 1, 1], [1, 1, 0, 1]])


def scores() -> torch.Tensor:
    result = torch.zeros(3, 4, 4)
    result.scatter_(0, SECOND[None], 1.0)
    return result.scatter_(0, BEST[None], 2.0)


@pytest.mark.parametrize(
    ("kind", "annotated", "given", "expected"),
    [
        (  # nothing annotated: every voxel takes the best class
            "unlabelled",
            [],
            [[U, U, U, U], [U, U, U, U], [U, U, U, U], [U, U, U, U]],
            [[0, 0, 1, 1], [0, 1, 1, 2], [0, 1, 2, 2], [0, 0, 2, 2]],
        ),
        (  # spleen annotated and marked in two voxels: elsewhere it is absent, so the next best class counts
            "one organ",
            [1],
            [[U, U, 1, U], [U, U, 1, U], [U, U, U, U], [U, U, U, U]],
            [[0, 0, 1, 0], [0, 2, 1, 2], [0, 0, 2, 2], [0, 0, 2, 2]],
        ),
        (  # spleen annotated and nowhere in the image
            "one organ, absent",
            [1],
            [[U, U, U, U], [U, U, U, U], [U, U, U, U], [U, U, U, U]],
            [[0, 0, 2, 0], [0, 2, 0, 2], [0, 0, 2, 2], [0, 0, 2, 2]],
        ),
        (  # known background (a structure outside the vocabulary) is kept, whatever the network says
            "one organ, known background",
            [1],
            [[U, U, 1, U], [U, U, 1, 0], [U, U, 0, 0], [U, U, U, U]],
            [[0, 0, 1, 0], [0, 2, 1, 0], [0, 0, 0, 0], [0, 0, 2, 2]],
        ),
        (  # all organs annotated: nothing is unknown, nothing is made up
            "full",
            [1, 2],
            [[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 0, 2], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 0, 2], [0, 0, 0, 0]],
        ),
        (  # all organs annotated but some voxels ignored: only background is left for them
            "full, ignored voxels",
            [1, 2],
            [[0, 0, 1, 1], [0, U, 1, 2], [0, U, U, 2], [0, 0, 0, 0]],
            [[0, 0, 1, 1], [0, 0, 1, 2], [0, 0, 0, 2], [0, 0, 0, 0]],
        ),
    ],
)
def test_completed_labels_by_hand(kind: str, annotated: list[int], given: list, expected: list) -> None:
    completed = complete_labels(scores(), torch.tensor(given, dtype=torch.uint8), annotated)
    assert completed.dtype == torch.uint8
    assert completed.tolist() == expected


# Probabilities of background, spleen and liver in four voxels.
PROBABILITIES = [[0.50, 0.60, 0.10, 0.45], [0.30, 0.35, 0.10, 0.10], [0.20, 0.05, 0.80, 0.45]]


@pytest.mark.parametrize(
    ("annotated", "confidence", "factors", "expected"),
    [
        ([], 0.0, None, [0, 0, 2, 0]),
        ([], 0.55, None, [U, 0, 2, U]),
        ([1], 0.0, None, [0, 0, 2, 0]),
        ([1], 0.7, None, [0, 0, 2, U]),  # without the spleen: 5/7 = 0.714, 12/13, 8/9 and 1/2 of what is left
        ([1], 0.0, [1.0, 1.0, 2.0], [0, 0, 2, 2]),  # liver counts double: 0.4 < 0.5, 0.1 < 0.6, 1.6 and 0.9 win
        ([1], 0.7, [1.0, 1.0, 2.0], [U, 0, 2, U]),  # 5/9, 6/7, 16/17 and 2/3
    ],
)
def test_decisions_by_hand(
    annotated: list[int], confidence: float, factors: list[float] | None, expected: list[int]
) -> None:
    given = torch.full((4,), U, dtype=torch.uint8)
    completed = complete_labels(torch.tensor(PROBABILITIES), given, annotated, confidence, factors)
    assert completed.tolist() == expected


def test_an_organ_that_is_found_too_seldom_is_favored() -> None:
    expected = Expectation(np.array([0.77, 0.08, 0.1, 0.05]), np.array([0.0, 0.0, 0.02, 0.0]))
    factors = Decision(correction=0.5).factors([0.7, 0.02, 0.11, 0.0], expected)
    # background never; spleen (0.08 / 0.02) ** 0.5; liver lies within its slack; what vanished gains at most 4 ** 0.5
    np.testing.assert_allclose(factors, [1.0, 2.0, 1.0, 2.0])
    np.testing.assert_allclose(Decision().factors([0.7, 0.02, 0.11, 0.0], expected), 1.0)


def test_channels_of_a_label_set_follow_the_vocabulary() -> None:
    case = {"labelled": ["liver", "spleen"]}
    assert annotated_channels(case, Vocabulary()) == [6, 1]
    assert annotated_channels(case, Vocabulary(["liver", "pancreas"])) == [1]


class OneCase:
    """Stands in for a dataset with one case, whose second organ is annotated."""

    vocabulary = Vocabulary(["spleen", "liver", "pancreas"])
    data: ClassVar = [{"cohort": "liver", "case": "a", "labelled": ["liver"]}]

    def __init__(self, image: torch.Tensor, label: torch.Tensor, patches: Patches) -> None:
        self.image, self.label, self.patches = image, label, patches

    def volume(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": self.image, "label": self.label}


@pytest.mark.parametrize("shape", [(20, 24, 34), (34, 20, 24)])
def test_a_case_completed_in_slabs_is_the_case_completed_whole(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = UNet(3, 1, 4, (4, 8), (2,)).eval()
    image = torch.randn(1, *shape)
    given = torch.full((1, *shape), U, dtype=torch.uint8)
    given[0, 4:9, 5:12, 6:13] = 2
    patches, size = Patches((12, 12, 8)), (16, 16, 16)
    inferer, dataset = SlabInferer(size, 0.25), OneCase(image, given, patches)
    completed, proportions = complete_case(network, inferer, dataset, 0, Decision())
    with torch.inference_mode():
        scores = SlidingWindowInferer(size, 1, 0.25, "gaussian")(image[None], network)[0].softmax(0)
    weights = patches.coverage(shape)
    expected = np.einsum("cxyz,x,y,z->c", scores.double().numpy(), *weights)
    np.testing.assert_allclose(proportions, expected, rtol=1e-5)
    np.testing.assert_array_equal(completed, complete_labels(scores.clone(), given[0], [2]).numpy())
    assert len(np.unique(completed)) == 4
    factors = np.array([1.0, 2.0, 1.0, 0.5])
    decided, same = complete_case(network, inferer, dataset, 0, Decision(0.4), factors)
    np.testing.assert_array_equal(decided, complete_labels(scores.clone(), given[0], [2], 0.4, factors).numpy())
    np.testing.assert_array_equal(same, proportions)  # p̄ is what the network says, not what is decided
    assert U in decided
    untouched, same = complete_case(network, inferer, dataset, 0, Decision().waiting())
    np.testing.assert_array_equal(untouched, given[0].numpy())
    np.testing.assert_array_equal(same, proportions)
