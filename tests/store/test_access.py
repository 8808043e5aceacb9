"""Users, tokens and the audit log."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

import pytest

from presage.control.people.accounts import Accounts
from presage.model import event as ev
from presage.model.errors import InternalError, UserError
from presage.store.records import AuditEntry, Token, User
from presage.store.sql import SqlStore

ANN = User("ann", "admin", "x", 1.0)
BOB = User("bob", "user", "y", 2.0)


def test_users_and_their_tokens(store: SqlStore) -> None:
    with store.users.changing() as changes:
        changes.put(BOB)
        changes.put(ANN)
        assert list(changes.all()) == [ANN, BOB]
        assert changes.get("ann") == ANN
    assert list(store.users.all()) == [ANN, BOB]
    assert store.users.get("ann") == ANN
    assert store.users.get("eve") is None
    with store.users.changing() as changes:
        for digest, at in (("d1", 3.0), ("d2", 4.0)):
            changes.add_token(Token(digest, "ann", at))
        changes.add_token(Token("d4", "bob", 4.0, None, 9.0))
    assert store.users.by_token("d1", 5.0) == store.users.by_token("d2", 5.0) == ANN
    assert store.users.by_token("d3", 5.0) is None
    assert [store.users.by_token("d4", at) for at in (8.0, 9.0)] == [BOB, None]
    with store.users.changing() as changes:
        assert changes.revoke_token("d1", 5.0)
        assert not changes.revoke_token("d1", 6.0)
    assert store.users.by_token("d1", 5.0) is None
    assert list(store.users.tokens("ann")) == [
        Token("d1", "ann", 3.0, 5.0),
        Token("d2", "ann", 4.0),
    ]
    with store.users.changing() as changes:
        assert changes.revoke_tokens("ann", 7.0) == 1
    assert [token.revoked_at for token in store.users.tokens("ann")] == [5.0, 7.0]


def test_a_user_who_changes_and_goes(store: SqlStore) -> None:
    with store.users.changing() as changes:
        changes.put(ANN)
        changes.add_token(Token("d1", "ann", 3.0))
        changes.put(User("ann", "viewer", "z", 9.0))
    assert store.users.by_token("d1", 4.0) == User("ann", "viewer", "z", 1.0)
    with store.users.changing() as changes:
        assert changes.remove("ann")
        assert not changes.remove("ann")
    assert store.users.by_token("d1", 4.0) is None
    assert list(store.users.tokens("ann")) == []
    with pytest.raises(InternalError), store.users.changing() as changes:
        changes.add_token(Token("d2", "ann", 4.0))


def test_a_change_of_users_is_whole_or_not_at_all(store: SqlStore) -> None:
    def half() -> None:
        with store.users.changing() as changes:
            changes.put(ANN)
            changes.note(AuditEntry(1.0, "ann", "add user"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()
    assert list(store.users.all()) == []
    assert list(store.audit.list()) == []


def test_of_two_admins_who_demote_each_other_at_once_one_stays(store: SqlStore) -> None:
    """Every round, both ask at the same moment, each in a thread and a connection of its own."""
    accounts = Accounts(store.users)
    accounts.add("ann", "admin", "", by="test")
    for _ in range(10):
        accounts.add("bob", "admin", "", by="test")
        gate = Barrier(2)

        def demote(name: str, gate: Barrier = gate) -> None:
            gate.wait()
            with suppress(UserError):
                accounts.set(name, "viewer", None, by="test")

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(demote, ("ann", "bob")))
        assert sum(user.role == "admin" for user in store.users.all()) == 1
        left = next(user.name for user in store.users.all() if user.role == "admin")
        with pytest.raises(UserError, match="is the only admin"):
            accounts.remove(left, by="test")
        accounts.set("ann", "admin", None, by="test")
        accounts.remove("bob", by="test")


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
