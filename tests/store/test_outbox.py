"""Messages that are sent until they arrive."""

from __future__ import annotations

from presage.model import event as ev
from presage.store.records import Notification
from presage.store.sql import SqlStore

FIRST = Notification("a", "http://x/hook", {"status": "COMPLETED"})
SECOND = Notification("a", "http://y/hook", {"status": "COMPLETED"})


def test_a_message_is_due_until_it_arrives(store: SqlStore) -> None:
    store.append(10.0, [ev.Woke()], [], outbox=[FIRST, SECOND])
    assert list(store.outbox.due(9.9)) == []
    first, second = store.outbox.due(10.0)
    assert (first.message, first.attempts) == (FIRST, 0)
    assert second.message == SECOND
    store.outbox.delivered(second.id, 11.0)
    store.outbox.postpone(first.id, 20.0)
    assert list(store.outbox.due(19.9)) == []
    (again,) = store.outbox.due(20.0)
    assert (again.id, again.message, again.attempts) == (first.id, FIRST, 1)
    store.outbox.delivered(again.id, 21.0)
    assert list(store.outbox.due(1e9)) == []


def test_a_message_can_be_given_up(store: SqlStore) -> None:
    store.append(10.0, [ev.Woke()], [], outbox=[FIRST])
    store.outbox.postpone(store.outbox.due(10.0)[0].id, None)
    assert list(store.outbox.due(1e9)) == []


def test_what_arrived_long_ago_is_forgotten(store: SqlStore) -> None:
    store.append(10.0, [ev.Woke()], [], outbox=[FIRST, SECOND, FIRST])
    for delivery, at in zip(store.outbox.due(10.0), (20.0, 30.0), strict=False):
        store.outbox.delivered(delivery.id, at)
    assert store.outbox.forget(30.0) == 1
    assert store.outbox.forget(31.0) == 1
    assert len(store.outbox.due(10.0)) == 1
