"""Numbers that are none are found wherever they are."""

import pytest
import torch
from torch import nn

from bundle.training.numbers import are_finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["0.weight", "1.running_var"])
def test_one_weight_or_buffer_that_is_no_number_is_found(name: str, value: float) -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    assert are_finite(network)
    network.state_dict()[name].view(-1)[1] = value
    assert not are_finite(network)


def test_infinities_of_both_signs_do_not_cancel() -> None:
    network = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[float("inf"), -float("inf")]]))
    assert not are_finite(network)


def test_a_network_without_weights_is_finite() -> None:
    assert are_finite(nn.ReLU())
