"""Descriptions of models: whatever is read gives a record or a sentence, and what differs is named."""

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.bundle import ConfigParser

from bundle.errors import InputError, find_input_error
from bundle.inference.records import ModelRecord, describe_model, differences, read_record
from bundle.networks.definitions import build_network
from bundle.organs import ORGANS, Vocabulary
from tests.model_files import description, tiny_network
from tests.paths import CONFIGS

FAST = settings(max_examples=100, deadline=None)


# --- What is allowed -------------------------------------------------------------------------------------------------
def test_a_record_is_the_same_after_json() -> None:
    record = read_record({**description(), "versions": {"torch": "2.0"}, "training": {"stage": "train"}}, "model.pt")
    again = read_record(json.loads(json.dumps(record.plain())), "model.pt")
    assert again == record
    assert record.training == {"stage": "train"}
    assert set(record.config()) == set(description())  # an overlay on configs/inference.yaml, and no more


def test_organs_may_have_their_other_names_and_tuples_are_lists() -> None:
    record = read_record(description(organs=["Kidney_Left", "liver"], pixdim=(1.5, 1.5, 2)), "model.json")
    assert record.organs == ["left kidney", "liver"]
    assert record.pixdim == [1.5, 1.5, 2]


def test_earlier_descriptions_without_context_and_scales_are_read() -> None:
    earlier = {name: value for name, value in description().items() if name not in ("context", "scales")}
    record = read_record(earlier, "model.json")
    assert (record.context, record.scales) == (0, [1.0])


@pytest.mark.parametrize("name", ["organs", "network_def", "pixdim", "hu_window", "intensity", "patch_size"])
def test_what_is_missing_is_named(name: str) -> None:
    short = {key: value for key, value in description().items() if key != name}
    with pytest.raises(InputError, match=rf"model.json: does not say the {name} of the model"):
        read_record(short, "model.json")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"organs": "liver,spleen"}, "organs: expected a list of names"),
        ({"organs": []}, "organs: expected a list of"),
        ({"organs": ["liver", "liver"]}, "organs: expected a list of"),
        ({"organs": ["liver", "elbow"]}, 'organs: "elbow" is not in the vocabulary'),
        ({"organs": ["liver", 3]}, "organs: expected a list of names"),
        ({"organs": None}, "organs: expected a list of names"),
        ({"organs": ["liver"]}, "network_def: out_channels: expected 2, for 1 organs and the background, found 3"),
        ({"context": 1}, "network_def: in_channels: expected 3, for context 1, found 1"),
        ({"patch_size": [16, 16, 1]}, "network_def: spatial_dims: expected 2, for patch_size"),
        ({"patch_size": [16, 1, 1]}, "one of size 1 at most"),
        ({"patch_size": [16, 16, 0]}, "patch_size: expected"),
        ({"patch_size": [16, 16]}, "patch_size: expected a list of 3 whole numbers"),
        ({"patch_size": [16, 16, 1e3]}, "patch_size: expected a list of 3 whole numbers"),
        ({"patch_size": [16, 16, 100_000]}, "patch_size: expected"),
        ({"pixdim": [1, 1, -1]}, "pixdim: expected a list of 3 numbers"),
        ({"pixdim": [1, 1, 1e-6]}, "pixdim: expected sizes from 0.05 up to 100"),
        ({"pixdim": [1, 1, float("nan")]}, "pixdim: expected a list of 3 numbers"),
        ({"pixdim": [1, 1, True]}, "pixdim: expected a list of 3 numbers"),
        ({"hu_window": [275, -125]}, "hu_window: expected a smaller and a larger value"),
        ({"intensity": [0, 0]}, "intensity: expected a smaller and a larger value"),
        ({"context": -1}, "context: expected a whole number"),
        ({"context": 10**400}, "found a whole number beyond"),
        ({"scales": []}, "scales: expected a list of numbers"),
        ({"scales": [1e9]}, "scales: expected"),
        ({"versions": ["torch"]}, "versions: expected names and values"),
        ({"training": "long"}, "training: expected names and values"),
        ({"training": {"cases": {1: "a"}}}, "expected names as keys, found 1"),
        ({"training": {"loss": object()}}, "expected text and numbers, found object"),
        ({"colour": "red"}, "'colour' is no part of a model's description"),
        ({"network_def": {"_target_": "os.system"}}, "expected a network of MONAI"),
    ],
)
def test_other_values_are_refused_with_file_and_key(values: dict[str, Any], said: str) -> None:
    wrong = {**description(), **values}  # not by description(): its network would follow the organs
    with pytest.raises(InputError) as caught:
        read_record(wrong, "model.json")
    assert str(caught.value).startswith("model.json: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_record_has_the_network_as_the_config_that_runs_declares_it() -> None:
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / "train.yaml"), str(CONFIGS / "overlays" / "paper_2d.yaml")])
    parser.update({"network_def::pretrained": "resnet50.pth", "organs": ["liver", "spleen"], "context": 1})
    parser.update({"model_record::sizes": None, "model_record::prior": None})  # they need data
    record = parser.get_parsed_content("model_record")
    assert isinstance(record, ModelRecord)
    assert record.organs == ["liver", "spleen"]
    assert record.patch_size == [512, 512, 1]
    network_def = record.network_def
    assert network_def["backbone"] == "resnet50"
    assert (network_def["in_channels"], network_def["out_channels"]) == (3, 3)  # numbers, not expressions
    assert network_def["pretrained"] is None  # the trained weights replace them, and their file may be gone by then
    assert "torch" in record.versions


def test_a_network_that_weights_cannot_name_is_refused_at_the_start() -> None:
    values = {name: value for name, value in description().items() if name not in ("organs", "network_def")}
    with pytest.raises(InputError, match=r"this config: network_def: expected a network of MONAI.*'my.Network'"):
        describe_model(Vocabulary("liver"), **values, network_def={"_target_": "my.Network"})


def test_a_network_that_could_not_be_built_again_is_refused_at_the_start() -> None:
    parser = ConfigParser()
    parser.read_config(str(CONFIGS / "train.yaml"))
    parser.update({"model_record::sizes": None, "model_record::prior": None})  # they need data
    parser["network_def::act"] = "$torch.nn.GELU"  # MONAI builds it, but text does not say what it is
    with pytest.raises(RuntimeError) as caught:
        parser.get_parsed_content("model_record")
    assert "this config: network_def: UNet cannot be built with these arguments" in str(find_input_error(caught.value))


# --- What differs ----------------------------------------------------------------------------------------------------
def test_nothing_differs_between_two_ways_of_saying_the_same() -> None:
    record = read_record(description(), "model.pt")
    network = {**description()["network_def"], "_target_": "monai.networks.nets.UNet", "num_res_units": 0}
    same = {**description(), "pixdim": (3, 3, 3), "patch_size": [32, 32, 32], "scales": [2.0], "network_def": network}
    assert list(differences(record, same)) == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"organs": ["spleen", "liver"]}, ("organs", ["liver", "spleen"], ["spleen", "liver"])),
        ({"pixdim": [3, 3, 2]}, ("pixdim", [3.0, 3.0, 3.0], [3, 3, 2])),
        ({"patch_size": [16, 1, 16]}, ("patch_size", [16, 16, 8], [16, 1, 16])),
        (
            {"network_def": {**description()["network_def"], "num_res_units": 2}},
            ("network_def::num_res_units", 0, 2),
        ),
        (
            {"network_def": {**description()["network_def"], "_target_": "AttentionUnet"}},
            (
                "network_def::_target_",
                "monai.networks.nets.unet.UNet",
                "monai.networks.nets.attentionunet.AttentionUnet",
            ),
        ),
    ],
)
def test_differences_have_the_id_and_both_values(values: dict[str, Any], expected: tuple[str, Any, Any]) -> None:
    record = read_record(description(), "model.pt")
    assert next(differences(record, {**description(), **values})) == expected


# --- Properties ------------------------------------------------------------------------------------------------------
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner), max_leaves=20)
SPECIAL = st.sampled_from(
    ["$1/0", "@organs", "%x", "_target_", "os.system", "UNet", "", -1, 0, 1, 2**70, 10**400, 1e308, float("inf"),
     float("nan"), [], {}, [[]], [1, 1, 1], ["liver"], {"_target_": "UNet"}, None, True]
)  # fmt: skip
ENTRIES = st.sampled_from([*description(), "versions", "training", "extra", ""])
ARGUMENTS = st.sampled_from(
    [*description()["network_def"], "norm", "act", "num_res_units", "pretrained", "_mode_", "x"]
)


def read_or_refuse(content: Any) -> ModelRecord | None:
    try:
        return read_record(content, "model.json")
    except InputError:
        return None


@FAST
@given(content=JSON)
def test_any_json_gives_a_record_or_a_sentence(content: Any) -> None:
    assert read_or_refuse(content) is None


@FAST
@given(changes=st.dictionaries(ENTRIES, JSON | SPECIAL, max_size=3), missing=st.sets(ENTRIES, max_size=1))
def test_a_changed_description_gives_a_record_or_a_sentence(changes: dict[str, Any], missing: set[str]) -> None:
    changed = {name: value for name, value in {**description(), **changes}.items() if name not in missing}
    record = read_or_refuse(changed)
    if record is not None:
        assert read_record(record.plain(), "again") == record


@FAST
@given(changes=st.dictionaries(ARGUMENTS, JSON | SPECIAL | st.lists(st.integers(-2, 9), max_size=3), max_size=2))
def test_a_changed_network_is_built_or_refused(changes: dict[str, Any]) -> None:
    plain = read_record(description(), "model.json")
    record = read_or_refuse(description(network_def={**description()["network_def"], **changes}))
    if record is None:
        return
    weights = tiny_network(plain).state_dict()
    with contextlib.suppress(InputError):
        build_network(record.network_def, weights, "model.json").load_state_dict(weights)


@FAST
@given(
    organs=st.lists(st.sampled_from([organ.name for organ in ORGANS]), min_size=1, unique=True),
    pixdim=st.lists(st.just(0.0) | st.floats(0.05, 100), min_size=3, max_size=3),
    patch_size=st.lists(st.integers(2, 4096) | st.just(-1), min_size=3, max_size=3),
    training=st.dictionaries(st.text(max_size=10), JSON.filter(lambda value: not huge(value)), max_size=3),
)
def test_every_valid_description_is_read(
    organs: list[str], pixdim: list[float], patch_size: list[int], training: dict[str, Any]
) -> None:
    record = read_record(
        description(organs=organs, pixdim=pixdim, patch_size=patch_size, training=training), "model.json"
    )
    assert (record.organs, record.pixdim, record.patch_size) == (organs, pixdim, patch_size)


def huge(value: Any) -> bool:
    """Whether there is a whole number inside that JSON does not hold exactly."""
    if isinstance(value, list | dict):
        return any(huge(item) for item in (value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and abs(value) > 2**53


def test_a_description_is_an_overlay_on_the_config_of_inference() -> None:
    parser = ConfigParser()
    parser.read_config(str(CONFIGS / "inference.yaml"))
    assert set(description()) <= set(parser.get())


# --- What it says about the training cases ---------------------------------------------------------------------------
SIZES = {"liver": {"cases": 2, "ml": 1500.0, "spread": 0.25}}


class Q:
    """Stands for a prior."""

    def plain(self) -> dict[str, Any]:
        return {"names": ["background", "liver"], "cases": 2}


def test_sizes_and_prior_are_in_the_record_and_not_in_the_config() -> None:
    values = {name: value for name, value in description().items() if name not in ("organs", "network_def")}
    network_def = description()["network_def"]
    record = describe_model(Vocabulary(["liver", "spleen"]), **values, network_def=network_def, sizes=SIZES, prior=Q())
    assert record.sizes == SIZES
    assert record.prior == {"names": ["background", "liver"], "cases": 2}
    assert read_record(json.loads(json.dumps(record.plain())), "model.pt") == record
    assert not {"sizes", "prior"} & set(record.config())
    bare = describe_model(Vocabulary(["liver", "spleen"]), **values, network_def=network_def)
    assert bare.sizes == bare.prior == {}
    assert list(differences(record, bare.config(), tuple(bare.config()))) == []


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ([], "names and sizes of organs, found []"),
        ({"pancreas": SIZES["liver"]}, 'organs of the model, found "pancreas"'),
        ({"liver": 1500}, "cases, ml and spread of the liver, found 1500"),
        ({"liver": {"cases": 2, "ml": 1500.0}}, "cases, ml and spread of the liver"),
        ({"liver": {**SIZES["liver"], "cases": 0}}, "1 case or more of the liver, found 0"),
        ({"liver": {**SIZES["liver"], "cases": 1.5}}, "1 case or more of the liver, found 1.5"),
        ({"liver": {**SIZES["liver"], "ml": 0}}, "a volume above 0"),
        ({"liver": {**SIZES["liver"], "ml": float("nan")}}, "a volume above 0"),
        ({"liver": {**SIZES["liver"], "spread": -0.1}}, "a spread from 0 on"),
        ({"liver": {**SIZES["liver"], "spread": float("inf")}}, "a spread from 0 on"),
    ],
)
def test_sizes_that_are_none_are_refused(sizes: Any, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)) as caught:
        read_record(description(sizes=sizes), "models/model.pt")
    assert str(caught.value).startswith("models/model.pt: sizes: expected ")


def test_a_prior_is_names_and_values() -> None:
    assert read_record(description(prior={"anything": [1]}), "model.pt").prior == {"anything": [1]}
    with pytest.raises(InputError, match="prior: expected names and values, found"):
        read_record(description(prior=[0.9, 0.1]), "model.pt")
