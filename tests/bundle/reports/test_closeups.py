"""Close-ups of a comparison: where the methods differ most, and the part of the body that is shown."""

import json
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.errors import InputError
from bundle.evaluation.comparisons import Comparison
from bundle.reports.closeups import choose_closeups, closeup_window, plot_closeups
from tests.bundle.evaluation.small_comparison import add_runs, write_small_comparison


@pytest.fixture
def folder(tmp_path: Path, tiny_cohorts: Path) -> Path:
    write_small_comparison(tmp_path, tiny_cohorts)
    return tmp_path


def test_closeups_are_where_the_reference_differs_most(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    comparison = Comparison.load(folder)
    keys = ["full", "partial", "pann"]
    # Spleen of the second case: 0.9 against 0.3 and 0.7. Of the first case another organ: 0.8 against 0.7 and 0.7.
    closeups = choose_closeups(comparison, keys)
    assert [(closeup.case, closeup.organ) for closeup in closeups] == [("test_001", "spleen"), ("test_000", "liver")]
    assert closeups[0].dice == {"full": 0.3, "partial": 0.7, "pann": 0.9}
    shutil.rmtree(comparison.run("pann", "seed0") / "test")
    assert choose_closeups(comparison, keys) == []


def test_a_case_is_shown_as_the_fold_that_tested_it_saw_it(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    given = json.loads((folder / "comparison.json").read_text()) | {"replicates": ["fold0", "seed0"]}
    (folder / "comparison.json").write_text(json.dumps(given))
    closeups = choose_closeups(Comparison.load(folder), ["full", "pann"])
    assert [closeup.replicate for closeup in closeups] == ["seed0", "seed0"]


def test_a_window_is_half_the_body_around_the_organ() -> None:
    image = np.full((40, 40, 6), -1000)
    image[4:36, 10:30] = 40  # a body of 32×20 voxels of 2 mm
    truth = np.zeros(image.shape, np.uint8)
    truth[12:16, 18:22, 1:5] = 1
    wrong = truth.copy()
    wrong[12:14, 18:22, 3] = 0
    x, y, z = closeup_window(image, [truth, truth, wrong], 1, (2.0, 2.0, 5.0))
    assert z == 3  # where they disagree
    assert (x, y) == (slice(6, 22), slice(12, 28))  # 16 voxels, the organ in the middle
    truth = np.roll(truth, -8, 0)
    x, _, _ = closeup_window(image, [truth, truth], 1, (2.0, 2.0, 5.0))
    assert x == slice(4, 20)  # not beyond the body


def test_a_map_on_another_grid_is_refused(folder: Path, tiny_cohorts: Path) -> None:
    add_runs(folder, tiny_cohorts)
    path = folder / "runs" / "unet" / "A+B" / "full" / "seed0" / "test" / "segmentations" / "test_001.nii.gz"
    nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4)), path)
    comparison, keys = Comparison.load(folder), ["full", "partial", "pann"]
    with pytest.raises(InputError, match=r"test_001.nii.gz: expected a label map of \(32, 32, 16\)"):
        plot_closeups(comparison, keys, choose_closeups(comparison, keys))
