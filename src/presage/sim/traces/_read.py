"""Choose the reader of a file by its columns, and run it.

The formats are a table; what each one means is in `_formats` and `_slurm`.
"""

from __future__ import annotations

from dataclasses import replace
from os import PathLike
from pathlib import Path

import polars as pl

from presage.model.errors import TraceError
from presage.sim.traces._formats import READERS, Format
from presage.sim.traces._rows import Rows
from presage.sim.traces._slurm import SLURM
from presage.sim.traces._source import TraceSource, open_source
from presage.sim.traces._table import Trace, finish

__all__ = ["FORMATS", "read_trace"]

_ALL: tuple[Format, ...] = (*READERS, *SLURM)

FORMATS: tuple[str, ...] = tuple(dict.fromkeys(known.name for known in _ALL))
"""The names `read_trace` and `--format` take, beside `auto`."""


def read_trace(
    source: str | PathLike[str] | pl.DataFrame | Trace,
    format: str = "auto",
    estimates: str | None = None,
) -> Trace:
    """Read a trace from Parquet, CSV or JSON lines, or from a data frame with the same columns; a
    trace that was read before is taken as it is.

    `estimates` names a column to use as estimate_s. Raises `TraceError`, one line that names the
    row or the columns, for anything it cannot read.
    """
    if isinstance(source, Trace):
        if estimates is None:
            return source
        again = read_trace(source.jobs, "native", estimates)
        return replace(source, jobs=again.jobs)
    if not isinstance(source, str | PathLike | pl.DataFrame):
        raise TraceError(f"a trace is a file or a Polars DataFrame, not {type(source).__name__}")
    if format != "auto" and format not in FORMATS:
        raise TraceError(f"unknown trace format {format!r}; there are auto, {', '.join(FORMATS)}")
    return _read(source if isinstance(source, pl.DataFrame) else Path(source), format, estimates)


def _read(given: Path | pl.DataFrame, format: str, estimates: str | None) -> Trace:
    source = open_source(given)
    known = _detect(source) if format == "auto" else _named(source, format)
    if estimates is not None and estimates not in source.columns:
        numeric = ", ".join(_numeric_columns(source)) or "none"
        raise TraceError(
            f"trace {source.name} has no column {estimates!r} to take estimates from; "
            f"its numeric columns: {numeric}"
        )
    wanted = set(known.columns) | ({estimates} if estimates else set())
    rows = Rows(source.name, source.load(list(wanted)), known.id_column(source.columns))
    table = known.read(rows)
    if estimates is not None:
        table = table.with_columns(rows.numbers(estimates, null=True).alias("estimate_s"))
    ids, integers = rows.ids()
    if "job_id" not in table.columns:
        table = table.with_columns(ids.alias("job_id"))
    else:  # the reader renamed some
        integers = False
    return finish(rows, table, format=known.name, integer_ids=integers)


def _detect(source: TraceSource) -> Format:
    for known in _ALL:
        if not known.missing(source.columns):
            return known
    nearest = min(_ALL, key=lambda known: (known.distance(source.columns), _ALL.index(known)))
    if nearest.distance(source.columns) <= 0.5:
        raise TraceError(
            f"trace {source.name} matches no format ({', '.join(FORMATS)}); nearest is "
            f"{nearest.name}, but it lacks {', '.join(nearest.missing(source.columns))}"
        )
    formats = "; ".join(f"{known.name} needs {known.wants}" for known in _ALL)
    raise TraceError(f"trace {source.name} matches no format: {formats}")


def _named(source: TraceSource, name: str) -> Format:
    layouts = [known for known in _ALL if known.name == name]
    best = min(layouts, key=lambda known: known.distance(source.columns))
    missing = best.missing(source.columns)
    if missing:
        there = ", ".join(source.columns[:20])
        raise TraceError(
            f"trace {source.name} lacks {', '.join(missing)}: "
            f"{name} needs {best.wants}; it has {there}"
        )
    return best


def _numeric_columns(source: TraceSource) -> list[str]:
    frame = source.load()
    numeric = []
    for column in frame.iter_columns():
        if column.dtype == pl.String:
            cast = column.cast(pl.Float64, strict=False)
            if cast.null_count() == column.null_count() < column.len():
                numeric.append(column.name)
        elif column.dtype.is_numeric():
            numeric.append(column.name)
    return numeric
