"""Components before they are built: targets and arguments that there are not, references into nothing."""

from typing import Any

import pytest
import torch
from monai.bundle import ConfigParser

from bundle.configs.components import Signature, find_component_mistakes, find_reference_mistakes, is_python
from bundle.configs.relations import Mistake
from bundle.training.trainer import PannTrainer


def mistakes(**config: Any) -> list[Mistake]:
    parser = ConfigParser(config)
    parser.parse()
    parser.get_parsed_content("seed", default=None)
    return [*find_component_mistakes(parser.ref_resolver), *find_reference_mistakes(parser.ref_resolver)]


NETWORK = {
    "_target_": "UNet",
    "spatial_dims": 3,
    "in_channels": 1,
    "out_channels": 2,
    "channels": [4, 8],
    "strides": [2],
}


def test_a_right_component_is_left_alone() -> None:
    assert mistakes(net=NETWORK, optimizer={"_target_": "torch.optim.Adam", "params": "$@net.parameters()"}) == []


@pytest.mark.parametrize(
    ("changes", "about", "sentence"),
    [
        ({"chanels": 1}, "nets::0::chanels", 'UNet has no argument "chanels"; did you mean "channels"?'),
        ({"_target_": "UNett"}, "nets::0::_target_", 'there is no "UNett"; did you mean "UNet"?'),
        ({"_target_": "torch.optim.Adm"}, "nets::0::_target_", 'did you mean "torch.optim.Adam"?'),
        ({"_target_": 3}, "nets::0::_target_", "expected the name of a class or function, found 3"),
        ({"in_channels": "@conntext"}, "nets::0::in_channels", 'refers to "@conntext", which is not there'),
        ({"in_channels": "$1 +"}, "nets::0::in_channels", "expected an expression in Python after $, found '$1 +'"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_at_any_depth(changes: dict[str, Any], about: str, sentence: str) -> None:
    found = mistakes(nets=[{**NETWORK, **changes}], context=1)
    assert [mistake for mistake in found if mistake.ids == (about,) and sentence in mistake.sentence]


def test_missing_arguments_are_named() -> None:
    [mistake] = mistakes(net={key: value for key, value in NETWORK.items() if key not in ("strides", "channels")})
    assert mistake == Mistake(("net",), "UNet needs channels, strides; add what is missing")
    assert mistakes(net={"_target_": "UNet", "_mode_": "callable"}) == []


def test_arguments_that_are_handed_on_count_as_those_of_the_parents() -> None:
    signature = Signature(PannTrainer)
    assert {"labeler", "train_data_loader", "amp"} <= signature.names
    assert not signature.takes_all
    assert Signature(lambda **options: options).takes_all
    assert "params" in Signature(torch.optim.Adam).needed


def test_expressions_with_references_are_python() -> None:
    assert is_python("@net::0.to(@device) if @a#b else 'x'")
    assert is_python("import torch")
    assert not is_python("@net::")
