"""The prior: on the same footing as the mini-batches, or it would push the wrong way."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.transforms import ClassesToIndicesd, Compose, LoadImaged, Orientationd, RandRotated

from bundle.cohorts.datalists import load_cases
from bundle.errors import InputError
from bundle.organs import Vocabulary
from bundle.training.dataset import Draw, PatchDataset
from bundle.training.patches import Patches
from bundle.training.prior import (
    Prior,
    SizePrior,
    doubt_shares,
    estimate_prior,
    label_proportions,
    probability_proportions,
    view_factor,
)
from bundle.transforms.dictionary import MapLabelValuesd


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


def test_patches_centered_on_organs_break_the_footing(tiny_cohorts: Path, tmp_path: Path) -> None:
    uniform = dataset_of(tiny_cohorts, tmp_path, Patches((12, 12, 4)))
    centered = dataset_of(tiny_cohorts, tmp_path, Patches((12, 12, 4), organ_rate=1.0))
    prior = np.array(estimate_prior(uniform).proportions)
    drawn = drawn_proportions(centered, 600)  # full cases, so the rate is in force
    assert drawn[1:].sum() > 1.5 * prior[1:].sum()


def test_a_prior_says_how_it_was_sampled_and_survives_the_disk(tiny_cohorts: Path, tmp_path: Path) -> None:
    dataset = dataset_of(tiny_cohorts, tmp_path, Patches((16, 16, 1)))
    prior = estimate_prior(dataset)
    prior.save(tmp_path / "eval" / "prior.json")
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


SOUND = {
    "names": ["background", "spleen", "liver"], "proportions": [0.9, 0.02, 0.08], "spread": [0.02, 0.0, 0.016],
    "cases": ["a", "b"], "sampling": {"patch": [16, 16, 1]}, "run": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"names": "background"}, "are lists"),
        ({"names": ["background", "spleen", 5]}, "names and cases are texts"),
        ({"names": ["spleen", "background", "liver"]}, "names are the background and different organs"),
        ({"names": ["background", "liver", "liver"]}, "names are the background and different organs"),
        ({"names": ["background", "spleen", "lever"]}, '"lever" is no organ'),
        ({"names": ["background", "spleen", "liver", "aorta"]}, "4 names have 3 proportions and 3 spreads"),
        ({"proportions": [0.9, 0.1]}, "3 names have 2 proportions"),
        ({"proportions": [0.9, 0.02, 0.09]}, "proportions add up to 1, not to 1.01"),
        ({"proportions": [1.1, -0.1, 0]}, "are from 0 to 1"),
        ({"proportions": [True, 0, 0]}, "are from 0 to 1"),
        ({"proportions": ["0.9", 0.02, 0.08]}, "are from 0 to 1"),
        ({"spread": [0, 0, -1e-9]}, "are from 0 to 1"),
        ({"spread": [0, 0, None]}, "are from 0 to 1"),
        ({"cases": []}, "at least one case"),
        ({"cases": [1]}, "names and cases are texts"),
        ({"sampling": []}, "sampling is an object"),
        ({"run": 1}, "run is a text"),
        ({"more": 1}, "are not all there, or others are"),
    ],
)
def test_a_damaged_prior_is_refused(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = tmp_path / "prior.json"
    path.write_text(json.dumps({**SOUND, **change}))
    with pytest.raises(
        InputError, match=rf"prior.json: expected a prior written by training, .*{reason}.*; train again"
    ):
        Prior.load(path)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"names": NaN}', "[" * 100_000, '{"names": [], "names": []}'])
def test_what_is_no_json_of_ours_is_no_prior(tmp_path: Path, text: str) -> None:
    (tmp_path / "prior.json").write_text(text)
    with pytest.raises(InputError, match="prior.json: "):
        Prior.load(tmp_path / "prior.json")
    with pytest.raises(InputError, match="expected a JSON file, but it cannot be read"):
        Prior.load(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_file_is_a_sound_prior_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path, record = tmp_path_factory.mktemp("prior") / "prior.json", copy.deepcopy(SOUND)
    key = data.draw(st.sampled_from(sorted(SOUND)))
    place: Any = record[key]
    if isinstance(place, list) and data.draw(st.booleans()):
        place[data.draw(st.integers(0, len(place) - 1))] = data.draw(JSON)
    else:
        record[key] = data.draw(JSON)
    path.write_text(json.dumps(record if data.draw(st.booleans()) else data.draw(JSON)))
    try:
        prior = Prior.load(path)
    except InputError:
        return
    assert len(prior.names) == len(prior.proportions) == len(prior.spread)
    assert sum(prior.proportions) == pytest.approx(1, abs=1e-6)
    assert Vocabulary(prior.names[1:]).channel_names == prior.names
    assert np.isfinite([*prior.spread, *prior.standard_error]).all()


def test_a_sound_prior_is_read(tmp_path: Path) -> None:
    Prior(**SOUND).save(tmp_path / "prior.json")
    assert Prior.load(tmp_path / "prior.json") == Prior(**SOUND)


def test_without_full_cases_there_is_no_prior(tiny_cohorts: Path, tmp_path: Path) -> None:
    dataset = dataset_of(tiny_cohorts, tmp_path, Patches((16, 16, 1)))
    dataset.data = load_cases(tiny_cohorts, "spleen")
    with pytest.raises(InputError, match="no case has all organs annotated"):
        estimate_prior(dataset)


# --- What partial cohorts should show --------------------------------------------------------------------------------
PRIOR = Prior(["background", "spleen", "liver"], [0.9, 0.02, 0.08], [0.02, 0.016, 0.016], ["a", "b", "c", "d"], {})


def test_the_field_of_view_is_what_annotated_organs_show() -> None:
    # relative standard errors: spleen 0.016 / 2 / 0.02 = 0.4, liver 0.016 / 2 / 0.08 = 0.1; weights 1 : 16
    given = {"spleens": {1: 0.02}, "livers": {2: 0.16}}
    assert view_factor(PRIOR, given) == pytest.approx(2 ** (16 / 17))
    assert view_factor(PRIOR, {"livers": {2: 0.16}}) == pytest.approx(2)
    assert view_factor(PRIOR, {"unlabelled": {}}) == 1
    assert view_factor(PRIOR, {"absent": {1: 0.0}}) == 1


def test_without_a_fit_every_cohort_should_show_q() -> None:
    expected = SizePrior(PRIOR, fit=False, slack=2.0).of_cohorts({"livers": {2: 0.16}})
    np.testing.assert_allclose(expected["livers"].proportions, PRIOR.proportions)
    np.testing.assert_allclose(expected["livers"].slack, [0.02, 0.016, 0.016])


def test_a_fit_takes_what_is_known_and_scales_what_is_not() -> None:
    expected = SizePrior(PRIOR, fit=True, slack=1.0).of_cohorts({"livers": {2: 0.16}})["livers"]
    np.testing.assert_allclose(expected.proportions, [1 - 0.04 - 0.16, 0.04, 0.16])
    np.testing.assert_allclose(expected.slack[1:], [0.016, 0.0])
    np.testing.assert_allclose(expected.nearest(np.array([0.9, 0.03, 0.1]))[1:], [0.03, 0.16])
    np.testing.assert_allclose(expected.nearest(np.array([0.9, 0.01, 0.2]))[1:], [0.024, 0.16])


def test_patients_of_a_cohort_differ_more_than_its_mean() -> None:
    expected = SizePrior(PRIOR, fit=True, slack=1.0).of_cases({"livers": {2: 0.16}})["livers"]
    np.testing.assert_allclose(expected.slack[1:], [2 * 0.016, 2 * 0.016])  # standard deviations, scaled to the view


def test_the_mean_over_cohorts_weighs_them_alike() -> None:
    mean = SizePrior(PRIOR, fit=True).of_mean({"livers": {2: 0.16}, "unlabelled": {}})
    np.testing.assert_allclose(mean.proportions, [1 - 0.04 - 0.16, 0.04, 0.16])  # the view of both is twice as close


def test_a_cohort_of_another_field_of_view_is_doubted_unless_the_spread_explains_it() -> None:
    assert doubt_shares(PRIOR, "spleen", {"spleen": 0.045}) == []  # more than twice q, but within two spreads of it
    (sentence,) = doubt_shares(PRIOR, "liver", {"liver": 0.2})
    assert sentence.startswith("cohort liver: the liver takes 200 ‰ of its scans, but q is 80 ± 16 ‰, 2.5 times as")
    assert doubt_shares(PRIOR, "cut", {"liver": 0.07}) == []


# --- In weights ------------------------------------------------------------------------------------------------------
def test_a_prior_goes_through_a_record_of_weights_without_the_names_of_cases() -> None:
    prior = Prior(**{**SOUND, "cases": ["anna", "ben"], "run": "20250101"})
    record = json.loads(json.dumps(prior.plain()))
    assert "anna" not in str(record)
    assert record["cases"] == 2
    again = Prior.from_record(record)
    assert again == Prior(**{**SOUND, "cases": ["1", "2"]})
    assert again.standard_error == prior.standard_error


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cases": 0}, "at least one case"),
        ({"cases": 10**9}, "at least one case"),
        ({"cases": ["a"]}, "at least one case"),
        ({"proportions": [0.9, 0.2, 0.08]}, "add up to 1"),
        ({"more": 1}, "are not all there, or others are"),
    ],
)
def test_a_damaged_record_of_a_prior_is_refused(change: dict[str, Any], reason: str) -> None:
    record = {**Prior(**SOUND).plain(), **change}
    with pytest.raises(InputError, match=f"model.pt: expected a prior written by training.*{reason}"):
        Prior.from_record(record, "model.pt")
    with pytest.raises(InputError, match="are not all there"):
        Prior.from_record({})
