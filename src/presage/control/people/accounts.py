"""Who asks, and what that person may do.

Tokens are 256 random bits; only their SHA-256 is kept. Without any user, whoever reaches the
loopback address is the operator of this machine and may do everything.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from threading import Lock

from presage.model.errors import Conflict, Denied, NotFound, Unauthorized, UserError
from presage.store.access import UserChanges, Users
from presage.store.records import ArrayRow, AuditEntry, JobRow, Token, User

__all__ = [
    "ANYBODY",
    "Accounts",
    "UserRole",
    "at_least",
    "digest_of",
    "may_change",
    "may_see",
    "require",
    "scope",
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
_HOW_TO_GET_IN = (
    "set PRESAGE_TOKEN, or store one with `presage login`; an admin makes one with "
    "`presage users token NAME`"
)


class Accounts:
    """Users and their tokens, with what each role allows."""

    def __init__(self, users: Users, *, closed: bool = False) -> None:
        self._users = users
        self._closed = closed
        """Whether nobody comes in without a token, even while there are no users."""
        self._known: dict[str, tuple[float, User | None]] = {}
        self._any: tuple[float, bool] = (0.0, False)
        self._lock = Lock()

    # -- who ------------------------------------------------------------------------------------

    def open(self) -> bool:
        """Whether there are no users, so that no token is needed."""
        until, empty = self._any
        if time.monotonic() >= until:
            empty = not self._closed and not self._users.all()
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
            raise Unauthorized(f"this server wants a token: {_HOW_TO_GET_IN}")
        user = self._lookup(digest_of(token))
        if user is None:
            raise Unauthorized(
                f"this token is not known, was revoked or has expired: {_HOW_TO_GET_IN}"
            )
        return user

    def _lookup(self, digest: str) -> User | None:
        now = time.monotonic()
        cached = self._known.get(digest)
        if cached is not None and now < cached[0]:
            return cached[1]
        user = self._users.by_token(digest, time.time())
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[digest] = (now + _REMEMBERED_S, user)
        return user

    # -- changing users -------------------------------------------------------------------------

    def add(self, name: str, role: str, team: str, token: str | None = None, *, by: str) -> str:
        """Make a user; returns the token. One that is there already is left as it is."""
        _check_role(role)
        token = token or _new_token()
        now = time.time()
        with self._changing() as changes:
            if changes.get(name) is not None:
                raise Conflict(
                    f"there is a user {name} already; for a new token: presage users token "
                    f"{name}; for another role or team: presage users set {name}"
                )
            if role != UserRole.ADMIN and not changes.all():
                raise UserError("the first user must be an admin: nobody could make others else")
            changes.put(User(name, role, team, now))
            changes.add_token(Token(digest_of(token), name, now))
            _note(changes, by, "add user", user=name, role=role, team=team)
        return token

    def set(self, name: str, role: str | None, team: str | None, *, by: str) -> User:
        """Give a user another role or team; tokens stay. The last admin stays one."""
        if role is not None:
            _check_role(role)
        with self._changing() as changes:
            before = _known(changes, name)
            if before.subject is not None:
                raise Conflict(
                    f"{name} signs in with the identity provider: role and team come from its "
                    "groups; change them there"
                )
            after = replace(
                before,
                role=before.role if role is None else role,
                team=before.team if team is None else team,
            )
            if after.role != UserRole.ADMIN:
                _keep_an_admin(changes, before)
            changes.put(after)
            _note(changes, by, "set user", user=name, role=after.role, team=after.team)
        return after

    def new_token(self, name: str, *, keep: bool = False, by: str) -> tuple[User, str]:
        """One more token for a user; those before stop working unless they are kept."""
        token, now = _new_token(), time.time()
        with self._changing() as changes:
            user = _known(changes, name)
            gone = 0 if keep else changes.revoke_tokens(name, now)
            changes.add_token(Token(digest_of(token), name, now))
            _note(changes, by, "new token", user=name, revoked=gone)
        return user, token

    def remove(self, name: str, *, by: str) -> User:
        """Remove a user and all tokens; the last admin stays."""
        with self._changing() as changes:
            user = _known(changes, name)
            _keep_an_admin(changes, user)
            changes.remove(name)
            _note(changes, by, "remove user", user=name)
        return user

    def sign_in(self, wanted: User, lasts_s: float) -> str:
        """A token for somebody whom an identity provider vouches for (`subject`), made a user if
        new; role and team are what the provider says now. A user of the same name that is this
        server's own, or another's, is never taken over."""
        assert wanted.subject is not None
        token, now = _new_token(), time.time()
        with self._changing() as changes:
            known = changes.by_subject(wanted.subject)
            if known is None and changes.get(wanted.name) is not None:
                raise Denied(
                    f"there is another user {wanted.name} on this server; an admin can remove it "
                    f"(presage users remove {wanted.name}), then sign in again"
                )
            user = replace(wanted, created_at=now) if known is None else known
            user = replace(user, role=wanted.role, team=wanted.team)
            changes.put(user)
            changes.add_token(Token(digest_of(token), user.name, now, None, now + lasts_s))
            _note(changes, user.name, "sign in", role=user.role, team=user.team)
        return token

    def sign_out(self, header: str | None) -> None:
        """Revoke the token of a header, if it is one."""
        with self._changing() as changes:
            changes.revoke_token(digest_of(_token(header)), time.time())

    @contextmanager
    def _changing(self) -> Iterator[UserChanges]:
        """A change, known to this server at once and to others within seconds."""
        with self._users.changing() as changes:
            yield changes
        self.forget()

    def all(self) -> list[User]:
        """Every user."""
        return list(self._users.all())

    def forget(self) -> None:
        """Ask the database again from now on."""
        with self._lock:
            self._known.clear()
        self._any = (0.0, False)


def _new_token() -> str:
    return "presage_" + secrets.token_urlsafe(32)


def _check_role(role: str) -> None:
    if role not in list(UserRole):
        raise UserError(f"role '{role}' is not known; there are {', '.join(UserRole)}")


def _known(changes: UserChanges, name: str) -> User:
    user = changes.get(name)
    if user is None:
        raise NotFound(f"there is no user {name[:80]}; `presage users` lists them")
    return user


def _keep_an_admin(changes: UserChanges, leaving: User) -> None:
    """Refuse what would leave nobody who could let others in."""
    others = (user for user in changes.all() if user.name != leaving.name)
    if leaving.role == UserRole.ADMIN and not any(u.role == UserRole.ADMIN for u in others):
        raise UserError(f"{leaving.name} is the only admin; make another one first")


def _note(changes: UserChanges, by: str, what: str, **detail: object) -> None:
    changes.note(AuditEntry(time.time(), by, what, detail=detail))


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
        raise Denied(
            f"this needs the role {role}; {user.name} has the role {user.role} (an admin can "
            f"change it: presage users set {user.name} --role {role})"
        )


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


def scope(user: User, owner: str | None) -> dict[str, str | None] | None:
    """Whose rows a list has for a user who asks for those of `owner`, or for all there are; None
    where nothing of it may be seen."""
    if user.role != UserRole.USER or owner == user.name:
        return {"owner": owner, "team": None}
    if user.team:
        return {"owner": owner, "team": user.team}
    return {"owner": user.name, "team": None} if owner is None else None
