"""Completed label maps on disk: regions, compression, damage, and a kill in the middle of writing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bundle.errors import InputError
from bundle.training.label_store import PseudoLabelStore
from bundle.training.patches import Patches
from tests.runs import run_in

BLOCKS = Patches((16, 16, 8))
CASE = {"cohort": "spleen", "case": "a", "labelled": ["spleen"]}


@pytest.mark.parametrize("depth", [1, 7, 8, 9, 20])
def test_a_region_reads_what_was_written(tmp_path: Path, depth: int) -> None:
    store = PseudoLabelStore(run_in(tmp_path), BLOCKS)
    volume = np.random.default_rng(0).integers(0, 14, (6, 5, depth)).astype(np.uint8)
    with store.refreshing(0):
        store.write(CASE, volume)
    np.testing.assert_array_equal(store.read(CASE), volume)
    for start in range(depth):
        for stop in range(start + 1, depth + 1):
            region = (slice(1, 4), slice(0, 5), slice(start, stop))
            np.testing.assert_array_equal(store.read(CASE, region), volume[region])


def test_before_the_first_refresh_there_is_nothing(tmp_path: Path) -> None:
    assert PseudoLabelStore(run_in(tmp_path), BLOCKS).read(CASE) is None


def test_files_are_compressed(tmp_path: Path) -> None:
    store = PseudoLabelStore(run_in(tmp_path), BLOCKS)
    with store.refreshing(0):
        store.write(CASE, np.zeros((64, 64, 64), np.uint8))
    assert store.path(CASE).stat().st_size < 64**3 / 50


def written(store: PseudoLabelStore, iteration: int, value: int) -> Path:
    with store.refreshing(iteration):
        store.write(CASE, np.full((4, 4, 4), value, np.uint8))
    return store.file(iteration, CASE)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = PseudoLabelStore(run_in(tmp_path), BLOCKS)
    written(store, 0, 1).write_bytes(b"not a zip file")
    assert not store.is_intact([CASE])
    with pytest.raises(InputError, match=r"spleen/a.npz: pseudo-labels are damaged"):
        store.read(CASE)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    store = PseudoLabelStore(run_in(tmp_path), BLOCKS)
    written(store, 0, 1).unlink()
    with pytest.raises(InputError, match=r"spleen/a.npz: pseudo-labels are gone; give the same command again"):
        store.read(CASE)


def interrupted_refresh(store: PseudoLabelStore) -> None:
    with store.refreshing(8):
        store.write(CASE, np.full((4, 4, 4), 2, np.uint8))
        raise AssertionError


def test_a_refresh_that_ends_early_leaves_the_last_one_in_place(tmp_path: Path) -> None:
    store = PseudoLabelStore(run_in(tmp_path), BLOCKS)
    written(store, 0, 1)
    with pytest.raises(AssertionError):
        interrupted_refresh(store)
    assert (store.read(CASE) == 1).all()
    again = PseudoLabelStore(store.run, BLOCKS)  # as after a kill: what was interrupted is not looked at
    again.generation = 0
    with again.refreshing(8):
        assert (again.read(CASE) == 1).all()
        again.write(CASE, np.full((4, 4, 4), 3, np.uint8))
        assert (again.read(CASE) == 3).all()  # what this refresh has made counts at once
    assert (again.read(CASE) == 3).all()


def test_only_the_present_refresh_of_the_present_run_is_kept(tmp_path: Path) -> None:
    earlier, store = (PseudoLabelStore(run_in(tmp_path), BLOCKS) for _ in range(2))
    written(earlier, 0, 7)
    assert store.read(CASE) is None  # what another run left is never read
    first, second = written(store, 0, 1), written(store, 8, 2)
    assert first.is_file()  # a checkpoint may still need it
    store.forget_others()
    assert second.is_file()
    assert [path.name for path in (tmp_path / "eval" / "pseudo_labels").glob("*/*")] == ["0000008"]


WRITER = """
import sys
import numpy as np
from bundle.training.label_store import PseudoLabelStore
from bundle.training.patches import Patches
from bundle.training.run_folder import TrainingRun
run = TrainingRun("unused", sys.argv[1])
run.identity = "run"
store = PseudoLabelStore(run, Patches((16, 16, 8)))
case = {"cohort": "spleen", "case": "a"}
value = 0
with store.refreshing(0):
    while True:
        value = (value + 1) % 200
        store.write(case, np.full((48, 48, 32), value, np.uint8))
        print(value, flush=True)
"""


def test_a_kill_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    for attempt in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "eval")], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.02 + 0.013 * attempt)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        store = PseudoLabelStore(run_in(tmp_path), BLOCKS)
        store.run.identity, store.generation = "run", 0
        volume = store.read(CASE)
        assert volume is not None
        assert volume.shape == (48, 48, 32)
        assert (volume == volume[0, 0, 0]).all()


def test_pseudo_labels_never_leave_their_folder(tmp_path: Path) -> None:
    store = PseudoLabelStore(run_in(tmp_path), BLOCKS)
    for case in ({**CASE, "case": "../../x"}, {**CASE, "cohort": ".."}, {**CASE, "case": "/tmp/x"}):
        with store.refreshing(0), pytest.raises(InputError, match="of a case: expected a name"):
            store.write(case, np.zeros((4, 4, 4), np.uint8))
    assert not list(tmp_path.iterdir())
