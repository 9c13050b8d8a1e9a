"""The network overlays: each builds its network with train.yaml, and a step of stage 2 reaches all its weights."""

import pytest
import torch
from monai.bundle import ConfigParser

from bundle.training.duals import PriorTerm
from bundle.training.losses import PannLoss
from tests.paths import CONFIGS

SMALL = {"network_def::feature_size": 12, "network_def::window_size": 4}  # Swin UNETR's own take ten times as long


def parsed(*overlays: str, base: str = "train") -> ConfigParser:
    parser = ConfigParser()
    parser.read_config([str(CONFIGS / f"{name}.yaml") for name in (base, *(f"overlays/{name}" for name in overlays))])
    return parser


@pytest.mark.parametrize(
    ("overlays", "size"),
    [
        (("paper_2d",), (64, 48)),
        (("paper_2d", "resnet101"), (64, 48)),
        (("dynunet",), (32, 32, 32)),
        (("segresnet",), (16, 16, 16)),
        (("swinunetr",), (64, 32, 32)),
    ],
)
def test_a_step_reaches_every_weight(overlays: tuple[str, ...], size: tuple[int, ...]) -> None:
    if "swinunetr" in overlays:
        pytest.importorskip("einops")
    torch.manual_seed(0)
    parser = parsed(*overlays)
    parser.update(SMALL if "swinunetr" in overlays else {})
    network, supervised = parser.get_parsed_content("network_def"), parser.get_parsed_content("supervised_loss")
    black, white = parser["intensity"]
    image = black + (white - black) * torch.rand(2, 1, *size)
    label = torch.randint(0, 14, (2, 1, *size), dtype=torch.uint8)
    loss = PannLoss(supervised, PriorTerm([1 / 14] * 14))
    loss(network.train()(image), {"label": label, "partial": torch.tensor([False, True])}).total.backward()
    assert all(
        parameter.grad is not None and torch.isfinite(parameter.grad).all() for parameter in network.parameters()
    )
    with torch.inference_mode():
        assert network.eval()(image).shape == (2, 14, *size)


def test_the_second_deeplab_differs_in_its_backbone_only() -> None:
    first, second = parsed("paper_2d"), parsed("paper_2d", "resnet101")
    assert first["network_def::backbone"] == "resnet50"
    second["network_def::backbone"] = "resnet50"
    assert first.get() == second.get()


@pytest.mark.parametrize("overlay", ["paper_2d", "dynunet", "segresnet"])
def test_inference_builds_the_same_network(overlay: str) -> None:
    with torch.device("meta"):
        trained, applied = (
            parsed(overlay, base=base).get_parsed_content("network_def") for base in ("train", "inference")
        )
    shapes = [{key: value.shape for key, value in network.state_dict().items()} for network in (trained, applied)]
    assert shapes[0] == shapes[1]
