"""Patches, the dataset and the mini-batches: right proportions, right order, the same draws every time."""

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.transforms import ClassesToIndicesd, Compose, RandFlipd, RandRotated

from bundle.errors import InputError, find_input_error
from bundle.files import whole_file
from bundle.organs import UNKNOWN, Vocabulary
from bundle.training import case_files
from bundle.training.batches import MixedBatches
from bundle.training.dataset import Draw, PatchDataset, describe
from bundle.training.label_store import PseudoLabelStore
from bundle.training.patches import Patches
from bundle.transforms.dictionary import LoadOnOwnGridd, MapLabelValuesd
from tests.runs import run_in


# --- Patches ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("size", "margin"), [((3, 2, 1), 0), ((2, 2, -1), 1), ((9, 3, 2), 0)])
def test_coverage_is_what_drawing_gives(size: tuple[int, ...], margin: int) -> None:
    shape, patches = (7, 6, 4), Patches(size, margin)
    rng, counts = np.random.default_rng(0), np.zeros(shape)
    for _ in range(20_000):
        region = patches.draw(shape, rng)
        inner = tuple(slice(s.start + m, s.stop - m) for s, m in zip(region, patches.margin, strict=True))
        counts[inner] += 1
    x, y, z = patches.coverage(shape)
    expected = np.einsum("i,j,k->ijk", x, y, z)
    np.testing.assert_allclose(counts / counts.sum(), expected, atol=0.002)


def test_coverage_by_hand() -> None:
    # Two voxels out of four: positions 0-1, 1-2, 2-3 cover the voxels 1, 2, 2, 1 times.
    (weights,) = Patches([2]).coverage([4])
    np.testing.assert_allclose(weights, np.array([1, 2, 2, 1]) / 6)


def test_a_patch_around_a_voxel_holds_it_inside_the_volume() -> None:
    patches, rng = Patches((4, 4, 1), margin=1), np.random.default_rng(0)
    for center in [(0, 0, 0), (9, 9, 4), (5, 2, 3)]:
        for _ in range(50):
            region = patches.draw_around(center, (10, 10, 5), rng)
            assert [s.stop - s.start for s in region] == [6, 6, 1]
            assert all(0 <= s.start <= c < s.stop <= n for s, c, n in zip(region, center, (10, 10, 5), strict=True))


def test_slices_lose_their_axis_and_margins_are_cut_off() -> None:
    patches = Patches((4, 4, 1), margin=(2, 1, 3))
    assert patches.read_size == (8, 6, 1)
    patch = patches.trim(patches.squeeze(torch.arange(48.0).view(1, 8, 6, 1)))
    assert patch.shape == (1, 4, 4)
    assert float(patch[0, 0, 0]) == 2 * 6 + 1


# --- The dataset -----------------------------------------------------------------------------------------------------
def make_case(folder: Path, name: str, cohort: str, labelled: list[str] | None = None) -> dict[str, Any]:
    rng = np.random.default_rng(len(name))
    image = rng.normal(size=(12, 10, 6)).astype(np.float32)
    label = np.zeros((12, 10, 6), np.uint8)
    label[8:, 7:, 4:] = 5
    for part, data in (("image", image), ("label", label)):
        nib.save(nib.Nifti1Image(data, np.eye(4)), folder / f"{name}_{part}.nii.gz")
    full = labelled is None
    return {
        "image": str(folder / f"{name}_image.nii.gz"),
        "label": str(folder / f"{name}_label.nii.gz"),
        "case": name,
        "cohort": cohort,
        "labelled": Vocabulary().names if full else labelled,
        "values": {0: 0 if full else UNKNOWN, 5: 5 if full else UNKNOWN},
        "fold": None,
    }


def make_dataset(folder: Path, cases: list[dict[str, Any]], patches: Patches, random: Any = None, **more: Any) -> Any:
    steps = [
        LoadOnOwnGridd(keys=["image", "label"], allow_missing_keys=True),
        MapLabelValuesd(),
        ClassesToIndicesd(keys="label", num_classes=14),
        *(random or []),
    ]
    return PatchDataset(cases, Compose(steps), patches, str(folder / "cache"), **more)


def test_a_sample_depends_on_its_draw_alone(tmp_path: Path) -> None:
    case = make_case(tmp_path, "a", "full")
    flips = [RandFlipd(keys=["image", "label"], prob=0.5), RandRotated(keys=["image", "label"], range_x=0.3, prob=1.0)]
    draws = [Draw(0, (3, 1, iteration, 0)) for iteration in range(4)]
    first = make_dataset(tmp_path, [case], Patches((6, 6, 3), organ_rate=0.5), flips)
    samples = [first[draw] for draw in draws]
    second = make_dataset(tmp_path, [case], Patches((6, 6, 3), organ_rate=0.5), flips)
    for draw, sample in reversed(list(zip(draws, samples, strict=True))):
        again = second[draw]
        torch.testing.assert_close(again["image"], sample["image"])
        torch.testing.assert_close(again["label"], sample["label"])
    assert not torch.equal(samples[0]["image"], samples[1]["image"])


def test_items_are_plain_tensors_of_the_patch_s_size(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path, "a", "full")], Patches((6, 6, 1), margin=1))
    item = dataset[0]
    assert type(item["image"]) is torch.Tensor
    assert item["image"].shape == item["label"].shape == (1, 6, 6)
    assert item["image"].dtype == torch.float32
    assert item["label"].dtype == torch.uint8
    assert not item["partial"]


def test_a_rate_of_one_centres_every_full_patch_on_an_organ_and_no_partial_one(tmp_path: Path) -> None:
    cases = [make_case(tmp_path, "a", "full"), make_case(tmp_path, "bb", "spleen", ["spleen"])]
    dataset = make_dataset(tmp_path, cases, Patches((3, 3, 2), organ_rate=1.0))
    assert all((dataset[Draw(0, (0, i))]["label"] == 5).any() for i in range(40))
    regions = {str(dataset.choose_region(1, True, np.random.default_rng(i))) for i in range(200)}
    assert len(regions) > 100  # of 10 × 8 × 5 positions


def test_the_cache_is_made_anew_when_a_file_or_the_transforms_change(tmp_path: Path) -> None:
    case = make_case(tmp_path, "a", "full")
    dataset = make_dataset(tmp_path, [case], Patches((6, 6, 3)))
    dataset.volume(0)
    first = dataset.cache_file(case)
    assert first.is_file()
    assert make_dataset(tmp_path, [case], Patches((4, 4, 2))).cache_file(case) == first
    case_again = make_case(tmp_path, "a", "full")
    assert dataset.cache_file(case_again) != first
    other = make_dataset(tmp_path, [case], Patches((6, 6, 3)))
    other.transform.transforms[2].num_classes = 15
    fingerprint = [describe(step) for step in other.deterministic_transforms()]
    assert str(fingerprint) != str([describe(step) for step in dataset.deterministic_transforms()])
    assert not list((tmp_path / "cache").glob("*.tmp"))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(np.float32(7).tobytes() * 3)] ^= 1  # in the middle of the voxels: the file still opens
    path.write_bytes(content)


def take_another(path: Path) -> None:
    other = next(one for one in path.parent.glob("*.pt") if one != path)
    path.write_bytes(other.read_bytes())


DAMAGE = {
    "cut short": cut_short,
    "a bit flipped": flip_a_bit,
    "of another case": take_another,
    "of another program": lambda path: torch.save([1, 2], path),
    "not a file of torch": lambda path: path.write_text("hello"),
    "empty": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
    "deleted with its folder": lambda path: shutil.rmtree(path.parent),
}


@pytest.mark.parametrize("when", ["before a run", "while it is open"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_changes_nothing(
    tmp_path: Path, damage: str, when: str, caplog: pytest.LogCaptureFixture
) -> None:
    cases = [make_case(tmp_path, name, "full") for name in ("a", "bb")]
    image = np.full((12, 10, 6), 7, np.float32)
    image[3] = 9
    nib.save(nib.Nifti1Image(image, np.eye(4)), cases[0]["image"])
    draws = [Draw(number % 2, (number,)) for number in range(20)]

    dataset = make_dataset(tmp_path, cases, Patches((6, 6, 3)))
    dataset.prepare()
    expected = [dataset[draw] for draw in draws]
    DAMAGE[damage](dataset.cache_file(cases[0]))
    if when == "before a run":
        dataset = make_dataset(tmp_path, cases, Patches((6, 6, 3)))
    found = [dataset[draw] for draw in draws]
    for one, other in zip(expected, found, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert ("is damaged" in caplog.text) == ("deleted" not in damage)
    if "deleted" not in damage or when == "before a run":
        assert case_files.open_case_file(dataset.cache_file(cases[0])) is not None


def test_what_was_checked_is_not_read_again_and_what_was_written_since_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [make_case(tmp_path, name, "full") for name in ("a", "bb")]
    make_dataset(tmp_path, cases, Patches((6, 6, 3))).prepare()
    monkeypatch.setattr(case_files, "CHECKED", {})  # a new process
    read: list[Path] = []
    monkeypatch.setattr(case_files, "check_content", read.append)
    first, second = (make_dataset(tmp_path, cases, Patches((6, 6, 3))) for _ in range(2))
    first.prepare()
    assert sorted(read) == sorted(first.cache_file(case) for case in cases)
    second.volume(0), second.volume(1)
    assert len(read) == 2
    os.utime(first.cache_file(cases[1]))
    for dataset in (first, second):
        dataset.volume(0), dataset.volume(1)
    assert read[2:] == [first.cache_file(cases[1])]


def test_two_runs_share_a_cache(tmp_path: Path) -> None:
    cases = [make_case(tmp_path, name, "full") for name in ("a", "bb")]
    one, two = (make_dataset(tmp_path, cases, Patches((6, 6, 3))) for _ in range(2))
    expected = one[Draw(0, (1,))]
    path = one.cache_file(cases[0])
    with whole_file(path) as unfinished:  # of another run, under way
        assert torch.equal(two[Draw(0, (1,))]["image"], expected["image"])
        two.make(cases[0], path)
        assert unfinished.exists()
        unfinished.write_bytes(path.read_bytes())
    assert torch.equal(one[Draw(0, (1,))]["image"], expected["image"])
    assert torch.equal(two[Draw(0, (1,))]["image"], expected["image"])


def test_a_deleted_cache_is_made_again_within_its_limit(tmp_path: Path) -> None:
    cases = [make_case(tmp_path, name, "full") for name in ("a", "bb", "ccc")]
    dataset = make_dataset(tmp_path, cases, Patches((6, 6, 3)))
    dataset.prepare()
    size = max(dataset.cache_file(case).stat().st_size for case in cases)
    shutil.rmtree(tmp_path / "cache")
    limited = make_dataset(tmp_path, cases, Patches((6, 6, 3)), limit=2.05 * size / 1e9)
    limited.prepare()
    kept = sorted((tmp_path / "cache").iterdir())
    assert len(kept) == 2
    shutil.rmtree(tmp_path / "cache")
    limited.open_volumes.clear()  # as in a loader that starts
    for number in (2, 1, 0):
        limited.volume(number)
    assert sorted((tmp_path / "cache").iterdir()) == kept


def test_a_cache_folder_that_cannot_be_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "cache").touch()
    with pytest.raises(InputError, match="cache: cannot be created: there is a file where a folder was expected"):
        make_dataset(tmp_path, [make_case(tmp_path, "a", "full")], Patches((6, 6, 3)))


def test_scans_that_go_away_under_a_run_are_named(tmp_path: Path) -> None:
    case = make_case(tmp_path, "a", "full")
    dataset = make_dataset(tmp_path, [case], Patches((6, 6, 3)))
    Path(case["label"]).unlink()
    with pytest.raises(InputError, match=r"a_label.nii.gz: cannot be read: No such file"):
        dataset.volume(0)


def test_a_scan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    case = make_case(tmp_path, "a", "full")
    whole = Path(case["image"]).read_bytes()
    Path(case["image"]).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RuntimeError) as caught:
        make_dataset(tmp_path, [case], Patches((6, 6, 3))).prepare()
    assert "a_image.nii.gz" in str(find_input_error(caught.value))
    assert "cannot be read as an image" in str(find_input_error(caught.value))


def test_a_refresh_shows_at_once(tmp_path: Path) -> None:
    case = make_case(tmp_path, "a", "spleen", ["spleen"])
    store = PseudoLabelStore(run_in(tmp_path), Patches((6, 6, 3)))
    dataset = make_dataset(tmp_path, [case], Patches((6, 6, 3)), completed=store)
    assert (dataset[0]["label"] == UNKNOWN).all()
    for value in (3, 4):
        with store.refreshing(value):
            store.write(case, np.full((12, 10, 6), value, np.uint8))
        assert (dataset[0]["label"] == value).all()
        assert dataset[0]["partial"]


# --- Mini-batches ----------------------------------------------------------------------------------------------------
class Cases:
    """Stands in for a dataset: batches need the cases only."""

    vocabulary = Vocabulary()

    def __init__(self, sizes: dict[str, int], full: int) -> None:
        everything = Vocabulary().names
        self.data = [{"cohort": "full", "labelled": everything}] * full
        self.data += [{"cohort": name, "labelled": [name]} for name, size in sizes.items() for _ in range(size)]


def batches(full: int = 3, partial: int = 1, **more: Any) -> MixedBatches:
    return MixedBatches(Cases({"spleen": 2, "liver": 7, "pancreas": 3}, 4), full, partial, **more)  # type: ignore[arg-type]


def test_every_batch_is_three_to_one_with_full_ones_first() -> None:
    for iteration in range(30):
        numbers = [draw.number for draw in batches().batch(iteration)]
        assert all(number < 4 for number in numbers[:3])
        assert numbers[3] >= 4


def test_cohorts_of_different_sizes_take_equal_turns_and_use_every_case() -> None:
    seen = Counter(batches().batch(iteration)[3].number for iteration in range(3 * 42))
    per_cohort = [sum(seen[n] for n in numbers) for numbers in (range(4, 6), range(6, 13), range(13, 16))]
    assert per_cohort == [42, 42, 42]
    assert [seen[n] for n in range(4, 16)] == [21] * 2 + [6] * 7 + [14] * 3


def test_full_cases_are_all_seen_before_any_comes_again() -> None:
    numbers = [draw.number for iteration in range(4) for draw in batches().batch(iteration)[:3]]
    assert all(sorted(numbers[i : i + 4]) == [0, 1, 2, 3] for i in range(0, 12, 4))


def test_a_batch_depends_on_seed_and_number_alone() -> None:
    running = iter(batches(seed=5))
    first = [next(running) for _ in range(8)]
    resumed = iter(batches(seed=5, start=6))
    assert [next(resumed), next(resumed)] == first[6:]
    assert batches(seed=6).batch(6) != first[6]
    assert batches(seed=5, stage=2).batch(6) != first[6]
    assert len({draw.seed for batch in first for draw in batch}) == 8 * 4


def test_without_partial_cases_the_whole_batch_is_full() -> None:
    sampler = MixedBatches(Cases({}, 4), 3, 1)  # type: ignore[arg-type]
    assert len(sampler.batch(0)) == 4


def test_without_full_cases_the_whole_batch_is_partial() -> None:
    sampler = MixedBatches(Cases({"spleen": 2, "liver": 1}, 0), 3, 1)  # type: ignore[arg-type]
    numbers = [draw.number for draw in sampler.batch(0)]
    assert len(numbers) == 4
    assert numbers.count(2) == 2  # the two cohorts take turns: the only case of one of them comes twice
    assert {0, 1} == {number for number in numbers if number != 2}


def test_batches_of_nothing_can_be_made_and_not_drawn() -> None:
    sampler = MixedBatches(Cases({}, 0), 4)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="stage 0: there is no case to draw"):
        sampler.batch(0)
