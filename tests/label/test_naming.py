# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""An organ is named by its own entry, code or label, and never by its place among the others."""

from __future__ import annotations

import numpy as np
import pytest

from bundle.errors import InputError
from label.naming import in_vocabulary, name_values, organ_of_segment, values_in

pytest.importorskip("pydicom", reason="needs pydicom")
from tests.label.dicom_files import segment


def test_values_are_named_by_idx() -> None:
    sent = [{"name": "Liver", "idx": 3}, {"name": "tumor", "idx": 2}, {"name": "Kidney_Left", "idx": "1"}]
    found = name_values([1, 3], sent, "map")
    assert {value: organ.name for value, organ in found.items()} == {1: "left kidney", 3: "liver"}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ([], "map: value 3 has no name in label_info"),
        ([{"name": "liver", "idx": 1}], "value 3 has no name"),
        ([{"name": "tumor", "idx": 3}], '"tumor", its value 3, is not in the vocabulary; choose from: spleen, '),
        ([{"name": "liver", "idx": 3}, {"name": "spleen", "idx": 3}], "number 3 in .* is .liver. and .spleen."),
        ([{"name": "liver"}], "expected a name and a number"),
        ([{"name": "liver", "idx": None}], "expected a name and a number"),
        (["liver"], "expected a name and a number"),
    ],
)
def test_what_has_no_one_name_is_refused(sent: list[dict[str, object]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        name_values([3], sent, "map")


def test_maps_come_into_the_vocabulary() -> None:
    labels = np.array([[[0, 7], [900, 3]]], np.int32)
    assert values_in(labels) == [3, 7, 900]
    sent = [{"name": "spleen", "idx": 900}, {"name": "milz", "idx": 3}, {"name": "pancreas", "idx": 7}]
    named = in_vocabulary(labels, name_values([3, 7, 900], sent, "map"))
    np.testing.assert_array_equal(named, [[[0, 11], [1, 1]]])  # BTCV's values


@pytest.mark.parametrize(
    ("label", "code", "scheme", "algorithm", "organ"),
    [
        ("Segment 1", "10200004", "SCT", "", "liver"),
        ("Leber", "10200004", "SCT", "", "liver"),
        ("gall bladder", "T-D0050", "SRT", "", "gallbladder"),  # as OHIF stores it: "tissue"
        ("liver", "85756007", "SCT", "", "liver"),  # "tissue", as Slicer stores what nobody coded
        ("liver", "", "", "", "liver"),
        ("liver", "78961009", "SCT", "MONAILABEL", "liver"),  # the stock server's code for all organs
        ("tumor", "78961009", "SCT", "MONAILABEL", None),
        ("liver", "78961009", "SCT", "", None),  # the code of the spleen
        ("kidney", "", "", "", None),
        ("tumor", "4147007", "SCT", "", None),
        ("tumor", "10200004", "99LOCAL", "", None),
    ],
)
def test_segments_are_named_by_code_then_label(
    label: str, code: str, scheme: str, algorithm: str, organ: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    found = organ_of_segment(segment(1, label, code, scheme, algorithm), "organs.dcm")
    assert (found.name if found else None) == organ
    assert len(caplog.messages) == (organ is None)
    if organ is None:
        assert f'organs.dcm: segment "{label}" is left out' in caplog.messages[0]
