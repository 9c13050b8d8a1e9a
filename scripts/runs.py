# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Many command lines, several at a time within a budget of cores and memory, each kept once it is finished.

What a run computes is its own matter: this module knows folders, processes and what they leave, nothing of networks.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from bundle.errors import InputError
from bundle.files import write_json
from bundle.processes import available_memory, patient_threads, tree_memory
from bundle.untrusted import is_number, read_json

__all__ = ["ROOT", "Run", "bundle_command", "check_budget", "check_folders", "is_finished", "run_all_within"]

ROOT = Path(__file__).resolve().parent.parent
MARKER, RECORD, LOG = ".run", "run.json", "log.txt"
POLL = 0.1  # seconds after which the processes are polled again
PATIENCE = 10.0  # seconds that a process is given to end
GB = 1e9
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(frozen=True)
class Run:
    """Command lines that make one folder.

    Args:
        name: for the progress bar and errors.
        folder: everything it writes is in there.
        steps: command lines, run one after another from the repository's root.
        settings: what it is made with, as JSON can hold it; a finished run is kept while they are the same.
        needs: folders of runs that must be finished first. Their settings count as its own.
        goes_on: its steps go on from what an interruption left, as trainings do; else they begin with an empty folder.
    """

    name: str
    folder: Path
    steps: tuple[tuple[str, ...], ...]
    settings: dict[str, Any]
    needs: tuple[Path, ...] = ()
    goes_on: bool = False


def bundle_command(run_id: str, configs: Sequence[str | Path], **values: object) -> tuple[str, ...]:
    """`python -m scripts run`, as a user would type it."""
    files = str([str(config) for config in configs])
    command = [sys.executable, "-W", "ignore", "-m", "scripts", "run", run_id, "--config_file", files]
    for name, value in values.items():
        command += [f"--{name}", str(value)]
    return tuple(command)


def run_all_within(
    runs: Sequence[Run], cores: int, threads: int = 1, memory: float | None = None, run_memory: float = 2.0
) -> None:
    """Run all that are not finished yet, several at a time; the same call goes on after an interruption.

    Args:
        runs: in the order they are preferred in.
        cores: that may be used in all.
        threads: of one run.
        memory: GB that may be used in all; 80 % of what is available now if None.
        run_memory: GB expected of a run until one has been measured.

    Raises:
        InputError: when a folder is not ours to empty; at the end when runs failed, with what each of them said.
    """
    check_budget(cores, threads, memory, run_memory)
    check_folders(runs)
    budget = 0.8 * available_memory() if memory is None else memory * GB
    Schedule(runs, cores // threads, threads, budget, run_memory * GB).go()


def check_budget(cores: int, threads: int = 1, memory: float | None = None, run_memory: float = 1.0) -> None:
    for name, value in {"cores": cores, "threads": threads}.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{name}: expected a whole number from 1 on, found {value}")
    if threads > cores:
        raise InputError(f"threads: expected at most the {cores} cores there are to use, found {threads}")
    for name, size in {"memory": memory, "run_memory": run_memory}.items():
        if size is not None and (not isinstance(size, int | float) or isinstance(size, bool) or size <= 0):
            raise InputError(f"{name}: expected GB such as 8, found {size}")


def check_folders(runs: Sequence[Run]) -> None:
    """Each run has a folder of its own, which we may empty, and what it needs is among the runs or finished."""
    folders = [run.folder.resolve() for run in runs]
    for run, folder in zip(runs, folders, strict=True):
        if folders.count(folder) > 1 or not set(folders).isdisjoint(folder.parents):
            raise InputError(f"{folder}: two runs would write there; give each a folder of its own")
        if run.folder.exists() and not run.folder.is_dir():
            raise InputError(f"{run.folder}: expected a folder, found a file; choose another output")
        if run.folder.exists() and any(run.folder.iterdir()) and not (run.folder / MARKER).is_file():
            raise InputError(f"{run.folder}: exists and was not made by this command; choose another output")
        for need in run.needs:
            if need.resolve() not in folders and read_record(need) is None:
                raise InputError(f"{need}: run {run.name} needs what is made there, and no run makes it")


# --- What a run leaves -----------------------------------------------------------------------------------------------
def read_record(folder: Path) -> dict[str, Any] | None:
    """The run.json of a finished run; None if there is none."""
    try:
        record = read_json(folder / RECORD)
    except InputError:
        return None
    measured = isinstance(record, dict) and all(is_number(record.get(key, 0)) for key in ("seconds", "peak_memory_gb"))
    return record if measured else None


def made_with(run: Run, others: Sequence[Run] = ()) -> dict[str, Any]:
    """The settings of the run and of those it needs, as they are after a way through JSON."""
    planned = {other.folder.resolve(): other for other in others}
    needs = []
    for need in run.needs:
        other = planned.get(need.resolve())
        record = made_with(other, others) if other else (read_record(need) or {})
        needs.append({key: record.get(key) for key in ("settings", "needs")})
    return json.loads(json.dumps({"settings": run.settings, "needs": needs}, default=str))


def is_finished(run: Run, others: Sequence[Run] = ()) -> bool:
    """Whether the run and those it needs, of ``others``, have ended well before, with the same settings."""
    record, now = read_record(run.folder), made_with(run, others)
    if record is None or any(record.get(key) != value for key, value in now.items()):
        return False
    needs = {need.resolve() for need in run.needs}
    return all(is_finished(other, others) for other in others if other.folder.resolve() in needs)


def what_went_wrong(log: Path, code: int) -> str:
    """The sentence of an error: the one our commands print, else the last line."""
    if code < 0:
        hint = "; the system does that when memory runs out" if code == -signal.SIGKILL else ""
        return f"ended by {signal.Signals(-code).name}{hint}"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    places = [place for place, line in enumerate(lines) if line.startswith("error:")]
    if not places:
        return (lines or [f"exit code {code}"])[-1].strip()
    several = itertools.takewhile(
        lambda line: line.startswith("  "), lines[places[-1] + 1 :]
    )  # a line for each mistake
    return " ".join(
        [lines[places[-1]].removeprefix("error:").strip(), *(f"{line.strip()};" for line in several)]
    ).rstrip(";")


# --- Processes -------------------------------------------------------------------------------------------------------
def end_with_parent() -> None:
    """Called in a child before its program: `kill -9` of the parent ends it too, where it would go on writing.

    psutil has nothing of the kind: a parent that was killed can end nobody.
    """
    if LIBC is not None:
        LIBC.prctl(DEATH_SIGNAL, signal.SIGKILL)


def beginning_of(run: Run) -> bytes:
    """What a run that goes on must have been begun with: steps, settings, program and libraries."""
    from bundle.configs import config_record  # here: it brings torch

    needs = [(read_record(need) or {}).get("settings") for need in run.needs]
    facts = [run.steps, run.settings, needs, config_record()]
    return hashlib.sha256(json.dumps(facts, default=str, sort_keys=True).encode()).hexdigest().encode()


def take_folder(run: Run) -> IO[bytes]:
    """The folder and its marker, locked: whoever works in there holds the lock, orphans too.

    It is emptied, unless the run goes on and was begun as it is now.
    """
    folder, begun = run.folder, beginning_of(run) if run.goes_on else b""
    folder.mkdir(parents=True, exist_ok=True)
    marker = (folder / MARKER).open("a+b")
    deadline = time.monotonic() + PATIENCE  # processes of a run that was killed just now may still be ending
    while True:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > deadline:
                marker.close()
                raise InputError(f"{folder}: another process is at work there; wait for it, or end it") from None
            time.sleep(POLL)
    marker.seek(0)
    if run.goes_on and marker.read() == begun:
        (folder / RECORD).unlink(missing_ok=True)
        return marker
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != MARKER:
            path.unlink()
    marker.truncate(0)
    marker.write(begun)
    marker.flush()
    return marker


class Started:
    """A run under way: one process at a time, in a session of its own."""

    def __init__(self, run: Run, threads: int) -> None:
        self.run, self.threads, self.step, self.peak = run, threads, 0, 0
        self.began, self.marker = time.monotonic(), take_folder(run)
        self.log = (run.folder / LOG).open("ab")
        self.process = self.start_step()

    def start_step(self) -> subprocess.Popen[bytes]:
        count = str(self.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": count, "MKL_NUM_THREADS": count}
        patient_threads(environment)
        return subprocess.Popen(
            self.run.steps[self.step],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
            pass_fds=[self.marker.fileno()],
        )

    def poll(self) -> int | None:
        """The exit code once a step has failed or all have ended; None while there is something to do."""
        self.peak = max(self.peak, tree_memory(self.process.pid))
        code = self.process.poll()
        if code == 0 and self.step + 1 < len(self.run.steps):
            self.step += 1
            self.process = self.start_step()
            return None
        return code

    def send(self, number: signal.Signals) -> None:
        """To all processes of the session's first group, that is to those it started too.

        Not with psutil: it finds what a living process has started, and here the first one may have ended.
        """
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def close(self) -> None:
        self.log.close()
        self.marker.close()


@dataclass
class Schedule:
    """All runs, from the first to the last."""

    runs: Sequence[Run]
    slots: int
    threads: int
    budget: float
    run_memory: float
    active: list[Started] = field(default_factory=list)
    done: set[Path] = field(default_factory=set)
    peaks: list[float] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def go(self) -> None:
        kept = [run for run in self.runs if is_finished(run, self.runs)]
        self.done = {run.folder.resolve() for run in kept} | self.finished_elsewhere()
        self.peaks = [GB * float((read_record(run.folder) or {}).get("peak_memory_gb") or 0) for run in kept]
        waiting = [run for run in self.runs if run not in kept]
        try:  # all runs count alike for the time left, whatever the last one took
            with tqdm(total=len(self.runs), initial=len(kept), desc="runs", unit="run", smoothing=0) as bar:
                while self.start_some(waiting) or self.active:  # what is left in the end needs runs that failed
                    bar.set_postfix_str(", ".join(started.run.name for started in self.active))
                    while not (ended := list(self.collect())):
                        time.sleep(POLL)
                        if sys.stderr.isatty():
                            bar.refresh()
                    bar.update(len(ended))
        finally:
            self.stop()
        if self.failed or waiting:
            raise InputError(self.failures(waiting))

    def finished_elsewhere(self) -> set[Path]:
        """Folders that are needed and that other calls have made."""
        ours = {run.folder.resolve() for run in self.runs}
        return {need.resolve() for run in self.runs for need in run.needs} - ours

    def start_some(self, waiting: list[Run]) -> bool:
        """Start what can be started, and take it out of ``waiting``; whether there was any."""
        before = len(waiting)
        for run in list(waiting):
            if len(self.active) >= self.room():
                break
            if all(need.resolve() in self.done for need in run.needs):
                self.active.append(Started(run, self.threads))
                waiting.remove(run)
        return len(waiting) < before

    def room(self) -> int:
        """How many may run now: one at least."""
        measured = max([*self.peaks, 0.0]) or self.run_memory
        expected = max([measured, *(started.peak for started in self.active)])
        return max(1, min(self.slots, int(self.budget // expected)))

    def collect(self) -> Iterator[Run]:
        """Runs that have ended since the last look, well or not."""
        for started in list(self.active):
            code = started.poll()
            if code is None:
                continue
            started.send(signal.SIGKILL)  # what a step may have left running
            run, log = started.run, started.run.folder / LOG
            self.peaks.append(started.peak)
            if code == 0:
                self.write_record(started)
                self.done.add(run.folder.resolve())
            else:
                self.failed[run.name] = f"{run.name}: {what_went_wrong(log, code)} (see {log})"
            started.close()
            self.active.remove(started)
            yield run

    def write_record(self, started: Started) -> None:
        """The last thing a run leaves: with it, it is finished."""
        record = {
            **made_with(started.run, self.runs),
            "seconds": round(time.monotonic() - started.began, 1),
            "peak_memory_gb": round(started.peak / GB, 3),
        }
        write_json(started.run.folder / RECORD, record)

    def stop(self) -> None:
        """End all processes: asked first, forced if they do not listen."""
        for started in self.active:
            started.send(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(started.process.poll() is None for started in self.active):
            time.sleep(POLL)
        for started in self.active:
            started.send(signal.SIGKILL)
            started.process.wait()
            started.close()

    def failures(self, waiting: Sequence[Run]) -> str:
        sentence = f"{len(self.failed)} of {len(self.runs)} runs failed: {'; '.join(self.failed.values())}"
        if waiting:
            sentence += f"; not started, since they need others: {', '.join(run.name for run in waiting)}"
        return f"{sentence}; correct that and give the same command again, which keeps finished runs"
