"""DeepLabV3+: the published size, torchvision's weights, dilation that keeps their meaning, and what leaves PyTorch."""

from pathlib import Path

import pytest
import torch
from monai.networks.nets import ResNet
from torch import Tensor, nn
from torch.nn import functional as F

from bundle.errors import InputError
from bundle.networks import DeepLabV3Plus
from bundle.networks.deeplab import Backbone


def tiny(seed: int = 0, **values: object) -> DeepLabV3Plus:
    torch.manual_seed(seed)
    return DeepLabV3Plus(backbone="tiny", **values)  # type: ignore[arg-type]


def scans(*shape: int, seed: int = 0) -> Tensor:
    return 255 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def settle_statistics(network: nn.Module) -> None:
    """Running statistics as after training: none of them 0 or 1."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.2, 0.2)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]


# --- Size and shape --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("backbone", "millions"), [("resnet50", 26.7), ("resnet101", 45.7)])
def test_parameters_are_as_many_as_published(backbone: str, millions: float) -> None:
    # segmentation-models-pytorch lists DeepLabV3Plus with these
    with torch.device("meta"):
        network = DeepLabV3Plus(backbone=backbone, out_channels=21)
    assert round(sum(parameter.numel() for parameter in network.parameters()) / 1e6, 1) == millions


@torch.inference_mode()
@pytest.mark.parametrize("size", [(64, 64), (97, 50), (33, 128), (16, 16), (5, 7)])
@pytest.mark.parametrize("output_stride", [8, 16])
def test_logits_have_the_size_of_the_input(size: tuple[int, int], output_stride: int) -> None:
    network = tiny(in_channels=3, out_channels=5, output_stride=output_stride).eval()
    logits = network(scans(2, 3, *size))
    assert logits.shape == (2, 5, *size)
    assert torch.isfinite(logits).all()


# --- Dilation --------------------------------------------------------------------------------------------------------
@torch.inference_mode()
@pytest.mark.parametrize("output_stride", [8, 16])
def test_dilated_features_are_those_of_the_resnet_between_its_places(output_stride: int) -> None:
    torch.manual_seed(0)
    dilated = Backbone("tiny", 3, output_stride)
    settle_statistics(dilated)
    plain = ResNet("bottleneck", [1, 2, 2, 2], [16, 32, 64, 128], 2, 3, 7, 2, feed_forward=False, bias_downsample=False)
    plain.load_state_dict(dilated.state_dict())
    low, high = dilated.eval()(scans(1, 3, 128, 96) / 255)
    assert low.shape == (1, 64, 32, 24)
    assert high.shape == (1, 512, 128 // output_stride, 96 // output_stride)
    features = nn.Sequential(*list(plain.eval().children())[:-1])(scans(1, 3, 128, 96) / 255)  # all but the pooling
    step = 32 // output_stride
    assert features.shape[2:] == (4, 3)
    torch.testing.assert_close(high[:, :, ::step, ::step], features, rtol=1e-4, atol=1e-5)


# --- ImageNet weights ------------------------------------------------------------------------------------------------
def torchvision_keys(blocks: list[int]) -> set[str]:
    """The names in torchvision's files of bottleneck ResNets, written down from its source."""
    statistics = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    keys = {"conv1.weight", "fc.weight", "fc.bias"} | {f"bn1.{name}" for name in statistics}
    for layer, count in enumerate(blocks, 1):
        for block in range(count):
            place = f"layer{layer}.{block}"
            keys |= {f"{place}.conv{index}.weight" for index in (1, 2, 3)}
            keys |= {f"{place}.bn{index}.{name}" for index in (1, 2, 3) for name in statistics}
        keys |= {f"layer{layer}.0.downsample.0.weight"} | {f"layer{layer}.0.downsample.1.{name}" for name in statistics}
    return keys


@pytest.mark.parametrize(
    ("backbone", "blocks", "entries"), [("resnet50", [3, 4, 6, 3], 320), ("resnet101", [3, 4, 23, 3], 626)]
)
def test_backbones_have_torchvision_s_keys_and_layers(backbone: str, blocks: list[int], entries: int) -> None:
    with torch.device("meta"):
        network = Backbone(backbone, 3, 16)
    keys = set(network.state_dict())
    assert {"layer1.0.downsample.0.weight", "layer4.2.bn3.running_var", "layer3.5.conv2.weight", "bn1.bias"} <= keys
    assert keys | {"fc.weight", "fc.bias"} == torchvision_keys(blocks)
    assert len(keys) + 2 == entries
    assert network.state_dict()["layer4.0.downsample.0.weight"].shape == (2048, 1024, 1, 1)
    pool, first = network.maxpool, network.conv1
    assert (pool.kernel_size, pool.stride, pool.padding, pool.ceil_mode) == (3, 2, 1, False)
    assert (first.kernel_size, first.stride, first.padding) == ((7, 7), (2, 2), (3, 3))


@pytest.fixture
def imagenet(tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    """A file in torchvision's format for the tiny backbone, and what is in it."""
    torch.manual_seed(7)
    network = ResNet("bottleneck", [1, 2, 2, 2], [16, 32, 64, 128], 2, 3, 7, 2, num_classes=1000, bias_downsample=False)
    settle_statistics(network)
    torch.save(network.state_dict(), tmp_path / "resnet.pth")
    return tmp_path / "resnet.pth", network.state_dict()


def gray_picture(slices: Tensor) -> Tensor:
    """B×1×H×W in [0, 255] as a picture is given to torchvision's networks."""
    means, stds = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    return torch.cat([(slices / 255 - mean) / std for mean, std in zip(means, stds, strict=True)], 1)


@torch.inference_mode()
@pytest.mark.parametrize("in_channels", [1, 3, 5])
def test_a_slice_gives_what_the_weights_give_for_a_gray_picture(
    imagenet: tuple[Path, dict[str, Tensor]], in_channels: int
) -> None:
    path, weights = imagenet
    network = tiny(in_channels=in_channels, pretrained=str(path)).eval()
    slices = scans(2, 1, 40, 56)
    expected = F.conv2d(gray_picture(slices), weights["conv1.weight"], stride=2, padding=3)
    ours = network.backbone.conv1(network.gray_pictures(slices.expand(-1, in_channels, -1, -1)))
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        network.backbone.state_dict()["layer4.1.bn3.running_var"], weights["layer4.1.bn3.running_var"]
    )


@torch.inference_mode()
def test_neighbouring_slices_weigh_alike(imagenet: tuple[Path, dict[str, Tensor]]) -> None:
    path, weights = imagenet
    network = tiny(in_channels=3, pretrained=str(path))
    slices = scans(1, 3, 32, 32)
    alone = [F.conv2d(gray_picture(one), weights["conv1.weight"], stride=2, padding=3) for one in slices.split(1, 1)]
    ours = network.backbone.conv1(network.gray_pictures(slices))
    torch.testing.assert_close(ours, torch.stack(alone).mean(0), rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_the_intensity_range_is_undone() -> None:
    wide, narrow = tiny().eval(), tiny(intensity=[-1, 1]).eval()
    slices = scans(1, 1, 32, 32)
    torch.testing.assert_close(wide(slices), narrow(2 * slices / 255 - 1), rtol=1e-4, atol=1e-5)
    assert not {"offset", "scale"} & set(wide.state_dict())


def test_files_from_before_batches_were_counted_load(imagenet: tuple[Path, dict[str, Tensor]]) -> None:
    path, weights = imagenet
    torch.save({key: value for key, value in weights.items() if "num_batches" not in key}, path)
    torch.testing.assert_close(
        tiny(pretrained=str(path)).backbone.layer1[0].conv1.weight, weights["layer1.0.conv1.weight"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layer4.1.conv3.weight": None}, r"of tiny \(missing: layer4.1.conv3.weight\); give torchvision's file"),
        ({"layer5.0.conv1.weight": torch.zeros(1)}, r"\(unexpected: layer5.0.conv1.weight\)"),
        ({"bn1.bias": torch.zeros(3)}, r"\(of another shape: bn1.bias\)"),
        ({"conv1.weight": torch.zeros(16, 1, 7, 7)}, r"\(of another shape: conv1.weight\)"),
        (
            {f"extra{index}": torch.zeros(1) for index in range(22)},
            r"unexpected: extra0, extra1, .* extra19 and 2 more",
        ),
    ],
)
def test_weights_of_another_network_are_refused(
    imagenet: tuple[Path, dict[str, Tensor]], change: dict[str, Tensor | None], message: str
) -> None:
    path, weights = imagenet
    changed = {key: value for key, value in {**weights, **change}.items() if value is not None}
    torch.save(changed, path)
    with pytest.raises(InputError, match=rf"resnet.pth: not the ImageNet weights.*{message}"):
        tiny(pretrained=str(path))


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "resnet.pth"
    with pytest.raises(
        InputError, match=r"resnet.pth: no such file of ImageNet weights; give a state dict of torchvision"
    ):
        tiny(pretrained=str(path))
    path.write_text("no weights")
    with pytest.raises(InputError, match=r"resnet.pth: cannot be read as PyTorch weights .*leave pretrained at null"):
        tiny(pretrained=str(path))
    torch.save([torch.zeros(1)], path)
    with pytest.raises(InputError, match="expected names and tensors, found list"):
        tiny(pretrained=str(path))
    torch.save({"state_dict": {}, "epoch": 3}, path)
    with pytest.raises(InputError, match="expected names and tensors, found keys state_dict, epoch"):
        tiny(pretrained=str(path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"spatial_dims": 3}, 'spatial_dims: expected one of 2, found "3"'),
        ({"backbone": "resnet18"}, 'backbone: expected one of resnet50, resnet101, tiny, found "resnet18"'),
        ({"output_stride": 32}, 'output_stride: expected one of 16, 8, found "32"'),
        (
            {"backbone": "tiny", "intensity": [255, 0]},
            r"intensity: expected a smaller and a larger value, found \[255, 0\]",
        ),
    ],
)
def test_other_values_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DeepLabV3Plus(**values)  # type: ignore[arg-type]


# --- Training --------------------------------------------------------------------------------------------------------
def test_a_batch_of_one_slice_trains() -> None:
    network = tiny(out_channels=2)
    image, label = torch.full((1, 1, 48, 48), 80.0), torch.zeros(1, 48, 48, dtype=torch.long)
    image[:, :, 10:30, 20:40], label[:, 10:30, 20:40] = 160.0, 1
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(network(image), label)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert all(
        parameter.grad is not None and torch.isfinite(parameter.grad).all() for parameter in network.parameters()
    )
    assert losses[-1] < losses[0] / 4


# --- Outside PyTorch -------------------------------------------------------------------------------------------------
@torch.inference_mode()
def test_torchscript_agrees_for_any_size(tmp_path: Path) -> None:
    network = tiny().eval()
    torch.jit.script(network).save(tmp_path / "model.ts")
    scripted = torch.jit.load(tmp_path / "model.ts")
    for size in ((64, 64), (97, 50)):
        given = scans(1, 1, *size)
        torch.testing.assert_close(scripted(given), network(given))


def test_onnx_agrees(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="ONNX is optional")
    from onnx.reference import ReferenceEvaluator

    network, given = tiny().eval(), scans(1, 1, 33, 48)
    torch.onnx.export(network, (given,), tmp_path / "model.onnx", input_names=["image"], output_names=["pred"])
    (made,) = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, {"image": given.numpy()})
    torch.testing.assert_close(torch.from_numpy(made), network(given).detach(), rtol=1e-4, atol=1e-5)
