"""How an error that a user can mend reaches them."""

import subprocess
import sys

import pytest

from bundle.errors import InputError, find_input_error


def test_the_error_is_found_behind_others() -> None:
    wrapped = RuntimeError("failed to instantiate")
    wrapped.__cause__ = InputError("liver.nii.gz: broken")
    assert find_input_error(wrapped) is wrapped.__cause__
    assert find_input_error(KeyError("x")) is None


@pytest.mark.parametrize(
    ("raised", "code", "shown"),
    [
        ("InputError('a.nii.gz: broken')", 2, "error: a.nii.gz: broken\n"),
        ("KeyError('a bug of ours')", 1, "Traceback"),
    ],
)
def test_only_our_errors_lose_their_traceback(raised: str, code: int, shown: str) -> None:
    program = f"from bundle.errors import InputError, show_input_errors_plainly as act\nact()\nraise {raised}"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert finished.returncode == code
    assert finished.stderr.startswith(shown)
