# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a training of the server will do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bundle.cohorts.datalists import read_cohort
from bundle.errors import InputError
from bundle.organs import WHOLE_VOCABULARY
from label.annotations import Annotation, read_annotation
from label.planning import plan_training, read_request, signature_of
from label.state import ServerState
from tests.model_files import ORGANS, save_model


def annotation(folder: Path, name: str, organ: str, state: ServerState, **more: Any) -> Annotation:
    folder.mkdir(exist_ok=True)
    image, label = folder / f"{name}.nii.gz", folder / f"{name}_label.nii.gz"
    voxels = np.zeros((16, 16, 8), np.uint8)
    voxels[:4] = 1
    nib.save(nib.Nifti1Image(np.arange(voxels.size, dtype=np.int16).reshape(voxels.shape), np.eye(4)), image)
    nib.save(nib.Nifti1Image(voxels, np.eye(4)), label)
    info = {"label_info": [{"name": organ, "idx": 1}], **more}
    return read_annotation(name, image, label, info, state.vocabulary)


def served(folder: Path, **values: Any) -> ServerState:
    state = ServerState(folder / "state")
    state.set_up(save_model(folder / "model", **values))
    return state


PRIOR = {
    "names": ["background", *ORGANS], "proportions": [0.9, 0.06, 0.04], "spread": [0.01, 0.01, 0.01],
    "cases": 2, "sampling": {"patch": [16, 16, 8], "empty_rate": 1.0},
}  # fmt: skip


# --- What clients ask for --------------------------------------------------------------------------------------------
def test_what_is_not_asked_for_is_usual() -> None:
    asked = read_request({"model": "pann", "client_id": "x", "multi_gpu": True})
    assert (asked.max_epochs, asked.resume, asked.margin, asked.values) == (50, "auto", 0.03, {})
    assert read_request({"resume": ["yes", "no"]}).resume == "yes"
    assert read_request({"resume": False}).resume == "no"


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"max_epochs": 0}, "max_epochs"),
        ({"max_epochs": 1.5}, "max_epochs"),
        ({"max_epochs": True}, "max_epochs"),
        ({"resume": "perhaps"}, "resume"),
        ({"margin": 2}, "margin"),
        ({"margin": "0.1"}, "margin"),
        ({"values": ["seed"]}, "values"),
        ({"values": {"network_def::_target_": "os.system"}}, "no value"),
        ({"values": {"train::loss": 1}}, "no value"),
        ({"values": {"output_dir": "/"}}, "set by the server"),
        ({"values": {"loss": "$exit()"}}, "plain value"),
        ({"values": {"rotation": ["$exit()", 0, 0]}}, "plain value"),
        ({"values": {"seed": {"_target_": "os.system"}}}, "plain value"),
        ({"values": {"rotation": [["$exit()"], 0, 0]}}, "plain value"),
        ({"values": {"epoch_length": "abc"}}, "epoch_length: expected"),
        ({"max_epoch": 3}, 'did you mean "max_epochs"'),
    ],
)
def test_bad_requests_are_refused(request_: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_request(request_)


# --- Plans -----------------------------------------------------------------------------------------------------------
def test_the_served_model_is_fine_tuned_on_partial_cases_with_its_own_prior(tmp_path: Path) -> None:
    state = served(tmp_path, prior=PRIOR)
    saved = [annotation(tmp_path / "studies", "a", "liver", state)]
    plan = plan_training(state, tmp_path / "training", saved, read_request({"max_epochs": 3, "values": {"seed": 5}}))
    assert plan.values["warmup_checkpoint"] == str(state.weights(1))
    assert plan.values["warmup_iterations"] == 0
    assert plan.values["train_iterations"] == 3 * 20  # configs/overlays/label.yaml has epochs of 20 iterations
    assert plan.values["prior_file"] == str(tmp_path / "training" / "prior.json")
    assert plan.values["seed"] == 5
    assert plan.values["fold"] is None
    assert (plan.base, plan.validated, plan.label_sets) == (1, 0, {"a": ["liver"]})


def test_without_a_prior_partial_cases_alone_are_refused(tmp_path: Path) -> None:
    state = served(tmp_path)
    saved = [annotation(tmp_path / "studies", "a", "liver", state)]
    with pytest.raises(InputError, match="does not bring a prior"):
        plan_training(state, tmp_path / "training", saved, read_request({}))


def test_a_complete_case_brings_the_prior(tmp_path: Path) -> None:
    state = served(tmp_path)
    saved = [annotation(tmp_path / "studies", "a", "liver", state, complete=True)]
    plan = plan_training(state, tmp_path / "training", saved, read_request({}))
    assert plan.values["prior_file"] is None


def test_without_a_model_both_stages_share_the_epochs(tiny_cohorts: Path, tmp_path: Path) -> None:
    state = ServerState(tmp_path / "state")
    state.set_up(reference=[tiny_cohorts])
    plan = plan_training(state, tmp_path / "training", [], read_request({"max_epochs": 9}))
    # configs/train.yaml plans 80 000 and 100 000 iterations: 4 to 5, of 9 epochs of 20
    assert (plan.values["warmup_iterations"], plan.values["train_iterations"]) == (80, 100)
    assert plan.values["refresh_interval"] == 10  # a tenth of stage 2, as in configs/train.yaml
    assert plan.values["warmup_checkpoint"] is None
    assert (plan.base, plan.validated, plan.values["fold"]) == (None, 1, 0)


def test_nothing_to_learn_from_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to learn from"):
        plan_training(served(tmp_path), tmp_path / "training", [], read_request({}))
    empty = ServerState(tmp_path / "empty")
    empty.set_up()
    saved = [annotation(tmp_path / "studies", "a", "liver", empty)]
    with pytest.raises(InputError, match="no model yet"):
        plan_training(empty, tmp_path / "other", saved, read_request({}))


def test_values_that_do_not_go_together_are_told(tmp_path: Path) -> None:
    state = served(tmp_path, prior=PRIOR)
    saved = [annotation(tmp_path / "studies", "a", "liver", state)]
    with pytest.raises(InputError, match="batch"):
        plan_training(state, tmp_path / "a", saved, read_request({"values": {"batch_full": 0, "batch_partial": 0}}))
    with pytest.raises(InputError, match="confidence"):
        read_request({"values": {"confidence": 7}})


def test_the_reference_is_held_out_as_the_first_model_was_trained(tiny_cohorts: Path, tmp_path: Path) -> None:
    state = ServerState(tmp_path / "state")
    state.set_up(save_model(tmp_path / "first", organs=WHOLE_VOCABULARY.names, training={"fold": 2}), [tiny_cohorts])
    held_out = []
    for number in (1, 2):
        plan = plan_training(state, tmp_path / str(number), [], read_request({}))
        cohorts = [case for path in plan.values["cohorts"] for case in read_cohort(path)]
        held_out.append([case["case"] for case in cohorts if case["fold"] == 0])
        later = save_model(tmp_path / f"v{number}", organs=WHOLE_VOCABULARY.names, training={"fold": 0})
        state.add_version(later, number, "")
    assert held_out == [["full_002"], ["full_002"]]


def test_a_case_that_is_held_out_and_saved_again_with_less_is_left_out(tmp_path: Path) -> None:
    state = served(tmp_path, prior=PRIOR)
    names = ["a", "b", "c", "d", "e"]
    saved = [annotation(tmp_path / "studies", name, "liver", state, complete=True) for name in names]
    plan = plan_training(state, tmp_path / "1", saved, read_request({}))
    assert (plan.values["fold"], plan.validated) == (0, 1)
    saved[-1] = annotation(tmp_path / "studies", "e", "liver", state)
    plan = plan_training(state, tmp_path / "2", saved, read_request({}))
    assert sorted(plan.label_sets) == names[:-1]
    assert plan.validated == 0


def test_a_first_training_has_both_stages_or_is_refused(tiny_cohorts: Path, tmp_path: Path) -> None:
    state = ServerState(tmp_path / "state")
    state.set_up(reference=[tiny_cohorts])
    short = {"max_epochs": 1, "values": {"epoch_length": 2}}
    plan = plan_training(state, tmp_path / "a", [], read_request(short))
    assert (plan.values["warmup_iterations"], plan.values["train_iterations"]) == (1, 1)
    with pytest.raises(InputError, match="an iteration of each stage"):
        plan_training(state, tmp_path / "b", [], read_request({**short, "values": {"epoch_length": 1}}))


def test_a_2d_model_is_turned_in_its_slices(tmp_path: Path) -> None:
    prior = {**PRIOR, "sampling": {"patch": [16, 16, 1], "empty_rate": 1.0}}
    state = served(tmp_path, spatial_dims=2, prior=prior)
    saved = [annotation(tmp_path / "studies", "a", "liver", state)]
    plan_training(state, tmp_path / "training", saved, read_request({}))
    text = (tmp_path / "training" / "model.json").read_text()
    assert '"patch_margin": [\n    8,\n    8,\n    0' in text


def test_a_stopped_training_is_known_again(tmp_path: Path) -> None:
    state = served(tmp_path)
    saved = [annotation(tmp_path / "studies", "a", "liver", state)]
    asked = read_request({"max_epochs": 2})
    assert signature_of(saved, 1, asked, state.setup) == signature_of(saved, 1, asked, state.setup)
    others = [
        signature_of(saved, 2, asked, state.setup),
        signature_of(saved, 1, read_request({"max_epochs": 3}), state.setup),
        signature_of(saved, 1, read_request({"max_epochs": 2, "values": {"seed": 1}}), state.setup),
        signature_of([annotation(tmp_path / "studies", "a", "spleen", state)], 1, asked, state.setup),
        signature_of([*saved, annotation(tmp_path / "studies", "b", "liver", state)], 1, asked, state.setup),
    ]
    assert signature_of(saved, 1, asked, state.setup) not in others
