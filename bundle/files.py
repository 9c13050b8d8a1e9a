# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Files that appear whole or not at all, what killed writers left, and short keys that change when files do."""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from bundle.errors import InputError, os_error_sentence

__all__ = [
    "append_text",
    "digest_files",
    "fingerprint_files",
    "make_folder",
    "remove_unfinished",
    "sweep",
    "whole_file",
    "write_json",
    "write_text",
]

UNFINISHED = re.compile(r"\.unfinished-(?P<place>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{16}-.*", re.DOTALL)
LONGEST_NAME = 255  # bytes, on all usual file systems
FORGOTTEN = 24 * 3600  # seconds without a change after which nobody writes a file any more
PROBE = 2**20  # bytes; more than the blocks that a full disk may still have


# --- Writing ---------------------------------------------------------------------------------------------------------
@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """A hidden file beside ``path`` to write to; it takes that place when the block ends without an exception.

    A reader never sees half a file, not even after a power cut: it is on the disk before it takes its place. Ctrl-C and
    errors remove the hidden one, `kill -9` leaves it (see :func:`sweep`). Its name cannot be guessed, and nobody else
    can read it before it is finished. The ending stays, since writers such as nibabel choose the format by it. The
    folder is created if it is not there.

    Raises:
        InputError: when the file cannot be written, with the reason; the one that was there stays.
    """
    path = Path(path)
    unfinished: Path | None = None
    try:
        unfinished = make_unfinished(path)
        yield unfinished
        unfinished.chmod(0o666 & ~umask())
        flush_to_disk(unfinished)
        os.replace(unfinished, path)
        flush_folder(path.parent)
    except Exception as error:
        reason = error if isinstance(error, OSError) else disk_fault(unfinished)
        if reason is None or not concerns(reason, path, unfinished):
            raise
        raise InputError(os_error_sentence(reason, path, "written")) from error
    finally:
        if unfinished is not None:
            with suppress(OSError):  # a file system that has become read-only keeps it
                unfinished.unlink(missing_ok=True)


def make_unfinished(path: Path) -> Path:
    """A new empty file beside ``path``. What would fail when it takes its place fails here, before the work."""
    if len(os.fsencode(path.name)) > LONGEST_NAME:
        raise OSError(errno.ENAMETOOLONG, "", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "", str(path))
    start = f".unfinished-{this_place()}-{os.getpid()}-{secrets.token_hex(8)}-"
    ending = os.fsencode(path.name)[len(start) - LONGEST_NAME :].decode(errors="ignore")
    unfinished = path.with_name(start + ending)
    try:
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # whose name means something to a user
    return unfinished


def umask() -> int:
    """The permissions that this process does not give to new files; it can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def flush_to_disk(path: Path) -> None:
    """Wait until a file's content is on the disk, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk; some network file systems have no such thing."""
    try:
        flush_to_disk(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def disk_fault(unfinished: Path | None) -> OSError | None:
    """Why nothing more can be written to a file, if so: writers in C, as torch has, only say that they failed."""
    if unfinished is None:
        return None
    try:
        with unfinished.open("ab") as file:
            file.write(bytes(PROBE))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


def concerns(error: OSError, path: Path, unfinished: Path | None) -> bool:
    """Whether it is this file that could not be written, and not another one that could not be read meanwhile."""
    named = error.filename
    return named is None or Path(os.fsdecode(named)) in {path, unfinished, *path.parents}


def make_folder(path: str | Path) -> Path:
    """The folder, created if it is not there.

    Raises:
        InputError: when it cannot be, with the reason.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(os_error_sentence(error, path, "created")) from error
    return path


def append_text(path: str | Path, text: str) -> None:
    """Add text to the end of a file, UTF-8, all of it or nothing; it is on the disk afterwards.

    Raises:
        InputError: when it cannot be written, with the reason; the file is as it was.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            before = file.tell()
            try:
                write_all(file.fileno(), text.encode())
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):  # the reason is the first error
                    file.truncate(before)
                raise
    except OSError as error:
        raise InputError(os_error_sentence(error, path, "written")) from error


def write_all(descriptor: int, content: bytes) -> None:
    """A disk that is nearly full takes a part of it, and says so only when it is given the rest."""
    while content:
        content = content[os.write(descriptor, content) :]


def write_text(path: str | Path, text: str) -> None:
    """Write a text file, UTF-8, whole or not at all."""
    with whole_file(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def write_json(path: str | Path, record: Any, default: Callable[[Any], Any] | None = None) -> None:
    """Write a record as indented JSON, whole or not at all.

    Args:
        path: of the file.
        record: anything that JSON can hold.
        default: what becomes of other objects, for instance ``str`` for paths; they are an error if not given.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_json(f"{folder}/run.json", {"model": Path("model.pt")}, default=str)
    ...     json.loads(Path(folder, "run.json").read_text())
    {'model': 'model.pt'}
    """
    # Made before the file is opened: a record that JSON cannot hold leaves no trace.
    write_text(path, json.dumps(record, indent=2, ensure_ascii=False, default=default) + "\n")


# --- What killed writers left ----------------------------------------------------------------------------------------
@functools.cache
def this_place() -> str:
    """Where this process's number means something: this machine, since it was started, in this container."""
    facts = [platform.node()]
    for source in (Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")):
        with suppress(OSError):  # only Linux has them
            facts.append(os.readlink(source) if source.is_symlink() else source.read_text())
    return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:8]


def abandoned(path: Path) -> bool:
    """Whether a file is one of ours that nobody writes any more.

    The process is asked for where its number means something. On a folder shared with other machines, and where the
    number has been given to another process since, the time of the last change decides.
    """
    name = UNFINISHED.fullmatch(path.name)
    if name is None:
        return False
    if name["place"] == this_place() and not psutil.pid_exists(int(name["process"])):
        return True
    with suppress(FileNotFoundError):
        return time.time() - path.lstat().st_mtime > FORGOTTEN
    return False


def remove_unfinished(folder: str | Path) -> None:
    """Remove the hidden files that writers left in a folder when they were killed; those of living processes stay."""
    for path in Path(folder).glob(".unfinished-*"):
        if abandoned(path):
            with suppress(OSError):  # it does no harm there
                path.unlink(missing_ok=True)


def sweep(*folders: str | Path) -> None:
    """Remove what killed writers left in folders of ours and all folders in them; links are not followed."""
    for folder in folders:
        for inner, _, _ in os.walk(folder):
            remove_unfinished(inner)


# --- Keys ------------------------------------------------------------------------------------------------------------
def fingerprint_files(paths: Sequence[str | Path], *facts: Any, length: int = 16) -> str:
    """A key that changes when a file is replaced or touched, without reading it: path, size and time of change.

    Args:
        paths: files that exist.
        facts: what else counts, as JSON can hold it, for instance how the files are used.
        length: hexadecimal digits of the key.
    """
    files = [(os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    text = json.dumps([files, *facts] if facts else files, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def digest_files(paths: Sequence[str | Path]) -> str:
    """A key that changes when the content of a file does, wherever the files are: for configs and other small files."""
    return hashlib.sha256(b"\0".join(Path(path).read_bytes() for path in paths)).hexdigest()[:16]
