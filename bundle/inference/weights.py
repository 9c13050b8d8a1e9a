# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Weights and, in the same file, the record of what they are. A copy of it for people is beside them: `model.json`.

The copy is also an overlay on configs/inference.yaml. Where the two disagree, an error names both.
"""

from __future__ import annotations

import json
import logging
import pickle
import warnings
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bundle.configs import RunningConfig
from bundle.errors import InputError
from bundle.files import whole_file, write_json
from bundle.inference.records import IDENTITY, ModelRecord, differences, read_record
from bundle.networks.definitions import shorten
from bundle.organs import WHOLE_VOCABULARY, Vocabulary

__all__ = [
    "MODEL_CONFIG", "Checkpoint", "check_agreement", "check_finite", "check_kind", "load_state", "load_weights",
    "model_values", "read_checkpoint", "read_model_json", "write_model_json", "write_weights",
]  # fmt: skip

logger = logging.getLogger(__name__)

MODEL_CONFIG = "model.json"
LARGEST_CONFIG = 1_000_000  # bytes
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = (*FLOATS, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
GIVE = "give weights that training wrote"


# --- Writing ---------------------------------------------------------------------------------------------------------
def write_weights(path: str | Path, network: nn.Module, record: ModelRecord, **training: Any) -> None:
    """Write the weights of a network and what they are, in one file and in one step.

    MONAI finds the state dict under "model".

    Args:
        path: of the file.
        network: whose weights are written.
        record: what it is.
        training: what the record is to say about these weights besides, for instance ``stage`` and ``iteration``.

    Raises:
        InputError: when a weight is not finite; nothing is written then.

    >>> from tempfile import TemporaryDirectory
    >>> from bundle.inference.records import describe_model
    >>> record = describe_model(Vocabulary("liver"), (-125, 275), (0, 255), (64, 64, 64), (2, 2, 2), network_def={
    ...     "_target_": "BasicUNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 2})
    >>> with TemporaryDirectory() as folder:
    ...     write_weights(f"{folder}/model.pt", nn.Linear(2, 2), record, stage="train")
    ...     read_checkpoint(f"{folder}/model.pt").record.training
    {'stage': 'train'}
    """
    state = {name: value.detach().cpu() for name, value in network.state_dict().items()}
    check_finite(state, Path(path))
    plain = replace(record, training={**record.training, **training}).plain()
    read_record(plain, str(path))  # what is written can be read
    with whole_file(path) as unfinished:
        torch.save({"model": state, "record": plain}, unfinished)


def write_model_json(directory: str | Path, record: ModelRecord) -> None:
    """Write into the folder of weights, for people, what inference must know of them."""
    write_json(Path(directory) / MODEL_CONFIG, record.config())


# --- Reading ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Checkpoint:
    """What is in a file of weights.

    Args:
        path: of the file.
        state: the state dict, on the CPU.
        record: what it says about itself; None in files of other programs and of earlier versions.
    """

    path: Path
    state: dict[str, Tensor]
    record: ModelRecord | None

    def describe(self) -> tuple[ModelRecord | None, Path]:
        """What the model is, and the file that says so: the weights themselves; else, with a warning, `model.json`.

        Raises:
            InputError: when both say something, and not the same.
        """
        beside = read_model_json(self.path)
        config = self.path.with_name(MODEL_CONFIG)
        if self.record is None:
            if beside is not None:
                logger.warning(
                    "%s: the weights do not say what they are; %s does, and nothing confirms it", self.path, config
                )
            return beside, config
        if beside is not None:
            for name, mine, theirs in differences(self.record, beside.config(), tuple(beside.config())):
                raise InputError(
                    f"{self.path} has {name} {shorten(mine)}, and {config} has {shorten(theirs)}: it describes other "
                    f"weights; put the weights into a folder of their own, or remove {config}"
                )
        return self.record, self.path


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read a file of weights: a state dict, or one under "model", beside which "record" says what it is.

    Nothing in the file is executed.

    Raises:
        InputError: when it is missing, is something else, or holds a weight that is not finite.
    """
    path = Path(path)
    content = read_content(path)
    state = content.get("model", content) if isinstance(content, Mapping) else content
    if not isinstance(state, Mapping) or not state:
        raise InputError(f"{path}: expected a state dict, names and tensors, found {shorten(state)}; {GIVE}")
    for name, value in state.items():
        check_tensor(name, value, path)
    check_finite(state, path)
    recorded = state is not content and "record" in content
    return Checkpoint(path, dict(state), read_record(content["record"], str(path)) if recorded else None)


def read_content(path: Path) -> Any:
    """What PyTorch makes of a file without executing anything in it."""
    try:
        check_kind(path)
        with warnings.catch_warnings(action="ignore"):  # of other versions of pickle: what they lead to is said below
            return torch.load(path, map_location="cpu", weights_only=True)
    except InputError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"{path}: no such weights; train first, or give the path of a checkpoint") from None
    except PermissionError:
        raise InputError(f"{path}: cannot be opened (permission is denied); allow reading it, or {GIVE}") from None
    except pickle.UnpicklingError:  # torch's own text advises to load it all the same
        raise InputError(
            f"{path}: holds more than weights, it may be Python objects that execute anything when they are loaded; "
            f"{GIVE}"
        ) from None
    except MemoryError:
        raise
    except Exception:  # torch raises many kinds for a file that is damaged or none of its own
        raise InputError(
            f"{path}: cannot be read as weights, it is damaged or incomplete; copy it again, or {GIVE}"
        ) from None


def check_kind(path: Path) -> None:
    """The file is one that PyTorch wrote, undamaged, and no program."""
    if path.is_dir():
        raise InputError(f"{path}: expected a file of weights, found a folder; give the path of a checkpoint")
    with path.open("rb") as file:
        start = file.read(2)
    if not start:
        raise InputError(f"{path}: the file is empty; {GIVE}")
    if not start.startswith((b"PK", b"\x80")):  # a zip archive, or the pickle of earlier versions
        raise InputError(f"{path}: expected weights that PyTorch wrote, found another kind of file; {GIVE}")
    if zipfile.is_zipfile(path):
        check_archive(path)


def check_archive(path: Path) -> None:
    """The members of the archive are what was written; PyTorch itself does not compare their checksums."""
    with zipfile.ZipFile(path) as archive:
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise InputError(f"{path}: expected weights, found a TorchScript program; give the weights it was made of")
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):  # it could be of any size
            raise InputError(f"{path}: expected weights that PyTorch wrote, found a compressed archive; {GIVE}")
        damaged = archive.testzip()
    if damaged is not None:
        raise InputError(f"{path}: the file is damaged, its checksums do not fit; copy it again, or {GIVE}")


def check_tensor(name: Any, value: Any, path: Path) -> None:
    """A weight is an ordinary tensor that takes as much of the file as it has values."""
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise InputError(f"{path}: expected names and tensors, found {shorten(name)}: {type(value).__name__}; {GIVE}")
    ordinary = value.layout == torch.strided and value.device.type == "cpu" and value.dtype in KINDS
    if not ordinary or value.numel() * value.element_size() > value.untyped_storage().nbytes():
        raise InputError(f"{path}: {name}: expected a dense tensor of numbers, found another kind; {GIVE}")


def check_finite(state: Mapping[str, Tensor], path: Path) -> None:
    for name, value in state.items():
        if value.dtype in FLOATS and not value.isfinite().all():
            raise InputError(
                f"{path}: the weight {name} is not finite (NaN or infinity); such weights are neither written nor "
                "loaded: give earlier ones, or train with a smaller learning rate"
            )


def read_model_json(weights: str | Path) -> ModelRecord | None:
    """The description beside weights; None when there is none.

    Raises:
        InputError: when it is not one.
    """
    path = Path(weights).with_name(MODEL_CONFIG)
    if not path.exists():
        return None
    remedy = "replace it by the one that training wrote"
    try:
        if path.stat().st_size > LARGEST_CONFIG:
            raise InputError(f"{path}: expected the description of a model, found a file of more than 1 MB; {remedy}")
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except (RecursionError, ValueError) as error:  # of JSON and UTF-8
        if isinstance(error, InputError):
            raise
        reason = "nested too deep" if isinstance(error, RecursionError) else shorten(str(error))
        raise InputError(f"{path}: expected the description of a model as JSON ({reason}); {remedy}") from None
    return read_record(content, str(path))


# --- Loading ---------------------------------------------------------------------------------------------------------
def load_weights(network: nn.Module, path: str | Path, vocabulary: Vocabulary = WHOLE_VOCABULARY) -> None:
    """Load weights into the network of the config that runs, if they are of such a model.

    Weights that do not say what they are are loaded with a warning: the config is there to say it.

    Args:
        network: to load them into.
        path: of the file.
        vocabulary: the organs of this run.

    Raises:
        InputError: when the file is missing or damaged, or belongs to another network, other organs or another grid.

    >>> from tempfile import TemporaryDirectory
    >>> from bundle.inference.records import describe_model
    >>> record = describe_model(Vocabulary("liver"), (-125, 275), (0, 255), (64, 64, 64), (2, 2, 2), network_def={
    ...     "_target_": "BasicUNet", "spatial_dims": 3, "in_channels": 1, "out_channels": 2})
    >>> with TemporaryDirectory() as folder:
    ...     write_weights(f"{folder}/model.pt", nn.Linear(2, 2), record)
    ...     load_weights(nn.Linear(2, 2), f"{folder}/model.pt", Vocabulary("spleen"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    bundle.errors.InputError: ...model.pt: the model was trained with organs ['liver'], this config has ['spleen']; ...
    """
    checkpoint = read_checkpoint(path)
    record, source = checkpoint.describe()
    if record is None:
        logger.warning("%s: the weights do not say what they are; they are taken for those of this config", path)
    else:
        check_agreement(record, {**model_values(RunningConfig.find()), "organs": vocabulary.names}, source)
    load_state(network, checkpoint)


def model_values(config: RunningConfig | None, names: Collection[str] = (*IDENTITY, "patch_size")) -> dict[str, Any]:
    """What a config says about its model: ids and values, of those ids that it has."""
    if config is None:
        return {}
    values = {name: config.value(name) for name in names if name in config.raw and name != "network_def"}
    if "organs" in values:  # also by other names, or separated by commas
        values["organs"] = Vocabulary(values["organs"]).names
    if "network_def" in names:  # as it is written: what is instantiated no longer shows it
        values["network_def"] = config.section("network_def")
    return values


def check_agreement(record: ModelRecord, config: Mapping[str, Any], source: Path, remedy: str | None = None) -> None:
    """The model is the one that a config describes.

    Args:
        record: what the model is.
        config: ids and values.
        source: the file that the record was read from, for the sentence.
        remedy: what to do, if not to set the value.
    """
    for name, mine, theirs in differences(record, config):
        remedy = remedy or f'give --{name} "{shorten(mine, 400)}", or weights that were trained with this config'
        raise InputError(
            f"{source}: the model was trained with {name} {shorten(mine)}, this config has {shorten(theirs)}; {remedy}"
        )


def load_state(network: nn.Module, checkpoint: Checkpoint) -> None:
    try:
        network.load_state_dict(checkpoint.state)
    except RuntimeError as error:
        raise InputError(
            f"{checkpoint.path}: not the weights of this network ({shorten(str(error), 200)}); give the overlays and "
            "values it was trained with"
        ) from None
