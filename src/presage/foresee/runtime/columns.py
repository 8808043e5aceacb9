"""Which columns of a table of runs describe the job before it runs, and how they become numbers.

A model may look only at what is known before a run. Left out are, each with its reason: columns
with one value; identifiers, by name or because nearly every row has its own value; other names of
a group; whatever is named like something measured, varies with every run, or orders the runs as
their times do. Text is a category; a number is a number. Nothing here looks at the target but to
find columns that give it away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["Columns", "choose_columns", "nearly_numbers", "numbers", "targets"]

_IDENTIFIER = re.compile(r"(^|[._ ])(id|uuid|hash|run|run_?no|name|timestamp|date)$", re.I)
_MEASURED = re.compile(
    r"elapsed|duration|run_?time|realtime|exe\.?time|throughput|^samples$|completed|^status$|^exit$"
    r"|^(start|end|submit|complete|finish)(_?time)?$|_(mean|median|p\d\d|min|max|std)$",
    re.I,
)
_OWN_VALUE = 0.95
"""From this share of distinct values on, a column names rows."""
_VARIES = 0.2
"""From this share on, a number was measured in the run: configurations repeat."""
_GIVES_AWAY = 0.98
"""Rank correlation with the target that no configuration has."""
_NEARLY = 0.8
"""With more than this share of numbers, a column was meant to hold numbers."""
_ENOUGH = 50
"""Rows from which shares of distinct values say something."""
_MOST_CATEGORIES = 80


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns a model looks at, and what it takes to encode them."""

    numeric: dict[str, float]
    """Name -> the median, for rows that lack it."""
    categories: dict[str, tuple[str, ...]]
    """Name -> the values that were seen; others have no column of their own."""
    left_out: dict[str, str]
    """Name -> why a model must not look at it."""
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Number -> the smallest and the largest that were seen."""

    @property
    def names(self) -> list[str]:
        """All columns that a table needs."""
        return [*self.numeric, *self.categories]

    def encode(self, table: pl.DataFrame, without: Sequence[str] = ()) -> Floats:
        """Numbers as they are, then a column for each category that was seen."""
        self.check(table)
        parts = [
            np.nan_to_num(numbers(table, name), nan=middle)[:, None]
            for name, middle in self.numeric.items()
            if name not in without
        ]
        for name, seen in self.categories.items():
            if name not in without:
                values = texts(table, name)
                parts.append((values[:, None] == np.array(seen)[None, :]).astype(np.float64))
        return np.hstack(parts) if parts else np.zeros((table.height, 0))

    def width(self, without: Sequence[str] = ()) -> int:
        """How many columns `encode` gives that are numbers as they are."""
        return sum(name not in without for name in self.numeric)

    def check(self, table: pl.DataFrame) -> None:
        """The table has all that is needed."""
        if lacking := [name for name in self.names if name not in table.columns]:
            raise UserError(
                f"the table lacks {_listed(lacking)};"
                f" the bundle was fitted on {_listed(self.names)}"
            )
        for name in self.numeric:
            _refuse_no_number(table, name)

    def missing(self, table: pl.DataFrame) -> dict[str, int]:
        """Numbers that some rows lack, and how many rows."""
        lacking = {name: int(np.isnan(numbers(table, name)).sum()) for name in self.numeric}
        return {name: count for name, count in lacking.items() if count}

    def beyond(self, table: pl.DataFrame) -> dict[str, tuple[float, float]]:
        """Numbers that are smaller or larger than any that was seen: the one furthest off, and the
        end of the range that it is beyond."""
        beyond = {}
        for name, (low, high) in self.ranges.items():
            values = numbers(table, name)
            values = values[np.isfinite(values)]
            if values.size and values.max() > high:
                beyond[name] = float(values.max()), high
            elif values.size and values.min() < low:
                beyond[name] = float(values.min()), low
        return beyond

    def unknown(self, table: pl.DataFrame) -> dict[str, list[str]]:
        """Values of categories that were never seen, by column."""
        unknown = {}
        for name, seen in self.categories.items():
            if news := sorted(set(texts(table, name).tolist()) - set(seen)):
                unknown[name] = news
        return unknown

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes; lists, as the order of columns is that of the models' inputs."""
        return {
            "numeric": [[name, middle] for name, middle in self.numeric.items()],
            "categories": [[name, list(seen)] for name, seen in self.categories.items()],
            "left_out": self.left_out,
            "ranges": [[name, *ends] for name, ends in self.ranges.items()],
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Columns:
        """The columns that a card describes."""
        return cls(
            {str(k): float(v) for k, v in said["numeric"]},
            {str(k): tuple(map(str, v)) for k, v in said["categories"]},
            {str(k): str(v) for k, v in said["left_out"].items()},
            {str(k): (float(low), float(high)) for k, low, high in said.get("ranges", [])},
        )


def choose_columns(table: pl.DataFrame, target: str, groups: Sequence[str]) -> Columns:
    """What a model of `target` may look at; group columns stay, as categories."""
    numeric, categories, left_out = dict[str, float](), dict[str, tuple[str, ...]](), {}
    for name in table.columns:
        if name == target:
            continue
        if name in groups:
            categories[name] = _seen(table, name)
        elif why := _not_known_before(table, name, target, groups):
            left_out[name] = why
        elif table[name].dtype.is_numeric():
            numeric[name] = float(np.nanmedian(numbers(table, name)))
        else:
            categories[name] = _seen(table, name)
    if not numeric and len(categories) <= len(groups):
        raise UserError(
            "the table has no column that describes a run beside the target and its groups"
        )
    ranges = {name: _range(numbers(table, name)) for name in numeric}
    return Columns(numeric, categories, left_out, ranges)


def _range(values: Floats) -> tuple[float, float]:
    there = values[np.isfinite(values)]
    return (float(there.min()), float(there.max())) if there.size else (-np.inf, np.inf)


def _refuse_no_number(table: pl.DataFrame, name: str) -> None:
    """A number must be one, or not there."""
    column, values = table[name], numbers(table, name)
    bad = np.isinf(values)
    if not column.dtype.is_numeric():
        bad |= np.isnan(values) & column.is_not_null().to_numpy()
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise UserError(f"column {name} must be a number; row {row + 1} has {column[row]}")


def nearly_numbers(table: pl.DataFrame, columns: Columns) -> dict[str, str]:
    """Categories of which nearly all values are numbers, and the first that is none."""
    nearly = {}
    for name in columns.categories:
        words = table[name].cast(pl.String).drop_nulls()
        none = words.cast(pl.Float64, strict=False).is_null()
        if table[name].dtype == pl.String and 0 < none.sum() < (1 - _NEARLY) * len(words):
            nearly[name] = str(words.filter(none)[0])
    return nearly


def numbers(table: pl.DataFrame, name: str) -> Floats:
    """A column as numbers, NaN where it has none."""
    return table[name].cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()


def texts(table: pl.DataFrame, name: str) -> np.ndarray[Any, np.dtype[np.str_]]:
    """A column as words; nothing is a word, too."""
    return table[name].cast(pl.String).fill_null("").to_numpy().astype(str)


def targets(table: pl.DataFrame, name: str) -> Floats:
    """The measured times: numbers above zero, or an error that names the row."""
    if name not in table.columns:
        raise UserError(f"the table has no column {name}; it has {_listed(table.columns)}")
    values = numbers(table, name)
    bad = np.flatnonzero(~((values > 0) & np.isfinite(values)))
    if bad.size:
        row = int(bad[0])
        raise UserError(
            f"column {name} must be a time above 0 in every row; row {row + 1} has"
            f" {table[name][row]} ({bad.size} such rows); drop runs that did not finish"
        )
    return values


def _not_known_before(
    table: pl.DataFrame, name: str, target: str, groups: Sequence[str]
) -> str | None:
    column = table[name]
    if isinstance(column.dtype, pl.List | pl.Struct | pl.Object):
        return "is neither a number nor a word"
    distinct = column.n_unique()
    if distinct <= 1:
        return "has one value"
    for group in groups:
        pairs = table.select(name, group).n_unique()
        if pairs == distinct == table[group].n_unique():
            return f"is another name of {group}"
    if _IDENTIFIER.search(name):
        return "names runs"
    if _MEASURED.search(name):
        return "is measured in the run"
    share = distinct / table.height
    if table.height < _ENOUGH:
        return None
    if share >= _OWN_VALUE:
        return "has its own value in nearly every row"
    if not column.dtype.is_numeric():
        return f"has {distinct:,} categories" if distinct > _MOST_CATEGORIES else None
    if share >= _VARIES:
        return "varies with every run, so it is measured"
    known = table.select(pl.col(name).cast(pl.Float64), pl.col(target).cast(pl.Float64))
    together = known.drop_nulls().select(pl.corr(name, target, method="spearman")).item()
    if together is not None and abs(together) >= _GIVES_AWAY:
        return f"orders the runs as {target} does"
    return None


def _seen(table: pl.DataFrame, name: str) -> tuple[str, ...]:
    return tuple(sorted(set(texts(table, name).tolist())))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
