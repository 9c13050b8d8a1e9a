"""Files that appear whole or not at all, what killed writers left, and keys that change when files do."""

import errno
import json
import os
import resource
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bundle import files
from bundle.errors import InputError
from bundle.files import (
    append_text,
    digest_files,
    fingerprint_files,
    remove_unfinished,
    sweep,
    whole_file,
    write_json,
    write_text,
)
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


def test_a_folder_that_takes_no_file_is_told_by_the_name_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(InputError, match=r"/a.json: cannot be written: permission is denied"):
            write_json(tmp_path / "a.json", {})


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


def test_an_unfinished_file_is_private_and_its_name_cannot_be_guessed(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with whole_file(tmp_path / "a.json") as first, whole_file(tmp_path / "a.json") as second:
            assert first != second
            assert stat.S_IMODE(first.stat().st_mode) == 0o600
            first.write_text("1")
            second.write_text("2")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").read_text() == "1"  # the block that ended last
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_is_on_the_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, done = tmp_path / "a", []
    really = {"fsync": os.fsync, "replace": os.replace}

    def fsync(descriptor: int) -> None:
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        really["fsync"](descriptor)

    def replace(source: Path, target: Path) -> None:
        done.append("renamed")
        really["replace"](source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    with whole_file(path) as unfinished:
        unfinished.write_text("new")
    assert done == [unfinished.name, "renamed", tmp_path.name]


def test_the_longest_name_that_a_file_system_takes_can_be_written(tmp_path: Path) -> None:
    name = "a" + "ü" * 123 + ".nii.gz"  # 254 bytes, in which no cut may halve a letter
    write_text(tmp_path / name, "whole")
    assert [path.name for path in tmp_path.iterdir()] == [name]
    with whole_file(tmp_path / name) as unfinished:
        assert unfinished.name.endswith("ü.nii.gz")
        unfinished.write_text("again")
    with pytest.raises(InputError, match=r"cannot be written: the name is too long for the file system; choose a sh"):
        write_text(tmp_path / f"{name}..", "no")


# --- Disks that do not take it ---------------------------------------------------------------------------------------
WRITERS = {
    "text": "file.write_text('x' * 300000)",
    "torch": "import torch; torch.save(torch.ones(100000), file)",
    "nibabel": "import nibabel, numpy; nibabel.save(nibabel.Nifti1Image(numpy.ones((99, 99, 99)), None), file)",
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_does_not_fit_leaves_the_old_one_and_one_sentence(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "a.nii"
    path.write_text("old")
    program = f"""if True:
        import sys
        from bundle.errors import InputError
        from bundle.files import whole_file
        try:
            with whole_file(sys.argv[1]) as file:
                {WRITERS[writer]}
        except InputError as error:
            print(error)
        """
    limit = 200_000  # bytes of a file: what the system refuses to write, it refuses as it does on a full disk
    ended = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=ROOT, timeout=120, capture_output=True, text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )  # fmt: skip
    assert ended.stdout.startswith(f"{path}: cannot be written: it is larger than this system allows"), ended.stderr
    assert len(ended.stdout.splitlines()) == 1
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "the disk is full"), (errno.EDQUOT, "your quota"), (errno.EROFS, "its file system is read-only")],
)
def test_each_reason_has_its_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, reason: str) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))  # as many file systems do, only when the content is to be on the disk

    write_text(tmp_path / "a", "old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InputError, match=f"a: cannot be written: {reason}.*(start|choose)"):
        write_text(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_path_that_cannot_be_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for path, reason in [
        ("file/a", "there is a file where a folder was expected"),
        ("file/b/a", "part of the path is a file where a folder was expected"),
        ("folder", "there is a folder where a file was expected"),
    ]:
        with pytest.raises(InputError, match=f"{path}: cannot be written: {reason}"), whole_file(tmp_path / path):
            raise AssertionError("the block was entered")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_what_goes_wrong_with_other_files_is_not_said_of_this_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "a"):
        (tmp_path / "source").read_text()
    assert not list(tmp_path.iterdir())


def test_lines_are_appended_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new folder" / "history.jsonl"
    append_text(path, "10 ‰\n")
    append_text(path, "20 ‰\n")
    assert path.read_text(encoding="utf-8") == "10 ‰\n20 ‰\n"
    really = os.write

    def nearly_full(descriptor: int, content: bytes) -> int:
        if len(content) < 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return really(descriptor, content[:4])

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(InputError, match=r"history.jsonl: cannot be written: the disk is full; free some room"):
        append_text(path, "30 ‰\n")
    assert path.read_text(encoding="utf-8") == "10 ‰\n20 ‰\n"


def test_a_disk_that_is_really_full_has_the_sentence_too() -> None:
    with pytest.raises(InputError, match="/dev/full: cannot be written: the disk is full"):
        append_text("/dev/full", "a line\n")


# --- What is left ----------------------------------------------------------------------------------------------------
def left_over(folder: Path, place: str, process: int, age: float = 0) -> Path:
    path = folder / f".unfinished-{place}-{process}-{'0' * 16}-model.pt"
    path.touch()
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_only_what_nobody_writes_any_more_is_removed(tmp_path: Path) -> None:
    here, elsewhere, day = files.this_place(), "0" * 8, 24 * 3600
    dead = next(number for number in range(2**22, 2**23) if not psutil.pid_exists(number))
    kept = [
        left_over(tmp_path, here, os.getpid()),
        left_over(tmp_path, elsewhere, dead, day - 60),  # of another machine, where the number may be somebody's
    ]
    gone = [
        left_over(tmp_path, here, dead),
        left_over(tmp_path, here, os.getppid(), day + 60),  # its number was given to another process
        left_over(tmp_path, "1" * 8, dead, day + 60),
    ]
    remove_unfinished(tmp_path)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in gone)


def test_a_sweep_looks_into_all_folders_and_follows_no_links(tmp_path: Path) -> None:
    dead = next(number for number in range(2**22, 2**23) if not psutil.pid_exists(number))
    outside, inside = tmp_path / "outside", tmp_path / "eval" / "pseudo_labels" / "liver"
    for folder in (outside, inside):
        folder.mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    there, here = left_over(outside, files.this_place(), dead), left_over(inside, files.this_place(), dead)
    sweep(tmp_path / "eval", tmp_path / "nowhere")
    assert there.exists()
    assert not here.exists()


# --- Text and records ------------------------------------------------------------------------------------------------
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
