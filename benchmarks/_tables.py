"""Rows of figures as a table on a terminal; measures and rounds nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """The keys of the first row are the heads; nothing stands for None."""
    table = [list(rows[0])]
    table += [["" if row[n] is None else str(row[n]) for n in rows[0]] for row in rows]
    widths = [max(len(line[n]) for line in table) for n in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
