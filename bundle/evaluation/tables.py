# Licensed under the Apache License, Version 2.0: see the LICENSE file at the repository's root.
"""Tables of text: the one type that terminals, Markdown files and pages show, whatever the cells mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["MISSING", "Table", "number"]


MISSING = "–"  # in the place of a number that nobody knows

GAP = "  "  # between the columns of a terminal


@dataclass(frozen=True)
class Table:
    """Rows of text below a head.

    Args:
        head: of the columns.
        rows: their cells.
        texts: how many columns, from the left, hold text; those after them hold numbers, aligned at the right.
        kinds: a kind for each cell, such as `best`, `up` or `down`; nothing if all cells are plain.
        total: the last row sums up the others, and stands out on a page.

    Example:
        >>> rows = [["spleen", "0.9"], ["left kidney", "0.85"]]
        >>> table = Table(["organ", "Dice"], rows, kinds=[["", "best"], ["", ""]])
        >>> print(table.text())
        organ        Dice
        spleen        0.9
        left kidney  0.85
        >>> print(table.markdown(), end="")
        | organ | Dice |
        | --- | ---: |
        | spleen | **0.9** |
        | left kidney | 0.85 |
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1
    kinds: Sequence[Sequence[str]] = ()
    total: bool = False

    def is_text(self, column: int) -> bool:
        return column < self.texts

    def kind(self, row: int, column: int) -> str:
        return self.kinds[row][column] if self.kinds else ""

    def text(self) -> str:
        """Columns for a terminal, without a line break at the end."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.head))]
        return "\n".join(GAP.join(self.padded(line, widths)).rstrip() for line in lines)

    def padded(self, line: Sequence[str], widths: Sequence[int]) -> list[str]:
        return [
            cell.ljust(width) if self.is_text(column) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]

    def markdown(self) -> str:
        """A Markdown table; cells of the kind `best` are bold."""
        rules = ["---" if self.is_text(column) else "---:" for column in range(len(self.head))]
        rows = [
            [f"**{cell}**" if self.kind(row, column) == "best" else cell for column, cell in enumerate(cells)]
            for row, cells in enumerate(self.rows)
        ]
        lines = [self.head, rules, *rows]
        return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point; a dash where there is none."""
    return MISSING if value is None else f"{value:.{digits}f}"
