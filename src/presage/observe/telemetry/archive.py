"""Keeps telemetry on the disk: one SQLite database in a directory, with retention.

What `append` returned from is on the disk; a crash, also in the middle of a write, loses at most
the append that was under way, and loses it whole. Several processes may write and read at the same
time. `tidy` replaces samples older than `fine` by their means over `coarse`, and deletes those
older than `keep`; it is told the time, so that a sample with a wrong one cannot empty the archive.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import numpy as np

from presage.observe.telemetry.series import Series, TelemetryError, assemble, unit_of

__all__ = ["ARCHIVE_FILE", "Archive"]

ARCHIVE_FILE = "telemetry.sqlite"
_VERSION = 1
_TABLES = """
create table pod (id integer primary key, name text not null unique);
create table feature (id integer primary key, name text not null unique);
create table sample (
    pod integer not null, feature integer not null, time real not null, value real not null,
    primary key (pod, feature, time)
) without rowid;
create table mark (name text primary key, time real not null) without rowid;
"""
"""`mark` has one row, `coarse`: up to when samples were averaged."""


class Archive:
    """The telemetry of a directory. Use it in a `with` block, or close it."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: timedelta = timedelta(days=30),
        fine: timedelta | None = None,
        coarse: timedelta = timedelta(minutes=5),
    ) -> None:
        """Without `fine`, samples stay as they are until they are deleted."""
        self._keep = keep.total_seconds()
        self._fine = fine.total_seconds() if fine is not None else math.inf
        self._coarse = coarse.total_seconds()
        if min(self._keep, self._fine, self._coarse) <= 0:
            raise TelemetryError("keep, fine and coarse must be above 0")
        self.path = directory / ARCHIVE_FILE
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            says = getattr(error, "strerror", None) or error
            raise TelemetryError(f"telemetry cannot be kept in {directory}: {says}") from None
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the database."""
        self._db.close()

    def append(self, rows: Iterable[tuple[str, float, Mapping[str, float]]]) -> None:
        """Keep (pod, time, values), all or none of them. A value that is not finite was not
        measured; a second value of one time replaces the first."""
        measured = [
            (pod, feature, float(time), float(value))
            for pod, time, values in rows
            for feature, value in values.items()
            if math.isfinite(value)
        ]
        if not measured:
            return
        if not all(math.isfinite(row[2]) for row in measured):
            raise TelemetryError("a sample's time must be finite")
        with self._writing():
            pods = self._ids("pod", {row[0] for row in measured})
            features = self._ids("feature", {row[1] for row in measured})
            self._db.executemany(
                "insert or replace into sample values (?, ?, ?, ?)",
                ((pods[pod], features[name], time, value) for pod, name, time, value in measured),
            )

    def read(
        self,
        pods: Sequence[str] | None = None,
        *,
        since: float = -math.inf,
        until: float = math.inf,
    ) -> list[Series]:
        """The series of some pods, or of all, in the order of their names; samples from `since`
        to before `until`. A pod without any is left out."""
        with self._guard():
            where = "" if pods is None else "and pod.name in (select value from json_each(?))"
            chosen = [] if pods is None else [json.dumps(list(pods))]
            found = self._db.execute(
                "select pod.name, feature.name, time, value from sample"
                " join pod on pod.id = sample.pod join feature on feature.id = sample.feature"
                f" where time >= ? and time < ? {where} order by pod.name",
                [since, until, *chosen],
            ).fetchall()
        if not found:
            return []
        names, labels, times, values = zip(*found, strict=True)
        pod_names, features = sorted(set(names)), sorted(set(labels))
        pod_number = {name: number for number, name in enumerate(pod_names)}
        feature_number = {name: number for number, name in enumerate(features)}
        series = assemble(
            pod_names,
            np.array([pod_number[name] for name in names]),
            np.array(times),
            features,
            [unit_of(name) for name in features],
            np.array(values),
            np.array([feature_number[name] for name in labels]),
        )
        return [pod.measured() for pod in series]

    def pods(self) -> list[str]:
        """The names of all pods, sorted."""
        with self._guard():
            return [name for (name,) in self._db.execute("select name from pod order by name")]

    def tidy(self, now: float) -> None:
        """Average what is older than `fine`, delete what is older than `keep`."""
        with self._writing():
            if self._fine < math.inf:
                self._average(now)
            self._db.execute("delete from sample where time < ?", [now - self._keep])
            self._db.execute("delete from pod where id not in (select pod from sample)")
        with self._guard():
            self._db.executescript("pragma incremental_vacuum")  # runs it to its end

    def _average(self, now: float) -> None:
        """Samples of a step of `coarse` seconds become one, in the middle of the step."""
        found = self._db.execute("select time from mark where name = 'coarse'").fetchone()
        begin = float(found[0]) if found else -math.inf
        end = math.floor((now - self._fine) / self._coarse) * self._coarse
        if end <= begin:
            return
        old = [begin, end]
        self._db.execute(
            "create temp table mean as select pod, feature,"
            " (cast(time / ?1 as integer) + 0.5) * ?1 as time, avg(value) as value"
            " from sample where time >= ?2 and time < ?3 group by 1, 2, 3",
            [self._coarse, *old],
        )
        self._db.execute("delete from sample where time >= ? and time < ?", old)
        self._db.execute("insert or replace into sample select * from mean")
        self._db.execute("drop table mean")
        self._db.execute("insert or replace into mark values ('coarse', ?)", [end])

    def _prepare(self) -> None:
        with self._guard():
            self._db.execute("pragma auto_vacuum = incremental")
            self._db.execute("pragma journal_mode = wal").fetchall()
            self._db.execute("pragma synchronous = full")
        with self._writing():
            (version,) = self._db.execute("pragma user_version").fetchone()
            if version == 0:
                for statement in _TABLES.split(";")[:-1]:
                    self._db.execute(statement)
                self._db.execute(f"pragma user_version = {_VERSION}")
            elif version != _VERSION:
                raise TelemetryError(
                    f"{self.path} is of version {version}; this Presage reads version {_VERSION}."
                    " Use the Presage that wrote it, or another directory"
                )

    def _ids(self, table: str, names: set[str]) -> dict[str, int]:
        """The numbers of pods or features; new ones get one."""
        asked = f"select name, id from {table} where name in (select value from json_each(?))"
        known = dict(self._db.execute(asked, [json.dumps(sorted(names))]))
        for name in sorted(names - known.keys()):
            known[name] = self._db.execute(
                f"insert into {table} (name) values (?)", [name]
            ).lastrowid
        return known

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A transaction: all of it or nothing."""
        with self._guard():
            self._db.execute("begin immediate")
            try:
                yield
                self._db.execute("commit")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                raise

    @contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise TelemetryError(f"{self.path} cannot be used: {error}") from None
