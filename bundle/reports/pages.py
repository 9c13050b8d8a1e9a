# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Reports people look at: one HTML file with tables and figures inside, nothing to fetch."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from bundle.files import whole_file

__all__ = ["Page"]

matplotlib.use("Agg")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1d2733; max-width: 1100px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.7em; margin-bottom: .2em } h2 { font-size: 1.25em; margin-top: 2em; border-bottom: 1px solid #d8dee6 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .25em .9em; text-align: right; border-bottom: 1px solid #e6eaf0 }
th:first-child, td:first-child { text-align: left } tr:last-child td { font-weight: 600; border-top: 2px solid #1d2733 }
table.plain tr:last-child td { font-weight: inherit; border-top: 0 }
td.up { color: #1a7f37 } td.down { color: #c1121f } td.best { background: #e3eefc }
figure { margin: 1em 0 } img { max-width: 100%; height: auto } figcaption, .note { color: #5b6775; font-size: .92em }
.big { font-size: 1.15em }
"""


class Page:
    """An HTML page that is written from top to bottom.

    Args:
        title: heading of the page.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self.parts: list[str] = []

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, kind: str = "") -> None:
        self.parts.append(f'<p class="{kind}">{escape(text)}</p>')

    def table(
        self,
        head: Sequence[str],
        rows: Sequence[Sequence[str]],
        kinds: Sequence[Sequence[str]] = (),
        total: bool = True,
    ) -> None:
        """A table of text.

        Args:
            head: of the columns.
            rows: their cells.
            kinds: a style for each cell, such as `up`, `down` or `best`.
            total: the last row sums up the others, and stands out.
        """
        lines = ["<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>"]
        for number, row in enumerate(rows):
            styles = kinds[number] if kinds else [""] * len(row)
            cells = (f'<td class="{kind}">{escape(cell)}</td>' for cell, kind in zip(row, styles, strict=True))
            lines.append("<tr>" + "".join(cells) + "</tr>")
        self.parts.append(f'<table class="{"" if total else "plain"}">' + "\n".join(lines) + "</table>")

    def figure(self, figure: Figure, caption: str, path: str | Path | None = None) -> None:
        """A figure inside the page; ``path`` keeps the picture as a file of its own too."""
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110, bbox_inches="tight")
        if path is not None:
            with whole_file(path) as unfinished:
                unfinished.write_bytes(picture.getvalue())
        data = base64.b64encode(picture.getvalue()).decode()
        self.parts.append(
            f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def save(self, path: str | Path) -> Path:
        body = "\n".join(self.parts)
        with whole_file(path) as unfinished:
            unfinished.write_text(
                f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(self.title)}</title>'
                f"<style>{STYLE}</style></head><body><h1>{escape(self.title)}</h1>\n{body}\n</body></html>\n"
            )
        return Path(path)


def number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"
