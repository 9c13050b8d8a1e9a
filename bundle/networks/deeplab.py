# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""DeepLabV3+ (Chen et al., ECCV 2018) for axial, coronal or sagittal slices, on MONAI's 2D ResNets.

Its convolutions after the backbone are depthwise separable, as in the paper: 26.7 M parameters with ResNet-50.
"""

# No `from __future__ import annotations`: it makes strings of the buffers' annotations, which TorchScript cannot read.

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from monai.networks.nets import ResNet
from torch import Tensor, nn
from torch.nn import functional as F

from bundle.errors import InputError

__all__ = ["DeepLabV3Plus"]

# Blocks and their inner channels per stage; every block puts out four times its inner channels.
BACKBONES = {
    "resnet50": ((3, 4, 6, 3), (64, 128, 256, 512)),
    "resnet101": ((3, 4, 23, 3), (64, 128, 256, 512)),
    "tiny": ((1, 2, 2, 2), (16, 32, 64, 128)),
}
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
RATES = {16: (6, 12, 18), 8: (12, 24, 36)}  # of the pyramid, for each output stride
CHANNELS = 256
LOW_LEVEL_CHANNELS = 48
DROPOUT = 0.1


def pointwise(in_channels: int, out_channels: int) -> nn.Sequential:
    convolution = nn.Conv2d(in_channels, out_channels, 1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))


def separable(in_channels: int, out_channels: int, rate: int = 1) -> nn.Sequential:
    """A 3×3 convolution as one per channel, dilated, and one across channels."""
    depthwise = nn.Conv2d(in_channels, in_channels, 3, padding=rate, dilation=rate, groups=in_channels, bias=False)
    return nn.Sequential(depthwise, *pointwise(in_channels, out_channels))


def resize(values: Tensor, size: list[int]) -> Tensor:
    return F.interpolate(values, size, mode="bilinear", align_corners=False)


def dilate(stage: nn.Sequential, first: int, others: int) -> None:
    """Trade the stride of a stage for dilation; MONAI's ResNet has no argument for it.

    The first block's 3×3 convolution still sees the grid of the stage before, the others see one twice as fine as they
    were trained on. So the features at every second place are exactly those of the stage with its stride.
    """
    for index, block in enumerate(stage):
        rate = first if index == 0 else others
        for module in block.modules():
            if isinstance(module, nn.Conv2d):
                module.stride = (1, 1)
                if module.kernel_size == (3, 3):
                    module.dilation = module.padding = (rate, rate)


class Backbone(ResNet):
    """A ResNet of torchvision's layout and state-dict keys that gives the features of its first and last stage."""

    def __init__(self, name: str, in_channels: int, output_stride: int) -> None:
        blocks, planes = BACKBONES[name]
        super().__init__(
            "bottleneck",
            list(blocks),
            list(planes),
            spatial_dims=2,
            n_input_channels=in_channels,
            conv1_t_size=7,
            conv1_t_stride=2,
            feed_forward=False,
            bias_downsample=False,
        )
        self.low_channels, self.high_channels = 4 * planes[0], 4 * planes[-1]
        if output_stride == 8:
            dilate(self.layer3, 1, 2)
            dilate(self.layer4, 2, 4)
        else:
            dilate(self.layer4, 1, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        low: Tensor = self.layer1(self.maxpool(self.act(self.bn1(self.conv1(x)))))  # stride 4
        return low, self.layer4(self.layer3(self.layer2(low)))


class Pyramid(nn.Module):
    """Atrous spatial pyramid pooling: one place seen at four scales, and the whole window's mean.

    The mean is normalized over groups of its channels, not over the batch as in the paper: it has one value per channel
    and sample, and the variance of a batch of one would be that of a single number (PyTorch refuses it). GroupNorm has
    as many parameters and works alike for every batch, in training and after it.
    """

    def __init__(self, in_channels: int, rates: Sequence[int]) -> None:
        super().__init__()
        scales = [separable(in_channels, CHANNELS, rate) for rate in rates]
        self.scales = nn.ModuleList([pointwise(in_channels, CHANNELS), *scales])
        self.pooling = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(in_channels, CHANNELS, 1, bias=False),
            nn.GroupNorm(32, CHANNELS),
            nn.ReLU(inplace=True),
        )
        self.project = nn.Sequential(*pointwise((len(rates) + 2) * CHANNELS, CHANNELS), nn.Dropout(DROPOUT))

    def forward(self, x: Tensor) -> Tensor:
        views = [self.pooling(x).expand(-1, -1, x.shape[2], x.shape[3])]
        for scale in self.scales:
            views.append(scale(x))
        return self.project(torch.cat(views, 1))


class DeepLabV3Plus(nn.Module):
    """DeepLabV3+: a dilated ResNet, atrous spatial pyramid pooling, and a decoder with features of stride 4.

    Every input channel is shown to the backbone as a gray picture: three equal channels, normalized with ImageNet's
    means and standard deviations as its weights expect. With n input channels the first convolution therefore has 3n,
    and takes ImageNet's weights divided by n: where all channels are the same slice, its output is that of the original
    weights for the slice as a gray picture, exactly, at the border too. (Folding the three into one would need a bias,
    since their means differ.)

    Args:
        spatial_dims: 2; other networks have this argument too.
        in_channels: channels of the input: 1 slice, or more for neighboring slices (2.5D).
        out_channels: classes.
        backbone: `resnet50`, `resnet101`, or `tiny`: a quarter of their width and 7 blocks, for tests.
        output_stride: 16, or 8 for finer features at three times the arithmetic.
        pretrained: a file with ImageNet weights as torchvision gives them (a state dict, `resnet50-….pth`), or None.
        intensity: the input's values for black and white.

    Raises:
        InputError: for other values, or a file that does not hold these weights.
    """

    offset: Tensor
    scale: Tensor

    def __init__(
        self,
        spatial_dims: int = 2,
        in_channels: int = 1,
        out_channels: int = 14,
        backbone: str = "resnet50",
        output_stride: int = 16,
        pretrained: str | None = None,
        intensity: Sequence[float] = (0, 255),
    ) -> None:
        super().__init__()
        check("spatial_dims", spatial_dims, [2])
        check("backbone", backbone, BACKBONES)
        check("output_stride", output_stride, RATES)
        self.backbone = Backbone(backbone, 3 * in_channels, output_stride)
        if pretrained is not None:
            load_imagenet(self.backbone, pretrained, backbone)
        self.pyramid = Pyramid(self.backbone.high_channels, RATES[output_stride])
        self.low_level = pointwise(self.backbone.low_channels, LOW_LEVEL_CHANNELS)
        self.decoder = nn.Sequential(
            separable(LOW_LEVEL_CHANNELS + CHANNELS, CHANNELS),
            separable(CHANNELS, CHANNELS),
            nn.Conv2d(CHANNELS, out_channels, 1),
        )
        black, white = check_intensity(intensity)
        mean, std = (torch.tensor(values).view(1, 1, 3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
        self.register_buffer("offset", black + (white - black) * mean, persistent=False)
        self.register_buffer("scale", (white - black) * std, persistent=False)

    def gray_pictures(self, x: Tensor) -> Tensor:
        """B×n×H×W to B×3n×H×W, normalized."""
        return ((x.unsqueeze(2) - self.offset) / self.scale).flatten(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        """
        Args:
            x: B×n×H×W, of any size.

        Returns:
            Logits, B×C×H×W.
        """
        low, high = self.backbone(self.gray_pictures(x))
        low = self.low_level(low)
        context = resize(self.pyramid(high), list(low.shape[2:]))
        logits = self.decoder(torch.cat([low, context], 1))
        return resize(logits, list(x.shape[2:]))


def check(name: str, value: object, known: Iterable[object]) -> None:
    if value not in known:
        raise InputError(f'network_def: {name}: expected one of {", ".join(map(str, known))}, found "{value}"')


def check_intensity(intensity: Sequence[float]) -> tuple[float, float]:
    black, white = (float(value) for value in intensity)
    if not black < white:
        raise InputError(f"network_def: intensity: expected a smaller and a larger value, found {list(intensity)}")
    return black, white


def read_state_dict(path: Path) -> dict[str, Tensor]:
    advice = "give a state dict of torchvision (resnet50-….pth), or leave pretrained at null"
    if not path.is_file():
        raise InputError(f"{path}: no such file of ImageNet weights; {advice}")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is not its own
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{path}: cannot be read as PyTorch weights ({reason} …); {advice}") from None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        found = f"keys {shortened(map(str, state))}" if isinstance(state, dict) else type(state).__name__
        raise InputError(f"{path}: expected names and tensors, found {found}; {advice}")
    return state


def load_imagenet(network: Backbone, path: str | Path, name: str) -> None:
    """Load torchvision's weights into a backbone.

    Raises:
        InputError: when the file is missing or is not a state dict, or keys or shapes differ.
    """
    path = Path(path)
    given = {key: value for key, value in read_state_dict(path).items() if not key.startswith("fc.")}
    expected = network.state_dict()
    pictures = network.conv1.in_channels // 3
    if "conv1.weight" in given and given["conv1.weight"].ndim == 4:
        given["conv1.weight"] = given["conv1.weight"].repeat(1, pictures, 1, 1) / pictures
    # torchvision's older files were written before BatchNorm counted its batches
    missing = [key for key in expected if key not in given and not key.endswith(".num_batches_tracked")]
    unexpected = [key for key in given if key not in expected]
    reshaped = [key for key in given if key in expected and given[key].shape != expected[key].shape]
    differences = {"missing": missing, "unexpected": unexpected, "of another shape": reshaped}
    if any(differences.values()):
        found = "; ".join(f"{what}: {shortened(keys)}" for what, keys in differences.items() if keys)
        raise InputError(
            f"{path}: not the ImageNet weights of {name} ({found}); give torchvision's file for this backbone, "
            f"or the backbone of this file"
        )
    network.load_state_dict(given, strict=False)


def shortened(keys: Iterable[str], most: int = 20) -> str:
    names = list(keys)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
