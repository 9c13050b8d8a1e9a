"""Files that appear whole or not at all, what killed writers left, and keys that change when files do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bundle.files import digest_files, fingerprint_files, remove_unfinished, whole_file, write_json, write_text
from tests.paths import ROOT


# --- Whole files -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "map.nii.gz"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as unfinished:
            unfinished.write_text("half")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_finished_write_replaces_the_file(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "map.nii.gz"
    with whole_file(path) as unfinished:
        unfinished.write_text("new")
        assert unfinished.parent == path.parent  # a move across disks is not one step
        assert unfinished.name.startswith(".")
        assert unfinished.name.endswith(".nii.gz")
        assert not path.exists()
        written = unfinished.stat().st_ino
    assert path.read_text() == "new"
    assert path.stat().st_ino == written  # moved, not copied: a copy can be seen half done
    assert list(path.parent.iterdir()) == [path]


def test_a_killed_writer_leaves_no_half_file_and_what_it_leaves_can_be_removed(tmp_path: Path) -> None:
    path = tmp_path / "map.nii.gz"
    path.write_text("old")
    program = (
        "import os, signal, sys; from bundle.files import whole_file\n"
        "with whole_file(sys.argv[1]) as file: file.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(path)], cwd=ROOT, timeout=60)
    assert ended.returncode == -9
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 2
    with whole_file(tmp_path / "other") as mine:
        mine.write_text("of a process that lives")
        remove_unfinished(tmp_path)
        assert {one.name for one in tmp_path.iterdir()} == {path.name, mine.name}
    (tmp_path / ".unfinished-thesis").touch()  # not a name of ours
    remove_unfinished(tmp_path)
    assert (tmp_path / ".unfinished-thesis").exists()


def test_text_and_records_are_written_as_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "a.txt", "10 ‰\n")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "10 ‰\n".encode()
    write_json(tmp_path / "a.json", {"size": 1, "name": "Zürich"})
    assert (tmp_path / "a.json").read_bytes() == '{\n  "size": 1,\n  "name": "Zürich"\n}\n'.encode()
    write_json(tmp_path / "a.json", {"path": Path("x/y")}, default=str)
    assert json.loads((tmp_path / "a.json").read_text()) == {"path": "x/y"}


def test_a_record_that_json_cannot_hold_leaves_the_old_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", [1])
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"path": Path("x")})
    assert json.loads((tmp_path / "a.json").read_text()) == [1]
    assert len(list(tmp_path.iterdir())) == 1


# --- Keys ------------------------------------------------------------------------------------------------------------
def test_a_fingerprint_changes_with_path_size_time_and_facts(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.write_text("same")
        os.utime(path, (5, 5))
    key = fingerprint_files([one])
    assert len(key) == 16
    assert fingerprint_files([str(one)]) == key
    assert len({key, fingerprint_files([two]), fingerprint_files([one, two]), fingerprint_files([two, one])}) == 4
    assert fingerprint_files([one], {"a": 1, "b": 2}) == fingerprint_files([one], {"b": 2, "a": 1}) != key
    assert fingerprint_files([one], length=32).startswith(key)
    os.utime(one, (6, 6))
    assert fingerprint_files([one]) != key
    os.utime(one, (5, 5))
    assert fingerprint_files([one]) == key
    one.write_text("longer")
    os.utime(one, (5, 5))
    assert fingerprint_files([one]) != key


def test_a_digest_changes_with_the_content_alone(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("same")
    two.write_text("same")
    assert digest_files([one]) == digest_files([str(two)])
    os.utime(one, (5, 5))
    assert digest_files([one]) == digest_files([two])
    two.write_text("other")
    assert digest_files([one]) != digest_files([two])
    assert digest_files([one, two]) != digest_files([two, one])
