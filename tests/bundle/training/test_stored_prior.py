"""A prior of an earlier training: taken where it fits, refused with both values where it does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from bundle.cohorts.datalists import load_cases
from bundle.errors import InputError
from bundle.organs import Vocabulary
from bundle.training.dataset import PatchDataset
from bundle.training.patches import Patches
from bundle.training.prior import Prior, estimate_prior
from bundle.training.stored_prior import check_prior, find_prior, read_prior
from tests.bundle.training.test_prior import dataset_of

ORGANS = Vocabulary("spleen,liver")
STORED = {
    "names": ["background", "spleen", "liver"], "proportions": [0.9, 0.02, 0.08], "spread": [0.02, 0.0, 0.016],
    "cases": ["a", "b"], "sampling": {"patch": [512, 512, 1], "empty_rate": 0.5}, "run": "",
}  # fmt: skip
SLICES = Patches((64, 32, 1), empty_rate=0.5)


def write(folder: Path, **change: Any) -> str:
    path = folder / "prior.json"
    path.write_text(json.dumps({**STORED, **change}))
    return str(path)


def test_a_prior_that_was_sampled_alike_is_taken(tmp_path: Path) -> None:
    assert read_prior(write(tmp_path), ORGANS, SLICES) == Prior(**STORED)  # slices of another size do no harm


@pytest.mark.parametrize(
    ("organs", "patches", "said"),
    [
        ("liver,spleen", SLICES, r'organs \["liver", "spleen"\], as in this training, found \["spleen", "liver"\]'),
        ("liver", SLICES, r'organs \["liver"\], as in this training, found \["spleen", "liver"\]'),
        ("spleen,liver", Patches((64, 64, 1)), "empty_rate 1.0, as in this training, found 0.5"),
        ("spleen,liver", Patches((64, 1, 64), empty_rate=0.5), r"size 1 \[1\], as in this training, found \[2\]"),
    ],
)
def test_a_prior_of_another_training_is_refused(tmp_path: Path, organs: str, patches: Patches, said: str) -> None:
    with pytest.raises(InputError, match=rf"prior.json: expected a prior for .*{said}; give the prior.json of"):
        read_prior(write(tmp_path), Vocabulary(organs), patches)


@pytest.mark.parametrize("sampling", [{}, {"empty_rate": 0.5}, {"empty_rate": 0.5, "patch": "all"}])
def test_a_prior_that_does_not_say_how_it_was_sampled_is_refused(tmp_path: Path, sampling: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="as in this training, found null"):
        read_prior(write(tmp_path, sampling=sampling), ORGANS, SLICES)


@pytest.fixture
def full(tiny_cohorts: Path, tmp_path: Path) -> PatchDataset:
    return dataset_of(tiny_cohorts, tmp_path / "cache", Patches((16, 16, 8)))


def test_a_file_comes_before_the_cases_and_the_cases_before_nothing(
    tiny_cohorts: Path, tmp_path: Path, full: PatchDataset
) -> None:
    measured = estimate_prior(full)
    assert find_prior(full) == find_prior(full, needed=False) == measured
    stored = Prior(measured.names, [0.5, 0.5, *[0.0] * 12], [0.1] * 14, ["x"], measured.sampling)
    stored.save(tmp_path / "prior.json")
    assert find_prior(full, str(tmp_path / "prior.json")) == stored
    full.data = load_cases(tiny_cohorts, "spleen")
    assert find_prior(full, str(tmp_path / "prior.json")) == stored
    with pytest.raises(InputError, match=r"no case has all organs annotated.*\(--prior_file\)"):
        find_prior(full)


def test_where_nothing_needs_a_prior_none_is_written(tiny_cohorts: Path, tmp_path: Path, full: PatchDataset) -> None:
    full.data = load_cases(tiny_cohorts, "spleen")
    none = find_prior(full, needed=False)
    assert none.proportions == [1.0, *[0.0] * 13]
    assert none.plain() == {}
    none.save(tmp_path / "prior.json")
    assert not (tmp_path / "prior.json").exists()


def test_what_is_missing_is_said_before_a_scan_is_read(tmp_path: Path) -> None:
    cases: list[Any] = [{"labelled": ["liver"]}]
    check_prior(cases, write(tmp_path), ORGANS, SLICES)
    check_prior(cases, None, ORGANS, SLICES, needed=False)
    check_prior([*cases, {"labelled": ["liver", "spleen"]}], None, ORGANS, SLICES)
    with pytest.raises(InputError, match="--prior_file"):
        check_prior(cases, None, ORGANS, SLICES)
    with pytest.raises(InputError, match="gone.json"):
        check_prior(cases, str(tmp_path / "gone.json"), ORGANS, SLICES)
