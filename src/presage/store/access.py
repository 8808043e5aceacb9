"""Who may do something, and who did what. The digest of a token is all that is ever kept of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select, text, update

from presage.store.database import Database
from presage.store.records import AuditEntry, Token, User
from presage.store.tables import audit, tokens, users

__all__ = ["AuditLog", "UserChanges", "Users"]


class Users:
    """Users and their tokens, read from any thread; changed in `changing`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def changing(self) -> Iterator[UserChanges]:
        """One transaction; whoever else wants to change users waits until it is over. So a rule
        about all of them (there is an admin) that held inside still holds afterwards."""
        with self._database.write() as connection:
            if not self._database.is_sqlite:  # SQLite has one writer at a time anyway
                connection.execute(text("LOCK TABLE users IN SHARE ROW EXCLUSIVE MODE"))
            yield UserChanges(connection)

    def get(self, name: str) -> User | None:
        """A user by name."""
        with self._database.read() as connection:
            return _user(connection, users.c.name == name)

    def all(self) -> Sequence[User]:
        """Every user, by name."""
        with self._database.read() as connection:
            return _everybody(connection)

    def tokens(self, name: str) -> Sequence[Token]:
        """The tokens of a user, oldest first, the revoked ones too."""
        query = select(tokens).where(tokens.c.user == name).order_by("created_at", "digest")
        with self._database.read() as connection:
            return [Token(*row) for row in connection.execute(query)]

    def by_token(self, digest: str, now: float) -> User | None:
        """Who a token lets in; None when it is unknown, revoked or too old."""
        query = (
            select(users)
            .join(tokens, tokens.c.user == users.c.name)
            .where(
                tokens.c.digest == digest,
                tokens.c.revoked_at.is_(None),
                or_(tokens.c.expires_at.is_(None), tokens.c.expires_at > now),
            )
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else User(*row)


class UserChanges:
    """What can be done to users within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self, name: str) -> User | None:
        """A user by name."""
        return _user(self._connection, users.c.name == name)

    def by_subject(self, subject: str) -> User | None:
        """A user by what an identity provider knows them under."""
        return _user(self._connection, users.c.subject == subject)

    def all(self) -> Sequence[User]:
        """Every user, by name."""
        return _everybody(self._connection)

    def put(self, user: User) -> None:
        """Add a user, or change the role and the team of one."""
        changed = self._connection.execute(
            update(users).where(users.c.name == user.name).values(role=user.role, team=user.team)
        )
        if not changed.rowcount:
            self._connection.execute(insert(users), asdict(user))

    def remove(self, name: str) -> bool:
        """Remove a user with all tokens; False when there was none."""
        gone = self._connection.execute(delete(users).where(users.c.name == name))
        return gone.rowcount == 1

    def add_token(self, token: Token) -> None:
        """Let a user in with one more token."""
        self._connection.execute(insert(tokens), asdict(token))

    def revoke_token(self, digest: str, at: float) -> bool:
        """Let nobody in with a token any more; False when nobody was."""
        gone = self._connection.execute(
            update(tokens)
            .where(tokens.c.digest == digest, tokens.c.revoked_at.is_(None))
            .values(revoked_at=at)
        )
        return gone.rowcount == 1

    def revoke_tokens(self, name: str, at: float) -> int:
        """Let nobody in with the tokens that a user has so far; says how many were good."""
        gone = self._connection.execute(
            update(tokens)
            .where(tokens.c.user == name, tokens.c.revoked_at.is_(None))
            .values(revoked_at=at)
        )
        return gone.rowcount

    def note(self, entry: AuditEntry) -> None:
        """Add to the audit log, with the change or not at all."""
        self._connection.execute(insert(audit), audit_row(entry))


def _user(connection: Connection, which: ColumnElement[bool]) -> User | None:
    row = connection.execute(select(users).where(which)).first()
    return None if row is None else User(*row)


def _everybody(connection: Connection) -> Sequence[User]:
    return [User(*row) for row in connection.execute(select(users).order_by("name"))]


class AuditLog:
    """The audit log: what a turn did is written by `SqlStore.append`, everything else here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entry: AuditEntry) -> None:
        """Note something that was done outside a turn of the deciding loop."""
        with self._database.write() as connection:
            connection.execute(insert(audit), audit_row(entry))

    def latest(self, what: str) -> AuditEntry | None:
        """The last time that this was done."""
        query = select(audit).where(audit.c.what == what).order_by(audit.c.number.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else AuditEntry(**row._mapping)

    def list(
        self,
        *,
        job: str | None = None,
        who: str | None = None,
        limit: int = 100,
        before: int | None = None,
    ) -> Sequence[AuditEntry]:
        """Entries, newest first; `before` is the number of the last one on the page before."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit)
        if job is not None:
            query = query.where(audit.c.job == job)
        if who is not None:
            query = query.where(audit.c.who == who)
        if before is not None:
            query = query.where(audit.c.number < before)
        with self._database.read() as connection:
            return [AuditEntry(**row._mapping) for row in connection.execute(query)]


def audit_row(entry: AuditEntry) -> dict[str, object]:
    """An entry as the columns of its row; the database numbers it."""
    return {
        "at": entry.at,
        "who": entry.who,
        "what": entry.what,
        "job": entry.job,
        "detail": entry.detail,
    }
