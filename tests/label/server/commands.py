# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""How tests of the server run commands in its environment."""

from __future__ import annotations

import subprocess
import sys

from tests.paths import ROOT


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """`python -m …`, as a user would."""
    command = [sys.executable, "-W", "ignore", "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
