"""Windows and sums: the numbers of MONAI's inferers, held for as long as they are needed."""

import pytest
import torch
from monai.inferers import SliceInferer, SlidingWindowInferer
from monai.networks.nets import UNet
from torch import Tensor

from bundle.inference.predictors import Predictor
from bundle.inference.windows import Windows, layer_numbers, probability_slabs

SHAPE = (30, 21, 40)


def network(spatial_dims: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return UNet(spatial_dims, 1, 4, (4, 8), (2,)).eval()


def image(shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@torch.inference_mode()
def whole(windows: Windows, net: torch.nn.Module, batch: int = 1) -> Tensor:
    """Probabilities of the volume, C×X×Y×Z, put together from slabs that follow each other without a gap."""
    parts, expected = [], 0
    for start, planes in probability_slabs(image(windows.shape)[None], Predictor([net]), windows, batch=batch):
        assert start == expected
        expected += len(planes)
        parts.append(planes)
    assert expected == windows.shape[windows.axis]
    return torch.cat(parts).movedim(0, 1 + windows.axis)


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.5, 0.75])
@pytest.mark.parametrize("shape", [SHAPE, (40, 21, 30), (24, 40, 30)])  # finished along z, x and y
def test_sums_are_those_of_monai_bit_by_bit(
    shape: tuple[int, ...], overlap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = Windows(shape, (16, 20, 12), overlap, "gaussian")
    with torch.inference_mode():
        logits = SlidingWindowInferer((16, 20, 12), 1, overlap, "gaussian")(image(shape)[None, None], network())
    torch.testing.assert_close(whole(windows, network()), logits[0].softmax(0), rtol=0, atol=2e-7)
    # Softmax itself rounds differently at the ends of its loops, so the sums are looked at without it.
    monkeypatch.setattr(Tensor, "softmax", lambda sums, dim: sums)
    assert torch.equal(whole(windows, network()), logits[0])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_slices_go_through_a_2d_network_as_in_monai(axis: int) -> None:
    size = [16, 16, 16]
    size[axis] = 1
    net = network(2)
    with torch.inference_mode():
        plane = [n for n in size if n != 1]
        logits = SliceInferer(spatial_dim=axis, roi_size=plane, sw_batch_size=1, overlap=0.25, mode="gaussian")(
            image()[None, None], net
        )
    windows = Windows(SHAPE, size, 0.25, "gaussian")
    assert windows.axis == axis
    torch.testing.assert_close(whole(windows, net, batch=5), logits[0].softmax(0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("overlap", [0.0, 0.25, 0.6, 0.75])
def test_zones_are_the_volume_in_order(overlap: float) -> None:
    windows = Windows((10, 10, 43), (10, 10, 12), overlap, "constant")
    zones = windows.zones()
    assert [zone.first for zone in zones] == [0, *(zone.end for zone in zones[:-1])]
    assert zones[-1].end == 43
    assert [zone.last_layer for zone in zones] == sorted(zone.last_layer for zone in zones)
    for zone in zones:
        covering = [n for n, start in enumerate(windows.starts[2]) if start <= zone.first and zone.end <= start + 12]
        assert zone.last_layer == max(windows.layer_of[n] for n in covering)


def test_positions_close_to_each_other_are_one_layer() -> None:
    assert layer_numbers([0, 72, 144, 150], 96) == [0, 1, 2, 2]
    assert layer_numbers([0, 24, 48, 72, 96], 96) == [0, 0, 1, 1, 2]
    assert layer_numbers([0], 96) == [0]
    windows = Windows((24, 24, 102), (16, 16, 48), 0.25, "constant")  # at 0, 36 and 54
    assert [sorted({index[2] for index in layer}) for layer in windows.layers()] == [[0], [1], [2]]
    windows = Windows((24, 24, 90), (16, 16, 48), 0.25, "constant")  # at 0, 36 and 42
    assert [sorted({index[2] for index in layer}) for layer in windows.layers()] == [[0], [1, 2]]
    assert all(layer == sorted(layer) for layer in windows.layers())


def test_what_is_held_does_not_grow_with_the_length() -> None:
    """Bytes of all sums and waiting pieces that are alive at once, followed while slabs come out."""

    class Watched(Windows):
        alive, most = 0, 0

        def zeros(self, *shape: int) -> Tensor:
            made = super().zeros(*shape)
            size = made.nbytes
            Watched.alive += size
            Watched.most = max(Watched.most, Watched.alive)
            import weakref

            weakref.finalize(made.untyped_storage(), lambda: setattr(Watched, "alive", Watched.alive - size))
            return made

    held = []
    for length in (41, 160, 161, 167):  # the last windows lie upon those before them, more or less
        Watched.alive = Watched.most = 0
        windows = Watched((24, 24, length), (16, 16, 16), 0.25, "gaussian")
        whole(windows, network())
        held.append(Watched.most)
        assert 0 < Watched.most <= windows.held_bytes(4)
    assert max(held) <= 1.3 * held[0]


def test_unwanted_windows_leave_background() -> None:
    windows = Windows((16, 16, 48), (16, 16, 16), 0.0, "constant")
    slabs = probability_slabs(
        image((16, 16, 48))[None], Predictor([network()]), windows, wanted=lambda index: index[2] == 1
    )
    with torch.inference_mode():
        planes = torch.cat([planes for _, planes in slabs])
    assert planes[:16].argmax(1).max() == 0
    assert planes[32:].argmax(1).max() == 0
    assert (planes[16:32, 0] < 1).all()
    torch.testing.assert_close(planes.sum(1), torch.ones(48, 16, 16))
