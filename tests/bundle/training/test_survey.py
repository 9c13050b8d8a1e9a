"""Organ proportions without resampling: those of training, to the last digit, and honest doubts about them."""

from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from monai.transforms import Compose, Orientation, Spacing, SpatialPad
from scipy.spatial.transform import Rotation

from bundle.cohorts.datalists import load_cases, read_cohort
from bundle.errors import InputError
from bundle.organs import Vocabulary
from bundle.scans.grids import ScanGrid
from bundle.training.dataset import PatchDataset
from bundle.training.measuring import Footing, count_channels, measure_case, native_weights
from bundle.training.patches import Patches
from bundle.training.prior import Prior, estimate_prior, label_proportions
from bundle.training.survey import Cohort, Given, find_doubts, survey_cohorts
from tests.paths import ROOT

TRAIN, DEMO = ROOT / "configs" / "train.yaml", ROOT / "configs" / "overlays" / "demo.yaml"
TINY = ROOT / "tests" / "integration" / "tiny.yaml"
Write = Callable[..., Path]
VOXELS = Footing(Patches((4, 4, 4)), (1.0, 1.0, 1.0))  # a 4×4×4 scan of 1 mm as it is
TWO = ["spleen", "liver"]


# --- The footing -----------------------------------------------------------------------------------------------------
def test_weights_by_hand() -> None:
    patches = Patches((4, 4, 1))
    # Slices of 2 mm on a grid of 4 mm: every other one is left out. Axes that lead left and down are mirrored.
    straight = ScanGrid.spaced((4, 4, 4), np.diag([2.0, 2, 2, 1]), (2, 2, 4))
    np.testing.assert_allclose(native_weights(straight, patches)[2], [0.5, 0, 0.5, 0])
    mirrored = ScanGrid.spaced((4, 4, 4), np.diag([-2.0, 2, -2, 1]), (2, 2, 4))
    np.testing.assert_allclose(native_weights(mirrored, patches)[2], [0, 0.5, 0, 0.5])
    # A patch of 2 along an axis of 4 has 3 positions: 1, 2, 2, 1 of them show a voxel.
    np.testing.assert_allclose(native_weights(straight, Patches((2, 4, 1)))[0], np.array([1, 2, 2, 1]) / 6)
    # Padded from 4 to 16 voxels, the scan itself is a quarter of what is seen.
    np.testing.assert_allclose(native_weights(straight, Patches((16, 4, 1)))[0], [1 / 16] * 4)


def test_weights_belong_to_the_axes_of_the_file() -> None:
    affine = np.zeros((4, 4))
    affine[2, 0], affine[0, 1], affine[1, 2], affine[3, 3] = -2, 2, 2, 1  # the file's first axis leads to the feet
    grid = ScanGrid.spaced((4, 5, 6), affine, (2, 2, 4))
    weights = native_weights(grid, Patches((5, 6, 1)))
    np.testing.assert_allclose(weights[0], [0, 0.5, 0, 0.5])
    np.testing.assert_allclose(weights[1], [1 / 5] * 5)
    np.testing.assert_allclose(weights[2], [1 / 6] * 6)


def training_dataset(data: Path, folder: Path, overlay: Path, organs: list[str] | None) -> PatchDataset:
    """What `python -m monai.bundle run training` would train on, fold: null."""
    parser = ConfigParser()
    parser.read_config([str(TRAIN), str(overlay)])
    parser.update({"organs": organs, "cases": load_cases(data, None, Vocabulary(organs))})
    parser.update({"cache_dir": str(folder), "output_dir": str(folder)})
    return parser.get_parsed_content("train::dataset")


@pytest.mark.parametrize(
    ("overlay", "pixdim", "organs"),
    [
        (TINY, (12.0, 12.0, 15.0), None),  # slices of 18 mm on 15 mm, in the cohort `liver`: ties
        (TINY, (12.0, 12.0, 15.0), ["pancreas"]),  # a cohort written in LPS axes is full, too
        (DEMO, (4.0, 4.0, 6.0), ["liver", "pancreas"]),  # scans smaller than a patch: padding
    ],
    ids=["tiny", "LPS", "padded"],
)
def test_the_prior_is_that_of_training(
    tiny_cohorts: Path, tmp_path: Path, overlay: Path, pixdim: tuple[float, ...], organs: list[str] | None
) -> None:
    dataset = training_dataset(tiny_cohorts, tmp_path, overlay, organs)
    vocabulary, expected = Vocabulary(organs), estimate_prior(dataset)
    survey = survey_cohorts(dataset.data, vocabulary, Footing(dataset.patches, pixdim))
    np.testing.assert_allclose(survey.prior.proportions, expected.proportions, rtol=1e-9)
    np.testing.assert_allclose(survey.prior.spread, expected.spread, rtol=1e-7, atol=1e-12)
    assert (survey.prior.names, survey.prior.cases) == (expected.names, expected.cases)
    assert survey.prior.sampling == expected.sampling
    for index, measured in enumerate(survey.cases):  # what is given in partial cases, as a refresh would tell it
        label = dataset.volume(index)["label"][0].numpy()
        shares = label_proportions(label, dataset.patches.coverage(label.shape), vocabulary.out_channels)
        if not measured.full:
            for name, share in measured.proportions.items():
                assert share == pytest.approx(shares[vocabulary.channel(name) or 0], rel=1e-9)


def blobs(shape: tuple[int, ...]) -> np.ndarray:
    """Label map with two organs of irregular shape."""
    rng = np.random.default_rng(3)
    x, y, z = np.indices(shape)
    wave = np.sin(x / 4) + np.cos(y / 5) + np.sin(z / 3) + rng.normal(0, 0.2, shape)
    return np.select([wave > 1.2, wave < -1.0], [1, 2], 0).astype(np.uint8)


def oblique(spacing: tuple[float, ...]) -> np.ndarray:
    affine = np.eye(4)
    affine[:3, :3] = Rotation.from_euler("xyz", [17, -9, 24], degrees=True).as_matrix() @ np.diag(spacing)
    return affine.astype(np.float32).astype(np.float64)  # as NIfTI stores it


SHEAR = np.array([[1, 0, 0, 0], [0, 1, 0.35, 0], [0, 0, 1, 0], [0, 0, 0, 1.0]])


@pytest.mark.parametrize(
    "affine",
    [
        np.diag([0.75, 3.0, 4.0, 1]),  # every other voxel of the network's grid lies half-way between two slices
        np.diag([-1.5, -0.9, 5.0, 1]),
        oblique((0.8, 0.8, 2.5)),  # every eighth plane half-way, but for the rounding of the header
        SHEAR @ np.diag([1.1, 0.9, 2.3, 1]),
    ],
    ids=["ties", "mirrored", "oblique", "sheared"],
)
def test_proportions_are_those_of_the_resampled_volume(affine: np.ndarray) -> None:
    pixdim, patches, label = (1.5, 1.5, 2.0), Patches((16, 16, 16), (4, 4, 0)), blobs((40, 36, 22))
    grid = ScanGrid.spaced(label.shape, affine, pixdim)
    counts = count_channels(label, {"values": {0: 0, 1: 1, 2: 2}}, grid, patches)
    volume = MetaTensor(torch.from_numpy(label)[None], affine=torch.as_tensor(affine))
    steps = [Orientation("RAS", labels=None), Spacing(pixdim, mode="nearest"), SpatialPad(patches.read_size)]
    resampled = Compose(steps)(volume)[0].numpy().astype(np.uint8)
    expected = label_proportions(resampled, patches.coverage(resampled.shape), 3)
    np.testing.assert_allclose(counts[:3], expected, rtol=1e-9)
    assert counts.sum() == pytest.approx(1)


# --- One case --------------------------------------------------------------------------------------------------------
def cube(*planes: int) -> np.ndarray:
    """4×4×4 whose planes along the first axis have these values."""
    return np.repeat(planes, 16).reshape(4, 4, 4)


def test_ignored_voxels_of_full_cases_are_left_out_and_unknown_ones_of_partial_cases_count(write_cohort: Write) -> None:
    vocabulary = Vocabulary(TWO)
    names = {"0": "background", "1": "spleen", "2": "liver", "3": "ignore"}
    (full,) = read_cohort(write_cohort("full", names, [cube(0, 1, 2, 3)]), vocabulary)
    (partial,) = read_cohort(write_cohort("partial", {"0": "background", "7": "liver"}, [cube(0, 0, 0, 7)]), vocabulary)
    thirds = measure_case(full, vocabulary, VOXELS).proportions
    assert thirds == pytest.approx({"background": 1 / 3, "spleen": 1 / 3, "liver": 1 / 3})
    assert measure_case(partial, vocabulary, VOXELS).proportions == pytest.approx({"liver": 1 / 4})


def test_an_unlabelled_case_has_a_field_of_view_only(write_cohort: Write) -> None:
    (case,) = read_cohort(write_cohort("none", {"0": "background", "1": "liver"}, [None]))
    measured = measure_case(case, Vocabulary(), VOXELS)
    assert (measured.proportions, measured.cut, measured.full) == ({}, (), False)
    assert measured.extent_mm == (4, 4, 4)


def test_the_field_of_view_is_told_along_the_axes_of_the_body(write_cohort: Write, tmp_path: Path) -> None:
    path = write_cohort("liver", {"0": "background", "1": "liver"}, [cube(0, 0, 0, 1)])
    affine = np.zeros((4, 4))
    affine[2, 0], affine[0, 1], affine[1, 2], affine[3, 3] = -5, 2, 3, 1  # feet, right, front
    label = np.zeros((10, 20, 30), np.uint8)
    label[4:6, 5:9, 29] = 1
    nib.save(nib.Nifti1Image(label, affine), path.parent / "case0_label.nii.gz")
    (case,) = read_cohort(path)
    measured = measure_case(case, Vocabulary(), VOXELS)
    assert measured.extent_mm == pytest.approx((40, 90, 50))
    assert measured.volume_l == pytest.approx(0.04 * 0.09 * 0.05 * 1000)
    assert measured.cut == ("liver",)  # in the last plane of the last axis


@pytest.mark.parametrize("value", [2, 9], ids=["between declared ones", "beyond them"])
def test_an_undeclared_value_is_refused(write_cohort: Write, value: int) -> None:
    (case,) = read_cohort(
        write_cohort("liver", {"0": "background", "1": "liver", "3": "spleen"}, [cube(0, 1, 1, value)])
    )
    with pytest.raises(InputError, match=rf"case0_label.nii.gz: holds the value {value}, which .* does not declare"):
        measure_case(case, Vocabulary(), VOXELS)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    (tmp_path / "ct.nii.gz").write_bytes(b"not an image")
    case = {"image": str(tmp_path / "ct.nii.gz"), "case": "ct", "cohort": "a", "labelled": [], "values": {0: 255}}
    with pytest.raises(InputError, match="ct.nii.gz: cannot be read as an image"):
        measure_case(case, Vocabulary(), VOXELS)


# --- Cohorts ---------------------------------------------------------------------------------------------------------
def test_a_survey_by_hand(write_cohort: Write, tmp_path: Path) -> None:
    vocabulary, names = Vocabulary(TWO), {"0": "background", "1": "spleen", "2": "liver"}
    full = read_cohort(write_cohort("full", names, [cube(0, 1, 2, 2), cube(0, 0, 0, 1)]), vocabulary)
    labelled = [{}, {"labelled": ["liver"]}, {"labelled": ["spleen"]}]
    maps = [None, cube(2, 0, 0, 0), cube(1, 1, 0, 0)]
    some = read_cohort(write_cohort("some", names, maps, labelled), vocabulary)
    survey = survey_cohorts([*some, *full], vocabulary, VOXELS)
    assert survey.prior.proportions == pytest.approx([1 / 2, 1 / 4, 1 / 4])
    assert survey.prior.spread == pytest.approx([np.sqrt(1 / 8), 0, np.sqrt(1 / 8)])
    (cohort,) = survey.partial
    assert (cohort.name, cohort.cases, cohort.extent_mm) == ("some", 3, (4, 4, 4))
    assert cohort.given == {"spleen": Given(0.5, 0.0, 1, 2.0), "liver": Given(0.25, 0.0, 1, 1.0)}
    assert survey.cut == {"spleen": 2, "liver": 1}
    survey.save(tmp_path / "out")
    assert Prior.load(tmp_path / "out" / "prior.json") == survey.prior
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["cohorts.json", "prior.json"]


def test_without_a_full_case_the_vocabulary_that_has_one_is_named(write_cohort: Write) -> None:
    cases = read_cohort(write_cohort("liver", {"0": "background", "1": "liver"}, [cube(0, 0, 1, 1)]))
    with pytest.raises(InputError, match=r"no case has all organs.*--organs \"\['liver'\]\"$"):
        survey_cohorts(cases, Vocabulary(), VOXELS)
    with pytest.raises(InputError, match=r"no case has all organs.*; add a fully labelled cohort$"):
        survey_cohorts([{**case, "labelled": []} for case in cases], Vocabulary(), VOXELS)


# --- Doubts ----------------------------------------------------------------------------------------------------------
PRIOR = Prior(["background", "spleen", "liver"], [0.966, 0.004, 0.03], [0.005, 0.0015, 0.003], ["a", "b", "c", "d"], {})
FULL = Cohort("full cases", 4, (400, 400, 240), 38.4, {})


def cohort(height: float = 240, volume: float = 38.4, **shares: float) -> Cohort:
    q = dict(zip(PRIOR.names, PRIOR.proportions, strict=True))
    given = {organ: Given(share, 0.0, 2, share / q[organ]) for organ, share in shares.items()}
    return Cohort("other", 2, (400, 400, height), volume, given)


def doubts(partial: Cohort, **cut: int) -> list[str]:
    return find_doubts(PRIOR, FULL, [partial], cut)


def test_like_cohorts_raise_no_doubt() -> None:
    assert doubts(cohort(height=170, volume=27, liver=0.05, spleen=0.003), spleen=2) == []


@pytest.mark.parametrize("view", [{"height": 150}, {"height": 370}, {"volume": 25}, {"volume": 60}])
def test_another_field_of_view_is_told(view: dict[str, float]) -> None:
    (sentence,) = doubts(cohort(**view))
    numbers = {"height": 240, "volume": 38.4} | view
    assert sentence.startswith(f"cohort other: its scans show {numbers['height']:.0f} mm from foot to head and ")
    assert f"{numbers['volume']:.1f} l (medians), the full cases 240 mm and 38.4 l" in sentence
    assert sentence.endswith("crop the larger ones, lower prior_weight, or leave the cohort out")


def test_a_proportion_is_doubtful_by_a_factor_and_beyond_the_spread() -> None:
    assert doubts(cohort(spleen=0.0015)) == []  # 2.7 times less, but within two standard deviations
    assert doubts(cohort(liver=0.04)) == []  # three standard deviations, but a third more only
    (sentence,) = doubts(cohort(liver=0.066))
    assert "cohort other: the liver takes 66 ‰ of its scans, but q is 30 ± 3 ‰, 2.2 times as much" in sentence
    (sentence,) = doubts(cohort(liver=0.0))
    assert "takes 0 ‰ of its scans" in sentence


def test_organs_that_are_cut_off_or_missing_are_told() -> None:
    (sentence,) = doubts(cohort(), spleen=2, liver=3)
    assert "more than half of the 4 full cases: liver (3); their q is that of the visible part" in sentence
    missing = Prior(PRIOR.names, [0.97, 0.0, 0.03], PRIOR.spread, PRIOR.cases, {})
    found = Cohort("other", 2, (400, 400, 240), 38.4, {"spleen": Given(0.004, 0.0, 2, None)})
    share, never = find_doubts(missing, FULL, [found], {})
    assert "the spleen takes 4 ‰ of its scans, but q is 0 ±" in share
    assert never.startswith("q is 0, since no full case shows it: spleen;")
