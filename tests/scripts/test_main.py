"""The command line: every tool is found, and only the one asked for is loaded."""

import subprocess
import sys
from collections.abc import Callable

from scripts.__main__ import COMMANDS, load_commands
from tests.paths import ROOT


def test_every_command_is_found() -> None:
    names = {"bench", "check", "compare", "crossval", "demo", "folds", "phantom", "prepare", "prior", "segment"}
    assert set(load_commands([])) == set(COMMANDS) == names
    assert set(load_commands(["bench"])) == {"bench"}


def test_making_phantoms_does_not_wait_for_torch() -> None:
    program = "from scripts.__main__ import load_commands; import sys; load_commands(['phantom']); print(*sys.modules)"
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "torch" not in finished.stdout.split()


def test_a_misspelt_command_is_told(run_command: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = run_command("-m", "scripts", "chek", "data")
    assert done.returncode == 2
    assert done.stderr.strip() == 'error: chek: there is no such command; did you mean "check"?'
