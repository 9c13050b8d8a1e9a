# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What a server remembers between two starts: how it was set up, all versions of its model, and which one is served.

STATE/server.json       how it was set up
STATE/versions.json     the versions, and those that were served, the last one now
STATE/versions/0001/    model.pt and model.json of a version
STATE/trainings/0001/   one training: its data, weights, scores, report.html
STATE/cache/            preprocessed cases
STATE/sizes/            organ volumes that a version found in an image
STATE/app/              what MONAI Label itself writes
"""

from __future__ import annotations

import fcntl
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from bundle.cohorts.datalists import cohort_files
from bundle.errors import InputError
from bundle.files import digest_files, make_folder, whole_file, write_json
from bundle.inference.records import ModelRecord
from bundle.inference.weights import read_checkpoint, write_model_json
from bundle.organs import WHOLE_VOCABULARY, Vocabulary
from bundle.untrusted import is_whole, read_json

__all__ = ["ServerState", "Setup", "Version"]

SETUP, VERSIONS = "server.json", "versions.json"


@dataclass(frozen=True)
class Setup:
    """How a server was set up.

    Args:
        model: weights that it begins with; empty where it has none yet.
        digest: of these weights, so that others are not taken for them.
        reference: dataset.json files of cohorts that every training sees again.
        overlays: config files on configs/train.yaml for its trainings.
        prior_file: q, where no case is fully labelled.
        fold: of the reference that is held out, as the model that it began with was trained without.
    """

    model: str = ""
    digest: str = ""
    reference: list[str] = field(default_factory=list)
    overlays: list[str] = field(default_factory=list)
    prior_file: str = ""
    fold: int = 0


@dataclass(frozen=True)
class Version:
    """A version of the model.

    Args:
        number: from 1 on.
        made: when.
        training: number of the training that made it; 0 for the model that the server began with.
        note: what is known of it, in a sentence.
    """

    number: int
    made: str
    training: int
    note: str


def now_in_words() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")


class ServerState:
    """The folder of a server. Several processes use it: the server itself, and one for each training or batch.

    Args:
        folder: of the server.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()
        self.read: dict[int, ModelRecord] = {}  # what versions are, once somebody asked

    # --- How it is set up --------------------------------------------------------------------------------------------
    def set_up(
        self,
        model: str | Path | None = None,
        reference: Sequence[str | Path] = (),
        overlays: Sequence[str | Path] = (),
        prior_file: str | Path | None = None,
    ) -> Setup:
        """Begin, or go on: what was given before need not be given again.

        Raises:
            InputError: when something given cannot be used, or the folder belongs to another model.
        """
        before = self.setup if (self.folder / SETUP).is_file() else Setup()
        weights = None if model is None else weights_of(Path(str(model)))
        for path in (*overlays, *([prior_file] if prior_file else [])):
            if not Path(path).is_file():
                raise InputError(f"{path}: no such file; give the path of a config or of a prior.json")
        after = Setup(
            model=before.model if weights is None else str(weights.resolve()),
            digest=before.digest if weights is None else digest_files([weights]),
            reference=[str(path.resolve()) for path in cohort_files(reference)] if reference else before.reference,
            overlays=[str(Path(path).resolve()) for path in overlays] or before.overlays,
            prior_file=str(Path(prior_file).resolve()) if prior_file else before.prior_file,
            fold=before.fold if weights is None or before.digest else fold_of(weights),
        )
        if before.digest and after.digest != before.digest:
            raise InputError(
                f"{self.folder}: this server began with other weights, {before.model}; leave the model out to go on "
                "with what it has learned since, or choose another folder for its state"
            )
        make_folder(self.folder)
        if weights is not None and not self.versions:
            self.add_version(weights, training=0, note=f"begun with {weights}")
        write_json(self.folder / SETUP, asdict(after))
        return after

    @property
    def setup(self) -> Setup:
        path = self.folder / SETUP
        record = read_json(path) if path.is_file() else None
        try:
            return Setup(**record)  # type: ignore[arg-type]
        except TypeError:
            raise InputError(
                f"{path}: expected the setup of a server, as `python -m scripts serve` writes it; start it again"
            ) from None

    def own(self) -> IO[str]:
        """Be the only server of this folder, as long as the file that this gives stays open.

        Raises:
            InputError: when another one is running.
        """
        lock = (make_folder(self.folder) / ".server.lock").open("a")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"{self.folder}: another server is running with this state; end it, or choose another --state"
            ) from None
        return lock

    # --- Versions ----------------------------------------------------------------------------------------------------
    @property
    def record(self) -> dict[str, Any]:
        path = self.folder / VERSIONS
        return dict(read_json(path)) if path.is_file() else {"versions": [], "served": [], "seen": {}, "complete": 0}

    @property
    def versions(self) -> list[Version]:
        return [Version(**entry) for entry in self.record["versions"]]

    @property
    def served(self) -> int | None:
        """Number of the version that answers; None where there is no model yet."""
        stack = self.record["served"]
        return int(stack[-1]) if stack else None

    def weights(self, version: int) -> Path:
        return self.folder / "versions" / f"{version:04d}" / "model.pt"

    @property
    def served_weights(self) -> Path | None:
        return None if self.served is None else self.weights(self.served)

    @property
    def model(self) -> ModelRecord | None:
        """What the served model is; None where there is none yet."""
        return None if self.served is None else self.describe(self.served)

    def describe(self, version: int) -> ModelRecord:
        """What a version is; a version never changes."""
        if version not in self.read:
            record, _ = read_checkpoint(self.weights(version)).describe()
            assert record is not None  # checked when it became a version
            self.read[version] = record
        return self.read[version]

    @property
    def sizes(self) -> dict[str, Any]:
        """Organ sizes to judge answers by: of each organ those of most cases, among all versions up to the served one.

        A version that was trained on a few saved organs alone knows less than the model that it began with.
        """
        found: dict[str, Any] = {}
        for version in range(1, 1 + (self.served or 0)):
            for organ, size in self.describe(version).sizes.items():
                if organ not in found or size["cases"] >= found[organ]["cases"]:
                    found[organ] = size
        return found

    @property
    def vocabulary(self) -> Vocabulary:
        """The organs of the model; all of them where there is none yet."""
        return WHOLE_VOCABULARY if self.model is None else Vocabulary(self.model.organs)

    def add_version(self, weights: Path, training: int, note: str) -> int:
        """Take weights over as a version of their own, and serve them."""
        with self.changing() as record:
            number = 1 + max([entry["number"] for entry in record["versions"]], default=0)
            target = self.weights(number)
            make_folder(target.parent)
            with whole_file(target) as unfinished:
                shutil.copyfile(weights, unfinished)
            described, _ = read_checkpoint(weights).describe()
            assert described is not None  # checked when they were given
            write_model_json(target.parent, described)
            record["versions"].append(asdict(Version(number, now_in_words(), training, note)))
            record["served"].append(number)
        return number

    def roll_back(self, version: int | None = None) -> int:
        """Serve the version that was served before, or a given one.

        Raises:
            InputError: when there is none.
        """
        with self.changing() as record:
            known = [entry["number"] for entry in record["versions"]]
            if version is None:
                if len(record["served"]) < 2:
                    raise InputError("rollback: there is no earlier version of the model to put back")
                record["served"].pop()
            elif version in known:
                record["served"].append(version)
            else:
                raise InputError(f"rollback: expected one of the versions {known}, found {version}")
            return int(record["served"][-1])

    def hold_out(self, cases: Mapping[str, bool]) -> set[str]:
        """Which saved cases are validated on, for good: every fifth that came as a complete one.

        A case that was ever trained on is never held out, and one that is held out is never trained on.

        Args:
            cases: all that a training is to see, and whether each is complete.
        """
        with self.changing() as record:
            seen: dict[str, bool] = record["seen"]
            for case in sorted(set(cases) - set(seen)):
                record["complete"] += cases[case]
                seen[case] = cases[case] and record["complete"] % 5 == 0
            return {case for case in cases if seen[case]}

    @contextmanager
    def changing(self) -> Iterator[dict[str, Any]]:
        """The record of versions, to be changed by one process at a time; nothing is written after an exception."""
        make_folder(self.folder)
        with (self.folder / ".lock").open("a") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            record = self.record
            yield record
            write_json(self.folder / VERSIONS, record)

    # --- Trainings ---------------------------------------------------------------------------------------------------
    def training_folder(self, number: int) -> Path:
        return self.folder / "trainings" / f"{number:04d}"

    @property
    def last_training(self) -> int:
        """Number of the last training; 0 where there was none."""
        folder = self.folder / "trainings"
        numbers = [int(path.name) for path in folder.iterdir() if path.name.isdigit()] if folder.is_dir() else []
        return max(numbers, default=0)

    def trainings(self) -> list[Mapping[str, Any]]:
        """What is recorded of each training, in order."""
        folders = (self.training_folder(number) for number in range(1, self.last_training + 1))
        return [read_json(folder / "training.json") for folder in folders if (folder / "training.json").is_file()]


def fold_of(weights: Path) -> int:
    """The fold that a model was trained without; 0 where it does not say."""
    record, _ = read_checkpoint(weights).describe()
    fold = None if record is None else record.training.get("fold")
    return fold if isinstance(fold, int) and is_whole(fold) else 0


def weights_of(model: Path) -> Path:
    """The weights that were given, themselves or by their folder, if they say what they are."""
    path = model / "model.pt" if model.is_dir() else model
    record, _ = read_checkpoint(path).describe()
    if record is None:
        raise InputError(
            f"{path}: the weights do not say what they are, so that a server would guess; train them with this program"
        )
    return path
