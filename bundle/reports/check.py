# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""The report of a check: a thumbnail of each case with the contours of its organs, and the page that shows them all."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bundle.checks.results import CaseCheck
from bundle.evaluation.tables import MISSING, Table
from bundle.organs import ORGANS, Vocabulary
from bundle.reports.pages import write_page
from bundle.reports.slices import WINDOW, Panel, cut_panels
from bundle.scans.reading import Scan
from bundle.scans.volumes import SliceCounts

__all__ = ["cohort_table", "draw_thumbnail", "write_check_page"]


HEIGHT = 150  # pixels of a thumbnail

WIDTH = 520  # pixels it may have at most

SHOWN = 2  # views: axial and coronal


# --- Thumbnails ------------------------------------------------------------------------------------------------------
def draw_thumbnail(
    image: Scan, labels: NDArray[np.uint8] | None, counts: SliceCounts | None, vocabulary: Vocabulary
) -> bytes:
    """The axial and the coronal slice with the most organs, contours in their colors, as a PNG.

    Args:
        image: the scan.
        labels: X×Y×Z, channels of the vocabulary; None for the CT alone.
        counts: of the labels, from `count_by_slice`.
        vocabulary: the organs.

    Example:
        >>> from matplotlib.image import imread
        >>> image = Scan(np.zeros((30, 30, 30)), np.eye(4), Path("ct.nii.gz"))
        >>> imread(io.BytesIO(draw_thumbnail(image, None, None, Vocabulary("liver")))).shape[:2]  # 150 + 4 + 150 wide
        (150, 304)
    """
    from matplotlib.image import imsave

    if labels is None or counts is None:
        labels = np.broadcast_to(np.uint8(0), image.voxels.shape)
        counts = [np.zeros((size, vocabulary.out_channels), np.int64) for size in labels.shape]
    panels = cut_panels(image.voxels, labels, image.affine, counts)[:SHOWN]
    pictures = [draw_outlined_panel(panel, vocabulary) for panel in panels]
    gap = np.zeros((HEIGHT, 4, 3), np.uint8)
    joined = np.concatenate([pictures[0], *(part for picture in pictures[1:] for part in (gap, picture))], axis=1)
    file = io.BytesIO()
    imsave(file, joined, format="png")
    return file.getvalue()


def draw_outlined_panel(panel: Panel, vocabulary: Vocabulary) -> NDArray[np.uint8]:
    """HEIGHT × width × 3, pixels square; an organ's outermost pixels have its color."""
    width, height = panel.size
    columns = int(np.clip(round(HEIGHT * width / height), 20, WIDTH / SHOWN))
    rows = min(HEIGHT, max(1, round(columns * height / width)))
    place = np.ix_(nearest(rows, panel.image.shape[0]), nearest(columns, panel.image.shape[1]))
    low, high = WINDOW
    gray = np.clip((panel.image[place].astype(np.float32) - low) * (255 / (high - low)), 0, 255).astype(np.uint8)
    labels = panel.labels[place]
    picture = np.repeat(gray[:, :, None], 3, axis=2)
    colors = np.zeros((256, 3), np.uint8)
    colors[1 : vocabulary.out_channels] = [organ.color for organ in vocabulary]
    edge = outline(labels)
    picture[edge] = colors[labels[edge]]
    framed = np.zeros((HEIGHT, columns, 3), np.uint8)
    top = (HEIGHT - rows) // 2
    framed[top : top + rows] = picture
    return framed


def nearest(count: int, size: int) -> NDArray[np.int64]:
    """Which of ``size`` pixels each of ``count`` pixels shows when a picture is scaled."""
    return ((np.arange(count) + 0.5) * size / count).astype(np.int64)


def outline(labels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pixels of organs next to a pixel of another value."""
    edge = np.zeros(labels.shape, bool)
    across, along = labels[:, 1:] != labels[:, :-1], labels[1:] != labels[:-1]
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    edge[1:] |= along
    edge[:-1] |= along
    return edge & (labels > 0)


# --- The page --------------------------------------------------------------------------------------------------------
def cohort_table(checks: Sequence[CaseCheck], label_sets: Mapping[str, str]) -> Table:
    """A row for each cohort: cases, annotated organs, spacing, field of view, errors and warnings."""
    head = ["cohort", "cases", "annotated", "slice distance, mm", "height, mm", "errors", "warnings"]
    rows = []
    for cohort in dict.fromkeys(check.cohort for check in checks):
        members = [check for check in checks if check.cohort == cohort]
        rows.append([
            cohort,
            count_sections(members),
            label_sets.get(cohort, ""),
            range_of([max(check.spacing) for check in members if check.spacing]),
            range_of([check.field_of_view[2] for check in members if check.field_of_view]),
            str(sum(len(check.errors) for check in members)),
            str(sum(len(check.warnings) for check in members)),
        ])  # fmt: skip
    return Table(head, rows, texts=3)


def count_sections(members: Sequence[CaseCheck]) -> str:
    """How many cases are in each section: "3 training + 1 test"."""
    counts = Counter(check.section for check in members)
    return " + ".join(f"{count} {section}" for section, count in counts.items())


def range_of(values: Sequence[float]) -> str:
    """The smallest and the largest value; one number where they read the same."""
    if not values:
        return MISSING
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low}–{high}"


def facts_of(check: CaseCheck) -> str:
    """What is known about a case, in one line."""
    facts = [check.section]
    if check.shape:
        facts.append("×".join(map(str, check.shape)))
        facts.append("×".join(f"{step:.3g}" for step in check.spacing) + " mm")
        facts.append(f"{check.hu[0]:g} to {check.hu[1]:g} HU")
    if check.volumes:
        facts.append(f"{len(check.volumes)} organ{'s' if len(check.volumes) > 1 else ''}")
    return " · ".join(facts)


def write_check_page(
    path: str | Path, checks: Sequence[CaseCheck], label_sets: Mapping[str, str], verdict: str
) -> None:
    """The report of a check; cases with errors come first, then those with warnings.

    Args:
        path: the HTML file.
        checks: of all cases.
        label_sets: what is annotated in each cohort, in words.
        verdict: the result in one sentence.
    """
    shown = {name for check in checks for name in check.volumes}
    order = sorted(checks, key=lambda check: (not check.errors, not check.warnings))
    write_page(
        path,
        "check.html",
        title="Data check",
        verdict=verdict,
        failed=any(check.errors for check in checks),
        cohorts=cohort_table(checks, label_sets),
        organs=[organ for organ in ORGANS if organ.name in shown],
        cards=[(check, facts_of(check)) for check in order],
    )
