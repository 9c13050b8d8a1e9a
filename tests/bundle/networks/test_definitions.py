"""A network_def from elsewhere: the networks it may name, the arguments it may have, and what is built of it."""

import inspect
from typing import Any

import pytest
import torch
from monai.bundle import ConfigParser
from monai.networks import nets
from torch import nn

from bundle.configs import RunningConfig
from bundle.errors import InputError
from bundle.networks.definitions import build_network, check_definition, check_plain, complete_definition, find_network
from tests.paths import CONFIGS

UNET = {"_target_": "UNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 3, "channels": [4, 8], "strides": [2]}


def test_networks_of_monai_and_ours_are_found_by_their_names() -> None:
    for name in ("UNet", "monai.networks.nets.UNet", "monai.networks.nets.unet.UNet"):
        assert find_network(name) is nets.UNet
    for name in ("bundle.networks.DeepLabV3Plus", "bundle.networks.deeplab.DeepLabV3Plus"):
        assert find_network(name).__name__ == "DeepLabV3Plus"


@pytest.mark.parametrize(
    "target",
    [
        "os.system", "builtins.eval", "subprocess.run", "torch.load", "torch.nn.Linear", "torch.hub.load", "nn.Module",
        "monai.networks.nets.resnet50", "monai.apps.download_url", "monai.bundle.run", "monai.networks.nets.nn.Module",
        "bundle.networks.deeplab.torch.load", "bundle.networks.deeplab.Backbone", "bundle.networks.definitions.inspect",
        "DeepLabV3Plus", "unet", "x.UNet", ".UNet", "UNet.", "", None, 3, ["UNet"], {"_target_": "UNet"},
    ],
)  # fmt: skip
def test_nothing_else_is_a_network(target: Any) -> None:
    with pytest.raises(InputError, match=r"model.pt: network_def: expected a network of MONAI, or one that"):
        check_definition({**UNET, "_target_": target}, "model.pt")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("act", "$print('run')", "nothing in them is executed"),
        ("act", " $print('run')", "nothing in them is executed"),
        ("act", "@device", "nothing in them is executed"),
        ("act", "%other.yaml::act", "nothing in them is executed"),
        ("act", ["relu", {"inplace": "$print('run')"}], "nothing in them is executed"),
        ("act", [[["$print('run')"]]], "nothing in them is executed"),
        ("act", {"_target_": "torch.nn.ReLU"}, "is no argument of a network"),
        ("act", ["relu", {"_target_": "os.system"}], "is no argument of a network"),
        ("_requires_", "x", "is no argument of a network"),
        ("_disabled_", True, "is no argument of a network"),
        ("_mode_", "debug", "is no argument of a network"),
        ("_desc_", "x", "is no argument of a network"),
        ("act::0", "x", "is no argument of a network"),
        ("act#0", "x", "is no argument of a network"),
        ("+act", "x", "is no argument of a network"),
        ("pretrained", True, "would load another file"),
        ("pretrained", "resnet50.pth", "would load another file"),
        ("pretrained_url", "https://example.org/x", "would load another file"),
        ("weights_path", "/etc/passwd", "would load another file"),
        ("norm", ["batch", {"file": "/etc/passwd"}], "would load another file"),
        ("channels", [4, 10**9], "expected numbers up to 1000000"),
        ("dropout", float("nan"), "expected numbers up to 1000000"),
        ("act", nn.ReLU, "expected text and numbers"),
        ("channels", torch.ones(2), "expected text and numbers, found Tensor"),
        ("channels", [1] * 20_000, "at most 10000 values"),
    ],
)
def test_arguments_are_plain_data(name: str, value: Any, said: str) -> None:
    with pytest.raises(InputError, match=rf"model.pt: .*{said}"):
        check_definition({**UNET, name: value}, "model.pt")


def test_ordinary_arguments_are_allowed() -> None:
    norm = ["group", {"num_groups": 2}]
    check_definition({**UNET, "norm": norm, "act": "relu", "dropout": 0.1, "bias": False}, "model.pt")
    check_definition({"_target_": "SwinUNETR", "dropout_path_rate": 0.1, "use_checkpoint": True}, "model.pt")
    check_definition({"_target_": "FlexibleUNet", "pretrained": None, "backbone": "efficientnet-b0"}, "model.pt")


def test_networks_that_load_files_unless_told_otherwise_are_told() -> None:
    assert inspect.signature(nets.EfficientNetBN).parameters["pretrained"].default is True
    network = {"_target_": "EfficientNetBN", "model_name": "efficientnet-b0"}
    with pytest.raises(InputError, match="pretrained: True would load another file or download it"):
        check_definition(network, "model.pt")
    check_definition({**network, "pretrained": False}, "model.pt")


def test_data_that_refers_to_itself_or_multiplies_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    laughs: list[Any] = ["ha"]
    for _ in range(12):
        laughs = [laughs] * 10
    for data in (loop, laughs, {"a": loop}):
        with pytest.raises(InputError, match="model.pt: expected a description of a model, at most"):
            check_plain(data, "model.pt")


@pytest.mark.parametrize("overlay", [None, "paper_2d", "dynunet", "segresnet", "swinunetr"])
def test_every_network_of_the_overlays_is_built_from_its_description(overlay: str | None) -> None:
    if overlay == "swinunetr":
        pytest.importorskip("einops")
    parser = ConfigParser()
    overlays = [] if overlay is None else [str(CONFIGS / "overlays" / f"{overlay}.yaml")]
    parser.read_config([str(CONFIGS / "train.yaml"), *overlays])
    if overlay == "swinunetr":
        parser["network_def::feature_size"] = 12
    network = parser.get_parsed_content("network_def")
    described = RunningConfig(parser.ref_resolver).section("network_def")
    built = build_network(described, network.state_dict(), "model.pt")
    assert type(built) is type(network)
    built.load_state_dict(network.state_dict())
    buffers = dict(built.named_buffers())  # also those that are in no state dict have values
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in network.named_buffers())
    assert not any(value.is_meta for value in [*built.parameters(), *buffers.values()])


def test_a_description_of_another_network_is_refused_before_memory_is_allocated() -> None:
    weights = nets.UNet(3, 1, 3, (4, 8), (2,)).state_dict()
    build_network(UNET, weights, "model.pt")
    huge = {**UNET, "channels": [100_000, 200_000]}  # 2 TB for a single convolution
    for other in ({**UNET, "out_channels": 4}, {**UNET, "channels": [4, 8, 8], "strides": [2, 2]}, huge):
        with pytest.raises(InputError, match=r"model.pt: the description does not fit the weights"):
            build_network(other, weights, "model.pt")


def test_a_network_without_end_is_refused() -> None:
    weights = nets.UNet(3, 1, 3, (4, 8), (2,)).state_dict()
    for endless in ({**UNET, "num_res_units": 1_000_000}, {"_target_": "SegResNet", "blocks_down": [1_000_000]}):
        with pytest.raises(InputError, match=r"model.pt: network_def: the network has more .* than its"):
            build_network(endless, weights, "model.pt")
    deep = {**UNET, "channels": [4] * 2000, "strides": [2] * 1999}
    with pytest.raises(InputError, match=r"model.pt: network_def: "):
        build_network(deep, weights, "model.pt")


def test_arguments_that_a_network_does_not_take_are_refused() -> None:
    for wrong in ({"chanels": [4, 8]}, {"channels": []}, {"act": "nonsense"}, {"spatial_dims": "three"}):
        with pytest.raises(InputError, match=r"model.pt: network_def: UNet cannot be built with these arguments"):
            build_network({**UNET, **wrong}, {}, "model.pt")
    deeplab = {"_target_": "bundle.networks.DeepLabV3Plus", "backbone": "vgg"}
    with pytest.raises(InputError, match=r"^model.pt: network_def: backbone: expected one of resnet50"):
        build_network(deeplab, {}, "model.pt")


def test_defaults_complete_a_definition() -> None:
    short, long = UNET, {**UNET, "_target_": "monai.networks.nets.UNet", "num_res_units": 0, "channels": (4, 8)}
    assert complete_definition(short) == complete_definition(long)
    assert complete_definition(short) != complete_definition({**UNET, "num_res_units": 1})
