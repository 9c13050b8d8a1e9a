"""Slices of any view as training data: what is read, how often, at which size, and on which footing."""

import logging
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.transforms import ClassesToIndicesd, Compose

from bundle.errors import InputError
from bundle.inference.inferers import SlabInferer
from bundle.organs import UNKNOWN, Vocabulary
from bundle.training.batches import MixedBatches
from bundle.training.dataset import Draw, PatchDataset
from bundle.training.label_store import PseudoLabelStore
from bundle.training.patches import Patches
from bundle.training.prior import Prior, SizePrior, estimate_prior
from bundle.training.pseudo_labels import Decision, PseudoLabeler, complete_case
from bundle.training.teacher import Teacher
from bundle.transforms.dictionary import LoadOnOwnGridd, MapLabelValuesd
from tests.runs import run_in

SHAPE = (8, 10, 6)
VIEWS = {"axial": (8, 10, 1), "coronal": (8, 1, 6), "sagittal": (1, 10, 6)}
AXES = {"axial": 2, "coronal": 1, "sagittal": 0}


def make_case(folder: Path, name: str = "a", full: bool = True) -> dict[str, Any]:
    """Voxel (x, y, z) holds 100 x + 10 y + z; the liver is in x 2 and 3, y 4 to 6, z 1 and 2."""
    x, y, z = np.indices(SHAPE)
    label = np.zeros(SHAPE, np.uint8)
    label[2:4, 4:7, 1:3] = 6
    for part, data in (("image", (100 * x + 10 * y + z).astype(np.float32)), ("label", label)):
        nib.save(nib.Nifti1Image(data, np.diag([3.0, 3, 3, 1])), folder / f"{name}_{part}.nii.gz")
    return {
        "image": str(folder / f"{name}_image.nii.gz"),
        "label": str(folder / f"{name}_label.nii.gz"),
        "case": name,
        "cohort": "full" if full else "partial",
        "labelled": Vocabulary().names if full else ["spleen"],
        "values": {0: 0 if full else UNKNOWN, 6: 6 if full else UNKNOWN},
        "fold": None,
    }


class CountedLoad(LoadOnOwnGridd):
    """Counts how often a file is read."""

    calls: ClassVar[Counter[str]] = Counter()

    def __call__(self, data: Any) -> Any:
        self.calls[data["case"]] += 1
        return super().__call__(data)


def make_dataset(folder: Path, cases: list[dict[str, Any]], patches: Patches, **more: Any) -> PatchDataset:
    steps = [
        CountedLoad(["image", "label"], allow_missing_keys=True), MapLabelValuesd(),
        ClassesToIndicesd("label", num_classes=14),
    ]  # fmt: skip
    return PatchDataset(cases, Compose(steps), patches, str(folder / "cache"), **more)


# --- Reading ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("view", VIEWS)
def test_a_slice_of_each_view_is_the_slice_of_the_scan(tmp_path: Path, view: str) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path)], Patches(VIEWS[view]))
    scan = np.asanyarray(nib.load(tmp_path / "a_image.nii.gz").dataobj)
    for number in range(20):
        image = dataset[Draw(0, (number,))]["image"]
        assert image.shape == (1, *(n for n in VIEWS[view] if n != 1))
        # the slice's own value at its first pixel tells which one it is
        place = {"axial": 1, "coronal": 10, "sagittal": 100}[view]
        np.testing.assert_array_equal(image[0], scan.take(int(image[0, 0, 0]) // place, AXES[view]))


@pytest.mark.parametrize("view", VIEWS)
def test_a_slice_lies_in_one_piece_of_the_cache(tmp_path: Path, view: str) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path)], Patches(VIEWS[view]))
    for volume in (dataset.volume(0), make_dataset(tmp_path, [make_case(tmp_path)], Patches(VIEWS[view])).volume(0)):
        for key in ("image", "label"):
            assert volume[key].shape == (1, *SHAPE)
            assert volume[key][0].select(AXES[view], 3).is_contiguous()


def test_a_scan_is_read_once_however_many_slices_are_drawn(tmp_path: Path) -> None:
    CountedLoad.calls.clear()
    dataset = make_dataset(tmp_path, [make_case(tmp_path, name) for name in "ab"], Patches((8, 10, 1)))
    for number in range(50):
        dataset[Draw(number % 2, (number,))]
    again = make_dataset(tmp_path, [dict(case) for case in dataset.data], Patches((8, 10, 1)))
    again[Draw(0, (1,))]
    assert CountedLoad.calls == {"a": 1, "b": 1}


def test_the_cache_keeps_within_its_limit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cases = [make_case(tmp_path, name) for name in "abcd"]
    whole = make_dataset(tmp_path, cases, Patches((8, 10, 1)))
    whole.prepare()
    size = max(whole.cache_file(case).stat().st_size for case in cases)
    for path in (tmp_path / "cache").glob("*.pt"):
        path.unlink()
    CountedLoad.calls.clear()
    (tmp_path / "cache" / "model.pt").write_bytes(b"of somebody else")
    dataset = make_dataset(
        tmp_path, cases, Patches((8, 10, 1)), limit=2.05 * size / 1e9
    )  # most of so small a file is not voxels
    with caplog.at_level(logging.WARNING):
        dataset.prepare()
    assert "2 of 4 are preprocessed whenever they are drawn" in caplog.text
    for number in range(12):
        assert dataset[Draw(number % 4, (number,))]["image"].shape == (1, 8, 10)
    made = [path for path in (tmp_path / "cache").glob("*.pt") if path.name != "model.pt"]
    assert sum(path.stat().st_size for path in made) <= 2.05 * size
    assert (tmp_path / "cache" / "model.pt").is_file()
    assert len(dataset.open_volumes) == len(made) == 2
    # those that are kept are read once, the others at every draw, and one of them in preparation
    assert CountedLoad.calls == {"a": 1, "b": 1, "c": 4, "d": 3}


# --- Neighbors as channels ------------------------------------------------------------------------------------------
def test_neighbors_are_channels_and_the_ends_are_repeated(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path)], Patches((8, 10, 1), context=2))
    seen = {}
    for number in range(60):
        sample = dataset[Draw(0, (number,))]
        assert sample["image"].shape == (5, 8, 10)
        assert sample["label"].shape == (1, 8, 10)
        channels = sample["image"][:, 0, 0].tolist()  # z of each
        seen[channels[2]] = channels
    assert seen == {z: [min(max(z + step, 0), 5) for step in range(-2, 3)] for z in range(6)}


class MiddleOfThree(torch.nn.Module):
    """Says liver where the slice above is 1 brighter than this one and this one than the slice below."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        below, here, above = image.unbind(1)
        liver = ((above - here == 1) & (here - below == 1)).float()
        return torch.stack([1 - liver, liver], 1) * 100


def test_inference_gives_a_slice_the_same_neighbors() -> None:
    image = torch.arange(6.0).expand(1, 1, 8, 10, 6).clone()  # z is the value
    labels = SlabInferer((4, 10, 1), 0.5, context=1)(image, MiddleOfThree())
    expected = torch.zeros(1, 1, 8, 10, 6)
    expected[..., 1:5] = 1  # at the ends a slice is its own neighbour
    torch.testing.assert_close(labels.float(), expected)


class RisesByTwelve(torch.nn.Module):
    """Says liver where the last of thirteen slices is 12 brighter than the first."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        liver = (image[:, -1] - image[:, 0] == 12).float()
        return torch.stack([1 - liver, liver], 1) * 100


def test_neighbors_outside_the_body_s_box_are_the_scan_s() -> None:
    image = (torch.arange(48.0) - 100).expand(1, 1, 16, 16, 48).clone()  # air that rises by 1 from slice to slice
    image[..., 4:12, 4:12, 20:] += 200  # the body; the box around it begins four slices before
    labels = SlabInferer((16, 16, 1), 0.0, context=6, air=0.0)(image, RisesByTwelve())
    # slice 20 sees slices 14 to 26; slice 16 repeated, the first of the box, would make it 10
    assert labels[0, 0, 0, 0].tolist() == [0] * 20 + [1] * 22 + [0] * 6


def test_small_scans_are_padded_before_neighbors_are_channels() -> None:
    image = torch.arange(6.0).expand(1, 1, 8, 10, 6).clone() + 1
    labels = SlabInferer((16, 12, 1), 0.0, context=1)(image, MiddleOfThree())
    expected = torch.zeros(1, 1, 8, 10, 6)
    expected[..., 1:5] = 1
    torch.testing.assert_close(labels.float(), expected)


def test_flipping_across_slices_swaps_neighbors() -> None:
    image = torch.arange(6.0).expand(1, 1, 8, 10, 6).clone()
    probabilities = torch.cat(
        [
            planes
            for _, planes in SlabInferer((8, 10, 1), 0.0, context=1, flips=[2]).slabs(image[0, 0], MiddleOfThree())[1]
        ]
    )
    # upright it says liver in slices 1 to 4, upside down (falling values) nowhere
    torch.testing.assert_close(probabilities[:, 1, 0, 0], torch.tensor([0, 0.5, 0.5, 0.5, 0.5, 0]), atol=1e-4, rtol=0)


def test_context_needs_slices() -> None:
    with pytest.raises(InputError, match="context"):
        Patches((8, 8, 8), context=1)
    with pytest.raises(InputError, match="context"):
        SlabInferer((8, 8, 8), context=1)


# --- Empty slices ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_empty_slices_come_at_their_rate(tmp_path: Path, rate: float) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path)], Patches((8, 10, 1), empty_rate=rate))
    drawn = Counter(int(dataset[Draw(0, (number,))]["image"][0, 0, 0]) for number in range(3000))
    # slices 1 and 2 show the liver, four others do not
    whole = 2 + 4 * rate
    for z in range(6):
        assert drawn[z] / 3000 == pytest.approx((1 if z in (1, 2) else rate) / whole, abs=0.03)
    coverage = dataset.patches.coverage(SHAPE, dataset.occupied(0, partial=False))[2]
    np.testing.assert_allclose(coverage, np.array([rate, 1, 1, rate, rate, rate]) / whole)


def test_the_prior_is_that_of_the_slices_that_are_drawn(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path)], Patches((8, 10, 1), empty_rate=0.25))
    # by hand: 6 of 80 pixels in slices that make 2 of 3 draws
    assert estimate_prior(dataset).proportions[6] == pytest.approx(6 / 80 * 2 / 3)
    assert estimate_prior(make_dataset(tmp_path, dataset.data, Patches((8, 10, 1)))).proportions[6] == pytest.approx(
        6 / 80 * 2 / 6
    )


class SaysLiverAt(torch.nn.Module):
    """Says liver, very surely, where the image has certain values."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(image), 14, *image.shape[2:])
        logits[:, 6] = torch.where((image[:, 0] >= self.low) & (image[:, 0] < self.high), 50.0, -50.0)
        return logits.sub_(torch.eye(14)[0].view(1, -1, *[1] * (image.ndim - 2)) * -10)


def test_partial_cases_are_on_the_prior_s_footing(tmp_path: Path) -> None:
    """p̄ of a refresh is the mean over the slices that are drawn afterwards: completed labels show which are empty."""
    patches = Patches((1, 10, 6), empty_rate=0.25)
    store = PseudoLabelStore(run_in(tmp_path), patches)
    dataset = make_dataset(tmp_path, [make_case(tmp_path, "b", full=False)], patches, completed=store)
    network = SaysLiverAt(200, 400)  # all of x 2 and 3
    unused = SizePrior(Prior([], [], [], [], {}))
    inferer = SlabInferer((1, 10, 6), 0.0)
    refresh = PseudoLabeler(Teacher(network), inferer, dataset, store, Decision(), unused).refresh(0)
    assert refresh is not None
    # two full slices of eight; the six others come at a quarter of the rate: 2 / (2 + 6 / 4) of the draws
    assert float(refresh.proportions[6]) == pytest.approx(2 / 3.5, abs=1e-3)
    np.testing.assert_array_equal(store.occupied(dataset.data[0]), np.isin(np.arange(8), [2, 3]))
    shares = [float((dataset[Draw(0, (i,))]["label"] == 6).float().mean()) for i in range(1500)]
    assert np.mean(shares) == pytest.approx(2 / 3.5, abs=0.04)


@pytest.mark.parametrize("slabs_across", [0, 1, 2])
def test_the_axis_of_the_engine_s_slabs_does_not_matter(slabs_across: int) -> None:
    torch.manual_seed(0)
    roi, patches = [8, 10, 6], Patches((8, 1, 6), empty_rate=0.5)
    roi[slabs_across] = 1
    volume = {"image": torch.rand(1, *SHAPE), "label": torch.full((1, *SHAPE), UNKNOWN, dtype=torch.uint8)}
    volume["image"][0, :, :4] = 0
    network = SaysLiverAt(0.7, 1.0)
    dataset = SimpleNamespace(
        volume=lambda index: volume, data=[{"labelled": ["spleen"]}], vocabulary=Vocabulary(), patches=patches
    )
    completed, shares = complete_case(network, SlabInferer(roi, 0.0), dataset, 0, Decision())  # type: ignore[arg-type]
    liver = (volume["image"][0] >= 0.7).float().mean((0, 2)).numpy()  # share of each coronal slice
    rates = np.where(liver > 0, 1.0, 0.5)
    assert 0 < (liver == 0).sum() < 10
    assert shares[6] == pytest.approx(float(rates @ liver / rates.sum()), rel=1e-3)
    np.testing.assert_array_equal(completed == 6, volume["image"][0].numpy() >= 0.7)


# --- The store -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [(1, 4, 4), (4, 1, 4), (4, 4, 1), (4, 4, 4)])
def test_completed_labels_are_kept_across_any_axis(tmp_path: Path, size: tuple[int, ...]) -> None:
    store, case = PseudoLabelStore(run_in(tmp_path), Patches(size)), {"cohort": "c", "case": "x"}
    labels = np.random.default_rng(0).integers(0, 14, SHAPE).astype(np.uint8)
    with store.refreshing(0):
        store.write(case, labels)
    np.testing.assert_array_equal(store.read(case), labels)
    region = (slice(2, 7), slice(3, 4), slice(1, 5))
    np.testing.assert_array_equal(store.read(case, region), labels[region])


# --- Scales ----------------------------------------------------------------------------------------------------------
def test_every_batch_has_one_scale_and_all_come(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path)], Patches((8, 8, 1)))
    batches = MixedBatches(dataset, full=3, scales=(1.0, 2.0, 3.0))
    sizes = set()
    for iteration in range(30):
        samples = [dataset[draw] for draw in batches.batch(iteration)]
        (size,) = {tuple(sample["image"].shape) for sample in samples}
        assert {tuple(sample["label"].shape) for sample in samples} == {size}
        sizes.add(size)
    assert sizes == {(1, 8, 8), (1, 16, 16), (1, 24, 24)}
    assert batches.batch(7) == MixedBatches(dataset, full=3, scales=(1.0, 2.0, 3.0)).batch(7)


def test_a_scaled_slice_by_hand(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, [make_case(tmp_path)], Patches((8, 10, 1)))
    plain, double = dataset[Draw(0, (5,))], dataset[Draw(0, (5,), 2.0)]
    np.testing.assert_array_equal(double["label"][0], np.kron(plain["label"][0], np.ones((2, 2))))
    # bilinear on a ramp of 100 a pixel: pixels 2k and 2k + 1 lie a quarter before and behind pixel k
    np.testing.assert_allclose(double["image"][0, 2:14, 4], np.repeat(plain["image"][0, 1:7, 2], 2)
                               + np.tile([-25.0, 25.0], 6) - 2.5, atol=1e-3)  # fmt: skip
    with pytest.raises(InputError, match="train_scales"):
        MixedBatches(dataset, full=1, scales=(0.0,))
