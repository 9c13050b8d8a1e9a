"""The vocabulary."""

import pytest

from bundle.errors import InputError
from bundle.organs import AMBIGUOUS, ORGANS, Vocabulary, find_organ


def test_values_are_the_challenge_s() -> None:
    expected = [
        "spleen", "right kidney", "left kidney", "gallbladder", "esophagus", "liver", "stomach", "aorta",
        "inferior vena cava", "portal and splenic vein", "pancreas", "right adrenal gland", "left adrenal gland",
    ]  # fmt: skip
    assert [(organ.value, organ.name) for organ in ORGANS] == list(enumerate(expected, start=1))


@pytest.mark.parametrize(
    ("dataset", "name", "organ"),
    [
        ("TotalSegmentator", "kidney_left", "left kidney"),
        ("TotalSegmentator", "portal_vein_and_splenic_vein", "portal and splenic vein"),
        ("TotalSegmentator", "adrenal_gland_right", "right adrenal gland"),
        ("AMOS22", "postcava", "inferior vena cava"),
        ("AMOS22", "gall bladder", "gallbladder"),
        ("AMOS22", "arota", "aorta"),
        ("FLARE22", "RAG", "right adrenal gland"),
        ("MSD", "Spleen", "spleen"),
    ],
)
def test_names_of_public_datasets_are_found(dataset: str, name: str, organ: str) -> None:
    found = find_organ(name)
    assert found is not None
    assert found.name == organ


def test_every_name_and_alias_means_one_organ() -> None:
    names = [alias for organ in ORGANS for alias in (organ.name, *organ.aliases)]
    assert len(names) == len(set(names))
    assert not set(AMBIGUOUS) & set(names)
    assert all(set(covered) <= {organ.name for organ in ORGANS} for covered in AMBIGUOUS.values())


def test_colors_and_codes_differ() -> None:
    assert len({organ.color for organ in ORGANS}) == len({organ.snomed for organ in ORGANS}) == 13


def test_rgb_is_the_color_in_parts_of_one() -> None:
    spleen = ORGANS[0]
    assert spleen.rgb == (157 / 255, 78 / 255, 221 / 255)


def test_nine_organs_get_channels_one_to_nine() -> None:
    nine = ["spleen", "right kidney", "left kidney", "gallbladder", "liver", "stomach", "aorta", "ivc", "pancreas"]
    vocabulary = Vocabulary(nine)
    assert vocabulary.out_channels == 10
    assert [vocabulary.channel(name) for name in nine] == list(range(1, 10))
    assert vocabulary.channel("esophagus") is None
    assert vocabulary.channel_def["8"] == "inferior vena cava"
    assert "adrenal" not in vocabulary


def test_names_may_come_as_the_command_line_gives_them() -> None:
    assert Vocabulary("liver").names == ["liver"]
    assert Vocabulary("liver,spleen").names == Vocabulary(("liver", "spleen")).names == ["liver", "spleen"]


def test_unknown_and_repeated_names_are_errors() -> None:
    with pytest.raises(InputError, match='"spline" is not in the vocabulary'):
        Vocabulary(["liver", "spline"])
    with pytest.raises(InputError, match="different organ names"):
        Vocabulary(["ivc", "postcava"])
