"""Pseudo-labels against a hidden truth: counts by hand, and the whole way through files and transforms."""

from pathlib import Path

import numpy as np
import pytest

from bundle.cohorts.datalists import load_cases
from bundle.errors import InputError
from bundle.organs import UNKNOWN
from bundle.training.dataset import PatchDataset
from bundle.training.label_store import PseudoLabelStore
from bundle.training.patches import Patches
from bundle.training.quality import PseudoLabelQuality, confusion, precision_and_recall
from tests.bundle.training.test_prior import dataset_of
from tests.runs import run_in

U = UNKNOWN


def test_precision_and_recall_by_hand() -> None:
    completed = np.array([0, 0, 1, 1, 1, 2, U, U], np.uint8)
    truth = np.array([0, 1, 1, 1, 2, 0, 2, 0], np.uint8)
    quality = precision_and_recall(confusion(completed, truth, 4))
    # given: 2 × 0, 3 × 1, 1 × 2; true: 3 × 0, 3 × 1, 2 × 2; both: one 0, two 1, no 2; nobody has heard of 3
    assert quality["precision"] == [1 / 2, 2 / 3, 0.0, None]
    assert quality["recall"] == [1 / 3, 2 / 3, 0.0, None]


@pytest.fixture
def spleens(tiny_cohorts: Path, tmp_path: Path) -> PatchDataset:
    dataset = dataset_of(tiny_cohorts, tmp_path / "cache", Patches((16, 16, 8)))
    dataset.data = load_cases(tiny_cohorts, "spleen")
    return dataset


def test_the_truth_is_compared_where_annotators_marked_nothing(
    tiny_cohorts: Path, tmp_path: Path, spleens: PatchDataset
) -> None:
    store = PseudoLabelStore(run_in(tmp_path), spleens.patches)
    quality = PseudoLabelQuality(tiny_cohorts / "truth", spleens)
    for index, case in enumerate(spleens.data):
        with store.refreshing(0):
            store.write(case, quality.truth.volume(index)["label"][0].numpy())
    perfect = quality.measure(store)
    assert perfect is not None
    precision = perfect["spleen"]["precision"]
    assert precision[1] is None  # the spleen is annotated: not a pseudo-label's business
    assert precision[0] == precision[6] == perfect["spleen"]["recall"][6] == 1.0
    for case in spleens.data:
        with store.refreshing(0):
            store.write(case, np.zeros_like(store.read(case)))
    empty = quality.measure(store)
    assert empty is not None
    assert empty["spleen"]["recall"][6] == 0.0
    assert empty["spleen"]["precision"][6] is None
    assert 0.8 < (empty["spleen"]["precision"][0] or 0) < 1


def test_without_a_truth_nothing_is_measured(tmp_path: Path, spleens: PatchDataset) -> None:
    assert PseudoLabelQuality(None, spleens).measure(PseudoLabelStore(run_in(tmp_path), spleens.patches)) is None


def test_a_missing_truth_is_named(tmp_path: Path, spleens: PatchDataset) -> None:
    with pytest.raises(InputError, match=r"spleen/spleen_000.nii.gz: no complete label map of this case"):
        PseudoLabelQuality(tmp_path, spleens)
