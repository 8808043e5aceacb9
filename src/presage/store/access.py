"""Who may do something, and who did what. The digest of a token is all that is ever kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import delete, insert, select, update

from presage.store.database import Database
from presage.store.records import AuditEntry, Token, User
from presage.store.tables import audit, tokens, users

__all__ = ["AuditLog", "Users"]


class Users:
    """Users and their tokens; from any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, user: User) -> None:
        """Add a user, or change the role and the team of one."""
        with self._database.write() as connection:
            changed = connection.execute(
                update(users)
                .where(users.c.name == user.name)
                .values(role=user.role, team=user.team)
            )
            if not changed.rowcount:
                connection.execute(insert(users), asdict(user))

    def get(self, name: str) -> User | None:
        """A user by name."""
        with self._database.read() as connection:
            row = connection.execute(select(users).where(users.c.name == name)).first()
        return None if row is None else User(*row)

    def all(self) -> Sequence[User]:
        """Every user, by name."""
        with self._database.read() as connection:
            return [User(*row) for row in connection.execute(select(users).order_by("name"))]

    def remove(self, name: str) -> bool:
        """Remove a user with all tokens; False when there was none."""
        with self._database.write() as connection:
            gone = connection.execute(delete(users).where(users.c.name == name))
            return gone.rowcount == 1

    def add_token(self, token: Token) -> None:
        """Let a user in with one more token."""
        with self._database.write() as connection:
            connection.execute(insert(tokens), asdict(token))

    def revoke_token(self, digest: str, at: float) -> bool:
        """Let nobody in with a token any more; False when nobody was."""
        with self._database.write() as connection:
            gone = connection.execute(
                update(tokens)
                .where(tokens.c.digest == digest, tokens.c.revoked_at.is_(None))
                .values(revoked_at=at)
            )
            return gone.rowcount == 1

    def tokens(self, name: str) -> Sequence[Token]:
        """The tokens of a user, oldest first, the revoked ones too."""
        query = select(tokens).where(tokens.c.user == name).order_by("created_at", "digest")
        with self._database.read() as connection:
            return [Token(*row) for row in connection.execute(query)]

    def by_token(self, digest: str) -> User | None:
        """Who a token lets in; None when it is unknown or revoked."""
        query = (
            select(users)
            .join(tokens, tokens.c.user == users.c.name)
            .where(tokens.c.digest == digest, tokens.c.revoked_at.is_(None))
        )
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else User(*row)


class AuditLog:
    """The audit log: what a turn did is written by `SqlStore.append`, everything else here."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, entry: AuditEntry) -> None:
        """Note something that was done outside a turn of the deciding loop."""
        with self._database.write() as connection:
            connection.execute(insert(audit), audit_row(entry))

    def list(
        self, *, job: str | None = None, limit: int = 100, before: int | None = None
    ) -> Sequence[AuditEntry]:
        """Entries, newest first; `before` is the number of the last one on the page before."""
        query = select(audit).order_by(audit.c.number.desc()).limit(limit)
        if job is not None:
            query = query.where(audit.c.job == job)
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
