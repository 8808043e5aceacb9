"""What is kept of jobs that are over, and for how long: removal by hand, by age and by size.

Never touches a job that is not over, nor a work folder that such a job has, nor one that was
uploaded or asked for within the last hour: somebody may be about to submit it. A directory goes
away by one rename first, so that nobody ever sees half of one. The journal keeps what happened.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from presage import beneath
from presage.control.board import ENDED
from presage.executors.node import wire
from presage.executors.node.messages import ResultsNote
from presage.layout import Layout
from presage.model.errors import PresageError
from presage.model.words import count_text, size_text
from presage.store.records import AuditEntry, JobRow
from presage.store.sql import SqlStore

__all__ = ["KINDS", "KeepRule", "Removed", "Retention", "touch_folder"]

log = logging.getLogger("presage.retention")

KINDS = ("logs", "results", "telemetry", "checkpoints", "folders")
_FRESH_S = 3600.0
"""A work folder that was uploaded or asked for so lately stays."""
_PAGE = 1000


_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class KeepRule:
    """How long, and how much in all; None for no bound."""

    age_s: float | None = None
    most_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """A job whose files are gone, or would be."""

    id: str
    status: str
    ended_at: float
    bytes: int


@dataclass(slots=True)
class _Swept:
    """What a sweep removed of one kind."""

    count: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Held:
    """Files of one kind that may go: of a job that is over, or a folder that nobody needs."""

    name: str
    when: float
    bytes: int
    places: tuple[Path, ...]


@dataclass(slots=True)
class Retention:
    """The files of one server. Methods may be called from any thread; one sweep at a time."""

    layout: Layout
    store: SqlStore
    rules: Mapping[str, KeepRule]
    forget: Callable[[str], None] = field(default=lambda job: None)
    """Is told of every job that was removed, for whoever remembers it."""

    async def sweep_for_ever(self, leading: Callable[[], bool]) -> None:
        """At the start and then every hour; only the server that decides does it."""
        if all(rule == KeepRule() for rule in self.rules.values()):
            return
        next_at = 0.0
        while True:
            await asyncio.sleep(0.2 if next_at == 0.0 else 5.0)
            if not leading() or time.monotonic() < next_at:
                continue
            try:
                await asyncio.to_thread(self.sweep, time.time())
            except (OSError, PresageError) as error:
                log.warning("nothing more is removed this time: %s", error)
            next_at = time.monotonic() + _EVERY_S

    # -- by hand --------------------------------------------------------------------------------

    def older(self, than_s: float, now: float, may: Callable[[JobRow], bool]) -> list[JobRow]:
        """Jobs that have been over for so long and that somebody may remove."""
        over = self._ended()
        return [row for row in over if (row.ended_at or now) <= now - than_s and may(row)]

    def measure(self, rows: Sequence[JobRow]) -> list[Removed]:
        """What removing jobs would free; each must be over."""
        going = {row.id for row in rows}
        counted: set[str] = set()
        freed = []
        for row in rows:
            size = _size(self.layout.job(row.id))
            if row.folder and row.folder not in counted and self._alone(row, going):
                counted.add(row.folder)
                size += _size(self.layout.folder(row.folder))
            freed.append(Removed(row.id, row.status, row.ended_at or 0.0, size))
        return freed

    def remove(self, rows: Sequence[JobRow], who: str, now: float) -> list[Removed]:
        """Remove all that is kept of jobs that are over; the journal keeps the facts."""
        measured = self.measure(rows)
        going = {row.id for row in rows}
        for row, one in zip(rows, measured, strict=True):
            # Marked first: a crash in between leaves files of a job that nobody misses.
            self.store.jobs.mark_removed(row.id, now)
            self.store.audit.add(AuditEntry(now, who, "remove", row.id, {"bytes": one.bytes}))
            self._discard(self.layout.job(row.id))
            if row.folder and self._alone(row, going):
                self._discard(self.layout.folder(row.folder))
            self.forget(row.id)
        return measured

    def _alone(self, row: JobRow, going: set[str]) -> bool:
        """Whether no other job has the work folder of this one."""
        assert row.folder is not None
        users = self.store.jobs.of_folder(row.folder)
        return all(user.id in going or user.removed_at is not None for user in users)

    # -- by age and size ------------------------------------------------------------------------

    def sweep(self, now: float) -> dict[str, int]:
        """Remove what the rules do not keep; how many bytes of each kind."""
        shutil.rmtree(self.layout.trash, ignore_errors=True)  # of a sweep that did not end
        freed: dict[str, int] = {}
        ended: list[JobRow] | None = None
        for kind in KINDS:
            rule = self.rules.get(kind)
            if rule is None or rule == KeepRule():
                continue
            if kind == "folders":
                held = self._folders(now)
            else:
                ended = self._ended() if ended is None else ended
                held = self._held(kind, ended)
            swept = self._apply(kind, rule, held, now)
            if swept.count:
                freed[kind] = swept.bytes
                what = "work folder" if kind == "folders" else "job"
                log.info(
                    "removed %s of %s: %s", size_text(swept.bytes), kind,
                    count_text(swept.count, what),
                )  # fmt: skip
                detail = {"kind": kind, "count": swept.count, "bytes": swept.bytes}
                self.store.audit.add(AuditEntry(now, "presage", "retention", "", detail))
        return freed

    def _apply(self, kind: str, rule: KeepRule, held: list[_Held], now: float) -> _Swept:
        """Oldest first: those that are too old, then those that are too much."""
        swept = _Swept()
        total = sum(one.bytes for one in held)
        if kind == "folders":
            total = _size(self.layout.folders)
        for one in sorted(held, key=lambda one: one.when):
            too_old = rule.age_s is not None and one.when <= now - rule.age_s
            too_much = rule.most_bytes is not None and total > rule.most_bytes
            if not (too_old or too_much):
                continue
            for place in one.places:
                self._discard(place)
            if kind == "results":
                self._say_removed(one.name, now)
            total -= one.bytes
            swept.count += 1
            swept.bytes += one.bytes
            log.debug("removed %s of %s", kind, one.name)
        return swept

    def _held(self, kind: str, ended: Iterable[JobRow]) -> list[_Held]:
        held = []
        for row in ended:
            places = {
                "logs": self.layout.all_logs(row.id),
                "results": self.layout.results(row.id),
                "telemetry": self.layout.all_telemetry(row.id),
                "checkpoints": self.layout.checkpoints(row.id),
            }
            size = _size(places[kind])
            if size:
                held.append(_Held(row.id, row.ended_at or 0.0, size, (places[kind],)))
        return held

    def _folders(self, now: float) -> list[_Held]:
        """Work folders that no job needs any more."""
        needed = self.store.jobs.folders_needed()
        held = []
        for path in self.layout.folders.glob("*.tar.gz"):
            with suppress(OSError):
                known = path.stat()
                digest = path.name.removesuffix(".tar.gz")
                if digest not in needed and known.st_mtime <= now - _FRESH_S:
                    held.append(_Held(digest, known.st_mtime, known.st_size, (path,)))
        return held

    def _ended(self) -> list[JobRow]:
        """Every job that is over and of which something may be kept."""
        rows: list[JobRow] = []
        after = None
        while True:
            page = self.store.jobs.list(statuses=tuple(ENDED), limit=_PAGE, after=after)
            rows += page
            if len(page) < _PAGE:
                return rows
            after = page[-1].seq

    def _say_removed(self, job: str, now: float) -> None:
        """Leave word that there were results."""
        with suppress(OSError, wire.MessageError):
            note = wire.find(ResultsNote, self.layout.job(job))
            if note is not None:
                wire.write(self.layout.job(job), note.but(removed_at=now))

    def _discard(self, path: Path) -> None:
        """Take a file or directory away, whole or not at all."""
        self.layout.trash.mkdir(mode=0o700, exist_ok=True)
        gone = self.layout.trash / secrets.token_hex(8)
        try:
            path.rename(gone)
        except FileNotFoundError:
            return
        if gone.is_dir():
            shutil.rmtree(gone, ignore_errors=True)
        else:
            gone.unlink(missing_ok=True)


def touch_folder(path: Path) -> None:
    """Somebody is about to use a work folder: it counts as new."""
    with suppress(OSError):
        os.utime(path, (time.time(), time.time()))


def _size(path: Path) -> int:
    """Bytes of a file, or of all files below a directory."""
    if path.is_dir():
        return sum(known.st_size for _, known in beneath.walk(path))
    try:
        return path.stat().st_size
    except OSError:
        return 0
