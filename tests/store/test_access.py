"""Users, tokens and the audit log."""

from __future__ import annotations

import pytest

from presage.model import event as ev
from presage.model.errors import InternalError
from presage.store.records import AuditEntry, Token, User
from presage.store.sql import SqlStore

ANN = User("ann", "admin", "x", 1.0)
BOB = User("bob", "user", "y", 2.0)


def test_users_and_their_tokens(store: SqlStore) -> None:
    store.users.put(BOB)
    store.users.put(ANN)
    assert list(store.users.all()) == [ANN, BOB]
    assert store.users.get("ann") == ANN
    assert store.users.get("eve") is None
    store.users.add_token(Token("d1", "ann", 3.0))
    store.users.add_token(Token("d2", "ann", 4.0))
    assert store.users.by_token("d1") == store.users.by_token("d2") == ANN
    assert store.users.by_token("d3") is None
    assert store.users.revoke_token("d1", 5.0)
    assert not store.users.revoke_token("d1", 6.0)
    assert store.users.by_token("d1") is None
    assert list(store.users.tokens("ann")) == [
        Token("d1", "ann", 3.0, 5.0),
        Token("d2", "ann", 4.0),
    ]


def test_a_user_who_changes_and_goes(store: SqlStore) -> None:
    store.users.put(ANN)
    store.users.add_token(Token("d1", "ann", 3.0))
    store.users.put(User("ann", "viewer", "z", 9.0))
    assert store.users.by_token("d1") == User("ann", "viewer", "z", 1.0)
    assert store.users.remove("ann")
    assert not store.users.remove("ann")
    assert store.users.by_token("d1") is None
    assert list(store.users.tokens("ann")) == []
    with pytest.raises(InternalError):
        store.users.add_token(Token("d2", "ann", 4.0))


def test_the_audit_log(store: SqlStore) -> None:
    store.audit.add(AuditEntry(1.0, "ann", "user.add", detail={"name": "bob"}))
    store.append(2.0, [ev.Woke()], [], audit=[AuditEntry(2.0, "bob", "job.submit", "j1")])
    store.append(3.0, [], [], audit=[AuditEntry(3.0, "bob\0", "job.stop", "j1")])
    newest = store.audit.list(limit=2)
    assert [(entry.who, entry.what, entry.job) for entry in newest] == [
        ("bob\ufffd", "job.stop", "j1"),
        ("bob", "job.submit", "j1"),
    ]
    (oldest,) = store.audit.list(before=newest[-1].number)
    assert oldest == AuditEntry(1.0, "ann", "user.add", "", {"name": "bob"}, oldest.number)
    assert list(store.audit.list(job="j1")) == list(newest)
