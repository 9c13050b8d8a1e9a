"""What label values mean."""

import json
import tracemalloc

import numpy as np
import pytest

from bundle.cohorts.datalists import read_cohort
from bundle.cohorts.labels import LabelValues
from bundle.errors import InputError
from bundle.organs import BACKGROUND, IGNORED, UNKNOWN, Vocabulary
from tests.cohort_files import ALL, EMPTY, Write


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


@pytest.mark.parametrize(("said", "meant"), [("livr", "liver"), ("Spleeen", "spleen"), ("kidny", "kidney")])
def test_a_misspelled_organ_is_not_learned_as_background(write_cohort: Write, said: str, meant: str) -> None:
    with pytest.raises(InputError, match=f'is no organ of the vocabulary; did you mean "{meant}"'):
        read_cohort(write_cohort("a", {"0": "background", "1": said}, [EMPTY]))


@pytest.mark.parametrize("name", ["urinary bladder", "duodenum", "superior vena cava", "left lung", "rectum"])
def test_other_structures_are_not_taken_for_misspelled_organs(write_cohort: Write, name: str) -> None:
    (case,) = read_cohort(write_cohort("a", {"0": "background", "1": name, "2": "liver"}, [EMPTY]))
    assert case["values"][1] == BACKGROUND


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"liver": 1, "spleen": 1}, 'expected one name for each value in "labels", found "liver" and "spleen" for 1'),
        ({"1": "liver", "01": "spleen"}, 'found "liver" and "spleen" for 1; correct one of them'),
        ({"liver": 1, "duodenum": 1}, 'found "liver" and "duodenum" for 1'),
        (
            {"liver": [1, 2], "spleen": 2},
            'value 2 in "labels" is that of liver and spleen; give each a value of its own',
        ),
        ({"liver": [1], "Spleen": [1]}, "is that of liver and spleen"),
        ({"liver tumor": [1], "splenic cyst": [1]}, "is that of liver and spleen"),
        ({"liver": [1, 2], "ignore": 2}, "is that of liver and ignored voxels"),
        ({"0": "liver"}, 'value 0 in "labels" is the background, found liver'),
        ({"liver": [0, 1]}, 'value 0 in "labels" is the background, found liver'),
    ],
)
def test_a_value_is_that_of_one_organ(write_cohort: Write, labels: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_cohort(write_cohort("a", labels, [EMPTY]))


def test_regions_around_organs_are_no_second_organ(write_cohort: Write) -> None:
    labels = {"abdomen": [1, 2, 3], "kidneys": [2, 3], "right kidney": 2, "left kidney": 3, "liver": [1], "LIVER": [1]}
    (case,) = read_cohort(write_cohort("a", labels, [EMPTY]))
    assert case["labelled"] == ["right kidney", "left kidney", "liver"]
    assert case["values"] == {0: UNKNOWN, 1: 6, 2: 2, 3: 3}


# --- The values of one label map -------------------------------------------------------------------------------------
VALUES = {0: UNKNOWN, 1: 6, 2: 6, 4: IGNORED, 300: BACKGROUND}
CASE = {"values": VALUES, "label": "case1_label.nii.gz", "cohort": "livers"}


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.int32, np.int64, np.uint64, np.float32, np.float64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_values_are_mapped_in_every_type_and_layout(dtype: type, order: str) -> None:
    found = np.random.default_rng(0).choice(list(VALUES), (3, 4, 5))
    labels = np.asarray(found, dtype, order=order)  # type: ignore[call-overload]
    mapped, channels = LabelValues.of(CASE).map(labels), LabelValues.of(CASE).channels(labels)
    for place in np.ndindex(found.shape):
        assert mapped[place] == VALUES[found[place]]
        assert channels[place] == (6 if found[place] in (1, 2) else 0)
    assert mapped.dtype == channels.dtype == np.uint8
    assert mapped.flags.f_contiguous == labels.flags.f_contiguous


def test_a_map_that_needs_no_change_is_not_copied() -> None:
    labels = np.array([[[0, 1, 2]]], np.uint8)
    assert LabelValues({0: 0, 1: 1, 2: 2, 3: 1}).map(labels) is labels
    assert LabelValues({0: UNKNOWN, 1: 1, 2: 2}).map(labels) is not labels


def test_a_view_of_a_volume_is_mapped_as_the_volume() -> None:
    labels = np.random.default_rng(0).choice(list(VALUES), (6, 4, 5))[::-2, :, 1:].transpose(2, 0, 1)
    np.testing.assert_array_equal(LabelValues.of(CASE).map(labels), LabelValues.of(CASE).map(labels.copy()))


@pytest.mark.parametrize("value", [3, 5, 255, 301, 70_000, 2_000_000_000, -1])
def test_an_undeclared_value_is_an_error_that_says_what_to_do(value: int) -> None:
    labels = np.zeros((4, 4, 4), np.int32)
    labels[1, 2, 3] = value
    expected = (
        f'case1_label.nii.gz: holds the value {value}, which "labels" in the dataset.json of cohort livers does not '
        'declare; add it there with the name of what it marks ("ignore" if nobody knows)'
    )
    for convert in (LabelValues.of(CASE).map, LabelValues.of(CASE).channels):
        with pytest.raises(InputError) as refused:
            convert(labels)
        assert str(refused.value) == expected
    with pytest.raises(InputError, match=f"holds the value {value}, "):
        LabelValues.of(CASE).check([0, value])


def test_json_may_have_made_text_of_the_values() -> None:
    stored = json.loads(json.dumps(CASE))
    assert list(stored["values"]) == ["0", "1", "2", "4", "300"]
    assert LabelValues.of(stored) == LabelValues.of(CASE)


def test_counts_are_added_up_by_meaning() -> None:
    counts = np.zeros(301)
    counts[[0, 1, 2, 4, 300]] = 0.5, 0.125, 0.25, 1, 2
    summed = LabelValues.of(CASE).sum_counts(counts)
    assert {place: summed[place] for place in np.flatnonzero(summed)} == {0: 2, 6: 0.375, IGNORED: 1, UNKNOWN: 0.5}
    counts[7] = 1
    with pytest.raises(InputError, match="holds the value 7, "):
        LabelValues.of(CASE).sum_counts(counts)


def test_no_copy_with_eight_bytes_a_voxel_is_made() -> None:
    labels = np.tile(np.array([0, 1, 2, 4], np.int16), 250_000).reshape(100, 100, 100)
    tracemalloc.start()
    LabelValues.of(CASE).map(labels)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * labels.size


def test_a_case_of_another_program_has_the_vocabulary_s_values_and_unknown_voxels() -> None:
    """Where not all organs were annotated, 0 is no background, and what is outside the label set does not count."""
    labels, organs = np.array([0, 1, 2, 254, 255], np.uint8), Vocabulary("liver,spleen")
    for labelled, expected in (
        (["liver", "spleen"], [0, 1, 2, 254, 255]),
        (["spleen"], [255, 255, 2, 254, 255]),
        ([], [255, 255, 255, 254, 255]),
    ):
        values = LabelValues.of({"labelled": labelled}, "a.nii.gz", organs)
        assert values.map(labels).tolist() == expected
