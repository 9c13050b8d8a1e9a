"""The rehearsal: what would break later breaks before the first iteration, and nothing is changed by it."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.bundle import ConfigParser
from torch import nn

from bundle.errors import InputError, find_input_error
from bundle.organs import Vocabulary
from bundle.training.rehearsal import left_as_found
from tests.paths import ROOT

CONFIGS = [str(ROOT / "configs" / "train.yaml"), str(ROOT / "tests" / "integration" / "tiny.yaml")]
REHEARSAL = "bundle.training.rehearsal.rehearse"
ACTS = ("set_determinism", "bundle.configs.build_parts", REHEARSAL)
ALONE = {"supervision": "full", "batch_full": 1, "batch_partial": 0}
HARD = {"network_def::norm": "batch", "network_def::dropout": 0.2}  # buffers and random numbers in every forward pass


def configured(data: Path, folder: Path, **values: Any) -> ConfigParser:
    parser = ConfigParser()
    parser.read_config(CONFIGS)
    made = {
        "bundle_root": str(folder),
        "cache_dir": str(data.with_name("rehearsal")),
    }  # preprocessed once for all tests
    parser.update({"dataset_dir": str(data), "device": "cpu", **made, **values})
    return parser


def perform(parser: ConfigParser, *names: str) -> None:
    """Let the config run some acts of its training; MONAI wraps what they raise."""
    acts = parser["training"]
    chosen = [act for act in acts if not names or any(name in str(act) for name in names)]
    parser["training"] = chosen
    try:
        for place in range(len(chosen)):
            parser.get_parsed_content(f"training::{place}")
    except Exception as error:
        raise find_input_error(error) or error from None


def refusal(data: Path, folder: Path, **values: Any) -> str:
    with pytest.raises(InputError) as caught:
        perform(configured(data, folder, **values), *ACTS)
    assert not list((folder / "models").glob("*.pt"))
    return str(caught.value)


def test_weights_are_bit_identical_with_and_without_it(tiny_cohorts: Path, tmp_path: Path) -> None:
    weights = {}
    for name in ("with", "without"):
        parser = configured(tiny_cohorts, tmp_path / name, **HARD)
        left_out = ["check_cohorts"] if name == "with" else ["check_cohorts", REHEARSAL]
        parser["training"] = [act for act in parser["training"] if not any(part in str(act) for part in left_out)]
        perform(parser)
        weights[name] = parser.get_parsed_content("network").state_dict()
    for key, value in weights["with"].items():
        assert torch.equal(value, weights["without"][key]), key


def test_nothing_is_changed(tiny_cohorts: Path, tmp_path: Path) -> None:
    parser = configured(tiny_cohorts, tmp_path, **HARD)
    perform(parser, "set_determinism", "build_parts")
    parser["one_act"] = {"_target_": REHEARSAL}
    parser.parse()
    network = parser.get_parsed_content("warmup::trainer").network
    before = {name: value.clone() for name, value in network.state_dict().items()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    parser.get_parsed_content("one_act")
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    for stage in ("warmup", "train"):
        assert not parser.get_parsed_content(f"{stage}::optimizer").state
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    assert network.training


def test_what_was_there_before_is_there_afterwards() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval())
    network[0].weight.grad = torch.ones(2, 2)
    kept = network[0].weight.grad
    with left_as_found(network, "no module"):
        network.train()(torch.rand(4, 2)).sum().backward()
        network.zero_grad()
        assert float(network[1].running_mean.abs().sum()) > 0
    assert float(network[1].running_mean.abs().sum()) == 0
    assert network[0].weight.grad is kept
    assert [module.training for module in network] == [True, False]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"network_def::channels": [4]}, "network_def: UNet cannot be built (the length of `channels`"),
        ({"augmentation::0::prob": "x"}, "augmentation::0: RandRotated cannot be built"),
        ({"augmentation::0::mode": "nonsense"}, "stage 1: the first mini-batch: does not work (Unsupported option"),
        ({"train::optimizer::lr": -1.0}, "train::optimizer: torch.optim.Adam cannot be built (Invalid learning rate"),
        ({"train::handlers::0::path": None}, "train::handlers::0: bundle.training.history.HistoryWriter cannot"),
        ({"validate::evaluator::epoch_length": "$1 / 0"}, "epoch_length: cannot be worked out (division by zero)"),
        ({"network_def::spatial_dims": 2}, "spatial_dims: expected 3, for patch_size [16, 16, 8], found 2"),
        ({"network_def::out_channels": 3}, "out_channels: expected 14, for 13 organs and the background, found 3"),
        ({"patch_size": [16, 16, 3]}, "stage 1: the first mini-batch, 4×1×16×16×3: expected a prediction of 4×14×"),
        ({"patch_size": [16, 16, -1]}, "stage 2: the first mini-batch: expected samples of one size, found"),
        ({"warmup_iterations": 0, "patch_size": [16, 16, 3]}, "stage 2: the first mini-batch, 4×1×16×16×3"),
    ],
)  # fmt: skip
def test_what_would_break_later_is_refused_at_once(
    tiny_cohorts: Path, tmp_path: Path, values: dict[str, Any], sentence: str
) -> None:
    found = refusal(tiny_cohorts, tmp_path, **values)
    assert sentence in found
    assert "\n" not in found


def test_memory_that_does_not_suffice_is_one_sentence(
    tiny_cohorts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(nn.Conv3d, "forward", fail)
    found = refusal(tiny_cohorts, tmp_path)
    assert found.startswith("stage 1: the first mini-batch, 4×1×16×16×8: does not fit into memory; make it smaller: ")


def test_a_window_that_takes_whole_axes_is_tried(tiny_cohorts: Path, tmp_path: Path) -> None:
    perform(configured(tiny_cohorts, tmp_path, patch_size=[16, 16, -1], warmup_iterations=1, **ALONE), *ACTS)


def test_other_inferers_of_monai_are_tried_too(tiny_cohorts: Path, tmp_path: Path) -> None:
    window = {"_target_": "SlidingWindowInferer", "roi_size": [16, 16, 8]}
    perform(configured(tiny_cohorts, tmp_path, inferer=window), *ACTS)


def test_networks_with_several_heads_are_tried(tiny_cohorts: Path, tmp_path: Path) -> None:
    parser = ConfigParser()
    parser.read_config([*CONFIGS, str(ROOT / "configs" / "overlays" / "dynunet.yaml")])
    parser.update({
        "dataset_dir": str(tiny_cohorts), "bundle_root": str(tmp_path), "device": "cpu",
        "cache_dir": str(tiny_cohorts.with_name("rehearsal")),
        "network_def::kernel_size": [3, 3, 3], "network_def::strides": [1, 2, 2],
        "network_def::upsample_kernel_size": [2, 2], "network_def::filters": [4, 8, 8],
        "network_def::deep_supr_num": 1,
    })  # fmt: skip
    perform(parser, *ACTS)


def cases_of_another_program(data: Path, **more: Any) -> dict[str, Any]:
    """What MONAI Label sets: cases without cohort, name or values, and the number of epochs."""
    folder = data / "full"
    cases = [
        {"image": str(image), "label": str(folder / "labelsTr" / image.name), **more}
        for image in sorted((folder / "imagesTr").glob("*.nii.gz"))
    ]
    return {"train::dataset::data": cases[1:], "validate::dataset::data": cases[:1], "train::trainer::max_epochs": 3}


@pytest.mark.parametrize("organs", [13, 2])
def test_cases_of_another_program_are_tried(tiny_cohorts: Path, tmp_path: Path, organs: int) -> None:
    values = cases_of_another_program(tiny_cohorts, labelled=Vocabulary().names[:organs])
    if organs < 13:  # nothing to measure q on, and nothing that stage 1 could learn from
        values |= {"supervision": "partial", "warmup_iterations": 0}
    perform(configured(tiny_cohorts, tmp_path, **values), "check_label_sets", *ACTS)


def test_cases_of_which_nobody_says_what_was_annotated_are_refused(tiny_cohorts: Path, tmp_path: Path) -> None:
    parser = configured(tiny_cohorts, tmp_path, **cases_of_another_program(tiny_cohorts))
    with pytest.raises(InputError, match="without saying which organs were annotated, as MONAI Label's stock app does"):
        perform(parser)
    assert not list(tmp_path.iterdir())  # before the folders are taken, and before a scan is read


def test_partial_cases_alone_are_tried(tiny_cohorts: Path, tmp_path: Path) -> None:
    values = {"cohorts": ["spleen"], "warmup_checkpoint": "warmup.pt", "supervision": "marginal"}
    perform(configured(tiny_cohorts, tmp_path, **values), *ACTS)
