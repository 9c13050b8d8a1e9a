"""The engine against MONAI's straightforward pipeline, voxel by voxel; any geometry; what it holds in memory."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.inferers import SlidingWindowInferer
from monai.networks.nets import UNet
from monai.transforms import Compose, Invertd, Orientationd, Spacingd
from scipy.spatial.transform import Rotation
from torch import Tensor, nn
from torch.nn import functional as F

from bundle.errors import InputError
from bundle.inference.body import box_around, find_body
from bundle.inference.inferers import SlabInferer, ViewInferer
from bundle.scans.grids import ScanGrid
from bundle.transforms.resampling import to_network

PIXDIM = (1.5, 1.5, 2.0)


def make_scan(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Smooth blobs, so that neighbouring voxels mostly agree, as in a CT."""
    noise = torch.randn(1, 1, *[-(-n // 6) + 1 for n in shape], generator=torch.Generator().manual_seed(seed))
    return (100 * F.interpolate(noise, shape, mode="trilinear")[0, 0]).round().numpy().astype(np.int16)


def make_network(spatial_dims: int = 3, channels: int = 5) -> nn.Module:
    torch.manual_seed(1)
    network = UNet(spatial_dims, 1, channels, (4, 8, 16), (2, 2), num_res_units=1)
    return network.eval()


def spacing(x: float, y: float, z: float) -> np.ndarray:
    return np.diag([x, y, z, 1.0])


def oblique(affine: np.ndarray) -> np.ndarray:
    turned = np.eye(4)
    turned[:3, :3] = Rotation.from_euler("xyz", [12, -8, 20], degrees=True).as_matrix()
    turned[:3, 3] = [-31.5, 12.25, 400]
    return turned @ affine


def sheared(affine: np.ndarray) -> np.ndarray:
    shear = np.eye(4)
    shear[0, 1], shear[1, 2] = 0.15, -0.2
    return shear @ affine


def on_network(voxels: np.ndarray, affine: np.ndarray) -> MetaTensor:
    """A scan as `LoadOnNetworkGridd` gives it."""
    grid = ScanGrid.spaced(voxels.shape, affine, PIXDIM)
    meta = {"original_affine": affine, "spatial_shape": np.array(voxels.shape)}
    return MetaTensor(to_network(voxels, grid)[None], affine=torch.as_tensor(grid.network_affine), meta=meta)


def straightforward(voxels: np.ndarray, affine: np.ndarray, network: nn.Module, inferer: object) -> np.ndarray:
    """Orientationd, Spacingd, SlidingWindowInferer, softmax, Invertd, argmax."""
    image = MetaTensor(torch.as_tensor(voxels.astype(np.float32))[None], affine=torch.as_tensor(affine))
    before = Compose([Orientationd("image", "RAS", labels=None), Spacingd("image", PIXDIM)])
    data = before({"image": image})
    with torch.inference_mode():
        logits = inferer(data["image"][None], network)
    data["pred"] = MetaTensor(logits[0].softmax(0), meta=data["image"].meta)
    data["pred"].applied_operations = data["image"].applied_operations
    inverse = Invertd("pred", before, "image", nearest_interp=False, to_tensor=True)
    return inverse(data)["pred"].argmax(0).numpy()


CASES = {
    "axial": ((60, 52, 30), spacing(0.8, 0.8, 2.5)),
    "long": ((40, 44, 90), spacing(1.2, 0.9, 2.0)),
    "thin slices": ((30, 34, 70), spacing(1.5, 1.5, 0.7)),
    "thick slices": ((44, 40, 9), spacing(0.9, 0.9, 10.0)),
    "flipped and swapped": ((44, 28, 52), oblique(np.diag([-0.9, 1.1, -1.7, 1]))[:, [2, 0, 1, 3]]),
    "sheared": ((48, 44, 26), sheared(spacing(1.0, 0.9, 2.2))),
    "one slice": ((60, 60, 1), spacing(0.8, 0.8, 5.0)),
}


@pytest.mark.parametrize(
    ("case", "overlap", "mode"),
    [*((case, 0.25, "constant") for case in CASES), ("axial", 0.5, "gaussian"), ("long", 0.7, "gaussian")],
)
def test_labels_are_those_of_the_straightforward_pipeline(case: str, overlap: float, mode: str) -> None:
    shape, affine = CASES[case]
    voxels, network, window = make_scan(shape), make_network(), (24, 16, 20)
    expected = straightforward(voxels, affine, network, SlidingWindowInferer(window, 1, overlap, mode))
    made = SlabInferer(window, overlap, mode, grid="scan")(on_network(voxels, affine)[None], network)
    assert len(np.unique(expected)) > 2  # or there would be nothing to compare
    np.testing.assert_array_equal(made[0, 0].numpy(), expected)


@pytest.mark.parametrize("case", CASES)
def test_a_scan_on_the_network_s_grid_is_that_of_monai(case: str) -> None:
    shape, affine = CASES[case]
    voxels = make_scan(shape)
    image = MetaTensor(torch.as_tensor(voxels.astype(np.float32))[None], affine=torch.as_tensor(affine))
    expected = Compose([Orientationd("image", "RAS", labels=None), Spacingd("image", PIXDIM)])({"image": image})[
        "image"
    ]
    made = on_network(voxels, affine)
    np.testing.assert_allclose(made.affine, expected.affine, atol=1e-10)
    assert made.shape == expected.shape
    np.testing.assert_allclose(made.numpy(), expected.numpy(), rtol=1e-6, atol=1e-5)


# --- Air -------------------------------------------------------------------------------------------------------------
class Watching(nn.Module):
    """A network that calls what is bright an organ, and counts its windows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.windows = 0

    def forward(self, image: Tensor) -> Tensor:
        self.windows += len(image)
        return torch.cat([100 - image, image - 100], 1)


def body_in_air() -> Tensor:
    """1×1×64×64×96: at one end a body of 50 with an organ of 200 in it; a speck and a table in the air."""
    image = torch.zeros(1, 1, 64, 64, 96)
    image[..., 12:40, 20:52, 8:40] = 50
    image[..., 20:30, 28:36, 14:30] = 200
    image[..., 60, 60, 90] = 200
    image[..., 20:30, 58:60, :16] = 120
    return image


def test_windows_without_body_are_skipped() -> None:
    image, everywhere, skipping = body_in_air(), Watching(), Watching()
    expected = SlabInferer((16, 16, 16), 0.25)(image, everywhere)
    labels = SlabInferer((16, 16, 16), 0.25, air=0.0)(image, skipping)
    assert skipping.windows < everywhere.windows / 3
    assert expected[..., 60, 60, 90] == 1  # without skipping a speck counts
    assert expected[..., 20:30, 28:36, 14:30].all()
    expected[..., 56:64, 56:64, 84:96] = 0
    expected[..., 20:30, 58:60, :16] = labels[..., 20:30, 58:60, :16] = 0  # where windows reach beyond the body
    assert torch.equal(labels, expected)


def test_a_body_is_found_and_small_things_are_not() -> None:
    body = find_body(body_in_air()[0, 0], 0.0)
    assert body.shape == (16, 16, 24)
    assert body[3:10, 5:13, 2:10].all()
    assert body.sum() == 7 * 8 * 8


@pytest.mark.parametrize("shape", [(40, 40, 1), (3, 3, 3), (40, 2, 40)])
def test_thin_volumes_have_a_body_too(shape: tuple[int, ...]) -> None:
    scan = np.full(shape, -1000, np.int16)
    scan[: shape[0] // 2 + 1] = 200
    labels = SlabInferer((16, 16, 16), air=0.0, grid="scan")(on_network(scan, spacing(1.5, 1.5, 2.0))[None], Watching())
    np.testing.assert_array_equal(labels[0, 0].numpy(), scan > 100)


@pytest.mark.parametrize(("where", "expected"), [(0, (0, 24)), (7, (20, 44)), (14, (38, 62))])
def test_a_box_is_at_least_a_window_and_inside_the_volume(where: int, expected: tuple[int, int]) -> None:
    blocks = np.zeros((16, 16, 16), bool)
    blocks[where : where + 2, :, 4] = True
    box = box_around(blocks, (62, 64, 64), (24, 24, 8))
    assert (box[0].start, box[0].stop) == expected
    assert box[1] == slice(0, 64)
    assert box[2] == slice(12, 24)  # four voxels, and a block on both sides


@pytest.mark.parametrize("grid", ["scan", "network"])
def test_nothing_but_air_is_background(grid: str) -> None:
    image, network = on_network(np.full((30, 30, 20), -1000, np.int16), spacing(1.5, 1.5, 2.0)), Watching()
    labels = SlabInferer((16, 16, 16), air=0.0, grid=grid)(image[None], network)
    assert labels.shape == (1, 1, 30, 30, 20)
    assert labels.max() == 0
    assert network.windows == 0


def test_a_volume_smaller_than_a_window_is_padded_as_in_monai() -> None:
    image, network = torch.as_tensor(make_scan((10, 30, 7)).astype(np.float32)), make_network()
    with torch.inference_mode():
        expected = SlidingWindowInferer((16, 16, 16), 1, 0.25, "gaussian")(image[None, None], network).argmax(1)
    assert len(expected.unique()) > 1
    labels = SlabInferer((16, 16, 16), 0.25)(image[None, None], network)
    assert torch.equal(labels[:, 0], expected.to(torch.uint8))
    assert SlabInferer((16, 16, -1), 0.25)(torch.zeros(1, 1, 16, 16, 24), make_network()).shape == (1, 1, 16, 16, 24)


# --- Several networks, several views ----------------------------------------------------------------------------------
def test_views_are_averaged() -> None:
    image = torch.as_tensor(make_scan((20, 24, 28)).astype(np.float32)) / 100
    sizes = [(16, 16, 1), (16, 1, 16), (1, 16, 16)]
    networks = [make_network(2), make_network(2), make_network(2)]
    for network, factor in zip(networks, (1.0, 1.2, -0.7), strict=True):
        network.model[-1][0].conv.weight.data *= factor
    views = [SlabInferer(size, 0.25) for size in sizes]
    total = torch.zeros(5, 20, 24, 28)
    with torch.inference_mode():
        for view, network in zip(views, networks, strict=True):
            axis, slabs = view.slabs(image, network)
            total += torch.cat([planes for _, planes in slabs]).movedim(0, 1 + axis)
    labels = ViewInferer(views)(image[None, None], nn.ModuleList(networks))
    assert len(labels.unique()) > 2
    assert torch.equal(labels[0, 0], (total / 3).argmax(0).to(torch.uint8))
    single = [view(image[None, None], network) for view, network in zip(views, networks, strict=True)]
    assert all((labels != one).any() for one in single)  # no view alone says the same


def test_views_need_a_network_each() -> None:
    with pytest.raises(ValueError, match="a ModuleList of 2 networks"):
        ViewInferer([SlabInferer((8, 8, 1)), SlabInferer((8, 1, 8))])(torch.zeros(1, 1, 8, 8, 8), make_network(2))


class Ramps(nn.Module):
    """A 2D network whose answer depends on the slice's values, rows and columns, each with a weight of its own."""

    def __init__(self, rows: float, columns: float) -> None:
        super().__init__()
        self.rows, self.columns = rows, columns

    def forward(self, image: Tensor) -> Tensor:
        rows = self.rows * torch.arange(image.shape[2])[:, None].expand_as(image)
        columns = self.columns * torch.arange(image.shape[3])[None, :].expand_as(image)
        return torch.cat([image, rows, columns], 1)


AXIAL, CORONAL, SAGITTAL = (-1, -1, 1), (-1, 1, -1), (1, -1, -1)


def softmax(*logits: np.ndarray) -> np.ndarray:
    powers = np.exp(np.stack(logits))
    return powers / powers.sum(0)


def probabilities(inferer: SlabInferer, image: np.ndarray, networks: list[nn.Module]) -> np.ndarray:
    """C×X×Y×Z, from slabs that come in order."""
    axis, slabs = inferer.slabs(torch.from_numpy(image), nn.ModuleList(networks))
    with torch.no_grad():
        starts, planes = zip(*((start, planes.numpy()) for start, planes in slabs), strict=True)
    assert list(starts) == [0, *np.cumsum([len(part) for part in planes])[:-1]]
    return np.moveaxis(np.concatenate(planes), 0, 1 + axis)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_views_see_rows_and_columns_of_their_own_axes(order: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(np.float32)
    x, y, z = (ramp.astype(np.float32) for ramp in np.indices(image.shape))
    weights = [(0.1, -0.2), (0.3, 0.15), (-0.25, 0.2)]
    expected = np.mean([
        softmax(image, 0.1 * x, -0.2 * y),  # axial slices: rows are x, columns are y
        softmax(image, 0.3 * x, 0.15 * z),
        softmax(image, -0.25 * y, 0.2 * z),
    ], 0)  # fmt: skip
    views = [SlabInferer((AXIAL, CORONAL, SAGITTAL)[view], mode="constant") for view in order]
    made = probabilities(ViewInferer(views), image, [Ramps(*weights[view]) for view in order])
    np.testing.assert_allclose(made, expected, rtol=1e-5)


class Pointwise(nn.Module):
    """A linear network without a neighbourhood."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, image: Tensor) -> Tensor:
        return torch.cat([image, self.factor * image], 1)


def test_scales_of_each_view_are_averaged() -> None:
    """Twice as large and back, linearly, is a mean of neighbours with weights 1/8, 3/4 and 1/8 along both axes."""
    image = np.random.default_rng(0).normal(size=(4, 6, 8)).astype(np.float32)

    def there_and_back(axes: tuple[int, int]) -> np.ndarray:
        smooth = image
        for axis in axes:
            padded = np.take(smooth, np.clip(np.arange(-1, image.shape[axis] + 1), 0, image.shape[axis] - 1), axis)
            low, here, high = (np.take(padded, np.arange(shift, shift + image.shape[axis]), axis) for shift in range(3))
            smooth = low / 8 + 3 * here / 4 + high / 8
        return smooth

    factors, planes = (-1.0, 0.5, 2.0), ((0, 1), (0, 2), (1, 2))
    expected = np.mean([
        softmax(values, factor * values)
        for factor, axes in zip(factors, planes, strict=True)
        for values in (image, there_and_back(axes))
    ], 0)  # fmt: skip
    views = [SlabInferer(size, mode="constant", scales=(1.0, 2.0)) for size in (AXIAL, CORONAL, SAGITTAL)]
    made = probabilities(ViewInferer(views), image, [Pointwise(factor) for factor in factors])
    np.testing.assert_allclose(made, expected, rtol=1e-5)


def test_scales_do_not_change_slices_of_one_value() -> None:
    image = np.broadcast_to(np.arange(1, 8, dtype=np.float32), (8, 8, 7)).copy()
    inferer = SlabInferer(AXIAL, mode="constant", scales=(0.75, 1.0, 1.25, 1.5, 1.75, 2.0))
    made = probabilities(ViewInferer([inferer]), image, [Pointwise(0.5)])
    np.testing.assert_allclose(made, softmax(image, 0.5 * image), rtol=1e-5)


def test_views_of_a_body_in_air() -> None:
    image, network = body_in_air(), Watching()
    views = [SlabInferer(size, mode="constant", air=0.0) for size in ((16, 16, 1), (16, 1, 16), (1, 16, 16))]
    labels = ViewInferer(views)(image, nn.ModuleList([network] * 3))
    expected = image > 100
    expected[..., 60, 60, 90] = False  # the speck lies outside of the box around the body
    labels[..., 20:30, 58:60, :16] = expected[..., 20:30, 58:60, :16] = 0  # some windows reach the table
    assert torch.equal(labels, expected.to(torch.uint8))


@pytest.mark.parametrize("airs", [(0.0, 0.0), (0.0, None), (None, 0.0)])
def test_views_of_nothing_but_air(airs: tuple[float | None, ...]) -> None:
    """A view that skips air has one channel, which is background; one that does not has all of them."""
    views = [SlabInferer(size, mode="constant", air=air) for size, air in zip((AXIAL, CORONAL), airs, strict=True)]
    made = probabilities(ViewInferer(views), np.zeros((5, 6, 7), np.float32), [Pointwise(1.0)] * 2)
    expected = [1.0] if None not in airs else [0.75, 0.25]
    np.testing.assert_allclose(made, np.broadcast_to(np.reshape(expected, (-1, 1, 1, 1)), made.shape), rtol=1e-6)


def test_views_need_room_for_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundle.inference.fusion.shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    views = [SlabInferer(size, mode="constant") for size in (AXIAL, CORONAL)]
    with pytest.raises(InputError, match="set TMPDIR to a folder with more room"):
        ViewInferer(views)(torch.zeros(1, 1, 8, 8, 8), nn.ModuleList([Pointwise(1.0)] * 2))


def test_openvino_is_chosen_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is optional")
    network, inferer = make_network(), SlabInferer((16, 16, 16), backend="auto")
    kinds = [type(inferer.predictor(network, voxels).networks[0]).__name__ for voxels in (16**3, 100_000_000)]
    assert kinds == ["UNet", "OpenVinoNetwork"]
    assert inferer.predictor(network, 16**3) is inferer.predictor(network, 2 * 16**3)


# --- Memory ------------------------------------------------------------------------------------------------------
def test_sums_in_files_give_the_same_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    voxels, affine, network = make_scan((40, 40, 60)), spacing(1.2, 1.2, 2.0), make_network()
    image = on_network(voxels, affine)[None]
    expected = SlabInferer((16, 16, 16), 0.5, grid="scan")(image, network)
    monkeypatch.setattr("bundle.inference.inferers.WORKING_BYTES", 0)
    used = []
    monkeypatch.setattr("bundle.inference.inferers.DiskBuffers.release", lambda self: used.append(len(self.maps)))
    monkeypatch.setattr("bundle.inference.inferers.watch_memory", lambda: nullcontext(lambda: 10**9))
    tight = SlabInferer((16, 16, 16), 0.5, grid="scan", memory=1.001)
    assert torch.equal(tight(image, network), expected)
    assert max(used) > 1
    used.clear()
    wide = SlabInferer((16, 16, 16), 0.5, grid="scan", memory=100.0)
    assert torch.equal(wide(image, network), expected)
    assert not used


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    with pytest.raises(InputError, match=r"memory: this scan and network take \d.\d GB .* the budget is 0.1 GB"):
        SlabInferer((16, 16, 16), memory=0.1)(torch.zeros(1, 1, 16, 16, 16), make_network())


def test_what_an_inferer_does_not_know_is_refused() -> None:
    with pytest.raises(InputError, match='grid is "scan" or "network", not "file"'):
        SlabInferer((16, 16, 16), grid="file")
    with pytest.raises(ValueError, match="a MetaTensor that knows the affine"):
        SlabInferer((16, 16, 16), grid="scan")(torch.zeros(1, 1, 16, 16, 16), make_network())
