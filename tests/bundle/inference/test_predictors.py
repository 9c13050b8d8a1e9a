"""What is asked of a network in one window: means of probabilities, by hand; OpenVINO against PyTorch."""

import subprocess
from collections.abc import Callable

import pytest
import torch
from monai.networks.nets import UNet
from torch import Tensor, nn
from torch.nn import functional as F

from bundle.errors import InputError
from bundle.inference.predictors import Predictor, choose_backend
from bundle.inference.scaling import resized


def unet(seed: int = 0, spatial_dims: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return UNet(spatial_dims, 1, 3, (4, 8), (2,)).eval()


def window(*shape: int) -> Tensor:
    return torch.randn(2, 1, *shape, generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_one_network_gives_its_own_logits() -> None:
    given = window(8, 8, 4)
    torch.testing.assert_close(Predictor([unet()])(given), unet()(given), rtol=0, atol=0)


@torch.inference_mode()
def test_several_networks_give_the_mean_of_their_probabilities() -> None:
    given = window(8, 8, 4)
    expected = (unet(0)(given).softmax(1) + unet(1)(given).softmax(1)) / 2
    torch.testing.assert_close(Predictor([unet(0), unet(1)])(given).softmax(1), expected)


@torch.inference_mode()
def test_flips_are_undone_and_averaged() -> None:
    given = window(8, 8, 4)
    views = [unet()(given.flip(dims)).flip(dims).softmax(1) for dims in ([], [2], [4], [2, 4])]
    torch.testing.assert_close(Predictor([unet()], flips=[0, 2])(given).softmax(1), sum(views) / 4)


@torch.inference_mode()
def test_scales_are_undone_and_averaged() -> None:
    given, net = window(8, 8, 1), unet(spatial_dims=2)
    flat = given.squeeze(4)
    large = F.interpolate(net(F.interpolate(flat, (16, 16), mode="bilinear")), (8, 8), mode="bilinear")
    expected = (net(flat).softmax(1) + large.softmax(1)) / 2
    torch.testing.assert_close(Predictor([net], scales=[1, 2])(given).softmax(1), expected[..., None])


@pytest.mark.parametrize("thin", [0, 1, 2])
@torch.inference_mode()
def test_a_2d_network_sees_no_thin_axis(thin: int) -> None:
    shape = [8, 12, 16]
    shape[thin] = 1
    given, net = window(*shape), unet(spatial_dims=2)
    made = Predictor([net])(given)
    assert made.shape == (2, 3, *shape)
    torch.testing.assert_close(made.squeeze(2 + thin), net(given.squeeze(2 + thin)))


OPENVINO = """
import torch
from monai.networks.nets import DynUNet, UNet
from bundle.inference.predictors import Predictor
torch.manual_seed(0)
network = UNet(3, 1, 3, (4, 8), (2,)).eval()
predictor = Predictor([network], backend="openvino")
with torch.inference_mode():
    for shape in [(2, 1, 8, 8, 8), (1, 1, 8, 8, 8), (3, 1, 8, 8, 8), (2, 1, 16, 8, 8)]:
        given = torch.randn(shape)
        made, expected = predictor(given), network(given)
        assert made.shape == expected.shape
        assert not torch.equal(made, expected), "PyTorch answered"
        torch.testing.assert_close(made, expected, rtol=0, atol=1e-4)
    assert len(predictor.networks[0].compiled) == 2, "compiled once per window size"
    before = predictor(given)
with torch.no_grad():
    for value in network.parameters():
        value.mul_(1.5)
with torch.inference_mode():
    made = predictor(given)
    torch.testing.assert_close(made, network(given), rtol=0, atol=1e-4)
    assert (made - before).abs().max() > 1e-2, "results share memory, or the weights are the old ones"
network = DynUNet(3, 1, 3, [3] * 3, [1, 2, 2], [2] * 2, filters=[4] * 3, deep_supervision=True)
network(torch.randn(given.shape)).sum().backward()  # amid training
predictor = Predictor([network.eval()], backend="openvino")
with torch.inference_mode():
    torch.testing.assert_close(predictor(given), network(given), rtol=0, atol=1e-4)
"""


def test_openvino_agrees_with_pytorch(run_command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """In a process of its own: after PyTorch's data loader has forked workers, OpenVINO's threads upset this one."""
    pytest.importorskip("openvino", reason="OpenVINO is optional")
    finished = run_command("-W", "ignore", "-c", OPENVINO)
    assert finished.returncode == 0, finished.stderr[-2000:]


@pytest.mark.parametrize(("size", "scale", "expected"), [(96, 0.75, 64), (96, 1.25, 128), (96, 2.0, 192), (8, 1.5, 16),
                                                        (20, 1.5, 32), (4, 0.1, 4)])  # fmt: skip
def test_scaled_windows_are_as_divisible_as_the_window(size: int, scale: float, expected: int) -> None:
    assert resized(size, scale) == expected


def test_backends_are_chosen_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda:0")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert choose_backend("auto", cpu) == "openvino"
    assert choose_backend("auto", cuda) == "torch"
    assert choose_backend("torch", cpu) == "torch"
    with pytest.raises(InputError, match="openvino runs on the CPU, but the device is cuda:0"):
        choose_backend("openvino", cuda)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert choose_backend("auto", cpu) == "torch"
    with pytest.raises(InputError, match="openvino is not installed; pip install openvino"):
        choose_backend("openvino", cpu)
    with pytest.raises(InputError, match='expected one of auto, torch, openvino, found "tensorrt"'):
        choose_backend("tensorrt", cpu)
