# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Bad config files: overlays on configs/train.yaml that cannot be read, or say what cannot be."""

from __future__ import annotations

from pathlib import Path

from tests.integration.bad_inputs.record import BadInput, Plant, bundle_command

__all__ = ["OVERLAYS"]

MINE = bundle_command("training", "configs/train.yaml", "tiny.yaml", "mine.yaml")
RUN_MINE = bundle_command("training", "configs/train.yaml", "tiny.yaml", "mine.yaml", program="scripts")


def overlay(content: str | bytes, name: str = "mine.yaml") -> Plant:
    def plant(folder: Path) -> None:
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return plant


def folder_as_overlay(folder: Path) -> None:
    (folder / "mine.yaml").mkdir()


def secret_overlay(folder: Path) -> None:
    overlay("confidence: 0.5\n")(folder)
    (folder / "mine.yaml").chmod(0)


STOCK_ITEMS = """
train::dataset::data:
- {image: data/full/imagesTr/full_000.nii.gz, label: data/full/labelsTr/full_000.nii.gz}
"""

UNREADABLE: dict[str, str | bytes] = {  # MONAI refuses these before anything of ours runs
    "broken YAML": "confidence: [0.5\n",
    "YAML indented with a tab": "network_def:\n\tchannels: [4, 8]\n",
    "an empty overlay": "",
    "an overlay of comments only": "# confidence: 0.5\n",
    "a list instead of ids": "- confidence: 0.5\n",
    "a bare word": "confidence\n",
    "a colon without a space": "confidence:0.5\n",
    "text that is not UTF-8": b"confidence: 0.5  # \xff\xfe\n",
    "a binary file": bytes(range(256)),
    "two YAML documents": "confidence: 0.5\n---\nconfidence: 0.6\n",
    "an object of Python in YAML": "seed: !!python/object/apply:os.getpid []\n",
    "an anchor that does not exist": "seed: *other\n",
    "YAML nested too deep": "[" * 5000,
}
MISSHAPEN = {  # components that do not fit, and what must be named
    "a misspelled argument at depth": ("network_def::chanels: [4, 8]\n", "chanels"),
    "a misspelled argument of a network that is written anew": (
        "network_def:\n  _target_: UNet\n  spatial_dims: 3\n  in_channels: 1\n  out_channels: '@out_channels'\n"
        "  chanels: [4, 8]\n  strides: [2]\n",
        "chanels",
    ),
    "a misspelled argument of a handler": ("train::handlers::0::intervall: 5\n", "intervall"),
    "a misspelled part of a stage": ("train::optimzer:\n  _target_: torch.optim.SGD\n", "optimzer"),
    "a network that is null": ("network_def: null\n", "network_def"),
    "a network without a target": ("network_def: {channels: [4, 8]}\n", "network_def"),
    "a target that does not exist": ("supervised_loss: {_target_: bundle.training.losses.Nowhere}\n", "Nowhere"),
    "a target that is a number": ("supervised_loss: {_target_: 5}\n", "supervised_loss"),
    "a component without the arguments it needs": ("teacher: {_target_: bundle.training.teacher.Teacher}\n", "teacher"),
    "an optimizer without parameters": ("train::optimizer: {_target_: torch.optim.SGD, lr: 0.1}\n", "optimizer"),
    "transforms that are no list": ("augmentation: {_target_: RandFlipd, keys: [image, label]}\n", "augmentation"),
    "a transform of a key that no case has": (
        "augmentation:\n- {_target_: RandFlipd, keys: [image, mask], prob: 1.0}\n",
        "mask",
    ),
    "an argument that is given twice": (
        "teacher:\n  _target_: bundle.training.teacher.Teacher\n  network: '@network'\n  memory: 5\n  memory: 6\n",
        "memory",
    ),
    "a trainer without a network": ("train::trainer::network: null\n", "network"),
    "a validation that is null": ("validate::evaluator: null\n", "validate"),
}
BROKEN_STAGES = {  # likewise; MONAI refuses some of these before anything of ours runs
    "a number as an id": ("5: 3\n", "5"),
    "an id below one that does not exist": ("trian::optimizer::lr: 0.1\n", "trian"),
    "a stage that loses its parts": ("train:\n  optimizer:\n    lr: 0.1\n", "train"),
    "no value for a whole stage": ("train: null\n", "train"),
}
WRONG = {  # plain values
    "a misspelled id in an overlay": "suprevision: full\n",
    "an id that is given twice": "confidence: 0.5\nseed: 1\nconfidence: 0.9\n",
    "λ2 as .nan": "prior_weight: .nan\n",
    "iterations as .inf": "warmup_iterations: .inf\n",
    "a number with a decimal comma": "prior_weight: 0,5\n",
    "a number that YAML takes for text": "train_learning_rate: 1e-5\n",
    "a number in quotes": 'confidence: "0.7"\n',
    "a yes for a fold": "fold: yes\n",
    "a date for a seed": "seed: 2024-01-01\n",
    "a switch in quotes": 'marginal: "true"\n',
    "null where a word is needed": "supervision: null\n",
    "a list without commas": "pixdim: [1.5 1.5 2.0]\n",
    "a list as text": 'hu_window: "-125, 275"\n',
    "one number for a list": "patch_size: 64\n",
    "a mapping of organs": "organs: {liver: 1, spleen: 2}\n",
    "organs that are numbers": "organs: [1, 6]\n",
    "an organ by two of its names": "organs: [liver, spleen, Liver]\n",
    "a mapping of cohorts": "cohorts: {spleen: 1}\n",
    "a list of lists": "scales: [[1.0]]\n",
    "a component for a number": "confidence: {_target_: torch.nn.ReLU}\n",
    "an expression that is no Python in an overlay": "prior_weight: $0.5 *\n",
    "a reference to nothing in an overlay": "prior_weight: '@lambda2'\n",
}

OVERLAYS = [
    BadInput("an overlay that does not exist", RUN_MINE, about=("mine.yaml",), untouched=True),
    BadInput("an overlay that is a folder", RUN_MINE, folder_as_overlay, about=("mine.yaml",), untouched=True),
    BadInput("an overlay that may not be read", RUN_MINE, secret_overlay, about=("mine.yaml",), untouched=True),
    *(
        BadInput(wrong, RUN_MINE, overlay(content), about=("mine.yaml",), untouched=True)
        for wrong, content in UNREADABLE.items()
    ),
    *(
        BadInput(wrong, RUN_MINE, overlay(content), about=(about,), untouched=True)
        for wrong, (content, about) in BROKEN_STAGES.items()
    ),
    *(BadInput(wrong, MINE, overlay(content), about=(about,)) for wrong, (content, about) in MISSHAPEN.items()),
    *(
        BadInput(wrong, MINE, overlay(content), about=(content.split(":")[0],), untouched=True)
        for wrong, content in WRONG.items()
    ),
    BadInput(
        "cases without a label set, as from MONAI Label's stock app",
        MINE,
        overlay(STOCK_ITEMS),
        about=("labelled", "make serve"),
        untouched=True,
    ),
    BadInput(
        "six mistakes at once",
        MINE,
        overlay("confidence: 2\nfold: -1\nloss: mse\nhu_window: [3, 1]\nscales: []\nprior_wieght: 1\n"),
        about=("confidence", "fold", "loss", "hu_window", "scales", "prior_wieght"),
        untouched=True,
    ),
    BadInput(
        "JSON with a comma too many",
        bundle_command("training", "configs/train.yaml", "tiny.yaml", "mine.json", program="scripts"),
        overlay('{"confidence": 0.5,}', "mine.json"),
        about=("mine.json",),
        untouched=True,
    ),
    BadInput(
        "an id given twice in JSON",
        bundle_command("training", "configs/train.yaml", "tiny.yaml", "mine.json"),
        overlay('{"confidence": 0.5, "confidence": 0.9}', "mine.json"),
        about=("mine.json", "confidence"),
        untouched=True,
    ),
    BadInput(
        "a config that is no YAML by its name",
        bundle_command("training", "configs/train.yaml", "tiny.yaml", "mine.txt", program="scripts"),
        overlay("confidence: 0.5\n", "mine.txt"),
        about=("mine.txt",),
        untouched=True,
    ),
    BadInput(
        "an overlay alone",
        bundle_command("training", "tiny.yaml", program="scripts"),
        about=("tiny.yaml", "configs/train.yaml"),
        untouched=True,
    ),
    BadInput(
        "a list of configs that is not closed",
        "scripts run training --config_file \"['configs/train.yaml','tiny.yaml'\" --dataset_dir data",
        about=("config_file",),
        untouched=True,
    ),
    BadInput(
        "the metadata as an overlay",
        bundle_command("training", "configs/train.yaml", "tiny.yaml", "configs/metadata.json"),
        untouched=True,
    ),
]
