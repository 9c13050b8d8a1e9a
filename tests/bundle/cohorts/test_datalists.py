"""Cohorts: what label values mean, which cases are chosen, what is refused before training."""

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.checks.cases import check_cases, check_cohorts
from bundle.cohorts.datalists import find_cohorts, load_cases, read_cohort
from bundle.cohorts.selection import (
    deal_folds,
    evaluation_cases,
    full_cases,
    largest_vocabulary,
    partial_cases,
    training_cases,
    validation_cases,
)
from bundle.errors import InputError
from bundle.organs import BACKGROUND, IGNORED, UNKNOWN, Vocabulary

Write = Callable[..., Path]
EMPTY = np.zeros((4, 4, 4))
ALL = {str(value): name for value, name in enumerate(["background", *Vocabulary().names])}


def test_both_forms_of_labels_mean_the_same(write_cohort: Write) -> None:
    decathlon = read_cohort(write_cohort("a", {"0": "background", "1": "spleen"}, [EMPTY]))
    nnunet = read_cohort(write_cohort("b", {"background": 0, "spleen": 1}, [EMPTY]))
    for (case,) in (decathlon, nnunet):
        assert case["labelled"] == ["spleen"]
        assert case["values"] == {0: UNKNOWN, 1: 1}


def test_zero_is_background_only_where_every_organ_is_annotated(write_cohort: Write) -> None:
    (full,) = read_cohort(write_cohort("full", ALL, [EMPTY]))
    assert full["values"][0] == BACKGROUND
    assert full["values"][13] == 13
    (nine,) = read_cohort(write_cohort("one", {"0": "background", "1": "liver"}, [EMPTY]), Vocabulary(["liver"]))
    assert nine["values"] == {0: BACKGROUND, 1: 1}


def test_a_lesion_belongs_to_the_cohort_s_only_organ(write_cohort: Write) -> None:
    (case,) = read_cohort(write_cohort("liver", {"0": "background", "1": "liver", "2": "cancer"}, [EMPTY]))
    assert case["values"] == {0: UNKNOWN, 1: 6, 2: 6}


def test_a_lesion_s_own_name_decides_among_several_organs(write_cohort: Write) -> None:
    labels = {"0": "background", "1": "liver", "2": "pancreas", "3": "pancreatic cyst", "4": "liver tumour"}
    (case,) = read_cohort(write_cohort("two", labels, [EMPTY]))
    assert case["values"] == {0: UNKNOWN, 1: 6, 2: 11, 3: 11, 4: 6}


def test_a_lesion_of_no_clear_organ_asks_for_a_name(write_cohort: Write) -> None:
    path = write_cohort("two", {"0": "background", "1": "liver", "2": "spleen", "3": "tumor"}, [EMPTY])
    with pytest.raises(InputError, match=r'two/dataset.json: label "tumor" is a lesion.*name it after that'):
        read_cohort(path)
    with pytest.raises(InputError, match=r"organs declared: none"):
        read_cohort(write_cohort("lung", {"0": "background", "1": "cancer"}, [EMPTY]))


@pytest.mark.parametrize(
    ("dataset", "labels", "labelled", "values"),
    [
        ("KiTS", {"0": "background", "1": "kidney", "2": "tumor"}, [], {0: UNKNOWN, 1: UNKNOWN, 2: UNKNOWN}),
        ("a cyst elsewhere", {"1": "spleen", "2": "renal cyst"}, ["spleen"], {0: UNKNOWN, 1: 1, 2: UNKNOWN}),
        ("a nodule elsewhere", {"1": "liver", "2": "lung nodule"}, ["liver"], {0: UNKNOWN, 1: 6, 2: BACKGROUND}),
        ("MSD colon", {"1": "colon cancer primaries"}, [], {0: UNKNOWN, 1: BACKGROUND}),
        ("MSD vessels", {"1": "Vessel", "2": "liver tumour"}, [], {0: UNKNOWN, 1: UNKNOWN, 2: UNKNOWN}),
        ("part of an organ", {"1": "portal vein", "2": "liver"}, ["liver"], {0: UNKNOWN, 1: UNKNOWN, 2: 6}),
    ],
)
def test_names_are_taken_at_their_word(
    write_cohort: Write, dataset: str, labels: dict[str, str], labelled: list[str], values: dict[int, int]
) -> None:
    (case,) = read_cohort(write_cohort("a", labels, [EMPTY]))
    assert case["labelled"] == labelled
    assert case["values"] == values


def test_structures_outside_the_vocabulary_are_known_background(write_cohort: Write) -> None:
    labels = {"0": "background", "1": "spleen", "2": "duodenum", "3": "liver"}
    (case,) = read_cohort(write_cohort("a", labels, [EMPTY]), Vocabulary(["spleen", "pancreas"]))
    assert case["values"] == {0: UNKNOWN, 1: 1, 2: BACKGROUND, 3: BACKGROUND}


def test_kidneys_without_a_side_and_ignored_voxels_stay_unknown(write_cohort: Write) -> None:
    labels = {"background": 0, "kidney": [1, 2, 3], "masses": [2, 3], "tumor": 2, "ignore": 4, "spleen": 5}
    (case,) = read_cohort(write_cohort("kits", labels, [EMPTY]))
    assert case["labelled"] == ["spleen"]
    assert case["values"] == {0: UNKNOWN, 1: UNKNOWN, 2: UNKNOWN, 3: UNKNOWN, 4: IGNORED, 5: 1}


def test_labelled_overrides_the_cohort_and_hides_what_the_file_still_has(write_cohort: Write) -> None:
    path = write_cohort("full", ALL, [EMPTY, EMPTY], extra=[{"labelled": ["Liver", "ivc"]}])
    partial, full = read_cohort(path)
    assert partial["labelled"] == ["liver", "inferior vena cava"]
    assert partial["values"][0] == partial["values"][1] == UNKNOWN
    assert partial["values"][6] == 6
    assert full_cases([partial, full]) == [full]
    assert partial_cases([partial, full]) == [partial]


def test_an_unknown_organ_in_labelled_is_an_error(write_cohort: Write) -> None:
    path = write_cohort("full", ALL, [EMPTY], extra=[{"labelled": ["lever"]}])
    with pytest.raises(InputError, match=r'"labelled" of ./case0.nii.gz names "lever".*use names from: spleen'):
        read_cohort(path)


@pytest.mark.parametrize(
    ("labelled", "message"),
    [
        (["aorta"], r'names "aorta", but "labels" gives no value to it.*organs declared: spleen'),
        ("spleen", r"expected a list of organ names"),
        (None, r"expected a list of organ names"),
        ([6], r"expected a list of organ names"),
    ],
)
def test_labelled_must_be_possible(write_cohort: Write, labelled: object, message: str) -> None:
    path = write_cohort("a", {"0": "background", "1": "spleen"}, [EMPTY], extra=[{"labelled": labelled}])
    with pytest.raises(InputError, match=message):
        read_cohort(path)


def test_labelled_without_a_label_is_an_error(write_cohort: Write) -> None:
    path = write_cohort("a", {"0": "background", "1": "spleen"}, [None], extra=[{"labelled": ["spleen"]}])
    with pytest.raises(InputError, match="names spleen, but the case has no label"):
        read_cohort(path)


def test_a_case_without_label_is_unlabelled(write_cohort: Write) -> None:
    (case,) = read_cohort(write_cohort("none", {"0": "background", "1": "spleen"}, [None]))
    assert case["labelled"] == []
    assert "label" not in case


def test_decathlon_test_images_are_plain_strings(write_cohort: Write) -> None:
    path = write_cohort("a", {"0": "background", "1": "spleen"}, [EMPTY], test=["./case0.nii.gz"])
    (case,) = read_cohort(path, section="test")
    assert Path(case["image"]).name == "case0.nii.gz"
    assert case["labelled"] == []


def test_an_nnunet_folder_works_without_a_list(tmp_path: Path) -> None:
    for name in ("imagesTr/s1_0000.nii.gz", "imagesTr/s2_0000.nii.gz", "labelsTr/s1.nii.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        nib.save(nib.Nifti1Image(np.zeros((4, 4, 4), np.uint8), np.eye(4)), tmp_path / name)
    (tmp_path / "dataset.json").write_text(
        json.dumps({"labels": {"background": 0, "spleen": 1}, "file_ending": ".nii.gz", "channel_names": {"0": "CT"}})
    )
    first, second = read_cohort(tmp_path / "dataset.json")
    assert (first["case"], first["labelled"]) == ("s1", ["spleen"])
    assert (second["case"], second["labelled"]) == ("s2", [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", 'expected a JSON object with "labels"'),
        ('{"labels": {"1": "spleen", "two": "liver"}}', r'expected "labels" such as'),
        ('{"labels": {"1": "spleen"}, "training": [{"picture": "a"}]}', r'expected entries such as \{"image"'),
        ('{"labels": {"1": "spleen"}, "train": []}', r'expected a list of cases under "training" or "test"'),
        ('{"labels": {"-1": "spleen"}, "training": []}', r"expected values of at least 0"),
    ],
)
def test_a_malformed_datalist_is_explained(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "dataset.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_cohort(tmp_path / "dataset.json")


def test_missing_cohorts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dataset.json found"):
        find_cohorts(tmp_path)
    with pytest.raises(InputError, match=r"spleen.dataset.json: no such cohort; those in .* are: none"):
        load_cases(tmp_path, "spleen")
    with pytest.raises(InputError, match=r"dataset.json: no such file"):
        read_cohort(tmp_path / "dataset.json")


def test_two_cases_of_one_name_are_refused(write_cohort: Write) -> None:
    path = write_cohort("a", ALL, [EMPTY])
    datalist = json.loads(path.read_text())
    datalist["training"] *= 2
    path.write_text(json.dumps(datalist))
    with pytest.raises(InputError, match="case case0 of cohort a is also"):
        load_cases(path.parent.parent)


# --- Choosing cases --------------------------------------------------------------------------------------------------
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


def test_the_largest_vocabulary_of_unlabelled_cases_is_empty(write_cohort: Write) -> None:
    folder = write_cohort("none", {"0": "background", "1": "spleen"}, [None]).parent.parent
    assert largest_vocabulary(load_cases(folder)) == largest_vocabulary([]) == []
    with pytest.raises(InputError, match=r"none: nothing.*add a fully labelled cohort$"):
        training_cases(folder)


def test_an_unknown_supervision_is_an_error(two_cohorts: Path) -> None:
    with pytest.raises(InputError, match="expected one of full, semi, partial, marginal, ignore, pann"):
        training_cases(two_cohorts, supervision="weak")


def test_a_fold_that_does_not_exist_is_an_error(two_cohorts: Path) -> None:
    with pytest.raises(InputError, match="fold: expected one of 0, 1, 2, or null to hold nothing out, found 7"):
        training_cases(two_cohorts, fold=7)


def test_what_was_understood_is_told(two_cohorts: Path, caplog: pytest.LogCaptureFixture) -> None:
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


def test_folds_are_of_one_size_and_follow_the_seed() -> None:
    names = [f"p{number:02}" for number in range(12)]
    dealt = deal_folds(names, 5, seed=1)
    assert sorted(dealt.count(fold) for fold in range(5)) == [2, 2, 2, 3, 3]
    assert dealt == deal_folds(names, 5, seed=1)
    assert dealt != deal_folds(names, 5, seed=2)
    assert dict(zip(names, dealt, strict=True)) == dict(zip(names[::-1], deal_folds(names[::-1], 5, 1), strict=True))
    with pytest.raises(InputError, match="folds: expected a number from 2 to the 12 patients there are, found 13"):
        deal_folds(names, 13)


def test_training_refuses_a_scan_that_is_also_tested_on(tiny_cohorts: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(tiny_cohorts, tmp_path / "data"))
    check_cohorts(data, remembered=tmp_path / "checks.json")
    (tested,) = [case["image"] for case in evaluation_cases(data) if case["case"] == "test_001"]
    path = data / "spleen" / "dataset.json"
    datalist = json.loads(path.read_text())
    datalist["training"].append({"image": tested, "case": "copy"})
    path.write_text(json.dumps(datalist))
    with pytest.raises(InputError, match=r"test_001.nii.gz: is the same scan as .*; training would see what it is"):
        check_cohorts(data, remembered=tmp_path / "checks.json")


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


def test_an_nnunet_folder_without_a_list_passes_the_check(tiny_cohorts: Path, tmp_path: Path) -> None:
    datalist = json.loads((tiny_cohorts / "full" / "dataset.json").read_text())
    for folder in ("imagesTr", "labelsTr"):
        (tmp_path / "full" / folder).mkdir(parents=True)
    for entry in datalist["training"]:
        name = Path(entry["image"]).name.removesuffix(".nii.gz")
        shutil.copy(tiny_cohorts / "full" / entry["image"], tmp_path / f"full/imagesTr/{name}_0000.nii.gz")
        shutil.copy(tiny_cohorts / "full" / entry["label"], tmp_path / f"full/labelsTr/{name}.nii.gz")
    labels = {name: int(value) for value, name in datalist["labels"].items()}
    (tmp_path / "full" / "dataset.json").write_text(json.dumps({"labels": labels, "file_ending": ".nii.gz"}))
    check_cohorts(tmp_path)
    assert len(training_cases(tmp_path)) == 3


def test_no_scan_of_a_held_out_patient_is_trained_on(write_cohort: Write) -> None:
    """Not even one that is only partially labelled."""
    extra = [{"patient": "ab"[index % 2], **({"labelled": ["liver"]} if index > 3 else {})} for index in range(6)]
    folder = write_cohort("full", ALL, [EMPTY] * 6, extra=extra).parent.parent
    for fold in (0, 1):
        trained = {case["patient"] for case in training_cases(folder, fold=fold)}
        tested = {case["patient"] for case in validation_cases(folder, fold=fold)}
        assert {"a", "b"} == trained | tested
        assert not trained & tested


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"fold": "z"}, '"fold" of .*case0.nii.gz: expected a number such as 0, found z'),
        ({"accept": None}, '"accept" of .*case0.nii.gz: expected a list of findings'),
        ({"accept": "empty"}, '"accept" of .*: expected a list of findings'),
        ({"accept": ["miror"]}, "known are .*mirrored"),
    ],
)
def test_odd_entries_are_explained(write_cohort: Write, entry: dict[str, object], message: str) -> None:
    path = write_cohort("a", ALL, [EMPTY], extra=[entry])
    with pytest.raises(InputError, match=message):
        read_cohort(path)


def test_a_fold_may_be_written_as_text(write_cohort: Write) -> None:
    (case,) = read_cohort(write_cohort("a", ALL, [EMPTY], extra=[{"fold": "2"}]))
    assert case["fold"] == 2


@pytest.mark.parametrize(("said", "meant"), [("livr", "liver"), ("Spleeen", "spleen"), ("kidny", "kidney")])
def test_a_misspelt_organ_is_not_learned_as_background(write_cohort: Write, said: str, meant: str) -> None:
    with pytest.raises(InputError, match=f'is no organ of the vocabulary; did you mean "{meant}"'):
        read_cohort(write_cohort("a", {"0": "background", "1": said}, [EMPTY]))


@pytest.mark.parametrize("name", ["urinary bladder", "duodenum", "superior vena cava", "left lung", "rectum"])
def test_other_structures_are_not_taken_for_misspelt_organs(write_cohort: Write, name: str) -> None:
    (case,) = read_cohort(write_cohort("a", {"0": "background", "1": name, "2": "liver"}, [EMPTY]))
    assert case["values"][1] == BACKGROUND


def test_a_misspelt_key_is_told(write_cohort: Write) -> None:
    path = write_cohort("a", ALL, [None], extra=[{"lable": "x.nii.gz", "note": "any other key is fine"}])
    with pytest.raises(InputError, match='case0.nii.gz has "lable"; did you mean "label"'):
        read_cohort(path)


def test_a_file_of_a_windows_editor_is_read(write_cohort: Write) -> None:
    path = write_cohort("a", ALL, [EMPTY])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_cohort(path)) == 1
