"""Sizes of organs in training cases, by hand, and what a segmentation's volumes are called beside them."""

import math
from collections.abc import Sequence
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.checks import sizes as module
from bundle.checks.cases import examine_cases
from bundle.checks.sizes import Plausibility, judge_volumes, organ_sizes, sizes_problem
from bundle.cohorts.datalists import Case, load_cases
from bundle.organs import Vocabulary
from bundle.scans.volumes import OrganVolume, Volumes
from tests.cohort_files import Write

TWO = Vocabulary("liver,spleen")
LABELS: dict[str, object] = {"0": "background", "1": "liver", "2": "spleen"}


def box(liver: int, spleen: int = 0, side: int = 12) -> np.ndarray:
    """A label map of 1 mm voxels: planes of 100 voxels of an organ, none of them at the border."""
    label = np.zeros((side, side, side))
    for value, first, planes in ((1, 1, liver), (2, 1 + liver, spleen)):
        label[1:11, 1:11, first : first + planes] = value
    return label


def written(
    write_cohort: Write, maps: Sequence[np.ndarray | None], extra: Sequence[dict[str, object]] = ()
) -> list[Case]:
    """Cases with these label maps, and scans that are not empty."""
    folder = write_cohort("both", LABELS, maps, extra).parent
    for path in folder.glob("case?.nii.gz"):
        scan = np.arange(nib.load(path).shape[0] ** 3, dtype=np.int16).reshape(nib.load(path).shape)
        nib.save(nib.Nifti1Image(scan, np.eye(4)), path)
    return load_cases(folder.parent, vocabulary=TWO)


# --- Sizes -----------------------------------------------------------------------------------------------------------
def test_sizes_by_hand(write_cohort: Write) -> None:
    maps = [box(1), box(4, 2), box(2, 3)]  # 0.1 ml a plane
    found = organ_sizes(written(write_cohort, maps), TWO)
    assert found["liver"]["cases"] == 3
    assert found["liver"]["ml"] == pytest.approx((0.1 * 0.4 * 0.2) ** (1 / 3))
    mean = math.log(0.008) / 3
    squares = [(math.log(ml) - mean) ** 2 for ml in (0.1, 0.4, 0.2)]
    assert found["liver"]["spread"] == pytest.approx(math.sqrt(sum(squares) / 2))
    assert found["spleen"]["cases"] == 2  # the first case has none
    assert found["spleen"]["ml"] == pytest.approx(math.sqrt(0.2 * 0.3))
    assert not sizes_problem(found, TWO.names)


def test_one_case_has_no_spread_and_absent_organs_are_left_out(write_cohort: Write) -> None:
    assert organ_sizes(written(write_cohort, [box(3), None]), TWO) == {
        "liver": {"cases": 1, "ml": pytest.approx(0.3), "spread": 0.0}
    }


def test_organs_that_are_cut_or_that_nobody_annotated_do_not_count(write_cohort: Write) -> None:
    cut = box(3, 2)
    cut[0, 5, 5] = 1  # the liver reaches a side of the scan
    extra = [{"labelled": ["spleen"]}, {}]
    found = organ_sizes(written(write_cohort, [box(3, 4), cut], extra), TWO)
    assert found == {"spleen": {"cases": 2, "ml": pytest.approx(math.sqrt(0.4 * 0.2)), "spread": pytest.approx(
        math.log(2) / math.sqrt(2))}}  # fmt: skip


def test_what_the_check_has_read_is_not_read_again(
    write_cohort: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, memory = written(write_cohort, [box(3), None]), tmp_path / "checks.json"
    before = organ_sizes(cases, TWO)
    assert list(before) == ["liver"]
    examine_cases(cases, TWO, remembered=memory, progress=False)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a case was read")

    monkeypatch.setattr("bundle.checks.cases.examine_case", fail)
    assert organ_sizes(cases, TWO, memory) == before
    assert organ_sizes([], TWO, memory) == {}


# --- Volumes ---------------------------------------------------------------------------------------------------------
KNOWN = {"spleen": {"cases": 14, "ml": 200.0, "spread": 0.5}}


def judged(found: float, name: str = "spleen", border: bool = False, **size: float) -> Plausibility:
    volumes = Volumes(1.0, {name: OrganVolume(1, round(1000 * found), found, border)})
    return judge_volumes(volumes, {"spleen": {**KNOWN["spleen"], **size}})[name]


@pytest.mark.parametrize(
    ("spreads", "flag"),
    [(0, "usual"), (1.99, "usual"), (-1.99, "usual"), (2.01, "odd"), (-3.49, "odd"), (3.51, "implausible"),
     (-3.51, "implausible")],
)  # fmt: skip
def test_spreads_make_the_flag(spreads: float, flag: str) -> None:
    found = judged(200 * math.exp(0.5 * spreads))
    assert found.flag == flag
    assert found.spreads == pytest.approx(spreads, abs=1e-9)
    assert found.expected_ml == 200


def test_sizes_of_few_cases_are_not_known_well() -> None:
    assert module.SMALLEST_SPREAD == 0.2
    found = judged(300, cases=1, spread=0.0)
    assert found.spreads == pytest.approx(math.log(1.5) / 0.2)  # 2.03
    assert found.flag == "odd"
    assert found.why == "spleen: 300 ml, 1.5 times the 200 ml of 1 training case"


def test_the_sentence_has_both_volumes_and_how_many_cases() -> None:
    assert judged(912, ml=296).why == "spleen: 912 ml, 3.1 times the 296 ml of 14 training cases"
    assert judged(9.5).why == "spleen: 9.5 ml, 0.048 times the 200 ml of 14 training cases"


def test_what_is_not_there_is_missing() -> None:
    assert judged(0) == Plausibility(
        0, 200, None, "missing", "spleen: not found, beside the 200 ml of 14 training cases"
    )


def test_what_the_border_cuts_is_judged_only_where_it_is_too_large() -> None:
    small = judged(20, border=True)
    assert (small.flag, small.spreads, small.expected_ml) == ("cut", None, 200)
    assert small.why == "spleen: 20 ml, cut by the border of the scan, beside the 200 ml of 14 training cases"
    assert judged(2000, border=True).flag == "implausible"


@pytest.mark.parametrize(
    ("ml", "border", "flag"),
    [(1500, False, "unknown"), (399, False, "odd"), (4501, True, "odd"), (399, True, "cut"), (0, False, "missing")],
)
def test_without_a_size_the_vocabulary_s_own_range_counts(ml: float, border: bool, flag: str) -> None:
    found = judged(ml, "liver", border)  # 400 to 4500 ml
    assert (found.flag, found.expected_ml, found.spreads) == (flag, None, None)
    assert "no training case shows it whole" in found.why
