"""The files of secrets: which one a job means by a name, and how they come and go.

A name is looked for among the secrets of the job's owner, then of its team, then among those that
operators put there for all. Nobody else's are ever looked at. What is in them is read by whoever
starts the job, and nowhere else shown. Standard library only.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from presage.layout import Layout
from presage.model.errors import RunSpecError

__all__ = ["SecretFiles", "SecretName"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, order=True)
class SecretName:
    """A secret, without its content: `user` or `team` says whose it is; neither, everybody's."""

    name: str
    user: str = ""
    team: str = ""


class SecretFiles:
    """The secrets of one data directory."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def path(self, secret: SecretName) -> Path:
        """Where one is, or would be; raises RunSpecError for what cannot be a name."""
        for part in (secret.name, secret.user or "-0", secret.team or "-0"):
            if part != "-0" and not _NAME.fullmatch(part):
                raise RunSpecError(f"{part!r} cannot be the name of a secret")
        if secret.user:
            return self._layout.secrets_of_user(secret.user) / secret.name
        if secret.team:
            return self._layout.secrets_of_team(secret.team) / secret.name
        return self._layout.secret(secret.name)

    def find(self, name: str, owner: str, team: str) -> Path | None:
        """The file that a job of this owner and team means by a name, if there is one."""
        whose = [SecretName(name, user=owner)] if owner else []
        whose += [SecretName(name, team=team)] if team else []
        paths = [self.path(secret) for secret in (*whose, SecretName(name))]
        return next((path for path in paths if path.is_file()), None)

    def listed(self, owner: str, team: str) -> list[SecretName]:
        """The secrets that jobs of this owner and team may use, by name."""
        secrets = [SecretName(name) for name in _names(self._layout.secrets)]
        if owner:
            names = _names(self._layout.secrets_of_user(owner))
            secrets += [SecretName(name, user=owner) for name in names]
        if team:
            names = _names(self._layout.secrets_of_team(team))
            secrets += [SecretName(name, team=team) for name in names]
        return sorted(secrets)

    def put(self, secret: SecretName, content: bytes) -> None:
        """Keep a secret, whole or not at all, for the server alone."""
        path = self.path(secret)
        for folder in (path.parent.parent, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f".{secret.name}.{os.getpid()}.new")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def remove(self, secret: SecretName) -> bool:
        """Take one away; False when there was none."""
        with suppress(FileNotFoundError):
            self.path(secret).unlink()
            return True
        return False


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return []
