# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""One training of the server, from what was saved to a report: train, compare on held-out cases, serve it or not.

A training runs as `python -m scripts run` would, in processes of its own: what fails there fails alone, and what was
killed goes on from its last checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bundle.errors import InputError
from bundle.evaluation.summaries import read_scores
from bundle.files import make_folder, write_json
from bundle.untrusted import read_json
from label.annotations import Annotation
from label.gate import Comparison, compare_models
from label.planning import TrainingPlan, TrainingRequest, asked, plan_training, signature_of, validation_section
from label.reports import write_training_report
from label.state import ServerState, now_in_words
from scripts.configs import EVALUATE
from scripts.runs import ROOT, bundle_command

__all__ = ["Training", "train_on_saved"]

RECORD, LOCK = "training.json", ".lock"
BAR_SECONDS = "5"  # between two lines of a progress bar, where nobody sees it move
RUNNING, STOPPED, FAILED, FINISHED = "running", "stopped", "failed", "finished"


class Training:
    """A training in its folder.

    Args:
        state: of the server.
        number: of the training.
    """

    def __init__(self, state: ServerState, number: int) -> None:
        self.state, self.number, self.folder = state, number, state.training_folder(number)

    @property
    def record(self) -> dict[str, Any]:
        path = self.folder / RECORD
        return dict(read_json(path)) if path.is_file() else {}

    def note(self, **facts: Any) -> None:
        """Add to what is recorded."""
        write_json(self.folder / RECORD, {**self.record, **facts})

    @property
    def status(self) -> str:
        """What it is doing, or how it ended; one whose process was killed could not write that down."""
        said = str(self.record.get("status", ""))
        return STOPPED if said == RUNNING and not self.is_alive() else said

    @property
    def can_go_on(self) -> bool:
        return self.record.get("status") in (RUNNING, STOPPED) and not self.is_alive()

    def is_alive(self) -> bool:
        """Whether a process is at work here."""
        try:
            with self.alone():
                return False
        except InputError:
            return True

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only process that works here."""
        with (make_folder(self.folder) / LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(f"{self.folder}: this training is running already; wait for it, or stop it") from None
            yield

    # --- Steps -------------------------------------------------------------------------------------------------------
    def begin(self, annotations: Sequence[Annotation], request: TrainingRequest) -> None:
        """Plan it and record the plan."""
        plan = plan_training(self.state, self.folder, annotations, request)
        self.note(
            number=self.number,
            status=RUNNING,
            began=now_in_words(),
            signature=signature_of(annotations, plan.base, request, self.state.setup),
            asked=asked(request),
            margin=request.margin,
            plan={**asdict(plan), "folder": str(plan.folder)},
        )

    @property
    def plan(self) -> TrainingPlan:
        plan = self.record["plan"]
        return TrainingPlan(**{**plan, "folder": Path(plan["folder"])})

    def run(self) -> Comparison:
        """Train, from where it was stopped if it was; compare; serve the candidate if it is not worse."""
        plan = self.plan
        self.note(status=RUNNING)
        self.step("training", plan.configs, plan.values)
        candidate = self.folder / "models" / "model.pt"
        models = {"candidate": candidate}
        if self.state.served is not None:
            models |= {"served": self.state.weights(self.state.served)}
            models |= {"first": self.state.weights(1)} if self.state.served > 1 else {}
        scores = {name: self.score(name, weights) for name, weights in models.items()} if plan.validated else {}
        comparison = compare_models(
            scores.get("served"), scores.get("candidate"), self.record["margin"], scores.get("first")
        )
        version = None
        if comparison.accepted:
            note = f"training {self.number}: {comparison.why}"
            version = self.state.add_version(candidate, self.number, note)
        self.note(status=FINISHED, ended=now_in_words(), comparison=asdict(comparison), version=version)
        return comparison

    def score(self, name: str, weights: Path) -> dict[str, Any]:
        """Segment the validation cases and score them."""
        plan, folder = self.plan, self.folder / "scores" / name
        section = validation_section(plan.values)
        values = {**plan.values, "output_dir": str(folder), "section": section, "checkpoint": str(weights)}
        self.step("evaluating", [*plan.configs, str(EVALUATE)], values)
        return read_scores(folder)[1]

    def step(self, run_id: str, configs: Sequence[str], values: dict[str, Any]) -> None:
        """Run a config in a process of its own, and hand its output on.

        Raises:
            InputError: with the sentence that it ended with.
        """
        print(f"{run_id}: training {self.number}", flush=True)
        environment = {**os.environ, "TQDM_MININTERVAL": BAR_SECONDS}
        process = subprocess.Popen(
            bundle_command(run_id, configs, **values), cwd=ROOT, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        last, sentence = "", ""
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
            sentence = last.removeprefix("error: ") if last.startswith("error: ") else sentence
        code = process.wait()
        if code < 0:
            raise StoppedError(f"{run_id} was stopped; train again with resume to go on")
        if code:
            raise InputError(sentence or f"{run_id} ended with exit code {code}: {last}")

    def report(self) -> None:
        """Write the report. Whatever is wrong with a picture, the training is what it is."""
        try:
            write_training_report(self.folder, self.record)
        except Exception as error:
            print(f"the report of training {self.number} could not be written: {error!r}", flush=True)

    def clear(self) -> None:
        """Remove what takes room and what nobody needs of a training that has ended."""
        for path in (self.folder / "eval" / "pseudo_labels", *self.folder.glob("scores/*/segmentations")):
            shutil.rmtree(path, ignore_errors=True)
        (self.folder / "models" / "checkpoint.pt").unlink(missing_ok=True)


class StoppedError(InputError):
    """A training was ended from outside, and can go on."""


def train_on_saved(
    state: ServerState, annotations: Sequence[Annotation], request: TrainingRequest, refused: Sequence[str] = ()
) -> Training:
    """Go on with the training that was stopped, or begin one, and see it through.

    Args:
        state: of the server.
        annotations: what was saved.
        request: what the client asks for.
        refused: sentences on saves that cannot be used, for the report.

    Raises:
        InputError: when it fails; the reason is recorded, and the served model stays.
    """
    training = choose_training(state, annotations, request)
    with training.alone():
        try:
            if not training.record:
                training.begin(annotations, request)
                training.note(refused=list(refused))
            training.run()
        except StoppedError:
            training.note(status=STOPPED)
            raise
        except InputError as error:
            training.note(status=FAILED, ended=now_in_words(), error=str(error), number=training.number)
            raise
        finally:
            if training.record.get("status") in (FINISHED, FAILED):
                training.report()
                training.clear()
    return training


def choose_training(state: ServerState, annotations: Sequence[Annotation], request: TrainingRequest) -> Training:
    """The one that was stopped, if it is to go on; else a new one."""
    last = Training(state, state.last_training)
    if last.number and last.is_alive():
        raise InputError(f"{last.folder}: a training is running already; wait for it, or stop it first")
    same = last.number > 0 and last.can_go_on
    if request.resume == "yes" and not same:
        raise InputError("resume: there is no stopped training to go on with; leave resume out to begin a new one")
    if request.resume == "yes" and last.record.get("asked") != asked(request):
        raise InputError(
            "resume: max_epochs, margin or values differ from those of the stopped training; give the same ones, or "
            "leave resume out to begin a new one"
        )
    if request.resume == "auto":
        same = same and last.record.get("signature") == signature_of(annotations, state.served, request, state.setup)
    if same and request.resume != "no":
        print(f"going on with training {last.number}", flush=True)
        return last
    if last.number and last.can_go_on:
        last.note(status=FAILED, ended=now_in_words(), error="it was stopped, and another was begun instead")
        last.clear()
    return Training(state, last.number + 1)
