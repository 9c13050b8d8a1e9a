"""A dataset.json is read into cases, and what is wrong with it is explained."""

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest

from bundle.cohorts.datalists import find_cohorts, load_cases, read_cohort
from bundle.cohorts.selection import (
    full_cases,
    partial_cases,
)
from bundle.errors import InputError
from bundle.organs import UNKNOWN
from tests.cohort_files import ALL, EMPTY, Write


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


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"fold": "z"}, '"fold" of .*case0.nii.gz: expected a number such as 0, found "z"'),
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


def test_a_misspelled_key_is_named(write_cohort: Write) -> None:
    path = write_cohort("a", ALL, [None], extra=[{"lable": "x.nii.gz", "note": "any other key is fine"}])
    with pytest.raises(InputError, match='case0.nii.gz has "lable"; did you mean "label"'):
        read_cohort(path)


def test_a_file_of_a_windows_editor_is_read(write_cohort: Write) -> None:
    path = write_cohort("a", ALL, [EMPTY])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert len(read_cohort(path)) == 1
