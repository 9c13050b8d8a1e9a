"""Which cases train, validate and test."""

import ast
import json
import re
import shutil
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.checks.cases import check_cases
from bundle.cohorts.datalists import load_cases
from bundle.cohorts.selection import (
    check_label_sets,
    deal_folds,
    evaluation_cases,
    fold_cases,
    full_cases,
    largest_vocabulary,
    partial_cases,
    training_cases,
    validation_cases,
)
from bundle.errors import InputError
from bundle.organs import Vocabulary
from tests.cohort_files import ALL, EMPTY, Write


@pytest.fixture
def two_cohorts(write_cohort: Write) -> Path:
    write_cohort("full", ALL, [EMPTY] * 4, extra=[{"fold": fold} for fold in (0, 0, 1, 2)])
    return write_cohort("spleen", {"0": "background", "1": "spleen"}, [EMPTY, None]).parent.parent


@pytest.mark.parametrize(
    ("supervision", "labelled"),
    [
        ("full", []),
        ("semi", [[], []]),
        ("partial", [["spleen"], []]),
        ("pann", [["spleen"], []]),
    ],
)
def test_supervision_chooses_the_cases(two_cohorts: Path, supervision: str, labelled: list[list[str]]) -> None:
    cases = training_cases(two_cohorts, supervision=supervision, fold=0)
    assert [case["case"] for case in full_cases(cases)] == ["case2", "case3"]
    assert [case["labelled"] for case in partial_cases(cases)] == labelled
    if supervision == "semi":
        assert not any("label" in case for case in partial_cases(cases))


def test_a_fold_is_either_trained_on_or_held_out(two_cohorts: Path) -> None:
    trained = {case["image"] for case in full_cases(training_cases(two_cohorts, fold=1))}
    held_out = {case["image"] for case in validation_cases(two_cohorts, fold=1)}
    assert len(trained) == 3
    assert len(held_out) == 1
    assert not trained & held_out
    assert not validation_cases(two_cohorts, fold=None)
    assert len(full_cases(training_cases(two_cohorts, fold=None))) == 4


def test_cases_without_folds_are_dealt_out_the_same_way_each_time(write_cohort: Write) -> None:
    folder = write_cohort("full", ALL, [EMPTY] * 7).parent.parent
    parts = [[case["case"] for case in validation_cases(folder, fold=fold)] for fold in range(5)]
    assert sorted(name for part in parts for name in part) == [f"case{index}" for index in range(7)]
    assert parts == [[case["case"] for case in validation_cases(folder, fold=fold)] for fold in range(5)]


def test_no_full_case_is_an_error_that_names_the_largest_vocabulary_that_has_one(write_cohort: Write) -> None:
    folder = write_cohort("spleen", {"0": "background", "1": "spleen"}, [EMPTY] * 3).parent.parent
    write_cohort("two", {"0": "background", "1": "liver", "2": "pancreas"}, [EMPTY, None])
    write_cohort("more", {"0": "background", "1": "liver", "2": "spleen"}, [EMPTY] * 2)
    with pytest.raises(InputError, match=r"no case has all organs.*spleen: spleen.*fully labelled cohort") as raised:
        training_cases(folder)
    organs = re.findall(r'--organs "(.*)"', str(raised.value))[0]
    assert ast.literal_eval(organs) == ["spleen", "liver"]  # two cases have it, one has liver and pancreas
    shorter = Vocabulary(ast.literal_eval(organs))
    assert len(full_cases(training_cases(folder, vocabulary=shorter), shorter)) == 2


def test_weights_that_replace_stage_1_need_no_full_case(write_cohort: Write) -> None:
    folder = write_cohort("spleen", {"0": "background", "1": "spleen"}, [EMPTY, None]).parent.parent
    cases = training_cases(folder, fold=0, warmup_checkpoint="warmup.pt")
    assert [case["labelled"] for case in cases] == [["spleen"], []]
    assert not validation_cases(folder, fold=0)
    with pytest.raises(InputError, match=r"supervision full needs at least one .*add a fully labelled cohort, or take"):
        training_cases(folder, supervision="full", warmup_checkpoint="warmup.pt")


def test_no_case_at_all_is_an_error_with_and_without_weights(write_cohort: Write) -> None:
    folder = write_cohort("none", {"0": "background", "1": "spleen"}, []).parent.parent
    for checkpoint, sentence in ((None, "no case has all organs"), ("warmup.pt", "no case to train on; list cases")):
        with pytest.raises(InputError, match=sentence):
            training_cases(folder, warmup_checkpoint=checkpoint)


def test_the_largest_vocabulary_of_unlabelled_cases_is_empty(write_cohort: Write) -> None:
    folder = write_cohort("none", {"0": "background", "1": "spleen"}, [None]).parent.parent
    assert largest_vocabulary(load_cases(folder)) == largest_vocabulary([]) == []
    with pytest.raises(
        InputError, match=r"none: nothing.*add a fully labelled cohort, or give weights.*--warmup_checkpoint\)$"
    ):
        training_cases(folder)


def test_an_unknown_supervision_is_an_error(two_cohorts: Path) -> None:
    with pytest.raises(InputError, match="expected one of full, semi, partial, marginal, ignore, pann"):
        training_cases(two_cohorts, supervision="weak")


def test_a_fold_that_does_not_exist_is_an_error(two_cohorts: Path) -> None:
    with pytest.raises(InputError, match="fold: expected one of 0, 1, 2, or null to hold nothing out, found 7"):
        training_cases(two_cohorts, fold=7)


def test_what_was_understood_is_logged(two_cohorts: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        training_cases(two_cohorts)
    assert "cohort spleen: cases annotated with 1 × spleen; 1 × nothing" in caplog.text
    with caplog.at_level("WARNING"):
        training_cases(two_cohorts, cohorts="full")
    assert "no case is partially labelled" in caplog.text


def test_cases_of_one_patient_are_in_one_fold(write_cohort: Write) -> None:
    patients = ["a", "b", "a", "c", "d", "b", "e"]
    path = write_cohort("full", ALL, [EMPTY] * 7, extra=[{"patient": patient} for patient in patients])
    parts = [{case["patient"] for case in validation_cases(path.parent.parent, fold=fold)} for fold in range(5)]
    assert sorted(patient for part in parts for patient in part) == ["a", "b", "c", "d", "e"]


def test_no_scan_of_a_held_out_patient_is_trained_on(write_cohort: Write) -> None:
    """Not even one that is only partially labelled."""
    extra = [{"patient": "ab"[index % 2], **({"labelled": ["liver"]} if index > 3 else {})} for index in range(6)]
    folder = write_cohort("full", ALL, [EMPTY] * 6, extra=extra).parent.parent
    for fold in (0, 1):
        trained = {case["patient"] for case in training_cases(folder, fold=fold)}
        tested = {case["patient"] for case in validation_cases(folder, fold=fold)}
        assert {"a", "b"} == trained | tested
        assert not trained & tested


def move_to_validation(path: Path, *numbers: int) -> Path:
    """Let some training cases of a dataset.json be those of the section `validation`; returns the data's folder."""
    datalist = json.loads(path.read_text())
    cases = datalist["training"]
    datalist["validation"] = [cases[number] for number in numbers]
    datalist["training"] = [case for number, case in enumerate(cases) if number not in numbers]
    path.write_text(json.dumps(datalist))
    return path.parent.parent


def test_the_section_validation_is_validated_on_and_not_trained_on(
    write_cohort: Write, caplog: pytest.LogCaptureFixture
) -> None:
    extra = [{"fold": 0}, {"fold": 1}, {}, {"labelled": ["liver"]}]
    folder = move_to_validation(write_cohort("full", ALL, [EMPTY] * 4, extra=extra), 2, 3)
    with caplog.at_level("INFO"):
        held = validation_cases(folder, fold=0)
    assert [case["case"] for case in held] == ["case0", "case2"]  # of case 3 only the liver is annotated
    assert "section validation: 1 of 2 cases are left out, since not all organs are annotated in them" in caplog.text
    assert [case["case"] for case in validation_cases(folder)] == ["case2"]
    assert [case["case"] for case in fold_cases(folder, fold=0)] == ["case0"]
    assert evaluation_cases(folder, section="fold", fold=0) == held
    assert [case["case"] for case in training_cases(folder, fold=0)] == ["case1"]


def test_no_scan_of_a_patient_of_the_section_validation_is_trained_on(write_cohort: Write) -> None:
    """Partially labelled scans are left out, as for folds; fully labelled ones the check of the data refuses."""
    patients = ["a", "b", "c", "b"]
    extra = [{"patient": patient, **({"labelled": ["liver"]} if n == 3 else {})} for n, patient in enumerate(patients)]
    folder = move_to_validation(write_cohort("full", ALL, [EMPTY] * 4, extra=extra), 1)
    assert [case["case"] for case in training_cases(folder)] == ["case0", "case2"]


def test_cases_without_a_label_set_are_not_trained_on() -> None:
    drawn = {"image": "ct.nii.gz", "label": "ct_label.nii.gz"}
    check_label_sets([{**drawn, "labelled": []}, {**drawn, "labelled": ["liver"]}])
    for bad in (drawn, {**drawn, "labelled": None}, {**drawn, "labelled": "liver"}):
        with pytest.raises(InputError, match=r"ct.nii.gz has no \"labelled\": .*`make serve` \(the app in label/\)"):
            check_label_sets([{**drawn, "labelled": ["liver"]}, bad])
    with pytest.raises(InputError, match=r'"ct.nii.gz" has no "labelled"'):
        check_label_sets(["ct.nii.gz"])  # type: ignore[list-item]


def test_folds_are_of_one_size_and_follow_the_seed() -> None:
    names = [f"p{number:02}" for number in range(12)]
    dealt = deal_folds(names, 5, seed=1)
    assert sorted(dealt.count(fold) for fold in range(5)) == [2, 2, 2, 3, 3]
    assert dealt == deal_folds(names, 5, seed=1)
    assert dealt != deal_folds(names, 5, seed=2)
    assert dict(zip(names, dealt, strict=True)) == dict(zip(names[::-1], deal_folds(names[::-1], 5, 1), strict=True))
    with pytest.raises(InputError, match="folds: expected a number from 2 to the 12 patients there are, found 13"):
        deal_folds(names, 13)


def test_evaluation_takes_the_cases_that_training_held_out(tiny_cohorts: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(tiny_cohorts, tmp_path / "data"))
    cases = evaluation_cases(data, section="fold", fold=1)
    assert cases == validation_cases(data, fold=1)
    assert not {case["image"] for case in training_cases(data, fold=1)} & {case["image"] for case in cases}
    with pytest.raises(InputError, match="fold None holds out no fully labelled case; choose --fold"):
        evaluation_cases(data, section="fold")
    with pytest.raises(InputError, match="fold: expected one of 0, 1, 2"):
        evaluation_cases(data, section="fold", fold=5)


def test_evaluation_takes_labelled_cases_only_and_the_check_finds_their_faults(
    tiny_cohorts: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(tiny_cohorts, tmp_path / "data"))
    path = data / "test" / "dataset.json"
    datalist = json.loads(path.read_text())
    del datalist["test"][1]["label"]
    path.write_text(json.dumps(datalist))
    assert [case["case"] for case in evaluation_cases(data)] == ["test_000"]
    with pytest.raises(InputError, match='no labelled case in the section "validation"'):
        evaluation_cases(data, section="validation")
    shutil.copytree(data / "test", data / "again")
    with pytest.raises(InputError, match=r"two cases are called test_000; evaluate their cohorts one by one"):
        evaluation_cases(data)
    cases = evaluation_cases(data, "test")
    image = nib.load(cases[0]["label"])
    nib.save(nib.Nifti1Image(np.asanyarray(image.dataobj), np.diag([1, 1, 1, 1.0])), cases[0]["label"])
    with pytest.raises(InputError, match="its affine differs"):
        check_cases(cases)
