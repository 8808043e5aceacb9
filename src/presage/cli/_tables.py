"""Tables of commands. On a terminal they fit its width; in a pipe they are plain text for awk.

Nothing but the last column is ever cut or wrapped. Where a terminal is too narrow, columns that
can be spared go first, then the last column moves to a line of its own, then the first does. In a
pipe all columns are there, an empty cell is `-`, and only the last column may hold spaces.
Knows nothing of what is in a table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

__all__ = ["Cell", "Column", "plain_lines", "show_facts", "show_table", "table_lines"]

_GAP = "  "
_INDENT = 4
_LEAST_LAST = 24
"""The last column has at least so much room beside the others, unless it needs less."""

Cell = str | Text


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    right: bool = False
    """Whether its cells end in one line."""
    spare: int = 0
    """Columns with the highest number are left out first on a narrow terminal; 0 stays."""


def show_table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    """Print a table to stdout, as suits what that is."""
    console = Console(highlight=False)
    if console.is_terminal:
        for line in table_lines(columns, rows, console.width):
            _put(console, line)
    else:
        for text in plain_lines(columns, rows):
            _put(console, Text(text))


def show_facts(facts: Sequence[tuple[str, Cell]]) -> None:
    """Print names and values, a line each; on a terminal long values are wrapped beside their
    names."""
    console = Console(highlight=False)
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        text = value if isinstance(value, Text) else Text(value)
        room = console.width - width - len(_GAP) if console.is_terminal else len(text)
        for number, part in enumerate(_wrapped(text, max(20, room))):
            head = name if number == 0 else ""
            _put(console, Text(f"{head:<{width}}{_GAP}").append(part))


def plain_lines(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[str]:
    """A table for a pipe or a file: the heads once, then a line for each row."""
    texts = [[column.name for column in columns]]
    last = len(columns) - 1
    for row in rows:
        cells = [str(cell) for cell in row]
        texts.append([_word(cell, last == k) for k, cell in enumerate(cells)])
    widths = [max(len(row[k]) for row in texts) for k in range(len(columns))]
    return [
        _GAP.join(
            f"{cell:>{width}}" if column.right else f"{cell:<{width}}"
            for cell, width, column in zip(row, widths, columns, strict=True)
        ).rstrip()
        for row in texts
    ]


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int
) -> list[Text]:
    """A table for a terminal of this width."""
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    there = [k for k in range(len(columns)) if k == 0 or any(row[k].plain for row in cells)]
    widths = [
        max([len(column.name), *(row[k].cell_len for row in cells)])
        for k, column in enumerate(columns)
    ]
    heads = [Text(column.name, style="bold") for column in columns]
    spacing = _Spacing(columns, widths)
    words = [len(word) for row in cells for word in row[there[-1]].plain.split()]
    least = max([min(widths[there[-1]], _LEAST_LAST), len(columns[there[-1]].name), *words])
    kept = spacing.without_spare(there, least, width)
    if len(kept) == 1 or spacing.start(kept) + least <= width:
        room = max(1, width - spacing.start(kept))
        return [line for row in (heads, *cells) for line in spacing.beside(row, kept, room)]
    first, last = spacing.without_spare(there[:-1], widths[there[-2]], width), there[-1]
    stacked = spacing.start(first) + widths[first[-1]] > width
    lines: list[Text] = []
    for number, row in enumerate((heads, *cells)):
        lines.append(spacing.line(row, first[:1] if stacked else first))
        if stacked and len(first) > 1:
            lines.append(_indented(spacing.line(row, first[1:])))
        if number:
            parts = _wrapped(row[last], max(1, width - _INDENT))
            lines += [_indented(part) for part in parts if part.plain]
    return lines


class _Spacing:
    """Columns and how wide they are."""

    def __init__(self, columns: Sequence[Column], widths: Sequence[int]) -> None:
        self._columns, self._widths = columns, widths

    def start(self, kept: Sequence[int]) -> int:
        """Where the last of these columns begins."""
        return sum(self._widths[k] + len(_GAP) for k in kept[:-1])

    def without_spare(self, kept: Sequence[int], last: int, width: int) -> list[int]:
        """These columns, but for those that must go so that the last has its room."""
        left = list(kept)
        while self.start(left) + last > width:
            spare = max(left[:-1], key=lambda k: self._columns[k].spare, default=left[0])
            if not self._columns[spare].spare:
                break
            left.remove(spare)
        return left

    def line(self, row: Sequence[Text], kept: Sequence[int]) -> Text:
        """Cells in one line."""
        line = Text("")
        for number, k in enumerate(kept):
            free = " " * (self._widths[k] - row[k].cell_len)
            line.append(_GAP if number else "")
            line.append(free if self._columns[k].right else "").append(row[k])
            line.append("" if self._columns[k].right else free)
        return line

    def beside(self, row: Sequence[Text], kept: Sequence[int], room: int) -> list[Text]:
        """A row in one line, but for a last cell that is wrapped in its column."""
        before, start, last = self.line(row, kept[:-1]), self.start(kept), kept[-1]
        cell = row[last]
        if self._columns[last].right:
            cell = Text(" " * (self._widths[last] - cell.cell_len)).append(cell)
        lines = []
        for number, part in enumerate(_wrapped(cell, room)):
            line = before.copy() if number == 0 else Text("")
            line.pad_right(start - line.cell_len)
            lines.append(line.append(part))
        return lines


def _indented(line: Text) -> Text:
    return Text(" " * _INDENT).append(line)


def _wrapped(text: Text, room: int) -> list[Text]:
    if text.cell_len <= room:
        return [text]
    style = text.style
    parts = textwrap.wrap(text.plain, room, break_on_hyphens=False, break_long_words=False)
    return [Text(part, style=style) for part in parts] or [text]


def _word(text: str, last: bool) -> str:
    """A cell of a pipe: one line, and one word unless it is the last."""
    words = text.split()
    return (" " if last else "_").join(words) or "-"


def _put(console: Console, line: Text) -> None:
    line.rstrip()
    console.print(line, no_wrap=True, overflow="ignore", crop=False, soft_wrap=True)
