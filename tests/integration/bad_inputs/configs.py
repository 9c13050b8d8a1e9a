# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Bad values and ids on the command line of a training, an evaluation or an inference."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.integration.bad_inputs.record import EVALUATING, INFERRING, RUN, TRAINING, BadInput, Plant, bundle_command

__all__ = ["CONFIGS"]

TRAIN_VALUES = {  # what is wrong, and the option that is
    "a supervision that does not exist": "--supervision nonsense",
    "a supervision in capitals": "--supervision PaNN",
    "a loss that does not exist": "--loss dice",
    "duals that do not exist": "--duals none",
    "a backend that does not exist": "--backend tensorrt",
    "a grid that does not exist": "--label_grid world",
    "λ2 that is not a number": "--prior_weight nan",
    "λ2 that is infinite": "--prior_weight inf",
    "λ2 computed as NaN": "--prior_weight \"$float('nan')\"",
    "λ2 below 0": "--prior_weight -1",
    "λ1 below 0": "--partial_weight -0.5",
    "λ1 as a list": "--partial_weight [1]",
    "a reversed HU window": "--hu_window [275,-125]",
    "an HU window of no width": "--hu_window [40,40]",
    "an HU window of one number": "--hu_window [-125]",
    "an HU window with a word": "--hu_window \"[-125,'high']\"",
    "an HU window with infinity": "--hu_window '$[float(\"-inf\"), 275]'",
    "an intensity range of no width": "--intensity [0,0]",
    "a voxel size of two numbers": "--pixdim [1.5,1.5]",
    "a voxel size of one number": "--pixdim 1.5",
    "a voxel size below 0": "--pixdim [-1.5,1.5,2]",
    "voxels of a meter": "--pixdim [1000,1000,1000]",
    "a patch without voxels": "--patch_size [0,16,8]",
    "a patch of half voxels": "--patch_size [16.5,16,8]",
    "a patch size below -1": "--patch_size [-2,16,8]",
    "a patch of two numbers in 3D": "--patch_size [16,16]",
    "a margin below 0": "--patch_margin [-1,0,0]",
    "a rotation about two axes": "--rotation [0,0]",
    "a rotation that is a word": "--rotation \"[0,0,'fast']\"",
    "an organ rate above 1": "--organ_rate 1.5",
    "a rate of empty slices below 0": "--empty_rate -0.1",
    "half a slice of context": "--context 1.5",
    "no training scale": "--train_scales []",
    "a training scale of 0": "--train_scales [0]",
    "a negative number of iterations in stage 1": "--warmup_iterations -5",
    "a negative number of iterations in stage 2": "--train_iterations -1",
    "half an iteration": "--warmup_iterations 2.5",
    "iterations as a word": "--warmup_iterations many",
    "a learning rate of 0": "--warmup_learning_rate 0",
    "a negative learning rate": "--train_learning_rate -0.00001",
    "a negative exponent of the decay": "--poly_power -1",
    "no fully labelled sample in a batch": "--batch_full 0",
    "a negative number of partial samples": "--batch_partial -1",
    "an epoch of no iterations": "--epoch_length 0",
    "a validation every 0 epochs": "--val_interval 0",
    "checkpoints every -1 minutes": "--save_minutes -1",
    "a value of an earlier version": "--save_interval 10",
    "history every 0 iterations": "--history_interval 0",
    "a refresh interval of 0": "--refresh_interval 0",
    "a confidence above 1": "--confidence 2",
    "a confidence below 0": "--confidence -0.1",
    "a switch that is a word": "--marginal maybe",
    "a switch that is a number": "--prior_fit 2",
    "a negative memory of the teacher": "--teacher_memory -1",
    "pseudo-labels from iteration -1": "--pseudo_start -1",
    "a negative slack": "--prior_slack -1",
    "a negative correction": "--prior_correction -0.5",
    "duals without memory": "--dual_memory 0",
    "a negative rate of the duals": "--dual_rate -1",
    "windows that overlap wholly": "--overlap 1",
    "no window in a batch": "--window_batch 0",
    "an axis to flip that does not exist": "--flips [3]",
    "an axis to flip that is a letter": "--flips \"['x']\"",
    "a negative test scale": "--scales [-1]",
    "a fold that is a switch": "--fold true",
    "a negative fold": "--fold -1",
    "null as a word": "--fold null",
    "no cohort at all": "--cohorts []",
    "an organ outside the vocabulary": "--organs brain",
    "a misspelled organ": "--organs \"['livr','spleen']\"",
    "an organ named twice": "--organs \"['liver','liver']\"",
    "no organ at all": "--organs []",
    "a negative number of workers": "--workers -1",
    "a negative seed": "--seed -3",
    "a seed that is a word": "--seed random",
    "a cache of 0 GB": "--cache_limit 0",
    "a device that does not exist": "--device gpu",
    "resume that is a word": "--resume maybe",
    "overwrite that is a number": "--overwrite 3",
    "a folder that is a number": "--output_dir 5",
    "a misspelled id": "--suprevision full",
    "an id that resembles none": "--xyzzy 1",
    "a misspelled id, one dash": "-suprevision full",
    "a bad value, one dash": "-confidence 2",
    "a misspelled id with dashes inside": "--prior-wait 1",
    "an expression that fails": "--prior_weight '$1/0'",
    "an expression that is no Python": "--prior_weight '$1 +'",
    "an expression with an unknown name": "--prior_weight '$lambda_2'",
    "a reference to an id that does not exist": "--prior_weight @lambda_2",
    "a value that refers to itself": "--prior_weight @prior_weight",
}
DEEP = {  # ids inside components
    "a misspelled argument of the network": "--network_def::chanels [4,8]",
    "a misspelled argument of the network, with #": "--network_def#chanels [4,8]",
    "a misspelled argument of the trainer": "--train::trainer::max_epoch 3",
    "a misspelled argument of an optimizer, with #": "--train#optimizer#weight_decy 1",
    "a misspelled part of validation": "--validate::evalutor 1",
    "a network that does not exist": "--network_def::_target_ UNett",
    "a network of a module that does not exist": "--network_def::_target_ torch.nn.nowhere.UNet",
    "an optimizer that does not exist": "--train::optimizer::_target_ torch.optim.Adamm",
}
LATE = {  # what only the data or the network can tell
    "a patch that the network cannot halve": "--patch_size [15,16,8]",
    "context slices for a 3D network": "--context 1",
    "two stages of no iterations": "--warmup_iterations 0 --train_iterations 0",
    "a fold that nobody has": "--fold 7",
    "a cohort that does not exist": "--cohorts nowhere",
    "a folder of data that does not exist": "--dataset_dir nowhere",
    "a folder of data that is empty text": "--dataset_dir ''",
    "true labels that do not exist": "--truth_dir nowhere",
    "channels and strides that disagree": "--network_def::channels [4] --network_def::strides [2,2]",
    "a 2D network on 3D patches": "--network_def::spatial_dims 2",
    "a network with too few outputs": "--network_def::out_channels 2",
}
EVALUATE_VALUES = {
    "a section that does not exist": "--section held_out",
    "a tolerance of 0 mm": "--tolerance 0",
    "the held-out fold without a fold": "--section fold --fold '$None'",
    "a misspelled id of an evaluation": "--tolerence 1",
    "an evaluation on a device that does not exist": "--device gpu",
}
INFERENCE_VALUES = {
    "an overlap of -1 at inference": "--overlap -1",
    "no scale at inference": "--scales []",
    "a misspelled id of inference": "--chekpoint models/model.pt",
    "a reversed HU window at inference": "--hu_window [275,-125]",
    "a negative number of workers at inference": "--workers -1",
}
SLICES = bundle_command("training", "configs/train.yaml", "configs/overlays/paper_2d.yaml")
SLICE_VALUES = {
    "a view that does not exist": "--view diagonal",
    "a slice without pixels": "--slice_size [0,32]",
    "a slice of one number": "--slice_size 32",
    "a backbone that does not exist": "--network_def::backbone resnet51",
    "pretrained weights that do not exist": "--network_def::pretrained nowhere.pth",
    "negative context": "--context -1",
}


def arguments_file(text: str) -> Plant:
    """Arguments for `--args_file`."""

    def plant(folder: Path) -> None:
        (folder / "arguments.json").write_text(text)

    return plant


FILES = {"config_file": ["configs/train.yaml", "tiny.yaml"], "dataset_dir": "data"}
BY_FILE = "monai.bundle run training --args_file arguments.json"
ONLY_TRAIN = "--config_file configs/train.yaml --dataset_dir data"
UNREACHED = [  # MONAI itself refuses these, or does not come to the check of values
    BadInput(wrong, f"{RUN} {line}", about=(about,), untouched=True)
    for wrong, line, about in [
        ("evaluating without evaluate.yaml", f"evaluating {ONLY_TRAIN}", "evaluate.yaml"),
        ("a misspelled run id", f"trainning {ONLY_TRAIN}", "training"),
        ("no config file", "training --dataset_dir data", "config_file"),
        ("a config file that does not exist", "training --config_file nowhere.yaml --dataset_dir data", "nowhere.yaml"),
        ("a misspelled part of a stage", f"training {ONLY_TRAIN} --train::optimiser::lr 1", "optimizer"),
        ("a value below an id that does not exist", f"training {ONLY_TRAIN} --trian::optimizer::lr 1", "trian"),
        ("a value below a number", f"training {ONLY_TRAIN} --seed::first 1", "seed"),
        ("an item that a list does not have", f"training {ONLY_TRAIN} --train::handlers::99::interval 1", "handlers"),
        ("settings of logs that do not exist", f"training {ONLY_TRAIN} --logging_file nowhere.conf", "nowhere.conf"),
        ("metadata that does not exist", f"training {ONLY_TRAIN} --meta_file nowhere.json", "nowhere.json"),
        ("a word between the options", f"training {ONLY_TRAIN} confidence 0.5", "confidence"),
        ("an option without a value", f"training {ONLY_TRAIN} --confidence", "confidence"),
        ("an option given twice", f"training {ONLY_TRAIN} --confidence 0.5 --confidence 0.9", "confidence"),
        ("an arguments file that does not exist", "training --args_file nowhere.json", "nowhere.json"),
    ]
]
ARGUMENT_FILES = {  # its content, how it is read, what must be named
    "an arguments file that is no JSON": ("{", f"{RUN} training --args_file arguments.json", "arguments.json"),
    "an arguments file that is a list": ("[1]", f"{RUN} training --args_file arguments.json", "arguments.json"),
    "a misspelled id in an arguments file": (json.dumps(FILES | {"suprevision": "full"}), BY_FILE, "suprevision"),
    "a bad value in an arguments file": (json.dumps(FILES | {"confidence": 2}), BY_FILE, "confidence"),
}


def named(option: str) -> tuple[str, ...]:
    """What the sentence about an option must name: the last part of its id, or the target that does not exist."""
    words = option.split()
    name = re.split("::|#", words[0].lstrip("-"))[-1].replace("-", "_")
    return (words[1].split(".")[-1],) if name == "_target_" else (name,)


CONFIGS = [
    *(
        BadInput(wrong, f"{TRAINING} {option}", about=named(option), untouched=True)
        for wrong, option in TRAIN_VALUES.items()
    ),
    *(BadInput(wrong, f"{TRAINING} {option}", about=named(option)) for wrong, option in DEEP.items()),
    BadInput("an optimizer's own bad value", f"{TRAINING} --train::optimizer::lr -1", about=("optimizer", "rate: -1")),
    *(BadInput(wrong, f"{TRAINING} {option}") for wrong, option in LATE.items()),
    BadInput(
        "three mistakes at once",
        f"{TRAINING} --supervision nonsense --confidence 2 --refresh_intervall 5",
        about=("supervision", "confidence", "refresh_intervall"),
        untouched=True,
    ),
    *(
        BadInput(wrong, f"{EVALUATING} {option}", about=named(option), trained=True)
        for wrong, option in EVALUATE_VALUES.items()
    ),
    *(
        BadInput(wrong, f"{INFERRING} {option}", about=named(option), trained=True)
        for wrong, option in INFERENCE_VALUES.items()
    ),
    *(BadInput(wrong, f"{SLICES} {option}", about=named(option)) for wrong, option in SLICE_VALUES.items()),
    *UNREACHED,
    *(
        BadInput(wrong, command, arguments_file(text), about=(about,), untouched=True)
        for wrong, (text, command, about) in ARGUMENT_FILES.items()
    ),
]
