"""What versions of before kept in files of the data directory, taken over into the store once.

The files stay, with `.imported` behind their names. Names here are those of that time; nothing
else of this version reads them.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from presage.core.ports import Entry, Knowledge
from presage.foresee.own import OwnRun
from presage.layout import Layout
from presage.model.codec import decode

__all__ = ["take_over_files"]

log = logging.getLogger("presage.store")

_MOST = 20_000
"""Lines of a file that are taken over, the latest."""
_AT_ONCE = 2000
"""Entries of one transaction, about."""
_FINE_S = 2 * 86_400.0
"""Samples of the cluster that are older than this were downsampled to means."""
_Found = tuple[str, list[bytes]]


def take_over_files(layout: Layout, knowledge: Knowledge) -> None:
    """Bring what was learned into the store, unless it has that already; a crash in the middle
    does no harm."""
    data = layout.data
    if not any((data / name).exists() for name in ("history.jsonl", "models", "phases")):
        return
    with _alone(data):
        taken, batch = 0, list[Entry]()
        for name, bodies in _found(data):
            if bodies and knowledge.get(name) is None:
                batch += [Entry(name, body, _MOST) for body in bodies[-_MOST:]]
                taken += 1
            if len(batch) >= _AT_ONCE:
                knowledge.write(*batch)
                batch = []
        knowledge.write(*batch)
        for pattern in ("models", "phases", "forecasts.jsonl", "jobs/*/progress.jsonl"):
            _put_away(data, pattern)
        _put_away(data, "jobs/*/limits")
        _put_away(data, "history.jsonl")  # last: as long as it is there, there may be more
    log.info("took over %d records from files in %s, now *.imported", taken, data)


def _put_away(data: Path, pattern: str) -> None:
    for path in list(data.glob(pattern)):
        path.rename(path.with_name(f"{path.name}.imported"))


@contextmanager
def _alone(data: Path) -> Iterator[None]:
    """One server at a time."""
    file = os.open(data, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # the file system knows no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _found(data: Path) -> Iterator[_Found]:
    yield "forecasts/outcomes", _lines(data / "forecasts.jsonl", _numbers(5))
    yield from _models(data / "models")
    for folder in data.glob("phases/*"):
        runs = sorted(folder.glob("[!.]*.csv"), key=lambda file: file.stat().st_mtime)
        yield f"phases/{folder.name}/runs", [zlib.compress(run.read_bytes()) for run in runs]
        if (folder / "phases.npz").is_file():
            yield f"phases/{folder.name}/model", [(folder / "phases.npz").read_bytes()]
    for folder in Layout(data).jobs.glob("*"):
        progress = _lines(folder / "progress.jsonl", lambda line: "at" in line)
        yield f"jobs/{folder.name}/progress", progress
        limits = sorted(folder.glob("limits/*.jsonl"), key=lambda file: int(file.stem))
        yield f"jobs/{folder.name}/limits", [line for file in limits for line in _limits(file)]
    rows = [json.loads(line) for line in _lines(data / "history.jsonl", _numbers(10, 11))]
    fine_from = max((row[0] for row in rows), default=0.0) - _FINE_S
    for name, fine in (("cluster/coarse", False), ("cluster/fine", True)):
        yield name, [_body(row) for row in rows if (row[0] >= fine_from) is fine]


def _models(home: Path) -> Iterator[_Found]:
    if (home / "learned-until").is_file():
        yield "models/learned-until", [(home / "learned-until").read_bytes()]
    for file in home.glob("[!.]*/[!.]*.json"):
        yield f"models/{file.parent.name}/{file.stem}", [file.read_bytes()]
    for folder in home.glob("[!.]*/"):
        runs = _lines(folder / "runs.jsonl", lambda line: decode(OwnRun, line))
        yield f"models/{folder.name}/runs", runs
        yield f"models/{folder.name}/judged", _lines(folder / "judged.jsonl", _numbers(2))


def _limits(file: Path) -> list[bytes]:
    lines = [json.loads(line) for line in _lines(file, lambda line: "why" in line)]
    return [_body({"attempt": int(file.stem), **line}) for line in lines]


def _lines(path: Path, good: Callable[[Any], object]) -> list[bytes]:
    """The lines of a file that are whole and say what they should."""
    lines = []
    with suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            with suppress(ValueError, TypeError):
                if good(json.loads(line)):
                    lines.append(line)
    return lines


def _numbers(*counts: int) -> Callable[[Any], bool]:
    return lambda line: len([float(value) for value in line]) in counts


def _body(value: object) -> bytes:
    return json.dumps(value).encode()
