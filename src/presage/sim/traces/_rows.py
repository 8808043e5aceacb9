"""Columns of a source as checked numbers, times and texts; a bad value is refused by its row.

Everything is vectorised. Values that a reader does not ask for are never looked at.
"""

from __future__ import annotations

import polars as pl

from presage.model.cluster import UNLIMITED
from presage.model.errors import TraceError

__all__ = ["ROW", "Rows", "datetimes"]

ROW = "__row"
"""The 1-based data row of the source, kept beside the values for messages."""

_TIME_FORMATS = ("%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%d %H:%M", "%Y-%m-%d")


class Rows:
    """The rows of one source that are still in play, and how to say what is wrong with one."""

    def __init__(self, name: str, frame: pl.DataFrame, id_column: str) -> None:
        self.name = name
        self.notes: list[str] = []
        self._id = id_column
        self._frame = frame.with_row_index(ROW, offset=1)

    @property
    def height(self) -> int:
        """How many rows are in play."""
        return self._frame.height

    def has(self, column: str) -> bool:
        """Whether the source has the column."""
        return column in self._frame.columns

    def raw(self, column: str) -> pl.Series:
        """The values as the source gives them."""
        return self._frame.get_column(column)

    def keep(self, mask: pl.Series, note: str = "") -> None:
        """Forget the rows where the mask is not true; `note` says why, with {n} for how many."""
        before = self._frame.height
        self._frame = self._frame.filter(mask.fill_null(False))
        dropped = before - self._frame.height
        if note and dropped:
            self.notes.append(note.format(n=f"{dropped:,}"))

    def sort(self, column: str) -> None:
        """Put the rows into the order of a column."""
        keyed = self._frame.with_columns(self.numbers(column).alias("__order"))
        self._frame = keyed.sort("__order", maintain_order=True).drop("__order")

    def ids(self) -> tuple[pl.Series, bool]:
        """The job ids as text, and whether they were integers."""
        raw = self.raw(self._id)
        text = _as_text(raw)
        self.refuse(text.is_null() | (text.str.len_bytes() == 0), f"{self._id} is missing")
        if raw.dtype.is_integer():
            return text, True
        back = text.cast(pl.Int64, strict=False).cast(pl.String)
        return text, bool((back == text).fill_null(False).all())

    def numbers(
        self,
        column: str,
        *,
        at_least: float | None = 0.0,
        at_most: float | None = None,
        null: bool = False,
    ) -> pl.Series:
        """The column as floats (exact for integers below 2**53), finite and inside the bounds."""
        raw = self.raw(column)
        if raw.dtype == pl.String:
            raw = raw.str.strip_chars()
        try:
            value = raw.cast(pl.Float64, strict=False)
        except pl.exceptions.PolarsError:
            raise TraceError(
                f"trace {self.name}: column {column} must hold numbers, not {raw.dtype}"
            ) from None
        self.refuse(value.is_null() & raw.is_not_null(), f"{column} is not a number", raw)
        if not null:
            self.refuse(value.is_null(), f"{column} is missing")
        self.refuse(~value.is_finite(), f"{column} is not finite", raw)
        if at_least is not None:
            low = "is negative" if at_least == 0 else f"must be at least {at_least:g}"
            self.refuse(value < at_least, f"{column} {low}", raw)
        if at_most is not None:
            self.refuse(value > at_most, f"{column} must be at most {at_most:g}", raw)
        return value

    def whole(self, column: str, *, at_least: float | None = 0.0, null: bool = True) -> pl.Series:
        """The column as integers."""
        value = self.numbers(column, at_least=at_least, at_most=float(UNLIMITED), null=null)
        self.refuse(value != value.floor(), f"{column} must be a whole number", self.raw(column))
        return value.cast(pl.Int64)

    def milli(self, column: str) -> pl.Series:
        """A column that counts whole things (GPUs) as thousandths of them."""
        value = self.numbers(column, at_most=float(UNLIMITED) / 1000)
        milli = (value * 1000).round()
        tiny = (milli == 0) & (value > 0)
        self.refuse(tiny, f"{column} is less than a thousandth", self.raw(column))
        return milli.cast(pl.Int64)

    def times(self, column: str) -> pl.Series:
        """Seconds: numbers as they are, dates and texts that are dates as seconds since 1970."""
        raw = self.raw(column)
        if raw.dtype == pl.String:
            clean = raw.str.strip_chars()
            sample = clean.drop_nulls().head(1)
            if sample.len() and sample.cast(pl.Float64, strict=False).null_count():
                parsed = datetimes(clean)
                self.refuse(parsed.is_null() & raw.is_not_null(), f"{column} is not a time", raw)
                raw = parsed
        if raw.dtype == pl.Date:
            raw = raw.cast(pl.Datetime("us"))
        if isinstance(raw.dtype, pl.Datetime):
            self.refuse(raw.is_null(), f"{column} is missing")
            return raw.dt.epoch("us").cast(pl.Float64) / 1e6
        return self.numbers(column)

    def texts(self, column: str) -> pl.Series:
        """The column as text; whatever is missing stays null."""
        text = _as_text(self.raw(column)).str.strip_chars()
        return text.set(text.str.len_bytes() == 0, None)

    def table(self, **columns: pl.Series | None) -> pl.DataFrame:
        """The given columns beside `ROW`; those that are None are left out."""
        given = [series.alias(name) for name, series in columns.items() if series is not None]
        return pl.DataFrame([self.raw(ROW), *given])

    def optional(self, column: str) -> pl.Series | None:
        """A column of whole amounts, if the source has it."""
        return self.whole(column) if self.has(column) else None

    def optional_text(self, column: str) -> pl.Series | None:
        """A column of texts, if the source has it."""
        return self.texts(column) if self.has(column) else None

    def wrong(self, bad: pl.DataFrame, what: str) -> TraceError:
        """The error for the first row of `bad`, a table with `ROW` and job_id."""
        return self._error(bad.get_column(ROW)[0], bad.get_column("job_id")[0], what)

    def refuse(self, mask: pl.Series, what: str, shown: pl.Series | None = None) -> None:
        """Raise for the first row where the mask is true; `shown` has the values to quote."""
        at = mask.fill_null(False).arg_max() if mask.any() else None
        if at is None:
            return
        value = "" if shown is None else f" (it is {str(shown[at])[:40]!r})".replace("'", "")
        raise self._error(self.raw(ROW)[at], self.raw(self._id)[at], what + value)

    def _error(self, row: int, job: object, what: str) -> TraceError:
        if isinstance(job, float) and job.is_integer():
            job = int(job)
        return TraceError(f"trace {self.name}: row {row} (job {job}): {what}")


def datetimes(text: pl.Series) -> pl.Series:
    """Texts like `2017-10-03 07:01:22` or `2017-10-03T07:01:22Z` as times; others become null."""
    plain = text.str.replace("T", " ", literal=True).str.strip_suffix("Z")
    times = pl.Series(text.name, [None], dtype=pl.Datetime("us")).new_from_index(0, text.len())
    for form in _TIME_FORMATS:
        if times.null_count() > text.null_count():
            parsed = plain.str.to_datetime(form, strict=False, time_unit="us")
            times = times.zip_with(times.is_not_null(), parsed)
    if times.null_count() > text.null_count():
        zoned = plain.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%#z", strict=False, time_unit="us")
        times = times.zip_with(times.is_not_null(), zoned.dt.replace_time_zone(None))
    return times


def _as_text(raw: pl.Series) -> pl.Series:
    """Any values as text; whole numbers that are stored as floats lose the `.0`."""
    if raw.dtype.is_float() and bool((raw.is_finite() & (raw == raw.floor())).all()):
        raw = raw.cast(pl.Int64, strict=False)
    return raw if raw.dtype == pl.String else raw.cast(pl.String, strict=False)
