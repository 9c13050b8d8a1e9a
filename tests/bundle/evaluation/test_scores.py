"""Scores: hand-computed distances, and the rules for organs that are not there."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from monai.data import MetaTensor
from scipy.ndimage import distance_transform_edt

from bundle.evaluation.score_files import METRICS
from bundle.evaluation.scores import OrganScores, score_case, score_organ
from bundle.evaluation.summaries import read_scores
from bundle.organs import IGNORED, Vocabulary


def block(*bounds: tuple[int, int]) -> torch.Tensor:
    mask = torch.zeros(12, 12, 12, dtype=torch.bool)
    mask[tuple(slice(*pair) for pair in bounds)] = True
    return mask


def test_a_shifted_block_by_hand() -> None:
    truth, prediction = block((3, 7), (3, 7), (3, 7)), block((5, 9), (3, 7), (3, 7))
    row = score_organ(prediction, truth, (1.5, 1.0, 1.0))
    assert row["dice"] == pytest.approx(0.5)  # half of either block
    assert row["hausdorff"] == pytest.approx(3.0)  # two voxels of 1.5 mm
    assert row["status"] == "scored"


def test_distances_use_the_spacing() -> None:
    truth, prediction = block((3, 7), (3, 7), (3, 7)), block((3, 7), (3, 7), (4, 8))
    for spacing, expected in (((1, 1, 1), 1.0), ((1, 1, 5), 5.0), ((5, 5, 1), 1.0)):
        assert score_organ(prediction, truth, spacing)["hausdorff"] == pytest.approx(expected)


def surface(mask: np.ndarray) -> np.ndarray:
    padded = np.pad(mask, 1)
    inner = np.ones_like(mask)
    for axis in range(3):
        for step in (-1, 1):
            inner &= np.roll(padded, step, axis)[1:-1, 1:-1, 1:-1]
    return mask & ~inner


def test_distances_agree_with_an_independent_computation() -> None:
    rng = np.random.default_rng(0)
    truth = block((2, 9), (3, 8), (2, 10)).numpy()
    prediction = truth ^ (rng.random(truth.shape) < 0.05)
    spacing = (0.8, 1.2, 2.5)
    row = score_organ(torch.as_tensor(prediction), torch.as_tensor(truth), spacing, tolerance=1.5)
    edges = [surface(prediction), surface(truth)]
    apart = [
        distance_transform_edt(~edges[1], sampling=spacing)[edges[0]],
        distance_transform_edt(~edges[0], sampling=spacing)[edges[1]],
    ]
    both = np.concatenate(apart)
    assert row["surface_distance"] == pytest.approx(both.mean(), rel=1e-5)
    assert row["hausdorff"] == pytest.approx(both.max(), rel=1e-5)
    assert row["hausdorff95"] == pytest.approx(max(np.percentile(part, 95) for part in apart), rel=1e-5)
    assert row["surface_dice"] == pytest.approx((both <= 1.5).mean(), rel=0.1)  # MONAI weighs surface elements by area


@pytest.mark.parametrize(
    ("predicted", "present", "status", "dice"),
    [(False, False, "absent", None), (True, False, "invented", 0.0), (False, True, "missed", 0.0)],
)
def test_organs_that_are_not_there(predicted: bool, present: bool, status: str, dice: float | None) -> None:
    organ, nothing = block((3, 7), (3, 7), (3, 7)), block((0, 0), (0, 0), (0, 0))
    row = score_organ(organ if predicted else nothing, organ if present else nothing, (1, 1, 1))
    assert row["status"] == status
    assert row["dice"] == dice
    assert all(row[metric] is None for metric in METRICS if metric != "dice")


def test_organs_outside_the_label_set_are_not_scored() -> None:
    vocabulary = Vocabulary(["spleen", "liver"])
    truth = block((3, 7), (3, 7), (3, 7)).long()
    rows = score_case(truth + 0, truth, (1, 1, 1), vocabulary, ["spleen"])
    assert [(row["organ"], row["status"], row["dice"]) for row in rows] == [
        ("spleen", "scored", 1.0),
        ("liver", "unlabelled", None),
    ]


def test_ignored_voxels_count_neither_for_nor_against() -> None:
    truth = block((3, 7), (3, 7), (3, 7)).long()
    truth[8:10] = IGNORED
    prediction = truth.where(truth != IGNORED, 1)
    (row,) = score_case(prediction, truth, (1, 1, 1), Vocabulary(["spleen"]))
    assert row["dice"] == 1.0


def test_the_handler_writes_what_it_scored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = block((3, 7), (3, 7), (3, 7)).long()[None]
    case = {"image": "x.nii.gz", "case": "x", "cohort": "t", "labelled": ["spleen", "liver"]}
    handler = OrganScores([case], str(tmp_path), Vocabulary(["spleen", "liver"]))
    image = MetaTensor(torch.zeros(1, 12, 12, 12), meta={"filename_or_obj": "x.nii.gz"})
    truth = MetaTensor(label, affine=torch.diag(torch.tensor([2.0, 2.0, 2.0, 1.0])))
    engine = SimpleNamespace(
        state=SimpleNamespace(output=[{"image": image, "pred": MetaTensor(label), "label": truth}])
    )
    handler.start(engine)  # type: ignore[arg-type]
    handler.score(engine)  # type: ignore[arg-type]
    handler.write(engine)  # type: ignore[arg-type]
    rows, summary = read_scores(tmp_path)
    assert [row["dice"] for row in rows] == [1.0, None]
    assert summary["organs"]["liver"]["absent"] == 1
    assert "spleen" in capsys.readouterr().out
