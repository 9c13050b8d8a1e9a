"""How an error that a user can correct reaches them."""

import errno
import subprocess
import sys

import pytest
import torch

from bundle.errors import InputError, find_input_error


def test_the_error_is_found_behind_others() -> None:
    wrapped = RuntimeError("failed to instantiate")
    wrapped.__cause__ = InputError("liver.nii.gz: broken")
    assert find_input_error(wrapped) is wrapped.__cause__
    assert find_input_error(KeyError("x")) is None


# --- Faults of the machine -------------------------------------------------------------------------------------------
ALLOCATOR = "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to"
KILLED = "DataLoader worker (pid 71) is killed by signal: Killed. "
LOST = "DataLoader worker (pid(s) 71, 72) exited unexpectedly"


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "memory ran out; lower patch_size"),
        (RuntimeError(ALLOCATOR), "memory ran out; lower patch_size"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "memory ran out; lower patch_size"),
        (RuntimeError(KILLED), "workers: a process that loads data was ended from outside"),
        (RuntimeError(LOST), "workers: a process that loads data was ended from outside"),
        (ConnectionResetError(104, "Connection reset by peer"), "workers: a process that loads data was ended"),
        (AssertionError("Torch not compiled with CUDA enabled"), "device: a GPU was asked for"),
        (RuntimeError("Found no NVIDIA driver on your system."), "device: a GPU was asked for"),
        (OSError(errno.ENOSPC, "No space left on device", "a/b.pt"), "a/b.pt: cannot be used: the disk is full"),
        (OSError(errno.EROFS, "Read-only file system"), "a file: cannot be used: its file system is read-only"),
    ],
)
def test_a_fault_of_the_machine_has_a_sentence_also_when_it_is_wrapped(error: Exception, sentence: str) -> None:
    assert str(find_input_error(error)).startswith(sentence)
    wrapped = RuntimeError("Failed to instantiate component 'run_stage'")
    wrapped.__cause__ = error
    assert str(find_input_error(wrapped)).startswith(sentence)
    assert "\n" not in str(find_input_error(wrapped))


def test_a_mistake_of_the_program_is_not_called_a_fault_of_the_machine() -> None:
    mistakes = [FileNotFoundError(2, "No such file", "a"), RuntimeError("shapes do not match"), EOFError("file ended")]
    assert [find_input_error(mistake) for mistake in mistakes] == [None] * 3
    handling = KeyError("a mistake made while a fault was handled")
    handling.__context__ = OSError(errno.ENOSPC, "No space left on device")
    assert find_input_error(handling) is None


class Broken(torch.utils.data.Dataset[int]):
    """Its only item cannot be read."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, number: int) -> int:
        try:
            raise InputError("ct.nii.gz: broken; look at it")
        except InputError as error:
            raise RuntimeError("applying transform <LoadImaged>") from error


def test_the_sentence_of_a_loader_process_arrives_without_its_traceback() -> None:
    with pytest.raises(RuntimeError) as caught:
        next(iter(torch.utils.data.DataLoader(Broken(), num_workers=1)))
    assert "Traceback" in str(caught.value)  # torch sends it along as text
    assert str(find_input_error(caught.value)) == "ct.nii.gz: broken; look at it"


# --- What is shown ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("statement", "code", "shown"),
    [
        ("raise InputError('a.nii.gz: broken')", 2, "error: a.nii.gz: broken\n"),
        ("open('/dev/full', 'w').write('x' * 99999)", 2, "error: a file: cannot be used: the disk is full; free"),
        ("raise KeyError('a bug of ours')", 1, "Traceback"),
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "interrupted; go on\n"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "terminated; go on\n"),
    ],
)
def test_only_what_is_no_mistake_of_ours_loses_its_traceback(statement: str, code: int, shown: str) -> None:
    program = (
        "import os, signal, time\nfrom bundle.errors import InputError, show_input_errors_plainly as act\n"
        f"act('go on')\n{statement}\ntime.sleep(60)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert finished.returncode == code
    assert finished.stderr.startswith(shown)
    assert len(finished.stderr.splitlines()) == 1 or code == 1


def test_the_sentence_stands_below_the_progress_bars() -> None:
    program = (
        "from tqdm import tqdm\nfrom bundle.errors import show_input_errors_plainly as act\nact()\n"
        "bar, inner = tqdm(total=3), tqdm(total=3)\nraise KeyboardInterrupt"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert finished.stderr.endswith("\ninterrupted; start the same command again\n")


def test_a_process_that_was_forked_ends_by_sigterm_without_a_word() -> None:
    program = (
        "import os, signal, time\nfrom bundle.errors import show_input_errors_plainly as act\nact()\n"
        "child = os.fork()\nif not child:\n  time.sleep(60)\n"
        "time.sleep(0.1); os.kill(child, signal.SIGTERM); print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (finished.stdout, finished.stderr) == ("143\n", "")
