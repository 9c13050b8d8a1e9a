# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Run bad inputs for real, each in a fresh folder, and say what is wrong with how they were refused."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bundle.errors import EXIT_CODE
from tests.integration.bad_inputs.record import TRAINING, BadInput
from tests.paths import ROOT

__all__ = ["Answer", "Forker", "Workplace", "complaints"]

SECONDS = 60  # by then every one of them has long been refused
LINKED = ("bundle", "configs", "scripts")  # of the repository: commands run as from its root
VARIABLES = {  # what a machine has must not matter
    "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "120", "OMP_NUM_THREADS": "1", "ITK_GLOBAL_DEFAULT_NUMBER_OF_THREADS": "1",
}  # fmt: skip
CHANGING = {  # what differs from run to run, and what the page has instead
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?( ?[+-]\d\d:?\d\d|Z| UTC)?": "2026-01-01 12:00",
    r"\bprocess \d+ of \S+ on \S+, since": "process 1234 of USER on HOST, since",
    r"(GB of memory for .* found) [\d.]+ GB": r"\1 8.0 GB",
    r"\b[0-9a-f]{32}\b": "KEY",  # of a preprocessed case
    r"0x[0-9a-f]{6,}": "0x…",
}
SENTENCE = re.compile(r"^error: (.*(?:\n  .*)*)", re.MULTILINE)  # with a line below for each of several mistakes


@dataclass
class Answer:
    """How a command ended.

    Args:
        code: of its exit; None if it was killed because it ran on.
        stdout: what it printed.
        stderr: likewise.
        left: files that are new, changed or gone since, relative to its folder.
        unplanted: why the fault could not be made at all, so that no command ran.
    """

    code: int | None
    stdout: str = ""
    stderr: str = ""
    left: list[str] = field(default_factory=list)
    unplanted: str = ""

    @property
    def sentence(self) -> str | None:
        """What stands after `error:`, with the indented lines below."""
        found = SENTENCE.search(self.stderr)
        return found[1].strip() if found else None


class Forker:
    """The client of `forker`."""

    def __init__(self) -> None:
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("COV_", "PYTEST_"))}
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.bad_inputs.forker"],
            cwd=ROOT, env=variables | VARIABLES, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.answer()["ready"]

    def answer(self) -> dict[str, Any]:
        assert self.server.stdout is not None
        return json.loads(self.server.stdout.readline())

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.server.stdin is not None
        print(json.dumps(request), file=self.server.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        self.server.communicate()

    def run(
        self,
        folder: Path,
        words: Sequence[str],
        variables: Mapping[str, str] | None = None,
        without: Sequence[str] = (),
        largest_file: int | None = None,
        op: str = "run",
        printed: str = "",
    ) -> dict[str, Any]:
        """Run `python -m` with these words in a folder; its output is then beside the folder, or in `printed`."""
        return self.ask(
            op=op, folder=str(folder), words=words, variables=dict(variables or {}), without=without,
            largest_file=largest_file, seconds=SECONDS,
            stdout=printed or f"{folder}.stdout", stderr=printed or f"{folder}.stderr",
        )  # fmt: skip


def files_below(folder: Path, prefix: str = "") -> dict[str, tuple[int, int]]:
    """Size and time of every file; links are not followed."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            status = path.lstat()
            found[f"{prefix}{path.relative_to(folder)}"] = (status.st_size, status.st_mtime_ns)
    return found


@dataclass
class Workplace:
    """Where bad inputs are run.

    Args:
        root: a folder for all of their folders.
        cohorts: tiny ones; each bad input has a copy.
        forker: which runs them.
        numbers: of their folders.
    """

    root: Path
    cohorts: Path
    forker: Forker
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def make(self, name: str) -> Path:
        """A fresh folder from which commands run as from the repository's root."""
        folder = self.root / name
        folder.mkdir()
        for linked in LINKED:
            (folder / linked).symlink_to(ROOT / linked)
        shutil.copy(ROOT / "tests" / "integration" / "tiny.yaml", folder)
        shutil.copytree(self.cohorts, folder / "data")
        shutil.copy(folder / "data" / "test" / "imagesTs" / "test_000.nii.gz", folder / "scan.nii.gz")
        return folder

    def train(self) -> Path:
        """A folder in which a training has ended well."""
        folder = self.make("trained")
        ended = self.forker.run(folder, BadInput("", TRAINING).words)
        assert ended["code"] == 0, Path(f"{folder}.stderr").read_text()[-3000:]
        return folder

    def run(self, bad: BadInput, trained: Path) -> Answer:
        """Plant a fault in a fresh folder and run the command there."""
        folder = self.make(f"bad{next(self.numbers)}")
        started: list[int] = []
        try:
            self.prepare(folder, bad, trained, started)
        except Exception as error:  # whatever it is, it is the failure of this bad input alone
            return Answer(None, unplanted=repr(error))
        else:
            return self.answer(folder, bad)
        finally:
            for child in started:
                self.forker.ask(op="stop", child=child)
            allow_removal(folder)
            shutil.rmtree(folder)

    def prepare(self, folder: Path, bad: BadInput, trained: Path, started: list[int]) -> None:
        """Make the fault; `started` then has the process that runs beside."""
        if bad.trained:
            for part in ("models", "eval"):
                shutil.copytree(trained / part, folder / part)
        for command, sign in ((bad.after, "models/checkpoint.pt"), (bad.beside, "eval/history.jsonl")):
            if command:
                started.append(self.start(folder, command))
                self.wait_for(folder / sign, started[-1], folder)
        if bad.after:
            self.forker.ask(op="stop", child=started.pop(0))
        bad.plant(folder)

    def answer(self, folder: Path, bad: BadInput) -> Answer:
        before = files_below(folder)
        variables = {**bad.variables, "TMPDIR": str(self.temporary(folder))}
        ended = self.forker.run(folder, bad.words, variables, bad.without, bad.largest_file)
        after = files_below(folder) | files_below(self.temporary(folder), "TMPDIR/")
        changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        # what a killed command had begun to write may go
        left = [] if bad.beside else [path for path in changed if path in after or ".unfinished" not in path]
        stdout, stderr = (self.neutral(Path(f"{folder}.{stream}"), folder) for stream in ("stdout", "stderr"))
        return Answer(ended["code"], stdout, stderr, left)

    @staticmethod
    def temporary(folder: Path) -> Path:
        """Its folder of temporary files, which is empty in the end."""
        path = folder.with_name(f"{folder.name}.tmp")
        path.mkdir(exist_ok=True)
        return path

    def start(self, folder: Path, command: str) -> int:
        """Start a training that goes on for long; its process."""
        words = BadInput("", command).words
        child: int = self.forker.run(folder, words, op="start", printed=f"{folder}.started")["child"]
        return child

    def wait_for(self, file: Path, child: int, folder: Path) -> None:
        """Wait until a training has written a file, and so is under way; fails if it does not run then."""
        end = time.monotonic() + SECONDS
        while not file.is_file() and self.runs(child) and time.monotonic() < end:
            time.sleep(0.05)
        said = Path(f"{folder}.started").read_text()[-500:]
        assert file.is_file(), f"the training has not begun: {said}"
        assert self.runs(child), f"the training has ended: {said}"

    def runs(self, child: int) -> bool:
        return bool(self.forker.ask(op="poll", child=child)["runs"])

    def neutral(self, printed: Path, folder: Path) -> str:
        """What a command printed, without what differs from machine to machine and from run to run."""
        text = printed.read_text(encoding="utf-8", errors="replace").replace("\r", "\n")
        text = text.replace(str(self.temporary(folder)), "TMPDIR")
        for path in (folder, folder.resolve(), ROOT):
            text = text.replace(f"{path}/", "").replace(str(path), ".")
        for pattern, instead in CHANGING.items():
            text = re.sub(pattern, instead, text)
        return text


def allow_removal(folder: Path) -> None:
    for parent, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(parent, name)
            if not path.is_symlink():
                path.chmod(0o700)


def is_unwanted(path: Path) -> bool:
    """Whether a file is weights, temporary, or not written to its end. Preprocessed cases are none of these."""
    return (
        path.parts[0] == "TMPDIR"
        or ".unfinished" in path.name
        or (path.suffix == ".pt" and path.parent.name != "cache")
    )


def complaints(bad: BadInput, answer: Answer) -> list[str]:
    """What is wrong with how a bad input was refused; nothing if it was refused well."""
    if answer.unplanted:
        return [f"not planted: {answer.unplanted}"]
    found = []
    if answer.code is None:
        found.append(f"runs on after {SECONDS} s")
    elif answer.code != EXIT_CODE:
        found.append(f"exit code {answer.code}")
    if "Traceback" in answer.stdout + answer.stderr:
        raised = re.search(r"^\w[\w.]*(Error|Exception|Exit|Interrupt)\b.*", answer.stderr, re.MULTILINE)
        found.append(f"a traceback: {raised[0][:300] if raised else 'of no exception'}")
    sentences = len(re.findall(r"^error: ", answer.stderr, re.MULTILINE))
    if sentences != 1:
        found.append(f"{sentences} sentences")
    unnamed = [word for word in bad.about if word not in (answer.sentence or "")]
    if unnamed and answer.sentence:
        found.append(f"does not name {', '.join(unnamed)}: {answer.sentence}")
    if answer.sentence and not answer.sentence.replace("\n", "").isprintable():
        found.append(f"characters that a terminal may obey: {answer.sentence!r}")
    left = [path for path in answer.left if bad.untouched or is_unwanted(Path(path))]
    if left:
        found.append("left behind: " + ", ".join(left[:5]))
    return found
