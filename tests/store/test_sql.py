"""What one append writes beside the journal, and what can be asked about it."""

from __future__ import annotations

import gc
import re
import sqlite3
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection

from presage.core.loop import fold
from presage.core.state import State
from presage.model import event as ev
from presage.model.errors import InternalError, StaleLease, StoreUnavailable, UserError
from presage.model.job import JobSpec, Role
from presage.store import open_store
from presage.store.database import Database
from presage.store.records import AuditEntry, JobChange, JobRow, Notification
from presage.store.sql import SqlStore
from presage.store.tables import metadata

MANIFEST = {"name": "hello", "command": "python train.py", "secrets": {"HF_TOKEN": "hf"}}


def submitted(job: str) -> ev.JobSubmitted:
    return ev.JobSubmitted(JobSpec(job, (Role(),)))


def row(job: str, **more: Any) -> JobRow:
    given: dict[str, Any] = {"name": "n", "owner": "ann", "submitted_at": 1.0}
    return JobRow(**{"id": job, "manifest": MANIFEST, **given, **more})


def submit(store: SqlStore, *jobs: str, **more: Any) -> None:
    store.append(
        1.0, [submitted(job) for job in jobs], [], jobs=[row(job, **more) for job in jobs]
    )


def test_a_job_and_its_story(store: SqlStore) -> None:
    submit(store, "a", "b", folder="0" * 64)
    run = {"epoch": 3, "metrics": {"loss": 0.5}}
    store.append(
        2.0,
        [ev.JobStarted("a", 1)],
        [],
        changes=[
            JobChange(job="a", at=2.0, status="DOWNLOADING", attempt=1, nodes=("n0", "n1")),
            JobChange(job="a", at=2.5, status="PROCESSING", started_at=2.5, workers=2),
            JobChange(job="a", at=2.6, progress=run, stage="training"),
        ],
    )
    ended = JobChange(
        job="a",
        at=9.0,
        status="FAILED",
        reason_code="error",
        reason_text="exit code 3",
        exit_code=3,
        ended_at=9.0,
        workers=0,
        nodes=(),
    )
    store.append(9.0, [ev.Woke()], [], changes=[ended])
    assert store.jobs.get("a") == row(
        "a",
        seq=1,
        folder="0" * 64,
        status="FAILED",
        stage="training",
        reason_code="error",
        reason_text="exit code 3",
        attempt=1,
        started_at=2.5,
        ended_at=9.0,
        exit_code=3,
        progress=run,
    )
    assert store.jobs.get("b") == row("b", seq=2, folder="0" * 64)
    assert store.jobs.get("c") is None
    story = store.jobs.transitions("a")
    assert [(move.at, move.status, move.reason_code) for move in story] == [
        (1.0, "QUEUED", "ok"),
        (2.0, "DOWNLOADING", "ok"),
        (2.5, "PROCESSING", "ok"),
        (9.0, "FAILED", "error"),
    ]
    assert story[-1].reason_text == "exit code 3"
    everything = store.jobs.transitions_since(0)
    assert [move.job for move in everything] == ["a", "b", "a", "a", "a"]
    assert [move.number for move in everything] == [1, 2, 3, 4, 5]
    assert list(store.jobs.transitions_since(4)) == [story[-1]]
    assert store.jobs.last_transition() == 5
    assert store.jobs.count_by_status() == {"QUEUED": 1, "FAILED": 1}


def test_listing_in_pages(store: SqlStore) -> None:
    for i in range(7):
        owner, team = ("ann", "x") if i % 2 else ("bob", "y")
        submit(store, f"j{i}", owner=owner, team=team, queue=f"q{i % 3}")
    store.append(2.0, [], [], changes=[JobChange(job="j3", at=2.0, status="COMPLETED")])
    first = store.jobs.list(limit=3)
    assert [job.id for job in first] == ["j6", "j5", "j4"]
    assert [job.id for job in store.jobs.list(limit=9, after=first[-1].seq)] == [
        "j3",
        "j2",
        "j1",
        "j0",
    ]
    assert first[0] == row("j6", owner="bob", team="y", queue="q0", seq=7, manifest=None)

    def ids(**wanted: Any) -> list[str]:
        return [job.id for job in store.jobs.list(**wanted)]

    assert ids(owner="ann") == ids(team="x") == ["j5", "j3", "j1"]
    assert ids(queue="q0") == ["j6", "j3", "j0"]
    assert ids(statuses=["COMPLETED"]) == ["j3"]
    assert ids(statuses=["COMPLETED", "QUEUED"], owner="ann", queue="q2") == ["j5"]
    assert ids(owner="eve") == []


def test_a_refused_append_leaves_no_row_of_any_kind(store: SqlStore) -> None:
    submit(store, "a")
    store.append(1.0, [ev.Woke()], [], lease=2)

    def append(lease: int, **more: Any) -> Callable[[], None]:
        rest: dict[str, Any] = {
            "jobs": [row("b")],
            "changes": [JobChange(job="a", at=2.0, status="COMPLETED")],
            "outbox": [Notification("a", "http://x", {})],
            "audit": [AuditEntry(2.0, "ann", "submit")],
        } | more
        return lambda: store.append(2.0, [submitted("b")], [], lease=lease, **rest)

    before = _all(store)
    for broken, error in [
        (append(1), StaleLease),
        (append(2, jobs=[row("a")]), InternalError),
        (append(2, changes=[JobChange(job="nobody", at=2.0, status="FAILED")]), InternalError),
        (append(2, jobs=[row("b", manifest={"x": object()})]), Exception),
    ]:
        with pytest.raises(error):
            broken()
        assert _all(store) == before
    append(2)()
    assert _all(store) != before
    assert store.jobs.get("b") == row("b", seq=2)


def _all(store: SqlStore) -> object:
    return (
        list(store.read()),
        store.position(),
        store.jobs.list(),
        store.jobs.transitions_since(0),
        store.outbox.due(1e9),
        store.audit.list(),
    )


def test_a_step_whose_commit_was_not_confirmed_is_not_written_twice(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database committed, and the connection broke before it could say so."""
    write = Database.write

    @contextmanager
    def unconfirmed(database: Database) -> Iterator[Connection]:
        with write(database) as connection:
            yield connection
        raise StoreUnavailable("the connection broke")

    submit(store, "a")
    arguments: dict[str, Any] = {"jobs": [row("b")], "audit": [AuditEntry(2.0, "ann", "submit")]}
    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", unconfirmed)
        with pytest.raises(StoreUnavailable):
            store.append(2.0, [submitted("b")], [], **arguments)
    after = _all(store)
    store.append(2.0, [submitted("b")], [], **arguments)
    assert _all(store) == after
    store.append(2.0, [submitted("b")], [])  # the same once more is a step of its own
    assert store.position() == 3
    change = [JobChange(job="b", at=3.0, status="COMPLETED")]
    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", unconfirmed)
        with pytest.raises(StoreUnavailable):
            store.append(3.0, [], [], changes=change)
    store.append(3.0, [], [], changes=change)
    assert [move.status for move in store.jobs.transitions("b")] == ["QUEUED", "COMPLETED"]


def test_a_step_that_was_not_committed_is_written_when_it_comes_again(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise StoreUnavailable("the connection broke")

    with monkeypatch.context() as patch:
        patch.setattr("presage.store.sql._project", broken)
        with pytest.raises(StoreUnavailable):
            submit(store, "a")
    assert store.position() == 0
    submit(store, "a")
    assert list(store.read()) == [(1.0, submitted("a"))]
    assert store.jobs.get("a") == row("a", seq=1)


def test_text_that_no_database_takes(store: SqlStore) -> None:
    submit(store, "a")
    change = JobChange(
        job="a",
        at=2.0,
        status="FAILED",
        reason_text="\0 \ud800 Zoë",
        progress={"metrics": {"loss": float("nan"), "best": [float("inf"), 1.0]}},
    )
    store.append(2.0, [ev.StageChanged("a", 1, "\0\ud800")], [], changes=[change])
    job = store.jobs.get("a")
    assert job is not None
    assert job.reason_text == "\ufffd ? Zoë"
    assert job.progress == {"metrics": {"loss": None, "best": [None, 1.0]}}
    assert list(store.read(1)) == [(2.0, ev.StageChanged("a", 1, "\0\ud800"))]


def test_steps_are_read_as_they_were_appended(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presage.store.sql._CHUNK", 3)
    steps = [(float(i), (ev.Woke(),) * (i % 3 + 1), (ev.WakeAt(i + 1.0),)) for i in range(10)]
    for now, facts, decisions in steps:
        store.append(now, facts, decisions)
    assert list(store.read_steps()) == steps
    assert list(store.read_steps(2)) == steps[1:]
    assert list(store.read_steps(3)) == steps[2:]
    events = [(now, event) for now, facts, decisions in steps for event in (*facts, *decisions)]
    for since in range(len(events) + 1):
        assert list(store.read(since)) == events[since:]


def test_a_snapshot_replaces_the_older_ones(store: SqlStore) -> None:
    for i in range(4):
        store.append(float(i), [ev.Woke()], [], lease=1)
        store.save_snapshot(i + 1, float(i), {"events": i + 1}, lease=1)
    assert store.load_snapshot() == (4, {"events": 4})
    store.save_snapshot(4, 9.0, {"events": "four"}, lease=1)
    assert store.load_snapshot() == (4, {"events": "four"})
    with pytest.raises(InternalError, match="a snapshot of 5 events, but there are 4"):
        store.save_snapshot(5, 9.0, {}, lease=1)
    with pytest.raises(StaleLease):
        store.save_snapshot(4, 9.0, {})


def test_a_start_does_not_grow_with_history(tmp_path: Path) -> None:
    """10,000 jobs in the journal, 500 of them alive: a snapshot, and what came after it."""
    url = f"sqlite:///{tmp_path / 'presage.db'}"
    store, state = open_store(url), State()
    for turn in range(100):
        names = [f"j{turn * 100 + i}" for i in range(100)]
        facts: list[ev.Fact] = [submitted(name) for name in names]
        facts += [ev.CancelRequested(name) for name in names[:95]]
        store.append(float(turn), facts, [], jobs=[row(name) for name in names])
        for fact in facts:
            state.apply(float(turn), fact)
        if turn == 97:
            store.save_snapshot(store.position(), state.now, state.snapshot())
    store.close()
    store = open_store(url)
    found = store.load_snapshot()
    assert found is not None
    later = list(store.read(found[0]))
    assert len(later) == 2 * 195  # those of two turns, not of a hundred
    again = fold(later, State.restore(found[1]))
    assert len(again.jobs) == 500
    assert again.snapshot() == state.snapshot()
    store.close()


def test_readers_and_other_writers_beside_the_deciding_loop(store: SqlStore) -> None:
    done = threading.Event()
    troubles: list[BaseException] = []

    def beside(work: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                work()
        except BaseException as error:
            troubles.append(error)

    def consistent() -> None:
        last = store.jobs.list(limit=1)
        assert not last or store.jobs.transitions(last[0].id)
        assert store.position() <= len(list(store.read()))

    def note() -> None:
        store.audit.add(AuditEntry(1.0, "ann", "look"))

    threads = [threading.Thread(target=beside, args=(work,)) for work in (consistent, note)]
    for thread in threads:
        thread.start()
    for i in range(40):
        submit(store, f"a{i}", f"b{i}")
    done.set()
    for thread in threads:
        thread.join()
    assert not troubles
    assert store.position() == 80


def test_nothing_is_kept_in_memory_for_jobs_that_are_over(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'presage.db'}")

    def hundred(first: int) -> None:
        names = [f"j{first + i}" for i in range(100)]
        done = [JobChange(job=name, at=2.0, status="COMPLETED") for name in names]
        store.append(
            1.0,
            [submitted(name) for name in names],
            [],
            jobs=[row(name) for name in names],
            changes=done,
        )

    hundred(0)
    tracemalloc.start()
    hundred(100)
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for i in range(2, 12):
        hundred(i * 100)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    store.close()
    assert after - before < 32 << 10  # 32 bytes a job


def test_sqlite_is_set_up_to_keep_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "presage.db"
    store = open_store(f"sqlite:///{path}")
    with store._database.write() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 10_000
    assert path.stat().st_mode & 0o777 == 0o600
    store.close()


def test_a_lock_that_somebody_keeps_is_waited_for_and_then_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presage.store.database._PATIENCE_S", 0.05)
    path = tmp_path / "presage.db"
    store = open_store(f"sqlite:///{path}")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"presage.db is unavailable: database is locked"):
        submit(store, "a")
    assert list(store.read()) == []  # readers are not held up
    other.execute("ROLLBACK")
    other.close()
    submit(store, "a")
    assert store.position() == 1
    store.close()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "sqlite://", "sqlite:///:memory:", "mysql://x/y", "sqlite+aio:///x"]
)
def test_an_address_that_makes_no_sense(url: str) -> None:
    with pytest.raises(UserError, match="sqlite:///PATH"):
        open_store(url)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary,\n" * 400)
    with pytest.raises(UserError, match=r"notes\.txt is damaged or no database"):
        open_store(f"sqlite:///{path}")
    assert path.read_text() == "Dear diary,\n" * 400
    with pytest.raises(UserError, match="No such file or directory"):
        open_store(f"sqlite:///{tmp_path / 'absent' / 'presage.db'}")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "presage.store.sql")
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(Exception, match=r"pip install 'presage\[server\]'"):
        open_store("sqlite:///x")


def test_every_table_and_column_is_documented(root: Path) -> None:
    text = (root / "docs" / "reference" / "store.md").read_text(encoding="utf-8")
    sections = {
        name: part
        for part in text.split("\n**")[1:]
        for name in re.findall(r"`(\w+)`", part.split(":")[0])
    }
    assert set(sections) - {"alembic_version"} == set(metadata.tables)
    for table in metadata.tables.values():
        named = set(re.findall(r"[`.](\w+)`", sections[table.name]))
        assert not {column.name for column in table.columns} - named, table.name
