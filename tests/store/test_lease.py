"""One leader at a time, and what becomes of it."""

from __future__ import annotations

import time

import pytest

from presage.model import event as ev
from presage.model.errors import StaleLease
from presage.store import open_store
from presage.store.records import Leader
from presage.store.sql import SqlStore


def test_one_at_a_time(store: SqlStore, database_url: str) -> None:
    other = open_store(database_url)
    assert store.lease.leader(now=100.0) is None
    assert store.lease.acquire("one", "http://1", 10.0, now=100.0) == 1
    assert other.lease.acquire("two", "http://2", 10.0, now=109.9) is None
    assert other.lease.leader(now=109.9) == Leader("one", "http://1", 1)
    assert store.lease.renew(1, 10.0, now=109.0)
    assert other.lease.acquire("two", "http://2", 10.0, now=118.9) is None
    assert other.lease.acquire("two", "http://2", 10.0, now=119.0) == 2
    assert not store.lease.renew(1, 10.0, now=119.0)
    store.lease.release(1)  # too late to matter
    assert store.lease.leader(now=120.0) == Leader("two", "http://2", 2)
    other.append(120.0, [ev.Woke()], [], lease=2)
    with pytest.raises(StaleLease):
        store.append(120.0, [ev.Woke()], [], lease=1)
    other.close()


def test_the_next_leader_is_fenced_in_before_it_writes(store: SqlStore) -> None:
    assert store.lease.acquire("one", "", 10.0, now=0.0) == 1
    store.append(0.0, [ev.Woke()], [], lease=1)
    assert store.lease.acquire("two", "", 10.0, now=11.0) == 2
    with pytest.raises(StaleLease, match="lease 1 is over: lease 2"):
        store.append(11.0, [ev.Woke()], [], lease=1)
    assert store.position() == 1


def test_a_lease_that_is_over_still_writes_while_nobody_else_leads(store: SqlStore) -> None:
    number = store.lease.acquire("one", "", 1.0, now=0.0)
    assert number is not None
    store.append(1e6, [ev.Woke()], [], lease=number)
    assert store.lease.leader(now=1e6) is None
    assert store.lease.renew(number, 1.0, now=1e6)


def test_a_server_takes_its_own_lease_again_after_a_crash(store: SqlStore) -> None:
    assert store.lease.acquire("one", "http://1", 1e6, now=0.0) == 1
    assert store.lease.acquire("one", "http://1b", 1e6, now=1.0) == 2
    assert store.lease.leader(now=2.0) == Leader("one", "http://1b", 2)


def test_a_lease_that_was_given_back_is_free(store: SqlStore) -> None:
    assert store.lease.acquire("one", "", 1e6, now=0.0) == 1
    store.lease.release(1)
    assert store.lease.leader(now=0.0) is None
    assert store.lease.acquire("two", "", 1.0, now=0.0) == 2


def test_without_a_time_the_database_says_it(store: SqlStore) -> None:
    assert store.lease.acquire("one", "", 60.0) == 1
    now = time.time()
    assert store.lease.leader(now=now + 30) is not None
    assert store.lease.leader(now=now + 90) is None
    assert store.lease.acquire("two", "", 60.0) is None
    assert store.lease.renew(1, 120.0)
    assert store.lease.leader(now=now + 90) is not None
    assert store.lease.leader() is not None
