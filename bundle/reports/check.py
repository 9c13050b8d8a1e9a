# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""What people see of a check: a thumbnail of each case with the contours of its organs, and the page that shows all."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imsave
from numpy.typing import NDArray

from bundle.checks.results import CaseCheck
from bundle.files import whole_file
from bundle.organs import ORGANS, Vocabulary
from bundle.reports.slices import WINDOW, Panel, cut_panels
from bundle.scans.reading import Scan
from bundle.scans.volumes import SliceCounts

__all__ = ["cohort_table", "draw_thumbnail", "write_check_page"]


HEIGHT = 150  # pixels of a thumbnail

WIDTH = 520  # pixels it may have at most

SHOWN = 2  # views: axial and coronal

STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #1d2733; margin: 2em auto; max-width: 1240px; padding: 0 1em }
h1 { font-size: 1.6em; margin-bottom: .1em } h2 { font-size: 1.2em; margin: 1.8em 0 .6em }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3em .9em; text-align: left; border-bottom: 1px solid #e6eaf0; vertical-align: top }
.verdict { font-size: 1.15em } .error { color: #b3121d } .warning { color: #8a5a00 } .good { color: #1a7f37 }
.legend span { display: inline-block; margin-right: 1em } .legend i { display: inline-block; width: .8em; height: .8em;
  border-radius: 2px; margin-right: .35em }
.cases { display: grid; grid-template-columns: repeat(auto-fill, minmax(380px, 1fr)); gap: 14px }
.case { border: 1px solid #d8dee6; border-radius: 8px; overflow: hidden; background: #fff }
.case.has-error { border: 2px solid #b3121d } .case.has-warning { border-color: #d99a1c }
.case .picture { background: #0d1117; min-height: 60px; text-align: center } .case img { display: block; margin: auto;
  max-width: 100% } .case .text { padding: .5em .8em .7em } .case b { font-size: 1.02em } .facts { color: #5b6775;
  font-size: .88em } .case li { margin: .25em 0; font-size: .9em; overflow-wrap: anywhere } .case ul { margin: .4em 0 0;
  padding-left: 1.1em }
"""


# --- Thumbnails ------------------------------------------------------------------------------------------------------
def draw_thumbnail(
    image: Scan, labels: NDArray[np.uint8] | None, counts: SliceCounts | None, vocabulary: Vocabulary
) -> bytes:
    """The axial and the coronal slice with the most organs, contours in their colours, as a PNG."""
    if labels is None or counts is None:
        labels = np.broadcast_to(np.uint8(0), image.voxels.shape)
        counts = [np.zeros((size, vocabulary.out_channels), np.int64) for size in labels.shape]
    panels = cut_panels(image.voxels, labels, image.affine, counts)[:SHOWN]
    pictures = [draw_panel(panel, vocabulary) for panel in panels]
    gap = np.zeros((HEIGHT, 4, 3), np.uint8)
    joined = np.concatenate([pictures[0], *(part for picture in pictures[1:] for part in (gap, picture))], axis=1)
    file = io.BytesIO()
    imsave(file, joined, format="png")
    return file.getvalue()


def draw_panel(panel: Panel, vocabulary: Vocabulary) -> NDArray[np.uint8]:
    """HEIGHT × width × 3, pixels square; an organ's outermost pixels have its colour."""
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
    return ((np.arange(count) + 0.5) * size / count).astype(np.int64)


def outline(labels: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Pixels of organs with a neighbour of another value."""
    edge = np.zeros(labels.shape, bool)
    across, along = labels[:, 1:] != labels[:, :-1], labels[1:] != labels[:-1]
    edge[:, 1:] |= across
    edge[:, :-1] |= across
    edge[1:] |= along
    edge[:-1] |= along
    return edge & (labels > 0)


# --- Tables ----------------------------------------------------------------------------------------------------------
def cohort_table(checks: Sequence[CaseCheck], label_sets: dict[str, str]) -> list[list[str]]:
    """A row for each cohort: cases, annotated organs, spacing, field of view, errors and warnings; head first."""
    rows = [["cohort", "cases", "annotated", "slice distance, mm", "height, mm", "errors", "warnings"]]
    for cohort in dict.fromkeys(check.cohort for check in checks):
        members = [check for check in checks if check.cohort == cohort]
        thickness = [max(check.spacing) for check in members if check.spacing]
        height = [check.field_of_view[2] for check in members if check.field_of_view]
        rows.append([
            cohort,
            sections(members),
            label_sets.get(cohort, ""),
            span(thickness),
            span(height),
            str(sum(len(check.errors) for check in members)),
            str(sum(len(check.warnings) for check in members)),
        ])  # fmt: skip
    return rows


def sections(members: Sequence[CaseCheck]) -> str:
    names = [check.section for check in members]
    return " + ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))


def span(values: Sequence[float]) -> str:
    if not values:
        return "–"
    low, high = f"{min(values):.3g}", f"{max(values):.3g}"
    return low if low == high else f"{low}–{high}"


# --- The page --------------------------------------------------------------------------------------------------------
def write_check_page(path: Path, checks: Sequence[CaseCheck], label_sets: dict[str, str], verdict: str) -> None:
    """One HTML file with everything inside; cases with errors come first, then those with warnings."""
    rows = cohort_table(checks, label_sets)
    kind = "error" if any(check.errors for check in checks) else "good"
    used = {name for check in checks for name in check.volumes}
    legend = "".join(
        f'<span><i style="background: rgb{organ.color}"></i>{escape(organ.name)}</span>'
        for organ in ORGANS
        if organ.name in used
    )
    order = sorted(checks, key=lambda check: (not check.errors, not check.warnings))
    body = [
        f'<p class="verdict {kind}">{escape(verdict)}</p>',
        html_table(rows),
        f'<h2>Cases</h2><p class="legend">{legend}</p>',
        '<p class="facts">Axial and coronal slices through the most organs; the patient\'s right is on the left.</p>',
        '<div class="cases">',
        *(case_card(check) for check in order),
        "</div>",
    ]
    title = "Data check"
    with whole_file(path) as unfinished:
        unfinished.write_text(
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f"<style>{STYLE}</style></head><body><h1>{title}</h1>\n" + "\n".join(body) + "\n</body></html>\n",
            encoding="utf-8",
        )


def html_table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in tags(rows)]
    return "<table>" + "\n".join(f"<tr>{row}</tr>" for row in (head, *others)) + "</table>"


def tags(rows: Sequence[Sequence[str]]) -> list[tuple[str, Sequence[str]]]:
    return [("td" if number else "th", row) for number, row in enumerate(rows)]


def case_card(check: CaseCheck) -> str:
    kind = "has-error" if check.errors else "has-warning" if check.warnings else ""
    data = base64.b64encode(check.thumbnail).decode()
    picture = f'<img alt="{escape(check.name)}" src="data:image/png;base64,{data}">' if data else ""
    findings = "".join(
        f'<li class="{"error" if finding.error else "warning"}">{escape(finding.message)}</li>'
        for finding in sorted(check.findings, key=lambda finding: not finding.error)
    )
    return (
        f'<div class="case {kind}"><div class="picture">{picture}</div><div class="text"><b>{escape(check.name)}</b> '
        f'<span class="facts">{escape(facts_of(check))}</span>{f"<ul>{findings}</ul>" if findings else ""}</div></div>'
    )


def facts_of(check: CaseCheck) -> str:
    facts: list[Any] = [check.section]
    if check.shape:
        facts.append("×".join(map(str, check.shape)))
        facts.append("×".join(f"{step:.3g}" for step in check.spacing) + " mm")
        facts.append(f"{check.hu[0]:g} to {check.hu[1]:g} HU")
    if check.volumes:
        facts.append(f"{len(check.volumes)} organ{'s' if len(check.volumes) > 1 else ''}")
    return " · ".join(facts)
