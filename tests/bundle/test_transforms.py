"""Reading a label map in the sense of its case's label set."""

import torch
from monai.data import MetaTensor

from bundle.organs import UNKNOWN
from bundle.transforms import MapLabelValuesd


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
