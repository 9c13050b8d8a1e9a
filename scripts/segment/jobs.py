# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What `segment` does with one scan after another: the files of a scan, and which of them are finished."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bundle.checks.sizes import Sizes, judge_volumes
from bundle.errors import InputError, find_input_error
from bundle.files import fingerprint_files
from bundle.inference.inferers import SlabInferer, ViewInferer
from bundle.inference.segmenters import Segmenter
from bundle.organs import Vocabulary
from bundle.reports.preview import write_preview
from bundle.scans.dicom_seg import write_dicom_seg
from bundle.scans.finding import Source
from bundle.scans.reading import read_scan
from bundle.scans.volumes import Volumes, measure_volumes, write_volumes
from bundle.scans.writing import write_color_table, write_label_map
from bundle.untrusted import read_json
from scripts.runs import ROOT

__all__ = ["ScanJob", "SegmentingRun", "check_target", "wanted_organs"]

METADATA = ROOT / "configs" / "metadata.json"
NIFTI = (".nii.gz", ".nii")
DOUBTFUL = ("odd", "implausible")  # flags of sizes that a person should look at
Settings = dict[str, Any]


def check_target(source: Path, target: Path, single: bool) -> None:
    """The output is not where the input is, and can be what it is asked to be."""
    if target.name.endswith(NIFTI):
        if not single:
            raise InputError(f"{target}: {source} holds several scans; give a folder as the output")
        if target.resolve() == source.resolve():
            raise InputError(f"{target}: is the input itself; choose another output")
    elif target.is_file() or target.suffix in (".mha", ".mhd", ".nrrd", ".dcm", ".gz"):
        raise InputError(f"{target}: expected a folder, or a file name ending with .nii.gz; choose another output")
    elif target.resolve() == (source if source.is_dir() else source.parent).resolve():
        raise InputError(f"{target}: the scans are there, and label maps have their names; choose another folder")


def wanted_organs(segmenter: Segmenter, organs: str | Sequence[str] | None) -> list[str] | None:
    if organs is None:
        return None
    names = Vocabulary(organs).names
    for name in names:
        if name not in segmenter.vocabulary:
            known = ", ".join(segmenter.vocabulary.names)
            raise InputError(f"organs: the model was not trained for the {name}; it knows {known}")
    return names


def bundle_version() -> str:
    return str(json.loads(METADATA.read_text())["version"])


def show_progress(inferer: SlabInferer, text: str) -> None:
    for one in [inferer, *(inferer.views if isinstance(inferer, ViewInferer) else [])]:
        one.progress = text


@dataclass
class ScanJob:
    """A scan and the files that are made of it.

    Args:
        name: of the scan.
        source: where it is.
        target: folder, or the label map itself.
        single: whether it is the only scan.
        settings: how it is segmented.
        preview: whether a picture is made.
    """

    name: str
    source: Source
    target: Path
    single: bool
    settings: Settings
    preview: bool

    @property
    def label_map(self) -> Path:
        named = self.single and self.target.name.endswith(NIFTI)
        return self.target if named else self.target / f"{self.name}.nii.gz"

    def beside(self, ending: str) -> Path:
        """The file of another kind beside the label map."""
        return self.label_map.with_name(self.label_map.name.removesuffix(".gz").removesuffix(".nii") + ending)

    def record(self) -> Settings:
        """What a finished case was made from and how; the JSON with it is written last."""
        return {"scan": fingerprint_files(self.source.series or [self.source.path]), **self.settings}

    def finished(self) -> bool:
        files = [self.label_map, self.beside(".json"), *([self.beside(".png")] if self.preview else [])]
        if not all(file.is_file() for file in files):
            return False
        try:
            return bool(read_json(files[1])["settings"] == self.record())
        except (InputError, KeyError, TypeError):  # damaged, or not one of ours: made again
            return False

    def segment(self, segmenter: Segmenter) -> None:
        """Segment the scan and write its files."""
        organs, record = self.settings["organs"], self.record()  # of the scan as it is now
        show_progress(segmenter.inferer, self.name)
        labels, affine = segmenter(self.source, None if organs is None else Vocabulary(organs))
        vocabulary = segmenter.vocabulary
        for ending in (".json", ".png", ".seg.dcm"):  # the JSON first: from here on the case is not finished
            self.beside(ending).unlink(missing_ok=True)
        write_label_map(self.label_map, labels, affine, vocabulary)
        write_color_table(self.label_map.with_name("organs.ctbl"), vocabulary)
        as_dicom = self.settings["dicom_seg"] and self.source.series
        if self.preview or as_dicom:
            scan = read_scan(self.source)  # again: it was not held while the network ran
            if self.preview:
                write_preview(self.beside(".png"), scan.voxels, labels, affine, vocabulary)
            if as_dicom:
                write_dicom_seg(self.beside(".seg.dcm"), scan, labels, vocabulary, bundle_version())
        volumes = measure_volumes(labels, affine, vocabulary)
        remarks = self.remarks(volumes, segmenter.sizes)
        write_volumes(self.beside(".json"), self.source.path, volumes, {"settings": record}, remarks)

    def remarks(self, volumes: Volumes, sizes: Sizes) -> dict[str, dict[str, Any]]:
        """Whether the volumes of the organs that were asked for are plausible, if the model knows sizes."""
        if not sizes:
            return {}
        wanted = self.settings["organs"] or list(volumes.organs)
        found = {name: asdict(entry) for name, entry in judge_volumes(volumes, sizes).items() if name in wanted}
        for entry in found.values():
            del entry["ml"]  # it stands beside
        return {name: {"plausibility": entry} for name, entry in found.items()}

    def doubts(self) -> list[str]:
        """A sentence for each organ of a size that the training cases do not lead to expect."""
        organs = json.loads(self.beside(".json").read_text())["organs"]
        entries = [organ["plausibility"] for organ in organs.values() if "plausibility" in organ]
        return [f"{entry['flag']}: {entry['why']}" for entry in entries if entry["flag"] in DOUBTFUL]

    def print_volumes(self) -> None:
        organs = json.loads(self.beside(".json").read_text())["organs"]
        for name, organ in organs.items():
            if organ["voxels"]:
                print(f"{name:<26}{organ['ml']:>10.1f} ml{'  at the edge' if organ['touches_border'] else ''}")
        wanted = self.settings["organs"] or list(organs)
        missing = [name for name in wanted if not organs[name]["voxels"]]
        if missing:
            print(f"not found: {', '.join(missing)}")


@dataclass
class SegmentingRun:
    """One command: all scans, in turn."""

    segmenter: Segmenter
    jobs: list[ScanJob]
    overwrite: bool
    done: list[ScanJob] = field(default_factory=list)
    skipped: list[ScanJob] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def go(self) -> None:
        """Segment all scans; a bad one does not stop the others, unless it is the only one."""
        for job in tqdm(self.jobs, desc="segmenting", unit="scan", disable=len(self.jobs) == 1):
            if not self.overwrite and job.finished():
                self.skipped.append(job)
                continue
            try:
                job.segment(self.segmenter)
                self.done.append(job)
            except Exception as error:  # whatever is wrong with one scan, the next one may be fine
                if len(self.jobs) == 1:
                    raise
                expected = find_input_error(error)  # MONAI's Compose wraps what its transforms raise
                self.failed[job.name] = str(expected or f"{job.source.path}: {error!r}")

    def report(self, target: Path) -> None:
        if len(self.jobs) == 1 and self.done:
            self.done[0].print_volumes()
        for job in self.done:
            for sentence in job.doubts():
                print(sentence if len(self.jobs) == 1 else f"{job.name}: {sentence}")
        before = f", {len(self.skipped)} finished before" if self.skipped else ""
        print(f"{len(self.done)} of {len(self.jobs)} segmented{before}; results are in {target}")
        for sentence in self.failed.values():
            print(f"error: {sentence}", file=sys.stderr)
        if self.failed:
            print(f"{len(self.failed)} of {len(self.jobs)} could not be segmented", file=sys.stderr)
