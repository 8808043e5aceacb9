"""Who may change which secret, and what one may be. `executors.node.secrets` keeps them."""

from __future__ import annotations

import re

from presage.control.people.accounts import UserRole, at_least, require
from presage.executors.node.secrets import SecretName
from presage.model.errors import Denied, UserError
from presage.store.records import User

__all__ = ["MOST_SECRET", "check_secret", "secret_of", "secret_view"]


MOST_SECRET = 64 << 10
"""A variable of a process holds twice as much."""


_TEAM = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def secret_of(name: str, team: str | None, me: User) -> SecretName:
    """The secret that somebody may change; raises Denied."""
    require(me, UserRole.USER)
    if team is None:
        return SecretName(name, user=me.name)
    if not _TEAM.fullmatch(team):
        raise UserError("a team has lower-case letters, digits, '-', '.' and '_'")
    if team != me.team and not at_least(me, UserRole.OPERATOR):
        raise Denied(
            f"secrets of team {team} are for its members and for the role operator; {me.name} "
            f"has the role {me.role} and is in {me.team or 'no team'}"
        )
    return SecretName(name, team=team)


def check_secret(content: bytes) -> None:
    """A worker gets it as a variable: text without NUL."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise UserError("a secret is text (UTF-8): encode bytes as base64") from None
    if not text.strip("\n") or "\0" in text:
        raise UserError("a secret is not empty and has no NUL characters")


def secret_view(secret: SecretName) -> dict[str, str]:
    """Whose it is and how it is called; never what it holds."""
    return {"name": secret.name, "user": secret.user, "team": secret.team}
