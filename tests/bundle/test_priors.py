"""The prior: on the same footing as the mini-batches, or it would push the wrong way."""

from pathlib import Path

import numpy as np
import pytest
from monai.transforms import ClassesToIndicesd, Compose, LoadImaged, Orientationd, RandRotated

from bundle.cohorts import load_cases
from bundle.errors import InputError
from bundle.organs import Vocabulary
from bundle.priors import Prior, estimate_prior, label_proportions, probability_proportions
from bundle.sampling import Draw, PatchDataset, Patches
from bundle.transforms import MapLabelValuesd


def test_proportions_by_hand() -> None:
    label = np.array([[[0, 0], [1, 1]], [[0, 2], [1, 1]]], np.uint8)
    flat = [np.array([0.5, 0.5])] * 3
    np.testing.assert_allclose(label_proportions(label, flat, 4), [3 / 8, 4 / 8, 1 / 8, 0])
    # first plane counts three times the second
    weights = [np.array([0.75, 0.25]), np.array([0.5, 0.5]), np.array([0.5, 0.5])]
    np.testing.assert_allclose(label_proportions(label, weights, 4), [7 / 16, 8 / 16, 1 / 16, 0])
    onehot = (label[None] == np.arange(4).reshape(4, 1, 1, 1)).astype(np.float32)
    np.testing.assert_allclose(probability_proportions(onehot, weights), [7 / 16, 8 / 16, 1 / 16, 0], rtol=1e-6)


def test_unknown_voxels_count_in_the_whole_only() -> None:
    label = np.array([[[255, 255], [1, 1]], [[255, 255], [1, 255]]], np.uint8)
    np.testing.assert_allclose(label_proportions(label, [np.array([0.5, 0.5])] * 3, 3), [0, 3 / 8, 0])


def dataset_of(tiny_cohorts: Path, folder: Path, patches: Patches) -> PatchDataset:
    keys = ["image", "label"]
    steps = [
        LoadImaged(keys=keys, ensure_channel_first=True, image_only=True),
        MapLabelValuesd(),
        Orientationd(keys=keys, axcodes="RAS", labels=None),
        ClassesToIndicesd(keys="label", num_classes=14),
        RandRotated(keys=keys, range_z=0.26, prob=1.0, mode=["bilinear", "nearest"], padding_mode="border"),
    ]
    return PatchDataset(load_cases(tiny_cohorts, "full"), Compose(steps), patches, str(folder))


def drawn_proportions(dataset: PatchDataset, count: int) -> np.ndarray:
    """Proportions as the very pipeline of the mini-batches shows them, by drawing from it."""
    rows = []
    for number in range(count):
        label = dataset[Draw(number % len(dataset.data), (7, number))]["label"].numpy()
        rows.append(np.bincount(label.ravel(), minlength=14) / label.size)
    return np.mean(rows, axis=0)


def test_the_prior_is_what_the_batches_show(tiny_cohorts: Path, tmp_path: Path) -> None:
    dataset = dataset_of(tiny_cohorts, tmp_path, Patches((16, 16, 8), margin=(4, 4, 0)))
    prior = np.array(estimate_prior(dataset).proportions)
    drawn = drawn_proportions(dataset, 2000)
    assert prior.sum() == pytest.approx(1)
    large = prior > 0.002
    assert large.sum() >= 5
    np.testing.assert_allclose(prior[large], drawn[large], rtol=0.12)
    # Whole volumes, on another footing, would be far off: patches see the rim of a volume less often.
    whole = np.mean([np.bincount(dataset.volume(i)["label"].numpy().ravel(), minlength=14) for i in range(3)], axis=0)
    whole = whole / whole.sum()
    assert whole[6] < 0.75 * prior[6]


def test_patches_centred_on_organs_break_the_footing(tiny_cohorts: Path, tmp_path: Path) -> None:
    uniform = dataset_of(tiny_cohorts, tmp_path, Patches((12, 12, 4)))
    centred = dataset_of(tiny_cohorts, tmp_path, Patches((12, 12, 4), organ_rate=1.0))
    prior = np.array(estimate_prior(uniform).proportions)
    drawn = drawn_proportions(centred, 600)  # full cases, so the rate is in force
    assert drawn[1:].sum() > 1.5 * prior[1:].sum()


def test_a_prior_says_how_it_was_sampled_and_survives_the_disk(tiny_cohorts: Path, tmp_path: Path) -> None:
    dataset = dataset_of(tiny_cohorts, tmp_path, Patches((16, 16, 1)))
    prior = estimate_prior(dataset, tmp_path / "eval" / "prior.json")
    assert prior.names == Vocabulary().channel_names
    assert prior.sampling["patch"] == [16, 16, 1]
    assert prior.sampling["cases"] == len(prior.cases) == 3
    assert prior.sampling["voxels"] == 3 * 32 * 32 * 16
    assert max(prior.spread) > 0
    assert Prior.load(tmp_path / "eval" / "prior.json") == prior


def test_a_file_that_is_no_prior_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prior.json").write_text('{"q": 1}')
    with pytest.raises(InputError, match=r"prior.json: expected a prior written by training"):
        Prior.load(tmp_path / "prior.json")


def test_without_full_cases_there_is_no_prior(tiny_cohorts: Path, tmp_path: Path) -> None:
    dataset = dataset_of(tiny_cohorts, tmp_path, Patches((16, 16, 1)))
    dataset.data = load_cases(tiny_cohorts, "spleen")
    with pytest.raises(InputError, match="no case has all organs annotated"):
        estimate_prior(dataset)
