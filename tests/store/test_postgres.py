"""PostgreSQL that goes away and comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from presage.model import event as ev
from presage.model.errors import StoreUnavailable, UserError
from presage.store import open_store
from presage.store.records import JobRow
from presage.store.sql import SqlStore
from presage.testing.stores import PostgresCluster
from tests.waiting import eventually

pytestmark = pytest.mark.engine


@pytest.fixture
def cluster(postgres: PostgresCluster) -> Iterator[PostgresCluster]:
    """The server, running again when the test is over."""
    yield postgres
    postgres.stop()
    postgres.start()


def append(store: SqlStore, number: int) -> None:
    job = JobRow(id=f"j{number}", name="n", owner="ann", submitted_at=0.0, manifest={})
    store.append(float(number), [ev.Woke()], [ev.WakeAt(number + 1.0)], jobs=[job])


def stubborn(store: SqlStore, number: int) -> int:
    """Append one step until it is written, as the deciding loop does; how often it failed."""
    failures = 0

    def written() -> bool:
        nonlocal failures
        try:
            append(store, number)
        except StoreUnavailable:
            failures += 1
            return False
        return True

    eventually(written)
    return failures


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_restart_under_load_loses_nothing_and_doubles_nothing(
    cluster: PostgresCluster, how: str
) -> None:
    store = open_store(cluster.new_database())
    done = threading.Event()
    acknowledged: list[int] = []
    failures = 0

    def load() -> None:
        nonlocal failures
        while not done.is_set():
            failures += stubborn(store, len(acknowledged))
            acknowledged.append(len(acknowledged))

    writer = threading.Thread(target=load)
    writer.start()
    try:
        for _ in range(3):
            wanted = len(acknowledged) + 20
            eventually(lambda wanted=wanted: len(acknowledged) >= wanted)  # type: ignore[misc]
            cluster.stop(how=how)
            cluster.start()
    finally:
        done.set()
        writer.join()
    assert failures
    assert len(acknowledged) >= 60
    assert [now for now, _, _ in store.read_steps()] == acknowledged
    rows = store.jobs.list(limit=len(acknowledged) + 9)
    assert [row.id for row in reversed(rows)] == [f"j{number}" for number in acknowledged]
    store.close()


def test_while_it_is_away_every_call_says_so(cluster: PostgresCluster) -> None:
    url = cluster.new_database()
    store = open_store(url)
    append(store, 0)
    cluster.stop()
    try:
        with pytest.raises(StoreUnavailable, match="is unavailable: "):
            append(store, 1)
        with pytest.raises(StoreUnavailable):
            store.jobs.list()
        with pytest.raises(StoreUnavailable):
            store.lease.renew(1, 1.0)
        with pytest.raises(StoreUnavailable):
            open_store(url)
    finally:
        cluster.start()
    append(store, 1)
    assert store.position() == 4
    store.close()


def test_a_password_is_not_told(postgres: PostgresCluster) -> None:
    url = f"postgresql://presage:hunter2@/absent?host={postgres.directory}"
    with pytest.raises(StoreUnavailable) as told:
        open_store(url)
    assert "hunter2" not in str(told.value)
    assert "absent" in str(told.value)
    with pytest.raises(UserError, match="the database must be"):
        open_store("postgresql+asyncpg://presage:hunter2@/x")


def test_two_servers_that_start_at_once_migrate_once(postgres: PostgresCluster) -> None:
    url = postgres.new_database()
    stores: list[SqlStore] = []
    threads = [threading.Thread(target=lambda: stores.append(open_store(url))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(stores) == 3
    append(stores[0], 0)
    assert stores[2].position() == 2
    for store in stores:
        store.close()
