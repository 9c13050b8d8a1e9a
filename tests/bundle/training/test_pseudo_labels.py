"""Pseudo-labels on 4×4 examples that can be followed by hand, and the store on disk."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from monai.inferers import SlidingWindowInferer
from monai.networks.nets import UNet

from bundle.errors import InputError
from bundle.inference.inferers import SlabInferer
from bundle.organs import UNKNOWN, Vocabulary
from bundle.training.dataset import annotated_channels
from bundle.training.patches import Patches
from bundle.training.prior import Expectation
from bundle.training.pseudo_labels import Decision, PseudoLabels, complete_case, complete_labels, doubtful_cohorts

U = UNKNOWN
CASE = {"cohort": "spleen", "case": "a", "labelled": ["spleen"]}

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


def test_an_organ_that_is_found_too_seldom_is_favoured() -> None:
    expected = Expectation(np.array([0.77, 0.08, 0.1, 0.05]), np.array([0.0, 0.0, 0.02, 0.0]))
    factors = Decision(correction=0.5).factors([0.7, 0.02, 0.11, 0.0], expected)
    # background never; spleen (0.08 / 0.02) ** 0.5; liver lies within its slack; what vanished gains at most 4 ** 0.5
    np.testing.assert_allclose(factors, [1.0, 2.0, 1.0, 2.0])
    np.testing.assert_allclose(Decision().factors([0.7, 0.02, 0.11, 0.0], expected), 1.0)


def test_channels_of_a_label_set_follow_the_vocabulary() -> None:
    case = {"labelled": ["liver", "spleen"]}
    assert annotated_channels(case, Vocabulary()) == [6, 1]
    assert annotated_channels(case, Vocabulary(["liver", "pancreas"])) == [1]


@pytest.mark.parametrize("depth", [1, 7, 8, 9, 20])
def test_a_region_reads_what_was_written(tmp_path: Path, depth: int) -> None:
    store = PseudoLabels(tmp_path, slab=8)
    volume = np.random.default_rng(0).integers(0, 14, (6, 5, depth)).astype(np.uint8)
    store.write(CASE, volume)
    np.testing.assert_array_equal(store.read(CASE), volume)
    for start in range(depth):
        for stop in range(start + 1, depth + 1):
            region = (slice(1, 4), slice(0, 5), slice(start, stop))
            np.testing.assert_array_equal(store.read(CASE, region), volume[region])


def test_before_the_first_refresh_there_is_nothing(tmp_path: Path) -> None:
    assert PseudoLabels(tmp_path).read(CASE) is None


def test_files_are_compressed(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path)
    store.write(CASE, np.zeros((64, 64, 64), np.uint8))
    assert store.path(CASE).stat().st_size < 64**3 / 50


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = PseudoLabels(tmp_path)
    store.path(CASE).parent.mkdir(parents=True)
    store.path(CASE).write_bytes(b"not a zip file")
    with pytest.raises(InputError, match=r"spleen/a.npz: pseudo-labels are damaged"):
        store.read(CASE)


WRITER = """
import sys
import numpy as np
from bundle.training.pseudo_labels import PseudoLabels
store = PseudoLabels(sys.argv[1])
case = {"cohort": "spleen", "case": "a"}
value = 0
while True:
    value = (value + 1) % 200
    store.write(case, np.full((48, 48, 32), value, np.uint8))
    print(value, flush=True)
"""


def test_a_kill_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    for attempt in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.02 + 0.013 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        volume = PseudoLabels(tmp_path).read(CASE)
        assert volume is not None
        assert volume.shape == (48, 48, 32)
        assert (volume == volume[0, 0, 0]).all()


def test_a_cohort_of_another_field_of_view_is_doubted() -> None:
    prior = [0.9, 0.02, 0.08]
    given = {"spleen": {1: 0.03}, "liver": {2: 0.2}, "cut": {1: 0.005, 2: 0.08}}
    first, second = doubtful_cohorts(given, prior, ["background", "spleen", "liver"])
    assert first.startswith("cohort liver: the liver takes 20.00% of its volume, but 8.00%")
    assert second.startswith("cohort cut: the spleen takes 0.50%")


@pytest.mark.parametrize("shape", [(20, 24, 34), (34, 20, 24)])
def test_a_case_completed_in_slabs_is_the_case_completed_whole(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    network = UNet(3, 1, 4, (4, 8), (2,)).eval()
    image = torch.randn(1, *shape)
    given = torch.full((1, *shape), U, dtype=torch.uint8)
    given[0, 4:9, 5:12, 6:13] = 2
    patches, size = Patches((12, 12, 8)), (16, 16, 16)
    completed, proportions = complete_case(
        network, SlabInferer(size, 0.25), {"image": image, "label": given}, [2], patches, 4
    )
    with torch.inference_mode():
        scores = SlidingWindowInferer(size, 1, 0.25, "gaussian")(image[None], network)[0].softmax(0)
    weights = patches.coverage(shape)
    expected = np.einsum("cxyz,x,y,z->c", scores.double().numpy(), *weights)
    np.testing.assert_allclose(proportions, expected, rtol=1e-5)
    np.testing.assert_array_equal(completed, complete_labels(scores.clone(), given[0], [2]).numpy())
    assert len(np.unique(completed)) == 4
    inferer, volume = SlabInferer(size, 0.25), {"image": image, "label": given}
    factors = np.array([1.0, 2.0, 1.0, 0.5])
    decided, same = complete_case(network, inferer, volume, [2], patches, 4, 0.4, factors)
    np.testing.assert_array_equal(decided, complete_labels(scores.clone(), given[0], [2], 0.4, factors).numpy())
    np.testing.assert_array_equal(same, proportions)  # p̄ is what the network says, not what is decided
    assert U in decided
    untouched, same = complete_case(network, inferer, volume, [2], patches, 4, None)
    np.testing.assert_array_equal(untouched, given[0].numpy())
    np.testing.assert_array_equal(same, proportions)
