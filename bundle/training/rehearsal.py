# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The rehearsal: both stages are built and see one mini-batch each before the first of them begins.

What would break after days breaks now, as a sentence. Nothing else is changed: weights, buffers, gradients and random
states are afterwards what they were.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from monai.engines import SupervisedTrainer
from torch import Tensor, nn

from bundle.configs import RunningConfig, reason_of
from bundle.errors import InputError, find_input_error
from bundle.training.batches import MixedBatches
from bundle.training.losses import Objective
from bundle.training.random_states import random_states, restore_random_states

__all__ = ["left_as_found", "rehearse", "try_mini_batch", "try_window"]

TITLES = {"warmup": "stage 1", "train": "stage 2"}


def rehearse() -> None:
    """Build both stages of the config that runs, and try one mini-batch of each and one window.

    Raises:
        InputError: naming what cannot be built, or what a mini-batch does not fit.
    """
    config = RunningConfig.find()
    if config is None:
        return
    first = config.build("warmup::trainer")
    with left_as_found(first.network, first.loss_function):
        trainers = {"warmup": first, "train": config.build("train::trainer")}
        if config.build("validate::dataset::data"):
            config.build("validate::evaluator")
        channels = config.build("out_channels")
        for stage in stages_to_run(config):
            try_mini_batch(trainers[stage], TITLES[stage], channels)
        size, inside = window_size(config, trainers["train"]), config.build("intensity")[1]
        try_window(config.build("validate::inferer"), trainers["train"].network, size, inside, channels)


def stages_to_run(config: RunningConfig) -> list[str]:
    replaced = config.build("warmup_checkpoint") is not None
    planned = {
        "warmup": 0 if replaced else config.build("warmup_iterations"),
        "train": config.build("train_iterations"),
    }
    return [stage for stage, iterations in planned.items() if iterations > 0]


# --- What is tried ---------------------------------------------------------------------------------------------------
def try_mini_batch(trainer: SupervisedTrainer, stage: str, channels: int) -> None:
    """The first mini-batch of a stage through network, loss and backward, without a step.

    Args:
        trainer: of the stage.
        stage: its name, for errors.
        channels: that the network is to have.

    Raises:
        InputError: naming the values to look at.
    """
    batch = first_batch(trainer, stage)
    image: Tensor = batch["image"]
    what = f"{stage}: the first mini-batch, {'×'.join(map(str, image.shape))}"
    with sentences(what, "batch_full, batch_partial, patch_size or network_def"):
        inputs, target = trainer.prepare_batch(batch, trainer.state.device, trainer.non_blocking, **trainer.to_kwargs)
        trainer.network.train()
        with torch.autocast(trainer.state.device.type, enabled=trainer.amp, **trainer.amp_kwargs):
            predicted = trainer.inferer(inputs, trainer.network)
            check_shape(predicted, batch["label"], channels, what)
            loss = trainer.loss_function(predicted, target)
        total = loss.total if isinstance(loss, Objective) else loss
        if not bool(torch.isfinite(total.detach()).all()):
            raise InputError(
                f"{what}: the loss is {float(total.detach())}; look at hu_window, intensity, loss and the scans"
            )
        trainer.network.zero_grad(set_to_none=True)  # not added up with those of the other stage
        total.backward()


def first_batch(trainer: SupervisedTrainer, stage: str) -> dict[str, Any]:
    """What the stage's loader would give first, loaded in this process."""
    loader: Any = trainer.data_loader
    sampler = loader.batch_sampler
    with sentences(f"{stage}: the first mini-batch", "augmentation, patch_size, patch_margin or rotation"):
        draws = sampler.batch(0) if isinstance(sampler, MixedBatches) else next(iter(sampler))
        samples = [loader.dataset[draw] for draw in draws]
        shapes = sorted({tuple(sample["image"].shape) for sample in samples})
        if len(shapes) > 1:
            raise InputError(
                f"{stage}: the first mini-batch: expected samples of one size, found {' and '.join(map(str, shapes))}; "
                "where patch_size is -1 all scans need the same size on the network's grid (pixdim), or give a number"
            )
        batch: dict[str, Any] = loader.collate_fn(samples)
    return batch


def check_shape(predicted: Any, label: Tensor, channels: int, what: str) -> None:
    """Of a prediction, B×C×spatial or B×heads×C×spatial, beside its label, B×1×spatial."""
    if not isinstance(predicted, Tensor):
        raise InputError(f"{what}: the network gave a {type(predicted).__name__}, not a tensor; see network_def")
    axis = 1 + predicted.ndim - label.ndim
    found, expected = tuple(predicted.shape), (*label.shape[2:],)
    if axis not in (1, 2) or found[axis] != channels or found[axis + 1 :] != expected:
        wanted = "×".join(map(str, (label.shape[0], channels, *expected)))
        raise InputError(
            f"{what}: expected a prediction of {wanted}, a channel for the background and each organ, found "
            f"{'×'.join(map(str, found))}; look at network_def (out_channels, spatial_dims), organs and patch_size"
        )


def window_size(config: RunningConfig, trainer: SupervisedTrainer) -> list[int]:
    """Voxels of a window; where it takes the whole axis, those of the first case."""
    size, dataset = config.build("patch_size"), trainer.data_loader.dataset  # type: ignore[union-attr]
    shape = dataset.volume(0)["image"].shape[1:] if -1 in size else size
    return [int(total if n == -1 else n) for n, total in zip(size, shape, strict=True)]


@torch.no_grad()
def try_window(inferer: Any, network: nn.Module, size: list[int], inside: float, channels: int) -> None:
    """One window through the inference engine, as for pseudo-labels and validation.

    Args:
        inferer: the engine; another one that MONAI has does as well.
        network: in training.
        size: voxels of the window.
        inside: an intensity that is not air.
        channels: that the network is to have.

    Raises:
        InputError: naming the values to look at.
    """
    what = f"inference: a window of {'×'.join(map(str, size))}"
    image = torch.full(size, float(inside))
    with sentences(what, "patch_size, window_batch, scales, flips, backend or network_def"):
        network.eval()
        engine = copy.copy(inferer)  # it remembers what it has compiled
        if not hasattr(engine, "slabs"):
            device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
            engine(image[None, None].to(device), network)
            return
        _, slabs = engine.slabs(image, network)
        for _, planes in slabs:
            if planes.shape[1] != channels:
                raise InputError(
                    f"{what}: expected {channels} channels, found {planes.shape[1]}; look at network_def and organs"
                )


# --- How it is tried -------------------------------------------------------------------------------------------------
@contextmanager
def sentences(what: str, values: str) -> Iterator[None]:
    """Errors of the library become one sentence.

    Args:
        what: that was tried.
        values: to look at.
    """
    try:
        yield
    except Exception as error:  # a network may raise anything for a shape that it cannot take
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error):
            raise InputError(f"{what}: does not fit into memory; make it smaller: {values}") from None
        found = find_input_error(error)
        if found is not None:
            raise found from None
        if isinstance(error, ImportError):
            raise InputError(f"{what}: a package is missing ({reason_of(error)}); install it with pip") from None
        raise InputError(f"{what}: does not work ({reason_of(error)}); look at {values}") from None


@contextmanager
def left_as_found(*parts: Any) -> Iterator[None]:
    """Random states, and the buffers, gradients and modes of those parts that are modules, stay what they were."""
    whole = nn.ModuleList(part for part in parts if isinstance(part, nn.Module))
    states = random_states()
    buffers = {name: value.detach().clone() for name, value in whole.named_buffers()}
    gradients = [(parameter, parameter.grad) for parameter in whole.parameters()]
    modes = [(module, module.training) for module in whole.modules()]
    try:
        yield
    finally:
        with torch.no_grad():
            for name, value in whole.named_buffers():
                value.copy_(buffers[name])
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for module, training in modes:
            module.training = training
        restore_random_states(states)
