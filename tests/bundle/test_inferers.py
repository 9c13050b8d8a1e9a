"""The engine against MONAI's straightforward pipeline, voxel by voxel; any geometry; what it holds in memory."""


import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from monai.inferers import SlidingWindowInferer
from monai.networks.nets import UNet
from monai.transforms import Compose, Invertd, Orientationd, Spacingd
from scipy.spatial.transform import Rotation
from torch import nn
from torch.nn import functional as F

from bundle.grids import ScanGrid, to_network
from bundle.inferers import SlabInferer

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
    """A scan as `ReadScand` gives it."""
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
    "thick slices": ((64, 60, 9), spacing(0.9, 0.9, 10.0)),
    "flipped and swapped": ((44, 28, 52), oblique(np.diag([-0.9, 1.1, -1.7, 1]))[:, [2, 0, 1, 3]]),
    "sheared": ((48, 44, 26), sheared(spacing(1.0, 0.9, 2.2))),
    "one slice": ((60, 60, 1), spacing(0.8, 0.8, 5.0)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("overlap", "mode"), [(0.25, "constant"), (0.5, "gaussian"), (0.7, "gaussian")])
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
