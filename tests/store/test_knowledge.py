"""What was learned, in a database: it survives, and only who leads writes."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from presage.core.ports import Entry
from presage.model.errors import InternalError, StaleLease
from presage.store import open_store
from presage.store.sql import SqlStore


def test_another_server_reads_what_the_first_wrote(database_url: str) -> None:
    first = open_store(database_url)
    first.knowledge.write(Entry("a", b"1"), *(Entry("log", b"%d" % n, 2) for n in range(4)))
    second = open_store(database_url)
    first.close()
    assert second.knowledge.get("a") == b"1"
    assert second.knowledge.tail("log", 9) == [b"2", b"3"]
    second.close()


def test_a_write_is_whole_or_not_at_all(store: SqlStore) -> None:
    with pytest.raises(InternalError, match="refused a row"):
        store.knowledge.write(Entry("a", b"1"), Entry("b", None))  # type: ignore[arg-type]
    assert store.knowledge.get("a") is None


def test_a_former_leader_writes_nothing(store: SqlStore) -> None:
    lease: int | None = store.lease.acquire("a", "", 1.0, now=0.0)
    mine = store.knowledge.under(lambda: lease)
    mine.write(Entry("a", b"mine"))
    assert store.lease.acquire("b", "", 1.0, now=9.0) == 2
    with pytest.raises(StaleLease, match="lease 1 is over: lease 2"):
        mine.write(Entry("a", b"late"))
    lease = None
    with pytest.raises(StaleLease, match="does not lead"):
        mine.write(Entry("a", b"late"))
    assert store.knowledge.get("a") == b"mine"
    lease = 2
    mine.write(Entry("a", b"again"))
    assert mine.get("a") == b"again"


def test_nobody_takes_the_lease_in_the_middle_of_a_write(store: SqlStore) -> None:
    assert store.lease.acquire("a", "", 1.0, now=0.0) == 1
    taking = threading.Thread(target=store.lease.acquire, args=("b", "", 1.0, 9.0))

    def lease() -> int:
        """Is asked when the write has begun."""
        taking.start()
        taking.join(0.3)
        assert taking.is_alive()
        return 1

    store.knowledge.under(lease).write(Entry("a", b"in time"))
    taking.join()
    assert store.knowledge.get("a") == b"in time"
    assert store.lease.renew(2, 1.0, now=9.0)


def test_what_is_remembered_is_of_one_lease(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 1000.0
    now = SimpleNamespace(monotonic=lambda: clock)
    monkeypatch.setattr("presage.store.knowledge.time", now)
    lease: int | None = 7
    knowledge = store.knowledge.under(lambda: lease)
    assert knowledge.epoch == 7
    lease = None
    waiting = knowledge.epoch
    clock += 5.0
    assert knowledge.epoch == waiting  # what a standby shows may be some seconds old
    clock += 10.0
    assert knowledge.epoch not in (waiting, 7)
