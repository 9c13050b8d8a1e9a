# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The one exception for what a user can correct, also when the machine is at fault, and how a command line shows it."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

from tqdm import tqdm

__all__ = [
    "EXIT_CODE",
    "INTERRUPTED",
    "InputError",
    "Terminated",
    "find_input_error",
    "let_loaders_end",
    "os_error_sentence",
    "show_input_errors_plainly",
]

EXIT_CODE = 2
INTERRUPTED = 130  # what shells report for Ctrl-C
TERMINATED = 143  # and for SIGTERM


class InputError(ValueError):
    """Says what was expected, what was found, in which file, and what to do."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which schedulers end a job: everything that cleans up after Ctrl-C does so after this too."""


# --- Faults of the machine -------------------------------------------------------------------------------------------
AGAIN = "and start the same command again"
ELSEWHERE = "choose another folder"
DISK_FAULTS = {
    errno.ENOSPC: f"the disk is full; free some room, or choose a folder on another disk, {AGAIN}",
    errno.EDQUOT: f"your quota of disk space is used up; free some room, or {ELSEWHERE}, {AGAIN}",
    errno.EROFS: f"its file system is read-only; {ELSEWHERE}",
    errno.EACCES: f"permission is denied; change the permissions, or {ELSEWHERE}",
    errno.EPERM: f"the system does not allow it; change the permissions, or {ELSEWHERE}",
    errno.ENOTDIR: f"part of the path is a file where a folder was expected; move it away, or {ELSEWHERE}",
    errno.EEXIST: f"there is a file where a folder was expected; move it away, or {ELSEWHERE}",
    errno.EISDIR: "there is a folder where a file was expected; move it away, or choose another name",
    errno.ENAMETOOLONG: "the name is too long for the file system; choose a shorter one",
    errno.EFBIG: f"it is larger than this system allows a file to be; see `ulimit -f`, {AGAIN}",
    errno.EIO: f"the disk reports an error; look after the disk, or {ELSEWHERE}, {AGAIN}",
    errno.ESTALE: f"the folder has gone from under the program; mount it anew, {AGAIN}",
    errno.EMFILE: f"too many files are open; raise `ulimit -n`, {AGAIN}",
    errno.ENFILE: f"the machine has too many files open; close other programs, {AGAIN}",
}
MACHINE_FAULTS = (  # in an exception's "Kind: text", where torch and MONAI have no kind of their own for it
    (
        # The others: it was killed while it handed a batch over; no other processes talk to each other here.
        r"DataLoader worker .*(killed by signal|exited unexpectedly)|^Connection(Reset|Refused)Error|^EOFError: $",
        "workers: a process that loads data was ended from outside, probably for lack of memory or of shared memory "
        f"(/dev/shm); use fewer, or --workers 0, which loads in the main process, {AGAIN}",
    ),
    (
        r"unable to (write to file|open shared memory|mmap|allocate shared memory)|items of ancdata",
        "workers: the processes that load data ran out of shared memory (/dev/shm) or of open files; use fewer, or "
        f"--workers 0, which loads in the main process, {AGAIN}",
    ),
    (
        r"^(\w*MemoryError|OutOfMemoryError)\b|out of memory|can't allocate memory|Cannot allocate memory",
        f"memory ran out; lower patch_size, batch_full, window_batch or workers, or close other programs, {AGAIN}",
    ),
    (
        r"not compiled with CUDA|no NVIDIA driver|No CUDA GPUs|invalid device ordinal|CUDA driver version",
        "device: a GPU was asked for, and PyTorch finds none that it can use; choose --device cpu, or see "
        "docs/how-to/gpu.md",
    ),
)
IN_WORKER = re.compile(r"^(?:bundle\.errors\.)?InputError: (.+)$", re.MULTILINE)  # in the traceback that torch hands on


def os_error_sentence(error: OSError, path: str | Path | None = None, action: str = "used") -> str:
    """What is wrong with a file, and what to do.

    >>> print(os_error_sentence(OSError(errno.EROFS, "Read-only file system"), "eval/prior.json", "written"))
    eval/prior.json: cannot be written: its file system is read-only; choose another folder
    """
    named = path or error.filename or "a file"
    reason = DISK_FAULTS.get(error.errno or 0) or f"{error.strerror or error}; see that the folder can be used, {AGAIN}"
    return f"{named}: cannot be {action}: {reason}"


def fault_sentence(error: BaseException) -> str | None:
    """The sentence for a fault of the machine; None where the exception may be a mistake of the program."""
    if isinstance(error, OSError) and error.errno in DISK_FAULTS:
        return os_error_sentence(error)
    text = f"{type(error).__name__}: {error}"
    return next((sentence for pattern, sentence in MACHINE_FAULTS if re.search(pattern, text)), None)


# --- What is shown ---------------------------------------------------------------------------------------------------
def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception and what it came from: MONAI's config parser and Compose wrap what they call raises."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def find_input_error(error: BaseException | None) -> InputError | None:
    """The InputError behind ``error``, or one that names the fault of the machine behind it, or None.

    >>> wrapped = RuntimeError("applying transform LoadOnOwnGridd")
    >>> wrapped.__cause__ = InputError("ct.nii.gz: no such file; give a CT scan")
    >>> print(find_input_error(wrapped))
    ct.nii.gz: no such file; give a CT scan
    """
    for one in chain(error):
        in_worker = IN_WORKER.search(str(one)) if "DataLoader worker" in str(one) else None
        if in_worker:
            return InputError(in_worker[1])
        if isinstance(one, InputError):
            return one
    while error is not None:
        sentence = fault_sentence(error)
        if sentence:
            return InputError(sentence)
        error = error.__cause__  # what an exception merely followed may have nothing to do with it
    return None


def show_input_errors_plainly(interrupted: str = "start the same command again") -> None:
    """Let what a user can correct end the process with one sentence and exit code 2, Ctrl-C and SIGTERM with one too.

    `python -m monai.bundle run` is not our command line, so this is the only place to reach it from.

    Args:
        interrupted: what to do after Ctrl-C.
    """
    previous, process = sys.excepthook, os.getpid()

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != process:
            return  # what a process that loads data has to say, it hands to this one; at its end it only complains
        let_loaders_end()
        if isinstance(error, Terminated):
            end(f"terminated; {interrupted}", TERMINATED)
        if isinstance(error, KeyboardInterrupt):
            end(f"interrupted; {interrupted}", INTERRUPTED)
        found = find_input_error(error)
        if found is not None:
            end(f"error: {found}", EXIT_CODE)
        previous(kind, error, trace)

    sys.excepthook = hook
    end_in_order()


def let_loaders_end() -> None:
    """Once one error is under way: torch would raise another one, anywhere, for each loader process that ends."""
    with contextlib.suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def end(sentence: str, code: int) -> NoReturn:
    """Say it on a line of its own, below the progress bars; CPython obeys a SystemExit raised by the hook."""
    for bar in list(getattr(tqdm, "_instances", ())):
        bar.close()
    print(sentence, file=sys.stderr)
    sys.exit(code)


def end_in_order() -> None:
    """Let SIGTERM clean up as Ctrl-C does, unless somebody has decided about it or this is not the main thread."""
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            os._exit(128 + number)  # a process forked from this one has nothing of its own to clean up
        let_loaders_end()
        raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    with contextlib.suppress(ValueError):  # only the main thread may
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                signal.signal(number, interrupt)
