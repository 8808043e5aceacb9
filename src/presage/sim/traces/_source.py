"""Open a trace file whatever its container: Parquet, CSV (also compressed), JSON lines.

What a file is comes from its first bytes, not from its name. Text columns stay text: the readers
turn them into numbers so that a bad value can be named by its row. Nothing here knows a format.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from presage.model.errors import TraceError

__all__ = ["TraceSource", "one_line", "open_source"]

_SEPARATORS = ("|", "\t", ",", ";")
_KINDS = {"parquet": "Parquet", "csv": "CSV", "jsonl": "JSON lines"}
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")  # gzip, zstd
_NO_SEPARATOR = "\x01"


@dataclass(frozen=True)
class TraceSource:
    """A file whose columns are known and whose rows are read on demand."""

    path: Path
    """Of a data frame only a name for messages."""
    kind: str
    columns: tuple[str, ...]
    separator: str = ","
    frame: pl.DataFrame | None = None

    @property
    def name(self) -> str:
        """How messages call the file."""
        return self.path.name

    def load(self, columns: list[str] | None = None) -> pl.DataFrame:
        """The rows, of the named columns only."""
        wanted = [name for name in self.columns if columns is None or name in columns]
        try:
            frame = self._read(wanted)
        except pl.exceptions.NoDataError:
            raise TraceError(f"trace {self.name} is empty") from None
        except (pl.exceptions.PolarsError, OSError) as error:
            raise _unreadable(self.path, self.kind, error) from None
        if frame.is_empty():
            raise TraceError(f"trace {self.name} has no jobs: it holds a header and nothing else")
        return frame

    def _read(self, wanted: list[str]) -> pl.DataFrame:
        if self.frame is not None:
            return self.frame.select(wanted)
        if self.kind == "parquet":
            return pl.read_parquet(self.path, columns=wanted, glob=False)
        quote = None if self.separator == "|" else '"'  # sacct never quotes
        positions = [self.columns.index(column) for column in wanted]
        frame = pl.read_csv(
            self.path,
            separator=self.separator,
            infer_schema=False,
            columns=positions,
            quote_char=quote,
            glob=False,
        )
        return frame.rename(dict(zip(frame.columns, wanted, strict=True)))


def open_source(given: Path | pl.DataFrame) -> TraceSource:
    """Find out what a file is and which columns it has; or take a table that is there already."""
    if isinstance(given, pl.DataFrame):
        return TraceSource(Path("DataFrame"), "frame", tuple(given.columns), frame=given)
    path = given
    head = _head(path)
    if head.startswith(b"PAR1") or path.suffix == ".parquet":
        return _open_parquet(path)
    if head.lstrip().startswith((b"{", b"[")):
        return _open_json(path)
    if b"\0" in head and not head.startswith(_COMPRESSED):
        raise TraceError(f"trace {path.name} is neither Parquet nor text (CSV, JSON lines)")
    return _open_csv(path)


def one_line(error: Exception) -> str:
    """The first line of a library's message, short enough for ours."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:160]


def _head(path: Path) -> bytes:
    if path.is_dir():
        raise TraceError(f"trace {path} is a directory; name a Parquet, CSV or JSON lines file")
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except FileNotFoundError:
        raise TraceError(f"trace {path} does not exist") from None
    except OSError as error:
        raise TraceError(f"trace {path} cannot be read: {error.strerror}") from None
    if not head.strip():
        raise TraceError(f"trace {path.name} is empty")
    return head


def _open_parquet(path: Path) -> TraceSource:
    try:
        columns = tuple(pl.read_parquet_schema(path))
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, "parquet", error) from None
    return TraceSource(path, "parquet", columns)


def _open_json(path: Path) -> TraceSource:
    try:
        with path.open("rb") as file:
            if file.read(1) == b"[":
                frame = pl.read_json(path, infer_schema_length=None)
            else:
                file.seek(0)
                frame = pl.read_ndjson(file, infer_schema_length=None)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise _unreadable(path, "jsonl", error) from None
    return TraceSource(path, "jsonl", tuple(frame.columns), frame=frame)


def _open_csv(path: Path) -> TraceSource:
    try:
        header = pl.read_csv(
            path,
            n_rows=0,
            separator=_NO_SEPARATOR,
            quote_char=None,
            infer_schema=False,
            glob=False,
        ).columns[0]
    except pl.exceptions.NoDataError:
        raise TraceError(f"trace {path.name} is empty") from None
    except (pl.exceptions.PolarsError, OSError, IndexError) as error:
        raise _unreadable(path, "csv", error) from None
    separator = max(_SEPARATORS, key=header.count)
    columns = tuple(name.strip().strip('"') for name in header.split(separator))
    if len(set(columns)) < len(columns):
        twice = next(name for name in columns if columns.count(name) > 1)
        raise TraceError(f"trace {path.name}: the header names column {twice} twice")
    return TraceSource(path, "csv", columns, separator)


def _unreadable(path: Path, kind: str, error: Exception) -> TraceError:
    why = one_line(error)
    if "found more fields" in why:
        why = "a row has more fields than the header"
    return TraceError(f"trace {path.name} cannot be read as {_KINDS[kind]}: {why}")
