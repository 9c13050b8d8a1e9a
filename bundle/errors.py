# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The one exception for input a user can correct, and how a command line shows it: one sentence, exit code 2."""

from __future__ import annotations

import sys
from types import TracebackType

__all__ = ["EXIT_CODE", "InputError", "find_input_error", "show_input_errors_plainly"]

EXIT_CODE = 2


class InputError(ValueError):
    """Says what was expected, what was found, in which file, and what to do."""


def find_input_error(error: BaseException | None) -> InputError | None:
    """The InputError behind ``error``, or None: MONAI's config parser and Compose wrap what they call raises.

    >>> wrapped = RuntimeError("applying transform LoadOnOwnGridd")
    >>> wrapped.__cause__ = InputError("ct.nii.gz: no such file; give a CT scan")
    >>> print(find_input_error(wrapped))
    ct.nii.gz: no such file; give a CT scan
    """
    while error is not None and not isinstance(error, InputError):
        error = error.__cause__ or error.__context__
    return error


def show_input_errors_plainly() -> None:
    """Let an uncaught InputError end the process with its sentence and exit code 2 instead of a traceback.

    `python -m monai.bundle run` is not our command line, so this is the only place to reach it from.
    """
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        found = find_input_error(error)
        if found is None:
            previous(kind, error, trace)
            return
        print(f"error: {found}", file=sys.stderr)
        sys.exit(EXIT_CODE)  # CPython obeys a SystemExit raised by the hook

    sys.excepthook = hook
