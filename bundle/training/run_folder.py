# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""One run, one folder, one writer: what a training is, which files are its own, and whether it may begin or go on.

A run owns the folder of its weights and its output folder by a lock. What it is stands in `config.json`: every value
that took effect, the versions of libraries and program, the cases. All that it leaves carries its identity, and nothing
that another run left is read.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil
import torch

from bundle.cohorts.datalists import Case
from bundle.configs import config_record
from bundle.errors import InputError
from bundle.files import fingerprint_files, make_folder, sweep, write_json
from bundle.inference.weights import MODEL_CONFIG, check_kind

__all__ = ["TrainingRun"]

logger = logging.getLogger(__name__)

CONFIG, CHECKPOINT, LOCK = "config.json", "checkpoint.pt", ".training.lock"
HISTORY, PRIOR, PSEUDO_LABELS = "history.jsonl", "prior.json", "pseudo_labels"
WEIGHTS = ("warmup.pt", "model.pt", "model_best.pt")
STAGES = ("warmup", "train")
# Values that change how a run works but not what it computes: they may differ when it goes on.
FREE = {
    "bundle_root", "output_dir", "workers", "cache_dir", "cache_limit", "device", "save_minutes", "resume", "overwrite",
}  # fmt: skip
WAYS_OUT = "choose another --bundle_root and --output_dir, or give --overwrite True, which removes what is there"
SUMMARY = (
    "supervision",
    "loss",
    "warmup_iterations",
    "train_iterations",
    "fold",
    "seed",
)  # what weights say of their run
SHOWN = 5  # differences that a message names


def new_identity() -> str:
    """A name that no other run has, and that sorts by time."""
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


class TrainingRun:
    """A training with its identity and its folders. Nothing is read or written before `begin`.

    Args:
        models: folder of the weights.
        output_dir: folder for everything else.
    """

    def __init__(self, models: str | Path, output_dir: str | Path) -> None:
        self.models, self.output_dir = Path(models), Path(output_dir)
        self.identity = new_identity()
        self.finished = False
        self.state: dict[str, Any] | None = None  # the checkpoint from which it goes on
        self.locks: list[IO[str]] = []
        self.record: dict[str, Any] | None = None  # of a run that is new and has not made room
        self.about: dict[str, Any] = {}

    @property
    def summary(self) -> dict[str, Any]:
        """What weights say of the run that made them."""
        return {"run": self.identity, **self.about}

    @property
    def history(self) -> Path:
        return self.output_dir / HISTORY

    @property
    def checkpoint(self) -> Path:
        return self.models / CHECKPOINT

    @property
    def pseudo_labels(self) -> Path:
        """Folder of this run's own pseudo-labels."""
        return self.output_dir / PSEUDO_LABELS / self.identity

    # --- From begin to finish ----------------------------------------------------------------------------------------
    def begin(self, cases: Sequence[Case], resume: bool = False, overwrite: bool = False) -> None:
        """Take the folders; go on with the run that was interrupted there if it is this one, else `make_room` is next.

        Args:
            cases: what is trained on.
            resume: go on although the program or a library has changed.
            overwrite: let `make_room` remove what an earlier run left.

        Raises:
            InputError: when another process is at work there, or when there is something to lose.
        """
        self.lock()
        sweep(self.models, self.output_dir)
        now = {**config_record(), "cases": {f"{case['cohort']}/{case['case']}": case_key(case) for case in cases}}
        values = now.get("values", {})
        self.about = {name: values[name] for name in SUMMARY if name in values}
        self.about["cases"] = dict(Counter(case["cohort"] for case in cases))
        rewrite = overwrite and not self.has_begun(now)
        earlier = None if rewrite else self.earlier_run()
        if earlier is None:
            for name in ("warmup_checkpoint", "prior_file"):
                self.check_needed(name, values.get(name))
            self.record = now
            return
        changes = list(differences(earlier, now))
        if changes:
            raise InputError(self.refusal(earlier, changes))
        self.identity = earlier["run"]["identity"]
        self.finished = bool(earlier["run"]["finished"])
        if self.finished:
            self.check_weights(values)
            print(f"this training is finished: weights are in {self.models}; --overwrite True trains anew")
            return
        self.go_on(earlier, now, resume)

    def make_room(self) -> None:
        """Remove what an earlier run left, and say what this one is; nothing where one goes on.

        Not before the data are checked and the stages rehearsed: a run that cannot begin leaves all as it was.
        """
        if self.record is not None:
            self.clear()
            self.write_config(self.record)
            self.record = None

    def go_on(self, earlier: Mapping[str, Any], now: Mapping[str, Any], resume: bool) -> None:
        """Continue the run that was interrupted here."""
        changed = [name for name in ("versions", "code") if earlier.get(name) != now.get(name)]
        if changed and not resume:
            what = "the program" if "code" in changed else "a library"
            raise InputError(
                f"{self.output_dir / CONFIG}: {what} has changed since this run was interrupted, so it would not go on "
                f"exactly as before; give --resume True to go on all the same, or {WAYS_OUT}"
            )
        self.state = read_state(self.checkpoint)
        print(f"going on with the training of {earlier['run']['began']}, stage {self.state['stage']}, "
              f"after iteration {self.state['iteration']}")  # fmt: skip
        self.write_config(now, began=earlier["run"]["began"])

    def finish(self) -> None:
        """Mark the run as finished, and give its folders back."""
        if not self.finished:
            record = read_config(self.output_dir / CONFIG)
            if record is not None:  # a run that was begun
                record["run"]["finished"] = now_in_words()
                write_json(self.output_dir / CONFIG, record)
            self.finished = True
        self.checkpoint.unlink(missing_ok=True)
        for lock in self.locks:
            lock.close()
        self.locks = []

    def is_past(self, stage: str) -> bool:
        """Whether a stage was completed before, so that there is nothing to do or to restore."""
        later = self.state is not None and STAGES.index(self.state["stage"]) > STAGES.index(stage)
        return self.finished or later

    def state_of(self, stage: str) -> dict[str, Any] | None:
        """The checkpoint from which a stage goes on, if it does."""
        return self.state if self.state is not None and self.state["stage"] == stage else None

    # --- One writer --------------------------------------------------------------------------------------------------
    def lock(self) -> None:
        """Own both folders until `finish`, or until this process ends, however it does."""
        user, host = psutil.Process().username(), platform.node()
        holder = {"process": os.getpid(), "user": user, "host": host, "since": now_in_words()}
        for folder in dict.fromkeys([self.models, self.output_dir]):
            try:
                lock = (make_folder(folder) / LOCK).open("a+")
            except OSError as error:
                raise InputError(
                    f"{folder}: cannot be written to ({error.strerror}); choose another --bundle_root or --output_dir"
                ) from None
            try:
                # Not flock: processes that load data would inherit it, and hold it a while after a kill.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                lock.seek(0)
                raise InputError(held_by(folder, lock.read())) from None
            lock.truncate(0)
            lock.write(json.dumps(holder))
            lock.flush()
            self.locks.append(lock)

    # --- What an earlier run left ------------------------------------------------------------------------------------
    def earlier_run(self) -> dict[str, Any] | None:
        """What the run is that has left something worth keeping here; None when there is nothing.

        Raises:
            InputError: when there is something of which nobody knows what run it comes from.
        """
        record = read_config(self.output_dir / CONFIG)
        identity = record["run"]["identity"] if record else None
        for path in (*(self.models / name for name in (*WEIGHTS, CHECKPOINT)), self.history):
            if path.is_file() and identity_of(path) != identity:
                raise InputError(f"{path}: is damaged, or was left by another training than the one described in "
                                 f"{self.output_dir / CONFIG}; {WAYS_OUT}")  # fmt: skip
            if path.is_file() and identity is None:
                raise InputError(f"{path}: was left by an earlier training; {WAYS_OUT}")
        if record is None or not (record["run"]["finished"] or self.checkpoint.is_file()):
            return None  # interrupted before there was anything to go on from
        return record

    def has_begun(self, now: Mapping[str, Any]) -> bool:
        """Whether an interrupted run here was begun by this very command, which is to go on when it is given again.

        One that overwrites would else remove its own checkpoint, for instance when a scheduler starts it anew.
        """
        record = read_config(self.output_dir / CONFIG)
        if record is None or record["run"]["finished"] or identity_of(self.checkpoint) != record["run"]["identity"]:
            return False
        same = all(record.get(name) == now.get(name) for name in ("versions", "code"))
        return same and bool((record.get("values") or {}).get("overwrite")) and not any(differences(record, now))

    def check_weights(self, values: Mapping[str, Any]) -> None:
        """What a finished run has made is still there."""
        name = "model.pt" if values.get("train_iterations", 0) > 0 else "warmup.pt"
        if not (self.models / name).is_file():
            raise InputError(f"{self.models / name}: this training is finished, but its weights are gone; put them "
                             f"back, {WAYS_OUT}")  # fmt: skip

    def refusal(self, earlier: Mapping[str, Any], changes: Sequence[str]) -> str:
        state = "finished" if earlier["run"]["finished"] else "interrupted"
        more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        go_on = "" if earlier["run"]["finished"] else "give the same values to go on, or "
        return (
            f"{self.output_dir / CONFIG}: here is another training, {state}, of {earlier['run']['began']}, with other "
            f"settings ({'; '.join(changes[:SHOWN])}{more}); {go_on}{WAYS_OUT}"
        )

    def own_files(self) -> list[Path]:
        """What a run leaves, but for its pseudo-labels; scores and segmentations of evaluations are not of a run."""
        return [
            *(self.models / name for name in (*WEIGHTS, CHECKPOINT, MODEL_CONFIG)),
            *(self.output_dir / name for name in (HISTORY, PRIOR, CONFIG)),
        ]

    def check_needed(self, name: str, file: str | None) -> None:
        """Refuse to begin with a file that is among what would be removed first."""
        if file is not None and any(path.is_file() and path.samefile(file) for path in self.own_files()):
            raise InputError(
                f"{file}: {name} is a file of the run that would be removed here; copy it elsewhere, or "
                "choose another --bundle_root and --output_dir"
            )

    def clear(self) -> None:
        """Remove what a run leaves."""
        for path in self.own_files():
            path.unlink(missing_ok=True)
        labels = self.output_dir / PSEUDO_LABELS
        if labels.exists():  # a file in their place is told now, not when the first of them are written
            shutil.rmtree(labels)

    def write_config(self, record: Mapping[str, Any], began: str | None = None) -> None:
        run = {"identity": self.identity, "began": began or now_in_words(), "finished": None}
        write_json(self.output_dir / CONFIG, {"run": run, **record}, default=str)


def now_in_words() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


def case_key(case: Case) -> str:
    """Changes when a file of the case does, or what its values mean; the check of the data names missing files."""
    paths = [case[key] for key in ("image", "label") if key in case]  # type: ignore[literal-required]
    there = [path for path in paths if os.path.exists(path)]
    return fingerprint_files(there, sorted((case.get("values") or {}).items()), case.get("labelled"))


def held_by(folder: Path, text: str) -> str:
    try:
        holder = json.loads(text)
        who = f"process {holder['process']} of {holder['user']} on {holder['host']}, since {holder['since']},"
    except (ValueError, KeyError, TypeError):
        who = "another process"
    return (
        f"{folder}: {who} is training there; wait for it or end it, then the same command goes on where it stopped, or "
        "choose another --bundle_root and --output_dir"
    )


def read_config(path: Path) -> dict[str, Any] | None:
    """The record of a run; None where there is none, or one that no run of ours has written."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        run = record["run"]
        return record if isinstance(run["identity"], str) and {"began", "finished"} <= set(run) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def identity_of(path: Path) -> str | None:
    """The run that wrote a file; None where it does not say."""
    try:
        identity = first_line(path)["run"] if path.suffix == ".jsonl" else run_of_weights(path)
    except Exception:  # it is damaged, or of another program; torch raises many kinds for that
        return None
    return identity if isinstance(identity, str) else None


def first_line(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        line: dict[str, Any] = json.loads(file.readline())
    return line


def run_of_weights(path: Path) -> Any:
    """The run that a checkpoint, or weights by their record, say they are of."""
    content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    return content["run"] if "run" in content else content["record"]["training"]["run"]


def read_state(path: Path) -> dict[str, Any]:
    """A checkpoint of a run under way."""
    try:
        check_kind(path)  # torch does not compare checksums
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if state["stage"] in STAGES and {"run", "iteration", "complete", "parts", "random"} <= set(state):
            return state
    except Exception:  # torch raises many kinds for a file that is not a checkpoint
        pass
    raise InputError(f"{path}: is damaged or no checkpoint of this program; {WAYS_OUT}")


# --- Differences -----------------------------------------------------------------------------------------------------
def differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """In which settings two runs differ, in words; what changes no result does not count."""
    plain = json.loads(json.dumps(now, default=str))  # as it is after a way through JSON
    values = (earlier.get("values") or {}, plain.get("values") or {})
    named = set()
    for name, before, after in changed(*values):
        if name not in FREE:
            named.add(name)
            yield f"{name} was {before} and is {after}"
    for name, before, after in changed(earlier.get("config") or {}, plain.get("config") or {}):
        if name not in FREE | named | set(values[0]):
            yield f"{name} was {shortened(before)} and is {shortened(after)}"
    for name, before, after in changed(earlier.get("cases") or {}, plain.get("cases") or {}):
        yield f"case {name} {'is new' if before is None else 'is gone' if after is None else 'has changed'}"


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"
