"""Who asks, and what that person may do.

Tokens are 256 random bits; only their SHA-256 is kept. Without any user, whoever reaches the
loopback address is the operator of this machine and may do everything.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from enum import StrEnum
from threading import Lock

from presage.model.errors import Denied, Unauthorized, UserError
from presage.store.access import Users
from presage.store.records import ArrayRow, JobRow, Token, User

__all__ = [
    "ANYBODY",
    "Accounts",
    "UserRole",
    "at_least",
    "digest_of",
    "may_change",
    "may_see",
    "require",
]


class UserRole(StrEnum):
    """What a user may do; each role may do what the one before it may."""

    VIEWER = "viewer"
    """Sees every job, changes nothing."""
    USER = "user"
    """Submits; sees the jobs of the team, changes those that are the user's own."""
    OPERATOR = "operator"
    """Sees and changes every job; drains nodes."""
    ADMIN = "admin"
    """Makes and removes users, reads the audit log."""


ANYBODY = User("local", UserRole.ADMIN, "", 0.0)
"""The user of every request that reaches a server on loopback that has no users."""

_REMEMBERED_S = 2.0
"""How long a token is known without asking again: the longest a revoked one still works here."""
_MOST_REMEMBERED = 10_000


class Accounts:
    """Users and their tokens, with what each role allows."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._known: dict[str, tuple[float, User | None]] = {}
        self._any: tuple[float, bool] = (0.0, False)
        self._lock = Lock()

    # -- who ------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Whether there are no users, so that no token is needed."""
        until, empty = self._any
        if time.monotonic() >= until:
            empty = not self._users.all()
            self._any = (time.monotonic() + _REMEMBERED_S, empty)
        return empty

    def remembers(self, header: str | None) -> bool:
        """Whether `whose` can tell without the database."""
        now = time.monotonic()
        until, empty = self._any
        if now >= until:
            return False
        if empty:
            return True
        cached = self._known.get(digest_of(_token(header)))
        return cached is not None and now < cached[0]

    def whose(self, header: str | None) -> User:
        """The user behind an Authorization header; raises Unauthorized."""
        if self.open():
            return ANYBODY
        token = _token(header)
        if not token:
            raise Unauthorized("give a token: Authorization: Bearer …, or set PRESAGE_TOKEN")
        user = self._lookup(digest_of(token))
        if user is None:
            raise Unauthorized("this token is not known or was revoked")
        return user

    def _lookup(self, digest: str) -> User | None:
        now = time.monotonic()
        cached = self._known.get(digest)
        if cached is not None and now < cached[0]:
            return cached[1]
        user = self._users.by_token(digest)
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[digest] = (now + _REMEMBERED_S, user)
        return user

    # -- making users ---------------------------------------------------------------------------

    def add(self, name: str, role: str, team: str, token: str | None = None) -> str:
        """Make a user, or give one a new role and token; returns the token."""
        if role not in list(UserRole):
            raise UserError(f"role '{role}' is not known; there are {', '.join(UserRole)}")
        if self.open() and role != UserRole.ADMIN:
            raise UserError("the first user must be an admin: nobody could make others else")
        now = time.time()
        token = token or "presage_" + secrets.token_urlsafe(32)
        before = self._users.get(name)
        for old in self._users.tokens(name) if before else ():
            self._users.revoke_token(old.digest, now)
        self._users.put(User(name, role, team, before.created_at if before else now))
        self._users.add_token(Token(digest_of(token), name, now))
        self.forget()
        return token

    def remove(self, name: str) -> bool:
        """Remove a user and all tokens; the last admin stays."""
        user = self._users.get(name)
        if user is None:
            return False
        others = [other for other in self._users.all() if other.name != name]
        if others and not any(other.role == UserRole.ADMIN for other in others):
            raise UserError(f"{name} is the only admin; make another one first")
        gone = self._users.remove(name)
        self.forget()
        return gone

    def all(self) -> list[User]:
        """Every user."""
        return list(self._users.all())

    def forget(self) -> None:
        """Ask the database again from now on."""
        with self._lock:
            self._known.clear()
        self._any = (0.0, False)


def _token(header: str | None) -> str:
    scheme, _, token = (header or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def digest_of(token: str) -> str:
    """What is kept of a token. It is random, so a plain hash cannot be guessed back."""
    return hashlib.sha256(token.encode()).hexdigest()


_RANK = {role: rank for rank, role in enumerate(UserRole)}


def at_least(user: User, role: UserRole) -> bool:
    """Whether a user's role is this one or a higher one."""
    return user.role in _RANK and _RANK[UserRole(user.role)] >= _RANK[role]


def require(user: User, role: UserRole) -> None:
    """Raise Denied unless the user's role is this one or a higher one."""
    if not at_least(user, role):
        raise Denied(f"this needs the role {role}; {user.name} is a {user.role}")


def may_see(user: User, row: JobRow | ArrayRow) -> bool:
    """Whether a user may know of a job or an array."""
    if user.role != UserRole.USER:
        return True
    return row.owner == user.name or (bool(user.team) and row.team == user.team)


def may_change(user: User, row: JobRow | ArrayRow) -> bool:
    """Whether a user may stop, halt or resume a job."""
    if at_least(user, UserRole.OPERATOR):
        return True
    return user.role == UserRole.USER and row.owner == user.name
