"""As which Unix user a run's processes run, where the server is root and keeps its users apart.

The guardian stays root: it holds limits, ends what is left, and tells what happened (ADR 0022).
Whatever is the job's own work runs as the job's user for good (`drop`). Where the guardian itself
touches a directory that the job can write to, it does so with that user's rights (`acting_as`):
a link or a pipe that a job left there gains it nothing. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from presage.executors.node.limits import no_new_privileges

if TYPE_CHECKING:
    from presage.executors.node.messages import RunPlan, UnixUser

__all__ = ["acting_as", "drop", "hand_over", "share_homes"]


def drop(user: UnixUser | None) -> None:
    """Be this user from now on, for ever, with no group and no right of the user before."""
    if user is None:
        return
    with suppress(PermissionError):  # it may act as the user just now
        os.seteuid(0)
        os.setegid(0)
    no_new_privileges()
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    if os.getresuid() != (user.uid,) * 3 or os.getresgid() != (user.gid,) * 3:
        os._exit(126)  # never go on as somebody else
    os.umask(0o077)


@contextmanager
def acting_as(user: UnixUser | None) -> Iterator[None]:
    """Open files with a user's rights meanwhile. The process stays root's: that user can neither
    signal nor trace it. For a process with one thread."""
    if user is None:
        yield
        return
    groups = os.getgroups()
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def share_homes(plan: RunPlan) -> None:
    """Make the directories of a run that belong to its user, with a way there for that user's
    group and nobody else; root keeps the directories around them."""
    user = plan.user
    assert user is not None
    job = plan.result_dir.parent
    for path in (job, plan.run.parent, plan.run):
        os.chown(path, 0, user.gid)
        path.chmod(0o710)
    own = [plan.work, plan.data_dir, plan.progress_dir, plan.result_dir]
    if plan.checkpoint_dir.parent == job:
        own.append(plan.checkpoint_dir)
    else:
        with acting_as(user):
            plan.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    for path in own:
        path.mkdir(exist_ok=True, mode=0o700)
        hand_over(path, user)
    for path in (plan.log_dir.parent, plan.log_dir, plan.telemetry.parent):
        path.mkdir(exist_ok=True, mode=0o700)


def hand_over(directory: Path, user: UnixUser) -> None:
    """Make a directory a user's own. What was in it, of a run as another user, goes with it, but
    for files that have a second name elsewhere. Links are never followed."""
    if directory.stat().st_uid != user.uid:
        for _, folders, files, fd in os.fwalk(directory):
            for name in (*folders, *files):
                info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if info.st_nlink == 1 or name in folders:
                    os.chown(name, user.uid, user.gid, dir_fd=fd, follow_symlinks=False)
    os.chown(directory, user.uid, user.gid)
    directory.chmod(0o700)
