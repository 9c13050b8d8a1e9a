# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Bad environments: full disks, folders that may not be written or read, files in the way, no GPU, missing packages."""

from __future__ import annotations

from pathlib import Path

from tests.integration.bad_inputs.record import (
    CHECK,
    EVALUATING,
    INFERRING,
    SEGMENT,
    TRAINING,
    BadInput,
    Plant,
    both,
    bundle_command,
)
from tests.scan_files import save_multiframe, save_series

__all__ = ["ENVIRONMENTS"]

READ_ONLY, NO_ACCESS = 0o555, 0o000
IMAGES = f"{INFERRING} --output_dir out"


def rights(name: str, mode: int) -> Plant:
    """A file or folder with these rights; a folder is made if it is not there."""

    def plant(folder: Path) -> None:
        if not (folder / name).exists():
            (folder / name).mkdir(parents=True)
        (folder / name).chmod(mode)

    return plant


def file_at(name: str) -> Plant:
    """A file where a folder is needed."""

    def plant(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("in the way")

    return plant


def folder_at(name: str) -> Plant:
    """A folder where a file is needed."""

    def plant(folder: Path) -> None:
        (folder / name / "inside").mkdir(parents=True)

    return plant


def broken_link(name: str) -> Plant:
    def plant(folder: Path) -> None:
        (folder / name).symlink_to("gone/away")

    return plant


def series(folder: Path) -> None:
    save_series(folder / "scans")


def frames(folder: Path) -> None:
    save_multiframe(folder / "scan.dcm", [0, 3, 6], last_intercept=-100)


SWIN = bundle_command("training", "configs/train.yaml", "tiny.yaml", "configs/overlays/swinunetr.yaml")
SWIN += " --patch_size [32,32,32]"
DEEP = "/".join(["x" * 200] * 30)

ENVIRONMENTS = [
    # folders that cannot be written
    BadInput("a read-only root of the bundle", f"{TRAINING} --bundle_root here", rights("here", READ_ONLY)),
    BadInput("a read-only folder of results", f"{TRAINING} --output_dir out", rights("out", READ_ONLY)),
    BadInput("a read-only cache", f"{TRAINING} --cache_dir cache", rights("cache", READ_ONLY)),
    BadInput("a read-only folder of weights", TRAINING, rights("models", READ_ONLY)),
    BadInput("a file where the results go", TRAINING, file_at("eval")),
    BadInput("a file where the weights go", TRAINING, file_at("models")),
    BadInput("a file where the cache goes", TRAINING, file_at("eval/cache")),
    BadInput("a file where pseudo-labels go", TRAINING, file_at("eval/pseudo_labels")),
    BadInput("a folder where the history goes", TRAINING, folder_at("eval/history.jsonl")),
    BadInput("a folder where the weights' file goes", TRAINING, folder_at("models/model.pt")),
    BadInput("a folder below a file", f"{TRAINING} --output_dir tiny.yaml/out"),
    BadInput("a broken link where the results go", TRAINING, broken_link("eval")),
    BadInput("a folder with a name too long", f"{TRAINING} --output_dir {'x' * 300}"),
    BadInput("a path too long", f"{TRAINING} --output_dir {DEEP}"),
    BadInput("a read-only folder of label maps", SEGMENT, rights("out", READ_ONLY), trained=True),
    BadInput("a file where label maps go", SEGMENT, file_at("out"), trained=True),
    BadInput("a folder where a label map goes", SEGMENT, folder_at("out/scan.nii.gz"), trained=True),
    BadInput("a read-only folder of label maps at inference", IMAGES, rights("out", READ_ONLY), trained=True),
    BadInput("a file where label maps go at inference", IMAGES, file_at("out"), trained=True),
    BadInput("a read-only folder of scores", f"{EVALUATING} --output_dir out --cache_dir cache",
             rights("out", READ_ONLY), about=("out/",), trained=True),
    BadInput("a file where the check's report goes", CHECK, file_at("out")),
    BadInput("a read-only folder of the check's report", CHECK, rights("out", READ_ONLY)),
    BadInput("a read-only folder of phantoms", "scripts phantom out --grid 32,32,16 --workers 1",
             rights("out", READ_ONLY)),
    BadInput("a dataset.json that may not be changed", "scripts folds data/full/dataset.json --folds 2",
             rights("data/full", READ_ONLY)),
    # what may not be read
    BadInput("a folder of data that may not be read", TRAINING, rights("data", NO_ACCESS)),
    BadInput("a cohort that may not be read", TRAINING, rights("data/spleen", NO_ACCESS)),
    BadInput("a cohort whose files may not be read", TRAINING, rights("data/spleen/imagesTr", NO_ACCESS)),
    BadInput("a dataset.json that may not be read", TRAINING, rights("data/spleen/dataset.json", NO_ACCESS)),
    BadInput("a scan that may not be read", SEGMENT, rights("scan.nii.gz", NO_ACCESS), trained=True),
    BadInput("a folder of scans that may not be read", "scripts segment scans out --model models",
             both(series, rights("scans", NO_ACCESS)), trained=True),
    BadInput("a slice that may not be read", "scripts segment scans out --model models",
             both(series, rights("scans/002.dcm", NO_ACCESS)), trained=True),
    BadInput("weights that may not be read", SEGMENT, rights("models/model.pt", NO_ACCESS), trained=True),
    BadInput("weights in a folder that may not be read", SEGMENT, rights("models", NO_ACCESS), trained=True),
    BadInput("a cohort that may not be read, for check", CHECK, rights("data/spleen", NO_ACCESS)),
    # full disks
    BadInput("a disk that is full at the checks", TRAINING, about=("checks.json",), largest_file=5_000),
    BadInput("a disk that is full at the cache", TRAINING, about=("eval/cache/",), largest_file=50_000),
    BadInput("a disk that is full at the weights", f"{TRAINING} --network_def::channels [32,64]",
             about=("models/warmup.pt",), largest_file=150_000),
    BadInput("a disk that is full at a label map", SEGMENT, trained=True, largest_file=1_500),
    BadInput("a disk that is full at inference", IMAGES, trained=True, largest_file=1_500),
    BadInput("a disk that is full at the check's report", CHECK, largest_file=3_000),
    BadInput("a disk that is full at the phantoms", "scripts phantom out --grid 32,32,16 --workers 1",
             largest_file=3_000),
    # what the machine does not have
    BadInput("no GPU for a training", f"{TRAINING} --device cuda"),
    BadInput("no eighth GPU", f"{TRAINING} --device cuda:7"),
    BadInput("no GPU for an evaluation", f"{EVALUATING} --device cuda", trained=True),
    BadInput("no GPU for inference", f"{IMAGES} --device cuda", trained=True),
    BadInput("no GPU to segment with", f"{SEGMENT} --device cuda", trained=True),
    BadInput("no such kind of device to segment with", f"{SEGMENT} --device quantum", trained=True),
    BadInput("no OpenVINO for a training", f"{TRAINING} --backend openvino", without=("openvino",)),
    BadInput("no OpenVINO to segment with", f"{SEGMENT} --backend openvino", trained=True, without=("openvino",)),
    BadInput("no highdicom for a DICOM SEG", "scripts segment scans out --model models --dicom_seg", series,
             trained=True, without=("highdicom",)),
    BadInput("no pydicom for a multi-frame file", "scripts segment scan.dcm out --model models", frames, trained=True,
             without=("pydicom",)),
    BadInput("no einops for a Swin UNETR", SWIN,
             without=("einops",)),
]  # fmt: skip
