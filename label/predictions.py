# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Answers of the served model: a label map, organ volumes, and how plausible each of them is."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bundle.checks.sizes import Plausibility, judge_volumes
from bundle.errors import InputError, find_input_error
from bundle.files import fingerprint_files, write_json
from bundle.inference.segmenters import Segmenter, load_segmenter
from bundle.organs import Vocabulary
from bundle.scans.volumes import OrganVolume, Volumes, measure_volumes
from bundle.untrusted import read_json
from label.state import ServerState
from scripts.configs import INFERENCE

__all__ = ["Answer", "Predictor", "as_plain"]

logger = logging.getLogger(__name__)


def as_plain(judged: Mapping[str, Plausibility]) -> dict[str, dict[str, Any]]:
    """Plausibilities as JSON can hold them."""
    return {name: asdict(one) for name, one in judged.items()}


class Answer:
    """What the model says of one image.

    Args:
        labels: X×Y×Z, channels of the vocabulary.
        affine: voxel to mm.
        vocabulary: the organs.
        sizes: of the model's training cases.
        version: of the model.
        seconds: that it took.
    """

    def __init__(
        self,
        labels: NDArray[np.uint8],
        affine: NDArray[np.float64],
        vocabulary: Vocabulary,
        sizes: Mapping[str, Any],
        version: int,
        seconds: float,
    ) -> None:
        self.labels, self.affine, self.vocabulary, self.version = labels, affine, vocabulary, version
        self.seconds = seconds
        self.volumes = measure_volumes(labels, affine, vocabulary)
        self.plausibility = judge_volumes(self.volumes, sizes)

    def report(self) -> dict[str, Any]:
        """The JSON part of an answer."""
        return {
            "label_names": {organ.name: channel for channel, organ in enumerate(self.vocabulary, start=1)},
            "label_colors": {organ.name: list(organ.color) for organ in self.vocabulary},
            "volumes_ml": {name: round(organ.ml, 2) for name, organ in self.volumes.organs.items()},
            "plausibility": as_plain(self.plausibility),
            "version": self.version,
            "latencies": {"total": round(self.seconds, 2)},
        }


class Predictor:
    """The served model, loaded when it is first asked and again when another version is served.

    Args:
        state: of the server.
    """

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.loaded: tuple[int, str, Segmenter] | None = None  # version, device, model

    def segmenter(self, device: str) -> tuple[int, Segmenter]:
        """The served version and its model.

        Raises:
            InputError: when there is no model yet.
        """
        version = self.state.served
        if version is None:
            raise InputError(
                "infer: this server has no model yet; train one first, or start it with MODEL= (make serve MODEL=…)"
            )
        if self.loaded is None or self.loaded[:2] != (version, device):
            self.loaded = None  # not two of them in memory
            values = {"backend": "auto", "device": f"$torch.device('{device}')"}
            model = load_segmenter(self.state.weights(version), INFERENCE, values=values)
            self.loaded = (version, device, model)
        return version, self.loaded[2]

    def answer(self, image: str | Path, device: str = "cpu") -> Answer:
        """Segment an image.

        Raises:
            InputError: when it cannot be read as a CT scan.
        """
        began = time.monotonic()
        version, model = self.segmenter(device)
        try:
            labels, affine = model(image)
        except Exception as error:  # MONAI's Compose wraps what its transforms raise
            raise (find_input_error(error) or error) from None
        return Answer(labels, affine, model.vocabulary, self.state.sizes, version, time.monotonic() - began)

    # --- What was found before ---------------------------------------------------------------------------------------
    def size_file(self, image: str | Path, version: int) -> Path:
        """Where the sizes of an image are remembered: for one content of the file, and one version."""
        path = Path(image)
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        key = hashlib.sha256(str(path).encode()).hexdigest()[:8]
        return self.state.folder / "sizes" / f"{version:04d}" / f"{key}{fingerprint_files(files)}.json"

    def remember(self, image: str | Path, answer: Answer) -> None:
        write_json(self.size_file(image, answer.version), asdict(answer.volumes))

    def known_sizes(self, image: str | Path) -> Volumes | None:
        """Organ volumes that the served version found in an image; None where it was not asked."""
        version = self.state.served
        path = None if version is None else self.size_file(image, version)
        if path is None or not path.is_file():
            return None
        try:
            record = read_json(path)
            organs = {name: OrganVolume(**organ) for name, organ in record["organs"].items()}
            return Volumes(record["voxel_volume_mm3"], organs)
        except (InputError, KeyError, TypeError, AttributeError):
            return None  # damaged: asked again

    def look_at(self, image: str | Path, device: str) -> Volumes | None:
        """Segment an image and remember its sizes; None where it cannot be read."""
        try:
            answer = self.answer(image, device)
        except InputError as error:
            logger.warning("%s", error)
            return None
        self.remember(image, answer)
        return answer.volumes

    def sizes_of(self, images: Iterable[str | Path], device: str, look: int) -> dict[str, Volumes]:
        """Organ volumes of images: remembered ones, and of up to ``look`` others that are segmented now."""
        found: dict[str, Volumes] = {}
        for image in images:
            known = self.known_sizes(image)
            if known is None and look > 0:
                look -= 1
                known = self.look_at(image, device)
            if known is not None:
                found[str(image)] = known
        return found
