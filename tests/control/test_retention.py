"""What goes and what stays of jobs that are over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from presage.control.records.retention import KeepRule, Retention
from presage.layout import Layout
from presage.model import event as ev
from presage.model.job import JobSpec, Role
from presage.store import open_store
from presage.store.records import JobChange, JobRow
from presage.store.sql import SqlStore

DAY = 86_400.0
NOW = 1_000 * DAY


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    store = open_store(f"sqlite:///{tmp_path}/presage.db")
    yield store
    store.close()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path / "data")
    layout.prepare()
    return layout


def _job(
    store: SqlStore,
    layout: Layout,
    name: str,
    *,
    days: float,
    status: str = "COMPLETED",
    folder: str | None = None,
    size: int = 1000,
) -> None:
    """A job that ended so many days ago, with files of every kind."""
    at = NOW - days * DAY
    number = store.lease.acquire(f"s{name}", "", 0.0)
    assert number is not None
    row = JobRow(id=name, name=name, owner="ada", submitted_at=at, manifest={}, folder=folder)
    ended = at if status in ("COMPLETED", "FAILED", "CANCELLED") else None
    change = JobChange(job=name, at=at, status=status, ended_at=ended)
    fact = ev.JobSubmitted(JobSpec(name, (Role(),)))
    store.append(at, [fact], [], lease=number, jobs=[row], changes=[change])
    for place in (
        layout.log(name, 1, "worker-0"),
        layout.results(name) / "model.pt",
        layout.telemetry(name, 1),
        layout.checkpoints(name) / "state",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(bytes(size))
    if folder is not None:
        layout.folder(folder).write_bytes(bytes(size))
        os.utime(layout.folder(folder), (at, at))


def _has(layout: Layout, name: str) -> set[str]:
    places = {
        "logs": layout.all_logs(name),
        "results": layout.results(name),
        "telemetry": layout.all_telemetry(name),
        "checkpoints": layout.checkpoints(name),
    }
    return {kind for kind, path in places.items() if path.exists()}


ALL = {"logs", "results", "telemetry", "checkpoints"}


def test_what_is_too_old_goes_kind_by_kind(store: SqlStore, layout: Layout) -> None:
    _job(store, layout, "old", days=40)
    _job(store, layout, "new", days=5)
    _job(store, layout, "runs", days=90, status="PROCESSING")
    rules = {"logs": KeepRule(30 * DAY), "results": KeepRule(60 * DAY), "telemetry": KeepRule(0)}
    freed = Retention(layout, store, rules).sweep(NOW)
    assert _has(layout, "old") == {"results", "checkpoints"}
    assert _has(layout, "new") == {"logs", "results", "checkpoints"}
    assert _has(layout, "runs") == ALL  # whatever its age
    assert freed == {"logs": 1000, "telemetry": 2000}
    said = [(entry.who, entry.what, dict(entry.detail)) for entry in store.audit.list()]
    assert said == [
        ("presage", "retention", {"kind": "telemetry", "count": 2, "bytes": 2000}),
        ("presage", "retention", {"kind": "logs", "count": 1, "bytes": 1000}),
    ]
    assert Retention(layout, store, rules).sweep(NOW) == {}


def test_of_what_is_too_much_the_oldest_goes(store: SqlStore, layout: Layout) -> None:
    for days in (1, 2, 3, 4):
        _job(store, layout, f"d{days}", days=days)
    Retention(layout, store, {"results": KeepRule(most_bytes=2500)}).sweep(NOW)
    kept = [f"d{days}" for days in (1, 2, 3, 4) if "results" in _has(layout, f"d{days}")]
    assert kept == ["d1", "d2"]


def test_a_work_folder_stays_while_a_job_needs_it(store: SqlStore, layout: Layout) -> None:
    _job(store, layout, "over", days=40, folder="a" * 64)
    _job(store, layout, "also-over", days=40, folder="b" * 64)
    _job(store, layout, "waits", days=40, status="QUEUED", folder="a" * 64)
    _job(store, layout, "halted", days=40, status="HALTED", folder="c" * 64)
    layout.folder("d" * 64).write_bytes(b"just uploaded")
    os.utime(layout.folder("d" * 64), (NOW, NOW))
    Retention(layout, store, {"folders": KeepRule(0.0, 0)}).sweep(NOW)
    assert sorted(path.name[0] for path in layout.folders.iterdir()) == ["a", "c", "d"]


def test_removal_by_hand(store: SqlStore, layout: Layout) -> None:
    _job(store, layout, "one", days=2, folder="a" * 64)
    _job(store, layout, "two", days=1, folder="a" * 64)
    forgotten: list[str] = []
    keeper = Retention(layout, store, {}, forgotten.append)
    one, two = (store.jobs.get(name) for name in ("one", "two"))
    assert one is not None
    assert two is not None
    assert [job.bytes for job in keeper.measure([one])] == [4000]  # the folder is two's as well
    assert [job.bytes for job in keeper.measure([one, two])] == [5000, 4000]
    keeper.remove([one], "ada", NOW)
    assert not layout.job("one").exists()
    assert layout.folder("a" * 64).exists()
    assert [row.id for row in store.jobs.list()] == ["two"]
    gone = store.jobs.get("one")
    assert gone is not None
    assert (gone.removed_at, gone.status) == (NOW, "COMPLETED")
    keeper.remove([two], "ada", NOW)
    assert not layout.folder("a" * 64).exists()
    assert forgotten == ["one", "two"]
    assert len(list(store.read())) == 2  # the journal keeps the facts
    assert [(entry.who, entry.what, entry.job) for entry in store.audit.list()] == [
        ("ada", "remove", "two"),
        ("ada", "remove", "one"),
    ]


def test_what_a_crash_left_half_removed_goes_at_the_next_sweep(
    store: SqlStore, layout: Layout
) -> None:
    (layout.trash / "x").mkdir(parents=True)
    (layout.trash / "x" / "half").write_text("")
    Retention(layout, store, {}).sweep(NOW)
    assert not layout.trash.exists()
