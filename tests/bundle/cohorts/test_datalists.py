"""A dataset.json is read into cases, and what is wrong with it is explained."""

import copy
import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundle.cohorts.datalists import KINDS, SECTIONS, case_file, find_cohorts, load_cases, read_cohort
from bundle.cohorts.selection import evaluation_cases, full_cases, partial_cases
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


# --- Names and paths of strangers ------------------------------------------------------------------------------------
@pytest.mark.parametrize("key", ["case", "patient"])
@pytest.mark.parametrize(
    "name",
    ["../../x", "/etc/x", "a/b", "a\\b", "..", ".", ".x", "", " ", "a\0b", "a\nb", "a:b", "a*", "CON<", "x" * 201,
     17, True, ["a"], {"a": 1}],
)  # fmt: skip
def test_a_name_that_is_no_file_name_is_refused(write_cohort: Write, key: str, name: object) -> None:
    path = write_cohort("a", ALL, [EMPTY], extra=[{key: name}])
    with pytest.raises(InputError, match=rf'dataset.json: .*"{key}".* of ./case0.nii.gz: expected a name') as caught:
        read_cohort(path)
    assert "\n" not in str(caught.value)


def test_a_name_that_comes_from_the_image_s_is_held_to_the_same(write_cohort: Write) -> None:
    path = write_cohort("a", ALL, [None], extra=[{"image": "x/.nii.gz"}])
    with pytest.raises(
        InputError, match=r'the name \("case"\) of x/.nii.gz: expected a name, .*; give the entry another "case"'
    ):
        read_cohort(path)
    path.write_text(path.read_text().replace("x/.nii.gz", "../elsewhere/.."))
    with pytest.raises(InputError, match="expected a name that does not begin with a dot"):
        read_cohort(path)


def test_null_stands_for_no_name(write_cohort: Write) -> None:
    (case,) = read_cohort(write_cohort("a", ALL, [EMPTY], extra=[{"case": None, "patient": None, "fold": None}]))
    assert (case["case"], case["patient"], case["fold"]) == ("case0", "case0", None)


@pytest.mark.parametrize("key", ["image", "label"])
@pytest.mark.parametrize("path", ["", "a\0b", "a\nb", 5, ["a.nii.gz"], "x" * 300, "x/" * 3000])
def test_a_path_that_is_none_is_refused(write_cohort: Write, key: str, path: object) -> None:
    with pytest.raises(InputError, match=rf'"{key}".*: expected (the path of a file|a path of at most)'):
        read_cohort(write_cohort("a", ALL, [EMPTY], extra=[{key: path}]))


def test_images_may_lie_elsewhere(write_cohort: Write) -> None:
    extra = [{"image": "../other/ct.nii.gz", "label": "/data/labels.nii.gz"}]
    (case,) = read_cohort(write_cohort("a", ALL, [EMPTY], extra=extra))
    assert case["image"].endswith("a/../other/ct.nii.gz")
    assert (case["label"], case["case"]) == ("/data/labels.nii.gz", "ct")


def test_names_that_differ_by_letter_case_only_are_refused(write_cohort: Write) -> None:
    path = write_cohort("a", ALL, [EMPTY, EMPTY], extra=[{"case": "Anna"}, {"case": "anna"}])
    with pytest.raises(
        InputError, match=r"case anna of cohort a is also .*case0.nii.gz \(case Anna .* for one name\); ren"
    ):
        load_cases(path.parent.parent)
    datalist = json.loads(path.read_text())
    path.write_text(json.dumps({**datalist, "test": datalist["training"][:1]}))
    other = write_cohort("b", ALL, [EMPTY], extra=[{"case": "ANNA"}])
    datalist = json.loads(other.read_text())
    other.write_text(json.dumps({**datalist, "training": [], "test": datalist["training"]}))
    with pytest.raises(InputError, match="two cases are called ANNA; evaluate their cohorts one by one"):
        evaluation_cases(path.parent.parent)


@pytest.mark.parametrize("case", [{"cohort": "..", "case": "x"}, {"cohort": "a", "case": "../../x"}])
def test_the_file_of_a_case_is_never_outside_its_folder(case: dict[str, str]) -> None:
    with pytest.raises(InputError, match="of a case: expected a name that does not begin with a dot"):
        case_file(Path("out"), case, ".npz")


# --- Wrong kinds -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"training": "case0.nii.gz"}, 'expected a list of cases under "training", found "case0.nii.gz"'),
        ({"training": {"image": "a"}}, 'expected a list of cases under "training"'),
        ({"training": 5}, 'expected a list of cases under "training", found 5'),
        ({"training": [None]}, 'expected entries such as .* found null'),
        ({"training": [[]]}, "expected entries such as"),
        ({"training": [{"image": None}]}, '"image" in "training": expected the path of a file, found null'),
        ({"labels": []}, 'expected a JSON object with "labels"'),
        ({"labels": {"1": None}}, 'expected "labels" such as'),
        ({"labels": {"1": ["liver"]}}, 'expected "labels" such as'),
        ({"labels": {"1": " "}}, 'expected "labels" such as'),
        ({"labels": {"liver": 1.5}}, 'expected "labels" such as'),
        ({"labels": {"liver": True}}, 'expected "labels" such as'),
        ({"labels": {"liver": None}}, 'expected "labels" such as'),
        ({"labels": {"liver": []}}, 'expected "labels" such as'),
        ({"labels": {"liver": [[1]]}}, 'expected "labels" such as'),
        ({"labels": {"": 1}}, 'expected "labels" such as'),
        ({"labels": {"²": "liver"}}, 'expected "labels" such as'),
        ({"labels": {"liver": 65536}}, "at most 65535 in .labels., found 65536"),
        ({"labels": {"liver": 10**17}}, "at most 65535"),
        ({"labels": {"9" * 30: "liver"}}, 'expected "labels" such as'),
        ({"training": None, "file_ending": "/../../*"}, 'expected "file_ending" to be one of .*found "/../../'),
        ({"training": None, "file_ending": 5}, 'expected "file_ending" to be one of'),
    ],
)  # fmt: skip
def test_wrong_kinds_are_explained(write_cohort: Write, change: dict[str, object], message: str) -> None:
    path = write_cohort("a", {"0": "background", "1": "spleen"}, [EMPTY])
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=message) as caught:
        read_cohort(path)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("fold", [True, 1.0, -1, "²", "9" * 5000, [0], {}])
def test_a_fold_is_a_number(write_cohort: Write, fold: object) -> None:
    with pytest.raises(InputError, match='"fold" of ./case0.nii.gz: expected a number such as 0, found'):
        read_cohort(write_cohort("a", ALL, [EMPTY], extra=[{"fold": fold}]))


@pytest.mark.parametrize("accept", [[["mirrored"]], [5], {"mirrored": 1}, [None]])
def test_what_is_accepted_is_a_list_of_kinds(write_cohort: Write, accept: object) -> None:
    with pytest.raises(InputError, match='"accept" of ./case0.nii.gz: expected a list of findings'):
        read_cohort(write_cohort("a", ALL, [EMPTY], extra=[{"accept": accept}]))


def test_what_cannot_be_read_cannot_be_accepted(write_cohort: Write) -> None:
    assert "unreadable" not in KINDS
    with pytest.raises(
        InputError, match='"accept" of .*: "unreadable" cannot be accepted, since .*; correct its files'
    ):
        read_cohort(write_cohort("a", ALL, [EMPTY], extra=[{"accept": ["mirrored", "unreadable"]}]))


def test_a_key_that_is_given_twice_is_refused(write_cohort: Write) -> None:
    path = write_cohort("a", {"1": "spleen"}, [EMPTY])
    path.write_text(path.read_text().replace('"labels": {', '"labels": {"1": "liver", '))
    with pytest.raises(InputError, match='dataset.json: has the key "1" twice in one object'):
        read_cohort(path)


def test_three_hundred_values_are_read(write_cohort: Write) -> None:
    labels = {"liver": 300, **{f"structure {value}": value for value in range(1, 300)}}
    (case,) = read_cohort(write_cohort("a", labels, [EMPTY]))
    assert len(case["values"]) == 301
    assert case["values"][300] == 6


# --- Anything at all -------------------------------------------------------------------------------------------------
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KEYS = ["image", "label", "labelled", "case", "patient", "fold", "accept", "training", "test", "labels", "file_ending"]
VALID: dict[str, Any] = {
    "labels": {"background": 0, "kidney": [1, 2], "kidney tumor": 2, "liver": 3, "ignore": 4},
    "training": [{"image": "a.nii.gz", "label": "b.nii.gz", "labelled": ["liver"], "fold": 0, "accept": ["mirrored"]}],
    "test": ["c.nii.gz", {"image": "d.nii.gz", "case": "d", "patient": "p"}],
}


def read_all(folder: Path, datalist: Any) -> list[Any]:
    """The cases of a datalist; none where it is refused with a sentence."""
    (folder / "dataset.json").write_text(json.dumps(datalist))
    try:
        return [case for section in SECTIONS for case in load_cases(folder, section=section)]
    except InputError as error:
        sentence = str(error)
    assert len(sentence.splitlines()) == 1
    return []


def check_sound(cases: list[Any], folder: Path) -> None:
    for case in cases:
        assert case_file(folder, case, ".npz").resolve().is_relative_to(folder.resolve())
        assert all(
            isinstance(case[key], str) and case[key] for key in ("image", "case", "cohort", "patient", "section")
        )
        assert all(0 <= value <= 65535 and 0 <= meaning <= 255 for value, meaning in case["values"].items())
        assert case["fold"] is None or (type(case["fold"]) is int and case["fold"] >= 0)


@settings(max_examples=100, deadline=None)
@given(JSON | st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_json_is_cases_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, datalist: Any) -> None:
    folder = tmp_path_factory.mktemp("any")
    check_sound(read_all(folder, datalist), folder)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_datalist_is_cases_or_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder, datalist = tmp_path_factory.mktemp("changed"), copy.deepcopy(VALID)
    place: Any = datalist
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    change = data.draw(st.sampled_from(["replace", "remove", "add"]))
    if change == "remove":
        del place[key]
    elif change == "add" and isinstance(place, dict):
        place[data.draw(st.sampled_from(KEYS) | st.text())] = data.draw(JSON)
    else:
        place[key] = data.draw(JSON)
    check_sound(read_all(folder, datalist), folder)


def test_the_datalist_that_is_changed_is_sound(tmp_path: Path) -> None:
    assert [case["case"] for case in read_all(tmp_path, VALID)] == ["a", "c", "d"]
