"""A row of telemetry, its writer and its reader: a file of JSON lines for each run.

Guardians write beside a training, so this is the standard library alone, and `Row` is a named
tuple: `dataclasses` would add half to what a guardian imports, and annotations that are text (the
future ones) a tenth, since a named tuple compiles them. A file only ever grows. A line that is
torn (by a crash, or where a bounded read begins and ends) or holds no row is left out.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

__all__ = [
    "Row",
    "append",
    "follow",
    "latest",
    "line_of",
    "objects",
    "parse",
    "rows",
    "spread",
    "tail",
]

T = TypeVar("T")


class Row(NamedTuple):
    """What a worker used at one moment; None for what was not measured. `cpu_s` and the bytes are
    counters since its start."""

    at: float
    """Seconds since 1970."""
    worker: str
    cpu_s: float | None = None
    cpu_cores: float | None = None
    """Cores kept busy since the row before."""
    rss_mib: float | None = None
    """Summed over its processes; a page that several of them share counts for each."""
    processes: float | None = None
    threads: float | None = None
    read_bytes: float | None = None
    write_bytes: float | None = None
    net_sent_bytes: float | None = None
    """Of the whole machine, as is what was received."""
    net_received_bytes: float | None = None
    gpu_util_pct: float | None = None
    """The mean over its devices."""
    gpu_memory_mib: float | None = None
    """On that of its devices where it holds most."""
    gpu_total_mib: float | None = None
    """On all of its devices."""
    step: float | None = None
    """The step that it reported itself, in a gang where each worker does."""
    stopped: float | None = None
    """Processes that a signal has stopped (state T)."""
    wait_s: float | None = None
    """Seconds that its processes could have run and had no core; a counter."""
    disk_free_mib: float | None = None
    """Of the file system that its work directory is on, as is the next one."""
    disk_total_mib: float | None = None
    tcp_sent: float | None = None
    """TCP segments sent in its network namespace, and below, those sent again; counters."""
    tcp_resent: float | None = None
    gpu_xid: float | None = None
    """The latest error (Xid) that the driver reported for one of its devices."""
    gpu_ecc_errors: float | None = None
    """Memory errors of its devices that could not be corrected; a counter."""
    memory_util_pct: float | None = None
    """How busy the memory of its devices is; without a GPU, see `presage.telemetry.bursts`."""
    gpu_request: float | None = None
    """The part of a GPU that it is to get whenever it wants it, where shares are enforced."""
    gpu_limit: float | None = None
    """The part that it never passes."""
    gpu_got: float | None = None
    """The part that it had since the row before."""
    gpu_waited: float | None = None
    """Seconds that its threads waited for their turns, in each second since the row before."""
    gpu_memory_limit_mib: float | None = None
    """What it may hold of a GPU's memory, where that is enforced."""
    gpu_shared: bool = False
    """Whether a process of somebody else is on one of them."""


_AMOUNTS = ("at", *Row._fields[2:-1])
_APPENDED = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_LONGEST = 1000
"""Bytes that the line of a row has at most."""
_NUMBERS = frozenset((float, int))  # and not bool
_decode = json.JSONDecoder().raw_decode


# -- writing --------------------------------------------------------------------------------------


def line_of(row: Row) -> bytes:
    """The row as it stands in a file; what was not measured is left out."""
    fields = {
        name: round(value, 3) if type(value) is float else value
        for name, value in zip(row._fields, row, strict=True)
        if value is not None and value is not False
    }
    return json.dumps(fields).encode() + b"\n"


def append(path: Path, *rows: Row) -> None:
    """Add rows to a file, which is made with its directory if it is not there. What does not fit
    on the disk is lost whole, without an error: telemetry is not worth a training."""
    data = b"".join(map(line_of, rows))
    with suppress(OSError):
        try:
            file = os.open(path, _APPENDED, 0o600)
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(path, _APPENDED, 0o600)
        try:
            written = os.write(file, data)
            if written < len(data):
                os.ftruncate(file, os.fstat(file).st_size - written)
        finally:
            os.close(file)


# -- reading --------------------------------------------------------------------------------------


def parse(line: bytes) -> Row:
    """The row in a line; a ValueError says why there is none. Keys that are not known are left
    out."""
    fields = _object(line)
    worker, shared = fields.pop("worker", None), fields.pop("gpu_shared", None) is True
    if not isinstance(worker, str) or "at" not in fields:
        raise ValueError("a row needs the time `at` and a `worker`")
    for value in fields.values():
        if not (type(value) in _NUMBERS and 0 <= value < 1e300):
            fields = _checked(fields)
            break
    try:
        return Row(worker=worker, gpu_shared=shared, **fields)
    except TypeError:  # a key that this version does not know
        return Row(worker=worker, gpu_shared=shared, **_checked(fields))


def rows(lines: Iterable[bytes]) -> Iterator[Row]:
    """The rows in those of the lines that hold one."""
    return _made(parse, lines)


def objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The JSON objects in those of the lines that hold one, whatever they are about."""
    return _made(_object, lines)


def spread(path: Path, most: int = 1 << 20, pieces: int = 256) -> Iterator[bytes]:
    """The lines of a file; of one with more than `most` bytes, pieces from its whole length. None
    when there is no such file."""
    with suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= most:
            yield from file
            return
        for k in range(pieces):
            file.seek((size - most // pieces) * k // (pieces - 1))
            yield from file.read(most // pieces).splitlines()[k > 0 :]


def tail(path: Path, most: int) -> list[bytes]:
    """The lines in the last bytes of a file."""
    with suppress(OSError), path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - most))
        return file.read(most).splitlines()
    return []


def follow(path: Path, offset: int, most: int = 1 << 20) -> tuple[list[Row], int]:
    """The rows that were added to a file since an offset, and the next offset; a line that is
    still being written is left for the next time."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            text = file.read(most)
    except OSError:
        return [], offset
    whole = text.rfind(b"\n") + 1
    if not whole and len(text) == most:
        whole = most  # no line is that long
    return list(rows(text[:whole].splitlines())), offset + whole


def latest(path: Path, workers: int, since: float) -> list[Row]:
    """The last row of each of so many workers, if it was measured since then."""
    by_worker = {row.worker: row for row in rows(tail(path, _LONGEST * max(1, workers)))}
    return [row for row in by_worker.values() if row.at >= since]


def _made(make: Callable[[bytes], T], lines: Iterable[bytes]) -> Iterator[T]:
    for line in lines:
        try:
            yield make(line)
        except ValueError:
            continue


def _object(line: bytes) -> dict[str, Any]:
    text = line.decode().strip()
    try:
        value, end = _decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if end != len(text) or not isinstance(value, dict):
        raise ValueError("it is no JSON object")
    return value


def _checked(fields: dict[str, Any]) -> dict[str, float]:
    """What is known of an object, without what is null."""
    known = {name: fields[name] for name in _AMOUNTS if fields.get(name) is not None}
    for name, value in known.items():
        if not (type(value) in _NUMBERS and 0 <= value < 1e300):
            raise ValueError(f"{name} cannot be {json.dumps(value)[:40]}")
    if "at" not in known:
        raise ValueError("at cannot be null")
    return known
