"""Synthetic cohorts: anatomy in the right places and sizes, deterministic, and hard enough to mean something."""

import csv
import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.cohorts.phantoms import PROTOCOLS, make_patient, make_phantoms
from bundle.errors import InputError
from bundle.organs import Vocabulary
from tests.paths import REAL_DATA

SHARED = REAL_DATA
Scan = tuple[np.ndarray, np.ndarray, np.ndarray]
NAMES = Vocabulary().names
GRID = (64, 64, 32)  # half the time of the demo's grid, the same patients


def scan(cohort: str, index: int) -> Scan:
    return make_patient((0, list(PROTOCOLS).index(cohort), index), PROTOCOLS[cohort], GRID)


@pytest.fixture(scope="module")
def patients() -> dict[str, list[Scan]]:
    """Six full and four test patients of the default difficulty: the demo's."""
    jobs = [("full", index) for index in range(6)] + [("test", index) for index in range(4)]
    with ProcessPoolExecutor(2) as pool:
        scans = list(pool.map(scan, *zip(*jobs, strict=True)))
    return {"full": scans[:6], "test": scans[6:]}


def dice(prediction: np.ndarray, truth: np.ndarray) -> list[float]:
    pairs = [(prediction == value, truth == value) for value in range(1, 14)]
    return [2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in pairs]


def test_every_organ_is_there(patients: dict[str, list[Scan]]) -> None:
    for _, label, _ in patients["full"] + patients["test"]:
        assert set(np.unique(label)) == set(range(14))


def test_volumes_are_those_of_people(patients: dict[str, list[Scan]]) -> None:
    table = SHARED / "organ_volumes_ml.csv"
    if not table.is_file():
        pytest.skip("the table of measured organ volumes is not part of the project")
    with table.open() as file:
        rows = list(csv.reader(file))[1:]
    measured = np.array([[float(cell) for cell in row[1:14]] for row in rows])
    for _, label, affine in patients["full"] + patients["test"]:
        voxel = abs(np.linalg.det(affine)) / 1000
        for channel in range(1, 14):
            volume, known = (label == channel).sum() * voxel, measured[:, channel - 1]
            slack = voxel  # the grid's resolution
            assert known[known > 0].min() - slack <= volume <= known.max() + slack, NAMES[channel - 1]


def test_organs_lie_on_their_sides_of_the_body(patients: dict[str, list[Scan]]) -> None:
    for _, label, affine in patients["full"]:
        center = [nib.affines.apply_affine(affine, np.argwhere(label == value).mean(0)) for value in range(14)]
        liver, spleen, right_kidney, left_kidney = (center[value] for value in (6, 1, 2, 3))
        assert spleen[0] < 0 < liver[0]
        assert left_kidney[0] < 0 < right_kidney[0]
        assert center[13][0] < 0 < center[12][0]  # adrenal glands
        assert right_kidney[2] < liver[2]
        assert center[12][2] > right_kidney[2]  # an adrenal gland sits above its kidney
        assert center[7][1] > right_kidney[1]  # the stomach lies in front of the kidneys
        assert center[8][0] < center[9][0]  # the aorta is left of the vena cava


def test_hounsfield_units_are_plausible_and_overlap(patients: dict[str, list[Scan]]) -> None:
    for image, label, _ in patients["full"]:
        assert image.dtype == np.int16
        assert image.min() >= -1024
        assert np.median(image[0]) == pytest.approx(-1000, abs=40)  # air beside the patient
        liver, spleen = image[label == 6], image[label == 1]
        assert 40 < np.median(liver) < 180
        assert np.percentile(liver, 90) > np.percentile(spleen, 10)
        assert np.percentile(spleen, 90) > np.percentile(liver, 10)


def test_patients_differ_and_the_same_seed_gives_the_same_patient(patients: dict[str, list[Scan]]) -> None:
    again = scan("full", 2)
    np.testing.assert_array_equal(again[0], patients["full"][2][0])
    np.testing.assert_array_equal(again[1], patients["full"][2][1])
    volumes = [(label == 1).sum() for _, label, _ in patients["full"]]
    assert max(volumes) > 1.2 * min(volumes)


def test_a_classifier_of_hounsfield_units_fails(patients: dict[str, list[Scan]]) -> None:
    counts = np.zeros((14, 900))
    for image, label, _ in patients["full"]:
        np.add.at(counts, (label.ravel(), np.clip((image.ravel() + 1024) // 5, 0, 899)), 1)
    best = counts.argmax(0)
    scores = [dice(best[np.clip((image + 1024) // 5, 0, 899)], label) for image, label, _ in patients["test"]]
    assert np.mean(scores) < 0.20


def test_an_atlas_of_the_training_labels_fails(patients: dict[str, list[Scan]]) -> None:
    votes = np.stack([sum((label == value).astype(int) for _, label, _ in patients["full"]) for value in range(14)])
    atlas = votes.argmax(0)
    scores = [dice(atlas, label) for _, label, _ in patients["test"]]
    assert np.mean(scores) < 0.40


def test_cohorts_on_disk(tiny_cohorts: Path) -> None:
    for cohort, count in {"full": 3, "spleen": 2, "pancreas": 2, "liver": 2, "test": 2}.items():
        datalist = json.loads((tiny_cohorts / cohort / "dataset.json").read_text())
        cases = datalist["test" if cohort == "test" else "training"]
        assert len(cases) == count
        for case in cases:
            image, label = (nib.load(tiny_cohorts / cohort / case[key]) for key in ("image", "label"))
            assert image.shape == label.shape
            np.testing.assert_allclose(image.affine, label.affine)
            assert "".join(nib.aff2axcodes(image.affine)) == PROTOCOLS[cohort].axes
            values = set(np.unique(np.asanyarray(label.dataobj)))
            assert values <= {int(value) for value in datalist["labels"]}
    assert {case["fold"] for case in json.loads((tiny_cohorts / "full" / "dataset.json").read_text())["training"]}


def test_the_hidden_truth_is_complete_and_no_datalist_mentions_it(tiny_cohorts: Path) -> None:
    for cohort, value in {"spleen": 1, "pancreas": 11, "liver": 6}.items():
        truth = np.asanyarray(nib.load(tiny_cohorts / "truth" / cohort / f"{cohort}_000.nii.gz").dataobj)
        given = np.asanyarray(nib.load(tiny_cohorts / cohort / "labelsTr" / f"{cohort}_000.nii.gz").dataobj)
        np.testing.assert_array_equal(given == 1, truth == value)
        assert len(np.unique(truth)) > 5
    assert not any("truth" in path.read_text() for path in tiny_cohorts.glob("*/dataset.json"))
    assert not list((tiny_cohorts / "truth").glob("**/dataset.json"))


def test_cohorts_differ_in_noise_phase_and_field_of_view() -> None:
    for name in ("phase", "noise", "width", "height"):
        assert len({getattr(PROTOCOLS[cohort], name) for cohort in ("full", "spleen", "pancreas", "liver")}) == 4


def test_a_grid_that_is_no_grid_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected three numbers of at least 8"):
        make_phantoms(str(tmp_path), grid=(96, 96))
