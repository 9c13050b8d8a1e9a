# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a saved label map says: by name, only where something is drawn, and never more than that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bundle.cohorts.datalists import read_cohort
from bundle.errors import InputError
from bundle.organs import BACKGROUND, IGNORED, UNKNOWN, WHOLE_VOCABULARY, Vocabulary
from label.annotations import (
    Annotation,
    embed_info,
    embedded_info,
    is_complete,
    names_of,
    read_annotation,
    write_saved_cohort,
)

ALL = [{"name": name, "idx": number} for number, name in enumerate(WHOLE_VOCABULARY.names, start=1)]
SMALL = Vocabulary("liver,spleen")


def save(folder: Path, name: str, voxels: Any, info: Any, vocabulary: Vocabulary = SMALL, **more: Any) -> Annotation:
    """An image, and a label map of the given values along the first axis."""
    labels = np.zeros((6, 4, 4), np.uint8)
    labels[: len(voxels)] = np.asarray(voxels)[:, None, None]
    image = np.arange(6 * 16, dtype=np.int16).reshape(6, 4, 4)
    nib.save(nib.Nifti1Image(image, np.eye(4)), folder / f"{name}.nii.gz")
    nib.save(nib.Nifti1Image(labels, np.eye(4)), folder / f"{name}_label.nii.gz")
    label = folder / f"{name}_label.nii.gz"
    return read_annotation(name, folder / f"{name}.nii.gz", label, {"label_info": info, **more}, vocabulary)


def test_empty_segments_are_not_annotated(tmp_path: Path) -> None:
    said = save(tmp_path, "a", [6, 6], ALL, WHOLE_VOCABULARY)
    assert said.labelled == ["liver"]
    assert said.meanings[0] == UNKNOWN
    assert said.meanings[6] == 6


def test_names_count_and_not_numbers(tmp_path: Path) -> None:
    said = save(tmp_path, "a", [1, 2], [{"name": "Liver", "idx": 1}, {"name": "SPL", "idx": 2}])
    assert said.labelled == ["liver", "spleen"]
    assert (said.meanings[1], said.meanings[2]) == (1, 2)
    swapped = save(tmp_path, "b", [1, 2], [{"name": "spleen", "idx": 1}, {"name": "liver", "idx": 2}])
    assert (swapped.meanings[1], swapped.meanings[2]) == (2, 1)


def test_without_names_nothing_is_annotated(tmp_path: Path) -> None:
    assert save(tmp_path, "a", [1, 2], None).labelled == []


def test_an_empty_map_is_not_full(tmp_path: Path) -> None:
    assert save(tmp_path, "a", [0], ALL, WHOLE_VOCABULARY).labelled == []


def test_complete_makes_absent_organs_known_to_be_absent(tmp_path: Path) -> None:
    said = save(tmp_path, "a", [6], ALL, WHOLE_VOCABULARY, complete=True)
    assert said.labelled == WHOLE_VOCABULARY.names
    assert said.meanings[0] == BACKGROUND
    noted = save(tmp_path, "b", [6], [*ALL, {"name": "Complete", "idx": 14}], WHOLE_VOCABULARY)
    assert noted.complete
    with pytest.raises(InputError, match="something is drawn in it"):
        save(tmp_path, "c", [6, 14], [*ALL, {"name": "complete", "idx": 14}], WHOLE_VOCABULARY)
    with pytest.raises(InputError, match="expected true or false"):
        is_complete({"complete": "no"})


def test_other_structures_are_background_and_parts_are_not_wholes(tmp_path: Path) -> None:
    names = [{"name": "duodenum", "idx": 1}, {"name": "liver tumor", "idx": 2}, {"name": "kidneys", "idx": 3}]
    said = save(tmp_path, "a", [1, 2, 3], names, WHOLE_VOCABULARY)
    assert said.labelled == []
    assert (said.meanings[1], said.meanings[2], said.meanings[3]) == (BACKGROUND, UNKNOWN, UNKNOWN)
    with_liver = save(tmp_path, "b", [2, 4], [*names, {"name": "liver", "idx": 4}], WHOLE_VOCABULARY)
    assert with_liver.labelled == ["liver"]
    assert (with_liver.meanings[2], with_liver.meanings[4]) == (6, 6)


def test_an_organ_of_another_model_is_background_of_this_one(tmp_path: Path) -> None:
    said = save(tmp_path, "a", [1, 2], [{"name": "pancreas", "idx": 1}, {"name": "liver", "idx": 2}])
    assert said.labelled == ["liver"]
    assert said.meanings[1] == BACKGROUND


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ([{"name": "spleen", "idx": 2}], "the value 1, which no segment"),
        ([{"name": "livr", "idx": 1}], 'did you mean "liver"'),
        ([{"name": "liver"}], 'a number "idx"'),
        ([{"name": "", "idx": 1}], "a name"),
        ([{"name": "liver", "idx": True}], 'a number "idx"'),
        ([{"name": "liver", "idx": 1}, {"name": "spleen", "idx": 1}], "a number of its own"),
        ({"liver": 1}, "label_info"),
        (["liver"], "a name"),
    ],
)
def test_what_is_unclear_is_refused(tmp_path: Path, info: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        save(tmp_path, "a", [1], info)


def test_scribbles_are_left_out(tmp_path: Path) -> None:
    info = [{"name": "liver", "idx": 1}, {"name": "foreground_scribbles", "idx": 9}]
    assert names_of([0, 1, 9], info, "a") == {1: "liver"}
    said = save(tmp_path, "a", [1, 9], info)
    written = write_saved_cohort(tmp_path / "saved", [said], SMALL)
    labels = np.asanyarray(nib.load(written.parent / "labelsTr" / "a.nii.gz").dataobj)
    assert labels[:3, 0, 0].tolist() == [6, 0, 0]


def test_a_map_on_another_grid_is_refused(tmp_path: Path) -> None:
    save(tmp_path, "a", [1], [{"name": "liver", "idx": 1}])
    shifted = tmp_path / "shifted.nii.gz"
    affine = np.eye(4)
    affine[0, 3] = 5
    nib.save(nib.Nifti1Image(np.ones((6, 4, 4), np.uint8), affine), shifted)
    with pytest.raises(InputError, match="grid|apart|mm"):
        read_annotation("a", tmp_path / "a.nii.gz", shifted, {"label_info": [{"name": "liver", "idx": 1}]}, SMALL)


def test_the_cohort_has_one_numbering_and_the_label_set_of_each_case(tmp_path: Path) -> None:
    first = save(tmp_path, "a", [3, 3, 5], [{"name": "liver", "idx": 3}, {"name": "duodenum", "idx": 5}])
    second = save(tmp_path, "b", [1], [{"name": "spleen", "idx": 1}])
    third = save(tmp_path, "c", [2, 7], [{"name": "liver", "idx": 2}, {"name": "kidneys", "idx": 7}], complete=True)
    path = write_saved_cohort(tmp_path / "saved", [first, second, third], SMALL, held_out=["c"])
    cases = {case["case"]: case for case in read_cohort(path, SMALL)}
    assert {name: case["labelled"] for name, case in cases.items()} == {
        "a": ["liver"], "b": ["spleen"], "c": ["liver", "spleen"],
    }  # fmt: skip
    assert {name: case["fold"] for name, case in cases.items()} == {"a": 1, "b": 1, "c": 0}
    maps = {name: np.asanyarray(nib.load(case["label"]).dataobj)[:4, 0, 0] for name, case in cases.items()}
    meant = {name: [cases[name]["values"][int(value)] for value in values] for name, values in maps.items()}
    assert meant == {
        "a": [1, 1, BACKGROUND, UNKNOWN],  # liver, liver, duodenum, nobody knows
        "b": [2, UNKNOWN, UNKNOWN, UNKNOWN],
        "c": [1, IGNORED, BACKGROUND, BACKGROUND],  # kidneys are two organs
    }
    assert json.loads(path.read_text())["labels"]["6"] == "liver"


def test_axes_that_a_viewer_turned_are_turned_back(tmp_path: Path) -> None:
    said = save(tmp_path, "a", [1, 1, 2], [{"name": "liver", "idx": 1}, {"name": "spleen", "idx": 2}])
    image = nib.load(said.label)
    turned = image.as_reoriented(nib.orientations.axcodes2ornt("PIL"))
    nib.save(turned, tmp_path / "turned.nii.gz")
    info = {"label_info": [{"name": "liver", "idx": 1}, {"name": "spleen", "idx": 2}]}
    other = read_annotation("b", tmp_path / "a.nii.gz", tmp_path / "turned.nii.gz", info, SMALL)
    path = write_saved_cohort(tmp_path / "saved", [said, other], SMALL)
    maps = [nib.load(case["label"]) for case in read_cohort(path, SMALL)]
    np.testing.assert_array_equal(np.asanyarray(maps[1].dataobj), np.asanyarray(maps[0].dataobj))
    np.testing.assert_array_equal(maps[1].affine, maps[0].affine)


def test_names_travel_inside_the_file(tmp_path: Path) -> None:
    said = save(tmp_path, "a", [1, 2], [{"name": "liver", "idx": 1}, {"name": "duodenum", "idx": 2}])
    embed_info(said, tmp_path / "whole.nii.gz")
    assert embedded_info(said.label) is None
    inside = embedded_info(tmp_path / "whole.nii.gz")
    assert inside is not None
    again = read_annotation("a", said.image, tmp_path / "whole.nii.gz", inside, SMALL)
    assert (again.names, again.labelled, again.complete) == (said.names, said.labelled, said.complete)
    np.testing.assert_array_equal(nib.load(tmp_path / "whole.nii.gz").get_fdata(), nib.load(said.label).get_fdata())


def test_complete_without_names_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no segment has a name"):
        save(tmp_path, "a", [1], None, complete=True)


def test_scribbles_of_a_complete_case_are_left_out(tmp_path: Path) -> None:
    info = [{"name": "liver", "idx": 1}, {"name": "background_scribbles", "idx": 9}]
    said = save(tmp_path, "a", [1, 9], info, complete=True)
    (case,) = read_cohort(write_saved_cohort(tmp_path / "saved", [said], SMALL), SMALL)
    values = np.asanyarray(nib.load(case["label"]).dataobj)[:3, 0, 0]
    assert [case["values"][int(value)] for value in values] == [1, IGNORED, BACKGROUND]
