"""Users changed straight in a server's database: the way back in when no token is left.

Whoever may write that database may do so: that is the server's own Unix user, or root. A server
that runs meanwhile hears of it within seconds. The rules are those of `auth.Accounts`; the audit
log says that it was done offline. Opens no port and asks no server.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from presage.control.people.accounts import Accounts
from presage.layout import Layout
from presage.model.errors import UserError
from presage.model.server_answers import NewUser, UserInfo
from presage.store import open_store
from presage.store.records import User

__all__ = ["OfflineUsers"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


class OfflineUsers:
    """The users of one database, as `Client` offers those of a server."""

    def __init__(self, data: Path | None, db: str | None, *, by: str) -> None:
        if db is None:
            assert data is not None
            database = Layout(data.expanduser().absolute()).database
            if not database.is_file():
                raise UserError(
                    f"there is no database {database}: name the --data of the server, or with "
                    "--db the database that it was started with"
                )
            db = f"sqlite:///{database}"
        self._store = open_store(db)
        self._accounts = Accounts(self._store.users)
        self._by = by

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def users(self) -> list[UserInfo]:
        """Everybody."""
        return [_info(user) for user in self._accounts.all()]

    def add_user(self, name: str, role: str, team: str = "") -> NewUser:
        """Let somebody in."""
        for text in (name, *filter(None, (team,))):
            _check(text)
        return NewUser(name, role, team, self._accounts.add(name, role, team, by=self._by))

    def set_user(self, name: str, *, role: str | None = None, team: str | None = None) -> UserInfo:
        """Give somebody another role or team."""
        if team:
            _check(team)
        return _info(self._accounts.set(name, role, team, by=self._by))

    def new_token(self, name: str, *, keep: bool = False) -> NewUser:
        """A new token for somebody."""
        user, token = self._accounts.new_token(name, keep=keep, by=self._by)
        return NewUser(user.name, user.role, user.team, token)

    def remove_user(self, name: str) -> UserInfo:
        """Take somebody's access away."""
        return _info(self._accounts.remove(name, by=self._by))


def _info(user: User) -> UserInfo:
    return UserInfo(user.name, user.role, user.team, user.created_at)


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{name[:80]!r} is no name: use at most 63 lower-case letters, digits, '-', '.' and "
            "'_', with a letter or digit first"
        )
