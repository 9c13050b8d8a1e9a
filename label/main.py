# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The MONAI Label app. `make serve` starts a server with it; `monailabel start_server --app label` finds it as well."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:  # MONAI Label loads this file by its path
    sys.path.insert(0, str(ROOT))

from monailabel.config import settings  # noqa: E402
from monailabel.endpoints import infer as infer_endpoint  # noqa: E402
from monailabel.interfaces.app import MONAILabelApp  # noqa: E402
from monailabel.interfaces.datastore import Datastore  # noqa: E402
from monailabel.interfaces.exception import ImageNotFoundException, MONAILabelError, MONAILabelException  # noqa: E402
from monailabel.interfaces.tasks.infer_v2 import InferTask  # noqa: E402
from monailabel.interfaces.tasks.scoring import ScoringMethod  # noqa: E402
from monailabel.interfaces.tasks.strategy import Strategy  # noqa: E402
from monailabel.interfaces.tasks.train import TrainTask  # noqa: E402
from monailabel.tasks.activelearning.first import First  # noqa: E402

from bundle.errors import EXIT_CODE, InputError  # noqa: E402
from label.annotations import read_annotation  # noqa: E402
from label.datastore import FINAL, SavedLabels, check_tag  # noqa: E402
from label.dicomweb import open_archive  # noqa: E402
from label.planning import read_request  # noqa: E402
from label.predictions import Predictor  # noqa: E402
from label.segs import nifti_to_dicom_seg  # noqa: E402
from label.state import ServerState  # noqa: E402
from label.tasks import (  # noqa: E402
    ORIGINAL,
    OrganBatch,
    OrganDice,
    OrganInfer,
    OrganPlausibility,
    OrganTrain,
    RandomImage,
    RarestOrgans,
    UnlikelySizes,
    chosen_device,
)
from scripts.segment.jobs import bundle_version  # noqa: E402

__all__ = ["NAME", "PannApp"]

NAME = "pann"  # of the model, in every request
SENT = re.compile(r"tmp[a-z0-9_]{8}\.")  # as MONAI Label names what was sent
STATE = ROOT / "eval" / "label"


def paths_in(text: str | None) -> list[str]:
    """Paths, separated by commas."""
    return [path.strip() for path in (text or "").split(",") if path.strip()]


class PannApp(MONAILabelApp):
    """One model, served and trained.

    Args:
        app_dir: where MONAI Label writes its log.
        studies: a folder of scans, or the URL of a DICOMweb server.
        conf: `state`, the server's folder; for a first start `model`, `reference`, `overlays`, `prior` (paths, several
            separated by commas).
    """

    studies: str

    def __init__(self, app_dir: str, studies: str, conf: Mapping[str, str]) -> None:
        self.state = ServerState(conf.get("state") or STATE)
        given = {name: paths for name in ("model", "reference", "overlays", "prior") if (paths := conf.get(name))}
        if given or not (self.state.folder / "server.json").is_file():
            reference, overlays = (paths_in(given.get(name)) for name in ("reference", "overlays"))
            self.state.set_up(given.get("model"), reference, overlays, given.get("prior"))
        self.predictor = Predictor(self.state)
        super().__init__(
            app_dir=app_dir,
            studies=studies,
            conf=dict(conf),
            name="PaNN for MONAI",
            description="Multi-organ CT segmentation that learns from the organs that annotators save",
            version=bundle_version(),
            labels=self.state.vocabulary.names,
        )

    # --- Data --------------------------------------------------------------------------------------------------------
    def init_datastore(self) -> Datastore:
        if self.studies.startswith(("http://", "https://")):
            return self.init_remote_datastore()
        return SavedLabels(self.studies, settings.MONAI_LABEL_DATASTORE_FILE_EXT, self.state)

    def init_remote_datastore(self) -> Datastore:
        """An archive. Nothing is downloaded but from there; DICOM SEGs are written and read by this program."""
        self.studies = self.studies.strip().rstrip("/")
        # theirs names organs by position
        infer_endpoint.nifti_to_dicom_seg = self.write_seg
        return open_archive(self.studies)

    def write_seg(self, series: str, label: str, label_info: Any, **others: Any) -> str:
        """An answer as DICOM SEG, with the organs of the model that is served now."""
        return nifti_to_dicom_seg(series, label, label_info, vocabulary=self.state.vocabulary)

    def info(self) -> dict[str, Any]:
        """The first training of a server without a model may bring other organs."""
        return {**super().info(), "labels": self.state.vocabulary.names}

    def on_save_label(self, image_id: str, label_id: str) -> dict[str, Any]:
        """What was understood goes back to the client."""
        datastore = self.datastore()
        label = datastore.get_label_uri(label_id, FINAL)
        if not label:
            return {}
        info = datastore.said_of(label_id, label)
        said = read_annotation(image_id, datastore.get_image_uri(image_id), label, info, self.state.vocabulary)
        note = "" if said.labelled else "no organ is named and drawn in it, so nothing will be learned from it"
        return {"label_set": said.labelled, "complete": said.complete, "note": note}

    # --- Tasks -------------------------------------------------------------------------------------------------------
    def init_infers(self) -> dict[str, InferTask]:
        return {NAME: OrganInfer(self.state, self.predictor)}

    def init_trainers(self) -> dict[str, TrainTask]:
        return {NAME: OrganTrain(self.state)}

    def init_strategies(self) -> dict[str, Strategy]:
        return {
            "first": First(),
            "random": RandomImage(),
            "unlikely_sizes": UnlikelySizes(self.predictor),
            "rarest_organs": RarestOrgans(self.state, self.predictor),
        }

    def init_scoring_methods(self) -> dict[str, ScoringMethod]:
        return {"dice": OrganDice(self.state), "plausibility": OrganPlausibility(self.state)}

    def init_batch_infer(self) -> Callable[..., Any]:
        return OrganBatch(self.state)

    # --- Requests ----------------------------------------------------------------------------------------------------
    def infer(self, request: Mapping[str, Any], datastore: Datastore | None = None) -> dict[str, Any]:
        """An image is one of the datastore, or was sent with the request; no other file of this machine is read."""
        image = str(request.get("image") or "")
        if request.get("save_label") and check_tag(request.get("label_tag") or ORIGINAL) == FINAL:
            raise InputError(f'label_tag: "{FINAL}" is for what people saved; choose another, such as {ORIGINAL}')
        if not self.was_sent(image) and image not in (datastore or self.datastore()).list_images():
            raise ImageNotFoundException(f"There is no image {image!r}; GET /datastore/?output=all lists them")
        return dict(super().infer(request, datastore))

    def was_sent(self, image: str) -> bool:
        """Whether a path is that of a scan which came with the request, or of a session."""
        path = Path(image)
        if not path.is_absolute() or not path.exists():
            return False
        sessions = self.sessions()
        in_session = sessions is not None and Path(sessions.store_path).resolve() in path.resolve().parents
        return in_session or (path.parent == Path(tempfile.gettempdir()) and SENT.match(path.name) is not None)

    def train(self, request: Mapping[str, Any]) -> Any:
        return self.told(super().train, request)

    def scoring(self, request: Mapping[str, Any], datastore: Datastore | None = None) -> Any:
        return self.told(super().scoring, request, datastore)

    def batch_infer(self, request: Mapping[str, Any], datastore: Datastore | None = None) -> Any:
        return self.told(super().batch_infer, request, datastore)

    def told(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What runs in a process of its own ends with one sentence: the task is an ERROR, and its details say why."""
        try:
            return call(*arguments)
        except (InputError, MONAILabelException) as error:
            if self._server_mode:
                raise
            print(f"error: {getattr(error, 'msg', error)}", flush=True)
            sys.exit(EXIT_CODE)

    def check_training(self, model: str, request: Mapping[str, Any]) -> None:
        """Refuse a training that cannot run, before it is queued."""
        if model not in self._trainers:
            raise MONAILabelException(
                MONAILabelError.INVALID_INPUT, f"There is no model {model!r} to train; there is {NAME!r}"
            )
        if request.get("model", model) != model or not isinstance(request.get("gpus", ""), str):
            raise InputError(f'train: expected "model" {model!r} and "gpus" as text, or neither')
        read_request(request, chosen_device(request))

    def bundle_path(self, model: str) -> None:
        """Nothing: this app is no bundle that MONAI Label would put on a path."""
