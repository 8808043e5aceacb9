"""Who may ask for what, as an operator writes it: sections of the server's configuration.

`access` has limits, Unix users and containers; `oidc` has the identity provider. Nothing here
opens a port or a database, and nothing of the server is imported: `--print-config` needs none.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from presage.model.errors import Denied, UserError

if TYPE_CHECKING:
    from presage.store.records import User

__all__ = ["AccessConfig", "LimitRule", "LimitsConfig", "OidcConfig", "RunAsConfig"]

Priority = Annotated[int, Field(ge=-1_000_000, le=1_000_000)]
RoleName = Literal["viewer", "user", "operator", "admin"]


class _AccessPart(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LimitRule(_AccessPart):
    """What somebody may ask for; what is left out is not limited here."""

    max_priority: Priority | None = None
    queues: tuple[str, ...] | None = None


class LimitsConfig(_AccessPart):
    """Limits by user, team and role. Of those that say something about a key, the first holds, in
    this order."""

    users: dict[str, LimitRule] = {}
    teams: dict[str, LimitRule] = {}
    roles: dict[RoleName, LimitRule] = {}

    def rules_of(self, user: User) -> list[tuple[str, LimitRule]]:
        """The rules about a user, the closest first, each with its place in the file."""
        rules = [(f"access.limits.users.{user.name}", self.users.get(user.name))]
        if user.team:
            rules.append((f"access.limits.teams.{user.team}", self.teams.get(user.team)))
        for role, rule in self.roles.items():
            if role == user.role:
                rules.append((f"access.limits.roles.{role}", rule))
        return [(place, rule) for place, rule in rules if rule is not None]

    def check(self, user: User, queue: str, priority: int) -> None:
        """Refuse what a user may not ask for, and name the rule."""
        rules = self.rules_of(user)
        for place, rule in rules:
            if rule.max_priority is not None:
                if priority > rule.max_priority:
                    raise Denied(
                        f"priority {priority} is above {rule.max_priority}, the highest that "
                        f"{user.name} may ask for ({place}.max_priority)"
                    )
                break
        for place, rule in rules:
            if rule.queues is not None:
                if queue not in rule.queues:
                    may = ", ".join(rule.queues) or "none"
                    raise Denied(
                        f"queue {queue} is not for {user.name}, who may use {may} ({place}.queues)"
                    )
                break


class OidcConfig(_AccessPart):
    """An identity provider, and what its groups mean here."""

    issuer: str = ""
    """The empty string for none."""
    client_id: str = ""
    secret_file: Path | None = None
    """File with the client's secret; a public client has none."""
    scopes: tuple[str, ...] = ("openid", "profile", "groups")
    name_claim: str = "preferred_username"
    groups_claim: str = "groups"
    roles: dict[RoleName, tuple[str, ...]] = {}
    """Groups by role; of several, the highest role counts."""
    teams: dict[str, tuple[str, ...]] = {}
    """Groups by team; of several, the first counts."""
    default_role: RoleName | None = None
    """Of those whom no group gives a role; without it they are refused."""
    hours: Annotated[float, Field(gt=0, le=24 * 365)] = 12.0
    """How long a sign-in lasts."""

    @field_validator("issuer")
    @classmethod
    def _https(cls, value: str) -> str:
        if value and not re.match(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])[:/]", value):
            raise ValueError("an issuer is an https address")
        return value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if bool(self.issuer) != bool(self.client_id):
            raise ValueError("issuer and client_id go together: give both, or neither")
        return self

    def client_secret(self) -> str | None:
        """The content of the file; raises UserError."""
        if self.secret_file is None:
            return None
        try:
            return self.secret_file.read_text().strip()
        except OSError as error:
            raise UserError(
                f"oidc.secret_file {self.secret_file} cannot be read: {error.strerror}"
            ) from None


class RunAsConfig(_AccessPart):
    """Which Unix user runs the jobs of whom; for a server that is root."""

    users: dict[str, str | Annotated[int, Field(ge=1, le=2**31)]] = {}
    """By owner: a Unix user, or a number."""
    same_name: bool = False
    """Whether the owner's name is that of the Unix user."""
    uids: tuple[int, int] | None = None
    """First and last of a range of numbers that only jobs have."""

    @field_validator("uids", mode="before")
    @classmethod
    def _range(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        first, _, last = value.partition("-")
        if not (first.strip().isdecimal() and last.strip().isdecimal()):
            raise ValueError("write a range such as 200000-265535")
        return int(first), int(last)

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.uids is not None and not 1000 <= self.uids[0] <= self.uids[1] < 2**31:
            raise ValueError("uids is a range from 1000 on, such as 200000-265535")
        if self.uids is not None and self.same_name:
            raise ValueError("give same_name or uids, not both")
        return self


class AccessConfig(_AccessPart):
    """All about who may do what."""

    limits: LimitsConfig = LimitsConfig()
    containers_only: bool = False
    """Whether a job must name an image: keeps users apart where the server is not root."""
    data_roots: tuple[str, ...] = ()
    """Directories below which isolated containers may read local data."""
    run_as: RunAsConfig | None = None

    @property
    def isolated(self) -> bool:
        """Whether users are kept apart, and so containers see nothing of the machine."""
        return self.containers_only or self.run_as is not None
