# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a server remembers: its setup, its versions, what it holds out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bundle.errors import InputError
from label.state import ServerState
from tests.model_files import ORGANS, save_bare_weights, save_model
from tests.paths import ROOT


@pytest.fixture
def state(tmp_path: Path) -> ServerState:
    state = ServerState(tmp_path / "state")
    state.set_up(save_model(tmp_path / "first").parent)
    return state


def test_the_first_model_is_version_1(state: ServerState) -> None:
    assert state.served == 1
    assert state.vocabulary.names == ORGANS
    assert [version.number for version in state.versions] == [1]
    assert state.weights(1).with_name("model.json").is_file()


def test_it_goes_on_without_being_told_again(state: ServerState, tmp_path: Path) -> None:
    again = ServerState(state.folder)
    assert again.set_up() == state.setup
    assert again.set_up(tmp_path / "first" / "model.pt").digest == state.setup.digest
    assert again.served == 1


def test_another_model_is_refused(state: ServerState, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="began with other weights"):
        state.set_up(save_model(tmp_path / "other", seed=1))
    assert state.served == 1


def test_weights_that_do_not_say_what_they_are_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not say what they are"):
        ServerState(tmp_path / "state").set_up(save_bare_weights(tmp_path / "bare"))
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", ["overlays", "prior_file"])
def test_a_file_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    value = [tmp_path / "gone.yaml"] if name == "overlays" else tmp_path / "gone.json"
    with pytest.raises(InputError, match="gone"):
        ServerState(tmp_path / "state").set_up(**{name: value})  # type: ignore[arg-type]


def test_versions_are_served_and_put_back(state: ServerState, tmp_path: Path) -> None:
    for seed in (1, 2):
        state.add_version(save_model(tmp_path / str(seed), seed=seed), training=seed, note="")
    assert state.served == 3
    assert state.roll_back() == 2
    assert state.roll_back() == 1
    with pytest.raises(InputError, match="no earlier version"):
        state.roll_back()
    assert state.roll_back(3) == 3
    with pytest.raises(InputError, match="expected one of the versions"):
        state.roll_back(9)
    assert state.add_version(save_model(tmp_path / "4", seed=4), training=3, note="") == 4  # numbers are never reused
    assert [version.training for version in state.versions] == [0, 1, 2, 3]


def test_every_fifth_complete_case_is_held_out_for_good(state: ServerState) -> None:
    four = dict.fromkeys("abcd", True)
    assert state.hold_out(four) == set()
    assert state.hold_out({**four, "e": True}) == {"e"}
    assert state.hold_out({"0": True, "e": True, "b": True}) == {"e"}  # whatever is saved or taken back later
    assert state.hold_out({"e": False}) == {"e"}  # also when it is saved again, with less
    assert state.hold_out(four) == set()


def test_what_was_trained_on_is_never_held_out(state: ServerState) -> None:
    state.hold_out(dict.fromkeys("abcd", True) | {"partial": False})
    assert state.hold_out({"partial": True, "new": True}) == {"new"}  # the fifth that came as a complete one


def test_without_a_model_all_organs_are_in_the_vocabulary(tmp_path: Path) -> None:
    state = ServerState(tmp_path / "state")
    state.set_up()
    assert state.served is None
    assert len(state.vocabulary) == 13


def test_one_folder_has_one_server(state: ServerState) -> None:
    lock = state.own()
    program = f"from label.state import ServerState; ServerState({str(state.folder)!r}).own()"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert "another server is running" in other.stderr
    lock.close()
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT).returncode == 0


def test_a_damaged_setup_is_told(state: ServerState) -> None:
    (state.folder / "server.json").write_text('{"models": 1}')
    with pytest.raises(InputError, match=r"server\.json"):
        state.set_up()


def test_sizes_of_most_cases_are_kept(tmp_path: Path) -> None:
    state = ServerState(tmp_path / "state")
    many, few = ({"cases": cases, "ml": 100.0 * cases, "spread": 0.1} for cases in (9, 1))
    state.set_up(save_model(tmp_path / "first", sizes={"liver": many}))
    state.add_version(save_model(tmp_path / "second", sizes={"liver": few, "spleen": few}), training=1, note="")
    assert state.sizes == {"liver": many, "spleen": few}
    state.roll_back()
    assert state.sizes == {"liver": many}
