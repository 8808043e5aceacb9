"""What a submission must pass: limits of role, team and user, secrets, and keeping users apart.

The rules are an operator's (`access_config`). Opens no port; changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from presage.control.people.access_config import AccessConfig
from presage.executors.node.secrets import SecretFiles
from presage.manifest import Manifest
from presage.model.errors import Denied, UserError
from presage.store.records import User

__all__ = ["SubmissionRules"]


class SubmissionRules:
    """What a submission must pass before it is accepted."""

    def __init__(
        self, access: AccessConfig, secrets: SecretFiles, runs: Callable[[str], None]
    ) -> None:
        self._access, self._secrets, self._runs = access, secrets, runs

    def check(self, manifest: Manifest, user: User) -> None:
        """Refuse, in one line, what a user may not ask for."""
        self._access.limits.check(user, manifest.queue, manifest.priority)
        self._runs(user.name)
        if self._access.containers_only:
            _only_inside(manifest)
        for variable, name in manifest.secrets.items():
            if self._secrets.find(name, user.name, user.team) is None:
                raise UserError(
                    f"secrets.{variable}: there is no secret '{name}' that {user.name} may use; "
                    f"make one with: presage secrets set {name}"
                )


_REMOTE = re.compile(r"(https?|s3|gs|gcs|az|abfss?|hf|oss|ftp|sftp)://")


def _only_inside(manifest: Manifest) -> None:
    """Refuse what would have the server itself, outside of the container, open local files."""
    if manifest.image is None:
        raise Denied("jobs on this server need an image (access.containers_only): add image: NAME")
    target = manifest.results.url if manifest.results is not None else None
    if target is not None and ("::" in target or not _REMOTE.match(target)):
        raise Denied(
            "results: on this server results are kept, or go to a remote address "
            "(access.containers_only): leave it out, or write one such as s3://BUCKET/DIR"
        )
    if manifest.git is not None and not re.match(r"(https|ssh)://|[^/]+@", manifest.git.url):
        raise Denied(
            "git: on this server a repository is a remote one, such as https://HOST/REPO.git "
            "(access.containers_only)"
        )
    for name, url in manifest.data.items():
        if "::" in url or not (url.startswith(("/", "file:///")) or _REMOTE.match(url)):
            raise Denied(
                f"data.{name}: on this server data is an absolute path or a remote address such "
                "as s3:// or https:// (access.containers_only)"
            )
