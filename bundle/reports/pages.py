# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Reports that people read: one HTML file each with everything inside, made from the templates beside this module.

All pages extend templates/page.html, share its style sheet, and show tables and pictures with templates/macros.html.
"""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.files import whole_file, write_text

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure

__all__ = ["Picture", "draw_picture", "write_page"]


DPI = 110  # of figures


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Args:
        png: the file's content.
        caption: what it shows.
    """

    png: bytes
    caption: str


def draw_picture(figure: Figure, caption: str, path: str | Path | None = None) -> Picture:
    """A figure as a picture of a page; ``path`` keeps the PNG as a file of its own too.

    Example:
        >>> from matplotlib.figure import Figure
        >>> picture = draw_picture(Figure(figsize=(1, 1)), "Nothing yet.")
        >>> picture.png[1:4], picture.caption
        (b'PNG', 'Nothing yet.')
    """
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI, bbox_inches="tight")
    if path is not None:
        with whole_file(path) as unfinished:
            unfinished.write_bytes(png.getvalue())
    return Picture(png.getvalue(), caption)


def write_page(path: str | Path, template: str, **values: Any) -> Path:
    """Fill in a template and write the page; all text is escaped.

    Args:
        path: the HTML file.
        template: name of a file in templates/.
        values: what the template shows.
    """
    page = environment().get_template(template).render(values)
    write_text(path, page)
    return Path(path)


@cache
def environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    # A misspelled name in a template is an error, not a gap in the page.
    found = Environment(
        loader=PackageLoader("bundle.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["data_uri"] = data_uri
    return found


def data_uri(png: bytes) -> str:
    """A PNG as the source of an image inside the page."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"
