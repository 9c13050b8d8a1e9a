# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What MONAI Label calls: inference, training, strategies, scoring, batches; thin layers on the rest of this folder."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from monailabel.interfaces.datastore import Datastore, DefaultLabelTag
from monailabel.interfaces.exception import ImageNotFoundException
from monailabel.interfaces.tasks.infer_v2 import InferTask, InferType
from monailabel.interfaces.tasks.scoring import ScoringMethod
from monailabel.interfaces.tasks.strategy import Strategy
from monailabel.interfaces.tasks.train import TrainTask
from monailabel.transform.writer import write_itk
from monailabel.utils.others.generic import device_list, name_to_device, remove_file
from numpy.typing import NDArray

from bundle.checks.sizes import judge_volumes
from bundle.cohorts.datalists import read_cohort
from bundle.cohorts.labels import LabelValues
from bundle.errors import InputError
from bundle.processes import check_device
from bundle.scans.grids import check_grid, turn_axes
from bundle.scans.reading import read_label_map
from bundle.scans.volumes import measure_volumes
from bundle.scans.writing import write_label_map
from bundle.untrusted import is_whole, shown
from label.annotations import Annotation, read_annotation
from label.choosing import Choice, choose_by_organs, choose_by_sizes, implausibility, label_counts
from label.datastore import FINAL, check_tag
from label.planning import OPTIONS, read_request
from label.predictions import Answer, Predictor, as_plain
from label.state import ServerState
from label.trainings import Training, train_on_saved

__all__ = [
    "OrganBatch", "OrganDice", "OrganInfer", "OrganPlausibility", "OrganTrain", "RandomImage", "RarestOrgans",
    "UnlikelySizes", "saved_annotations",
]  # fmt: skip

ORIGINAL = DefaultLabelTag.ORIGINAL.value
EXTENSIONS = (".nii.gz", ".nii", ".nrrd")
DTYPES = ("uint8", "uint16")
LOOK = 3  # images that a strategy segments by itself, at most
Request = Mapping[str, Any]


def chosen_device(request: Request) -> str:
    """The device of a request; clients ask for cuda, also where there is none."""
    asked = request.get("device")
    name = name_to_device(asked if isinstance(asked, str | list) and asked else None)
    return check_device(str(name))


def saved_annotations(datastore: Datastore, state: ServerState, snapshot: Path) -> tuple[list[Annotation], list[str]]:
    """What annotators saved as final, and sentences on what cannot be used.

    Args:
        datastore: of the server.
        state: of the server.
        snapshot: a folder for copies: annotators go on saving, and all that follows reads one and the same file.
    """
    found, refused = list[Annotation](), list[str]()
    for case in sorted(datastore.get_labeled_images()):
        try:
            label = Path(datastore.get_label_uri(case, FINAL))
            copy = snapshot / f"{len(found) + len(refused)}{''.join(label.suffixes[-2:])}"
            shutil.copyfile(label, copy)
            said = datastore.said_of(case, copy)
            found.append(read_annotation(case, datastore.get_image_uri(case), copy, said, state.vocabulary))
        except (InputError, OSError) as error:
            refused.append(f"{case}: left out: {error}")
    return found, refused


# --- Inference -------------------------------------------------------------------------------------------------------
class OrganInfer(InferTask):
    """The served model. Answers are those of `python -m scripts segment`.

    Args:
        state: of the server.
        predictor: the model in memory.
    """

    def __init__(self, state: ServerState, predictor: Predictor) -> None:
        description = "Multi-organ CT segmentation, learning from partial annotations (PaNN)"
        super().__init__(InferType.SEGMENTATION, None, 3, description, {"device": device_list()})
        self.state, self.predictor = state, predictor

    def info(self) -> dict[str, Any]:
        names = {organ.name: channel for channel, organ in enumerate(self.state.vocabulary, start=1)}
        return {**super().info(), "labels": names, "version": self.state.served}

    def is_valid(self) -> bool:
        return self.state.served is not None

    def get_path(self, validate: bool = True) -> str | None:
        weights = self.state.served_weights
        return None if weights is None else str(weights)

    def __call__(self, request: Request) -> tuple[str, dict[str, Any]]:
        """The label map as a file, and what there is to say about it."""
        ending, dtype = request.get("result_extension") or ".nii.gz", request.get("result_dtype") or "uint8"
        if ending not in EXTENSIONS:
            raise InputError(f"result_extension: expected one of {', '.join(EXTENSIONS)}, found {shown(ending)}")
        if dtype not in DTYPES:
            raise InputError(f"result_dtype: expected one of {', '.join(DTYPES)}, found {shown(dtype)}")
        device = chosen_device(request)
        answer = self.predictor.answer(request["image"], device)
        self.predictor.remember(request["image"], answer)
        return write_answer(answer, ending, dtype, bool(request.get("result_compress"))), answer.report()


def write_answer(answer: Answer, ending: str, dtype: str, compress: bool) -> str:
    with tempfile.NamedTemporaryFile(suffix=ending, delete=False) as file:
        path = file.name
    if ending == ".nrrd" or dtype != "uint8":
        write_itk(answer.labels, path, answer.affine, dtype, compress)
    else:
        write_label_map(path, answer.labels, answer.affine, answer.vocabulary)
    return path


class OrganBatch:
    """Segments all images of the datastore; what the served version has answered already is not asked again."""

    def __init__(self, state: ServerState) -> None:
        self.state = state

    def __call__(self, request: Request, datastore: Datastore, infer: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        tag, result = predicted_tag(request.get("label_tag")), dict[str, Any]()
        images = self.images(request, datastore)
        todo = [image for image in images if request.get("again") or not self.is_done(datastore, image, tag)]
        print(f"{len(images) - len(todo)} of {len(images)} images were segmented before", flush=True)
        for number, image in enumerate(todo, start=1):
            asked = {**request, "image": image, "save_label": True, "label_tag": tag}
            try:
                answer = infer(asked, datastore)
                remove_file(answer.get("file"))
                result[image] = {"params": answer["params"]}
                outcome = "segmented"
            except (InputError, ImageNotFoundException) as error:  # the next image may be fine
                error = InputError(getattr(error, "msg", error))
                result[image], outcome = {"error": str(error)}, f"error: {error}"
            print(f"{number} of {len(todo)}: {image}: {outcome}", flush=True)
        return result

    def images(self, request: Request, datastore: Datastore) -> list[str]:
        kind = request.get("images", "all")
        choices = {"all": datastore.list_images, "labeled": datastore.get_labeled_images,
                   "unlabeled": datastore.get_unlabeled_images}  # fmt: skip
        name = str(getattr(kind, "value", kind))
        if not isinstance(kind, list) and name not in choices:
            raise InputError(f"images: expected a list, or one of {', '.join(choices)}, found {shown(kind)}")
        images = sorted(map(str, kind) if isinstance(kind, list) else choices[name]())
        most = request.get("max_batch_size") or 0
        if not is_whole(most) or most < 0:
            raise InputError(f"max_batch_size: expected a whole number from 0 on, found {shown(most)}")
        return images[:most] if most else images

    def is_done(self, datastore: Datastore, image: str, tag: str) -> bool:
        label = datastore.get_label_by_image_id(image, tag)
        said = datastore.get_label_info(image, tag).get("params", {}) if label else {}
        return bool(label) and said.get("version") == self.state.served


# --- Training --------------------------------------------------------------------------------------------------------
class OrganTrain(TrainTask):
    """Fine-tunes the served model on what was saved, and serves the result if it is not worse.

    Args:
        state: of the server.
    """

    def __init__(self, state: ServerState) -> None:
        super().__init__("Fine-tunes the served model on saved organs; what nobody drew is unknown, not background")
        self.state = state

    def config(self) -> dict[str, Any]:
        return {**OPTIONS, "device": device_list()}

    def stats(self) -> dict[str, Any]:
        """What Slicer and /info/ show of the last training."""
        done = self.state.trainings()
        if not done:
            return {}
        last = done[-1]
        comparison = last.get("comparison") or {}
        return {
            "training": last.get("number"), "status": Training(self.state, int(last.get("number", 0))).status,
            "served_version": self.state.served,
            "why": comparison.get("why") or last.get("error", ""), "report": f"/pann/trainings/{last.get('number')}",
        }  # fmt: skip

    def __call__(self, request: Request, datastore: Datastore) -> dict[str, Any]:
        asked = read_request(request, chosen_device(request))
        with tempfile.TemporaryDirectory() as folder:
            annotations, refused = saved_annotations(datastore, self.state, Path(folder))
            for sentence in refused:
                print(sentence, flush=True)
            training = train_on_saved(self.state, annotations, asked, refused)
        record = training.record
        print(record["comparison"]["why"], flush=True)
        return {"training": training.number, "version": record["version"], "why": record["comparison"]["why"]}


# --- Strategies ------------------------------------------------------------------------------------------------------
def as_sample(choice: Choice | None) -> dict[str, Any] | None:
    if choice is None:
        return None
    return {"id": choice.image, "score": choice.score, "why": choice.why, "organs": choice.organs}


class RandomImage(Strategy):
    """Any image that nobody has annotated."""

    def __init__(self) -> None:
        super().__init__("An image that nobody has annotated, at random")

    def __call__(self, request: Request, datastore: Datastore) -> dict[str, Any] | None:
        images = datastore.get_unlabeled_images()
        return {"id": random.choice(sorted(images))} if images else None


class UnlikelySizes(Strategy):
    """The image whose predicted organ sizes are least plausible beside the training cases'.

    Args:
        predictor: the served model.
    """

    def __init__(self, predictor: Predictor) -> None:
        super().__init__("The image whose predicted organ sizes are least plausible, and why")
        self.predictor = predictor

    def __call__(self, request: Request, datastore: Datastore) -> dict[str, Any] | None:
        look = request.get("look", LOOK)
        if not is_whole(look) or look < 0:
            raise InputError(f"look: expected a whole number from 0 on, found {shown(look)}")
        images = {image: datastore.get_image_uri(image) for image in sorted(datastore.get_unlabeled_images())}
        found = self.predictor.sizes_of(images.values(), chosen_device(request), look)
        known = {image: found[path] for image, path in images.items() if path in found}
        sample = as_sample(choose_by_sizes(known, self.predictor.state.sizes))
        if sample is None and images:
            sample = {"id": next(iter(images)), "why": ["no image has been segmented yet: run batch inference"]}
        return None if sample is None else {**sample, "looked_at": len(known), "unlabeled": len(images)}


class RarestOrgans(Strategy):
    """The image that would add most to the organs with the fewest labels.

    Args:
        state: of the server.
        predictor: the served model, whose earlier answers say what an image shows.
    """

    def __init__(self, state: ServerState, predictor: Predictor) -> None:
        super().__init__("The image that would add most to the organs with the fewest labels")
        self.state, self.predictor = state, predictor

    def __call__(self, request: Request, datastore: Datastore) -> dict[str, Any] | None:
        with tempfile.TemporaryDirectory() as folder:
            annotations, _ = saved_annotations(datastore, self.state, Path(folder))
        sets = {one.case: one.labelled for one in annotations}
        vocabulary = self.state.vocabulary
        images = [image for image in datastore.list_images() if set(sets.get(image, ())) != set(vocabulary.names)]
        counts = label_counts([*sets.values(), *reference_label_sets(self.state)], vocabulary)
        sizes = {image: self.predictor.known_sizes(datastore.get_image_uri(image)) for image in images}
        known = {image: volumes for image, volumes in sizes.items() if volumes is not None}
        return as_sample(choose_by_organs(images, sets, counts, known))


def reference_label_sets(state: ServerState) -> list[list[str]]:
    return [case["labelled"] for path in state.setup.reference for case in read_cohort(path, state.vocabulary)]


# --- Scoring ---------------------------------------------------------------------------------------------------------
class OrganDice(ScoringMethod):
    """Dice of each saved organ against what the model had answered; organs that nobody drew are not scored.

    Args:
        state: of the server.
    """

    def __init__(self, state: ServerState) -> None:
        super().__init__("Dice of each saved organ against the model's answer")
        self.state = state

    def __call__(self, request: Request, datastore: Datastore) -> dict[str, Any]:
        tag, result = predicted_tag(request.get("y_pred")), {}
        with tempfile.TemporaryDirectory() as folder:
            for one in saved_annotations(datastore, self.state, Path(folder))[0]:
                if one.labelled and is_answer(datastore, one.case, tag):
                    result[one.case] = self.score(one, datastore.get_label_uri(one.case, tag))
                    datastore.update_image_info(one.case, {"dice": result[one.case]})
        return result

    def score(self, one: Annotation, answer: str) -> dict[str, float | None]:
        predicted = read_label_map(answer)
        drawn = turn_axes(read_label_map(one.label), predicted.affine)
        check_grid(drawn, predicted)
        saved = LabelValues(one.meanings, one.label).channels(drawn.voxels)
        vocabulary = self.state.vocabulary
        return {name: overlap(saved, predicted.voxels, vocabulary.channel(name)) for name in one.labelled}


def predicted_tag(asked: Any) -> str:
    """Under which tag answers of the model are; what people saved is numbered as they like."""
    tag = check_tag(asked or ORIGINAL)
    if tag == FINAL:
        raise InputError(f'tag: "{FINAL}" is what people saved, not what the model answered; choose another')
    return tag


def is_answer(datastore: Datastore, image: str, tag: str) -> bool:
    """Whether the model answered so; a client may have put a map of its own there."""
    if not datastore.get_label_by_image_id(image, tag):
        return False
    return "version" in (datastore.get_label_info(image, tag).get("params") or {})


def overlap(saved: NDArray[Any], predicted: NDArray[Any], channel: int | None) -> float | None:
    """Dice of a channel in two label maps; None where neither has it."""
    one, other = saved == channel, predicted == channel
    total = int(one.sum()) + int(other.sum())
    return round(2 * int((one & other).sum()) / total, 4) if total else None


class OrganPlausibility(ScoringMethod):
    """How plausible the organ sizes of label maps are beside those of the training cases.

    Args:
        state: of the server.
    """

    def __init__(self, state: ServerState) -> None:
        super().__init__("How plausible the organ sizes of the model's answers are")
        self.state = state

    def __call__(self, request: Request, datastore: Datastore) -> dict[str, Any]:
        tag, vocabulary, result = predicted_tag(request.get("tag")), self.state.vocabulary, {}
        sizes = self.state.sizes
        for image in sorted(datastore.list_images()):
            if not is_answer(datastore, image, tag):
                continue
            label = read_label_map(datastore.get_label_uri(image, tag))
            judged = judge_volumes(measure_volumes(label.voxels.astype("uint8"), label.affine, vocabulary), sizes)
            result[image] = {"score": round(implausibility(judged), 4), "organs": as_plain(judged)}
            datastore.update_image_info(image, {"plausibility": result[image]["score"]})
        return result
