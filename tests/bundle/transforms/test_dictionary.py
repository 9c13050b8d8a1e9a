"""Reading scans and label maps, writing label maps."""

from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from monai.data import MetaTensor
from monai.networks.nets import UNet
from monai.transforms import Compose, LoadImaged, Orientationd, SaveImaged, ScaleIntensityRanged, Spacingd

from bundle.errors import InputError
from bundle.organs import UNKNOWN, Vocabulary
from bundle.scans.finding import find_scans
from bundle.transforms.dictionary import (
    LoadOnNetworkGridd,
    LoadOnOwnGridd,
    MapLabelValuesd,
    SaveLabelMapd,
    WindowIntensityd,
)
from tests.paths import CONFIGS
from tests.scan_files import label_names

INFERENCE = CONFIGS / "inference.yaml"
AFFINE = np.array([[0, -1.2, 0, 30], [0, 0, 2.5, -10], [0.9, 0, 0, 5], [0, 0, 0, 1.0]])


@pytest.fixture
def scan(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).integers(-1000, 1000, (20, 24, 18)).astype(np.int16)
    nib.save(nib.Nifti1Image(values, AFFINE), tmp_path / "ct.nii.gz")
    return tmp_path / "ct.nii.gz"


def test_a_scan_is_read_as_monai_s_transforms_read_it(scan: Path) -> None:
    load = LoadImaged("image", image_only=True, ensure_channel_first=True)
    usual = Compose([load, Orientationd("image", "RAS", labels=None), Spacingd("image", (1.5, 1.5, 2.0))])
    expected = usual({"image": scan})["image"]
    made = LoadOnNetworkGridd("image", (1.5, 1.5, 2.0))({"image": scan})["image"]
    torch.testing.assert_close(made.as_tensor(), expected.as_tensor(), rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(made.affine, expected.affine)
    for key in ("original_affine", "spatial_shape", "filename_or_obj"):
        np.testing.assert_array_equal(np.asarray(made.meta[key]), np.asarray(expected.meta[key]))


def test_a_scan_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "ct.nii.gz").write_bytes(b"?")
    with pytest.raises(InputError, match=r"ct.nii.gz: cannot be read as an image"):
        LoadOnNetworkGridd("image", (1, 1, 1))({"image": tmp_path / "ct.nii.gz"})


def test_label_maps_are_written_in_the_scan_s_geometry(scan: Path, tmp_path: Path) -> None:
    image = LoadOnNetworkGridd("image", (1.5, 1.5, 2.0))({"image": find_scans(scan)["ct"]})["image"]
    labels = torch.zeros(1, 20, 24, 18, dtype=torch.uint8)
    labels[0, 3, 4, 5] = 2
    SaveLabelMapd("pred", str(tmp_path / "out"), Vocabulary(["liver", "spleen"]), "_seg")(
        {"image": image, "pred": labels}
    )
    made = nib.load(tmp_path / "out" / "ct_seg.nii.gz")
    np.testing.assert_allclose(made.affine, AFFINE, atol=1e-5)
    assert np.argwhere(np.asanyarray(made.dataobj)).tolist() == [[3, 4, 5]]
    assert label_names(tmp_path / "out" / "ct_seg.nii.gz") == {1: "liver", 2: "spleen"}


def test_the_inference_config_works_as_monai_label_drives_it(scan: Path, tmp_path: Path) -> None:
    """Its parts alone, transforms one by one, SaveImaged left out: the label map comes on the file's own grid."""
    parser = ConfigParser()
    parser.read_config(str(INFERENCE))
    network_def = {"network_def::channels": [4, 8], "network_def::strides": [2]}
    parser.update({"patch_size": [16, 16, 8], "output_dir": str(tmp_path / "out"), "device": "cpu", **network_def})
    network = parser.get_parsed_content("network_def").eval()
    assert isinstance(network, UNet)
    data = {"image": str(scan), "image_path": str(scan)}
    for transform in parser.get_parsed_content("preprocessing").transforms:
        data = transform(data)
    data["pred"] = parser.get_parsed_content("inferer")(data["image"][None], network)[0]
    after = parser.get_parsed_content("postprocessing").transforms
    for transform in [transform for transform in after if not isinstance(transform, SaveImaged)]:
        data = transform(data)
    assert data["pred"].shape == (1, 20, 24, 18)
    np.testing.assert_allclose(data["pred"].affine, AFFINE)
    assert not (tmp_path / "out").exists()


def test_values_are_mapped_and_metadata_kept() -> None:
    affine = torch.diag(torch.tensor([2.0, 2.0, 3.0, 1.0]))
    label = MetaTensor(torch.tensor([[[[0, 1, 2, 7]]]], dtype=torch.float32), affine=affine)
    result = MapLabelValuesd()({"image": label, "label": label, "values": {0: UNKNOWN, 1: 6, 2: 6, 7: 0}})["label"]
    assert result.dtype == torch.uint8
    assert result.flatten().tolist() == [UNKNOWN, 6, 6, 0]
    torch.testing.assert_close(result.affine, affine.double())


def test_a_case_without_label_is_unknown_on_the_image_s_grid() -> None:
    image = MetaTensor(torch.zeros(1, 2, 3, 4), affine=torch.diag(torch.tensor([2.0, 2.0, 3.0, 1.0])))
    result = MapLabelValuesd()({"image": image, "values": {0: UNKNOWN}})["label"]
    assert result.shape == image.shape
    assert (result == UNKNOWN).all()
    torch.testing.assert_close(result.affine, image.affine)


def test_items_without_values_have_the_vocabulary_s_already() -> None:
    label = torch.tensor([[[[0.0, 13.0]]]])
    assert MapLabelValuesd()({"image": label, "label": label})["label"].flatten().tolist() == [0, 13]


@pytest.mark.parametrize("value", [3, 57, 70000, -1])
def test_an_undeclared_value_is_refused(tmp_path: Path, value: int) -> None:
    voxels = np.zeros((4, 4, 4), np.int32)
    voxels[1, 2, 3] = value
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), tmp_path / "label.nii.gz")
    load = LoadOnOwnGridd(["label"])
    case = {"label": str(tmp_path / "label.nii.gz"), "values": {0: UNKNOWN, 1: 6}, "cohort": "livers"}
    expected = (
        rf'label.nii.gz: holds the value {value}, which "labels" in the dataset.json of cohort livers does not declare'
        if value > 0
        else "label.nii.gz: expected values of at least 0, found -1"
    )
    with pytest.raises(InputError, match=expected):
        MapLabelValuesd()(load(case))


@pytest.mark.parametrize("value", [14, 253, 256, -1])
def test_items_without_values_have_none_but_the_vocabulary_s(value: int) -> None:
    label = torch.tensor([[[[0, 13, value]]]])
    expected = rf"label map: holds the value {value}, which is none of the vocabulary's: 0 to 13, 254 .* and 255"
    with pytest.raises(InputError, match=expected):
        MapLabelValuesd()({"image": label, "label": label})
    kept = torch.tensor([[[[0, 13, 254, 255]]]])
    assert MapLabelValuesd()({"image": kept, "label": kept})["label"].flatten().tolist() == [0, 13, 254, 255]


def test_items_without_values_have_those_of_the_run_s_vocabulary() -> None:
    label = MetaTensor(torch.tensor([[[[0, 2]]]]), meta={"filename_or_obj": "scan.nii.gz"})
    mapping = MapLabelValuesd(vocabulary=Vocabulary("liver"))
    with pytest.raises(InputError, match=r"scan.nii.gz: holds the value 2, which is none of the vocabulary's: 0 to 1,"):
        mapping({"image": label, "label": label})


def test_the_window_is_scaled_as_monai_scales_it() -> None:
    image = torch.linspace(-1024, 3000, 4001)
    usual = ScaleIntensityRanged("image", a_min=-125, a_max=275, b_min=0, b_max=255, clip=True)
    made = WindowIntensityd("image", hu_window=[-125, 275], intensity=[0, 255])({"image": image})["image"]
    assert torch.equal(made, usual({"image": image})["image"])


@pytest.mark.parametrize("window", [[275, -125], [1], "12"])
def test_a_window_is_two_numbers_in_order(window: list[float]) -> None:
    with pytest.raises(InputError, match="hu_window: expected two numbers, the lower one first, found"):
        WindowIntensityd("image", hu_window=window, intensity=[0, 255])


@pytest.mark.parametrize("key", ["name", "case"])
@pytest.mark.parametrize("name", ["../../x", "/x", "a/b", ".x", 17])
def test_a_label_map_is_never_saved_outside_its_folder(scan: Path, tmp_path: Path, key: str, name: object) -> None:
    image = LoadOnOwnGridd("image")({"image": scan})["image"]
    labels = torch.zeros(image.shape, dtype=torch.uint8)
    with pytest.raises(InputError, match="ct.nii.gz: the name of its label map: expected a name"):
        SaveLabelMapd("pred", str(tmp_path / "a" / "b"))({"image": image, "pred": labels, key: name})
    assert [path.name for path in tmp_path.iterdir()] == ["ct.nii.gz"]


def test_a_grid_that_does_not_fit_into_the_memory_is_refused(scan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundle.scans.headers.available_memory", lambda: 50_000)
    with pytest.raises(InputError, match=r"ct.nii.gz: needs .* GB of memory for .* voxels, found 0.0 GB"):
        LoadOnNetworkGridd("image", (0.1, 0.1, 0.1))({"image": scan})
