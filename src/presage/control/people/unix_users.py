"""Which Unix user runs the jobs of whom, where the server is root.

The rule is an operator's (`run_as` of the access configuration): a name for each owner, the Unix
user of the same name, or one of a range of numbers that nobody else has. Root is never one.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
from contextlib import suppress
from pathlib import Path
from threading import Lock

from presage.control.people.access_config import RunAsConfig
from presage.executors.node.messages import UnixUser
from presage.layout import Layout
from presage.model.errors import RunSpecError, UserError

__all__ = ["UnixUsers"]

_FIRST_PERSON = 1000
"""Below are the users of services; a person's job is not to run as one because of its name."""
_NOBODY = 65534


class UnixUsers:
    """Answers who runs a job; what was answered once stays so."""

    def __init__(self, config: RunAsConfig, layout: Layout) -> None:
        self._config, self._layout = config, layout
        self._lock = Lock()

    def check_machine(self) -> None:
        """Refuse what cannot work: a server that is not root, a directory nobody can reach."""
        if os.geteuid() != 0:
            raise UserError(
                "run_as needs a server that is root; on others, containers keep users apart: "
                "containers_only"
            )
        for path in self._layout.data.parents:
            if not path.stat().st_mode & 0o001:
                raise UserError(
                    f"--data {self._layout.data} lies below {path}, which jobs of other users "
                    f"cannot pass: choose another, such as /var/lib/presage, or chmod o+x {path}"
                )

    def of(self, owner: str) -> UnixUser:
        """As whom jobs of an owner run; raises RunSpecError."""
        config = self._config
        wanted = config.users.get(owner)
        if wanted is not None:
            return self._known(owner, wanted)
        if config.uids is not None:
            return self._numbered(owner)
        if config.same_name:
            user = self._known(owner, owner)
            if user.uid < _FIRST_PERSON or user.uid == _NOBODY:
                raise RunSpecError(
                    f"Unix user {owner} ({user.uid}) is a service's, not a person's: name it "
                    "under run_as.users if that is meant"
                )
            return user
        raise RunSpecError(
            f"no Unix user runs the jobs of {owner}: an operator adds one under run_as.users"
        )

    def check(self, owner: str) -> None:
        """Refuse an owner whom nobody runs jobs for, before a job is accepted."""
        if self._config.uids is None or owner in self._config.users:
            self.of(owner)

    def _known(self, owner: str, name: str | int) -> UnixUser:
        try:
            entry = pwd.getpwuid(name) if isinstance(name, int) else pwd.getpwnam(name)
        except KeyError:
            if isinstance(name, int) and name > 0:
                return UnixUser(uid=name, gid=name, name=owner, home="")
            raise RunSpecError(
                f"this machine has no Unix user {name}, who is to run the jobs of {owner}"
            ) from None
        groups = tuple(
            group for group in os.getgrouplist(entry.pw_name, entry.pw_gid) if group != 0
        )
        user = UnixUser(
            uid=entry.pw_uid,
            gid=entry.pw_gid,
            name=entry.pw_name,
            home=entry.pw_dir if Path(entry.pw_dir).is_dir() else "",
            groups=groups,
        )
        if 0 in (user.uid, user.gid):
            raise RunSpecError(f"jobs of {owner} would run as root ({name}): that is refused")
        return user

    def _numbered(self, owner: str) -> UnixUser:
        """The number of an owner, from now on for ever: whoever had it before left files."""
        assert self._config.uids is not None
        first, last = self._config.uids
        file = self._layout.uids
        with self._lock, file.open("a+") as book:
            fcntl.flock(book, fcntl.LOCK_EX)
            given: dict[str, int] = {}
            with suppress(ValueError):
                book.seek(0)
                given = json.loads(book.read() or "{}")
            uid = given.get(owner)
            if uid is None or not first <= uid <= last:
                taken = set(given.values())
                uid = next((n for n in range(first, last + 1) if n not in taken), None)
                if uid is None:
                    raise RunSpecError(
                        f"all Unix users of run_as.uids {first}-{last} are given: widen the range"
                    )
                new = file.with_suffix(".new")
                new.write_text(json.dumps({**given, owner: uid}, indent=1))
                new.replace(file)
        return UnixUser(uid=uid, gid=uid, name=owner, home="")
