"""What an executor does with processes: find those of a run by its mark, and end them.

Standard library only, since the guardian of every run imports it. What they use is measured by
`presage.telemetry.processes`, which also says who descends from whom.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator

from presage.telemetry.processes import Stat, all_pids, children, descendants, read_stat

__all__ = ["all_pids", "children", "descendants", "environment", "kill_marked", "read_stat"]


def environment(pid: int) -> bytes:
    """The environment a process was started with, as the kernel keeps it."""
    try:
        fd = os.open(f"/proc/{pid}/environ", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return b"\0" + os.read(fd, 1 << 20)
    except OSError:
        return b""
    finally:
        os.close(fd)


def kill_marked(mark: str, known: Iterable[tuple[int, int]], within_s: float = 5.0) -> None:
    """Kill every process that has `mark` (NAME=value) in its environment, is one of the `known`
    (PID and start), or belongs to the session of one; returns when none is left."""
    sign = b"\0" + mark.encode() + b"\0"
    starts = dict(known)
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        hit = False
        for pid in _others():
            stat = read_stat(pid)
            if stat is None or stat.state == "Z":
                continue
            of_session = stat.session in starts and _same_session(stat, starts[stat.session])
            if of_session or starts.get(pid) == stat.start or sign in environment(pid) + b"\0":
                hit = True
                _kill(pid, signal.SIGKILL)
        if not hit:
            return
        time.sleep(0.01)


def _others() -> Iterator[int]:
    own = os.getpid()
    return (pid for pid in all_pids() if pid != own)


def _same_session(stat: Stat, leader_start: int) -> bool:
    """Whether a session with that number is still the one that was recorded: its leader, if it
    lives, started when it was noted, and no member is older."""
    leader = read_stat(stat.session)
    if leader is not None and leader.session == stat.session and leader.start != leader_start:
        return False
    return stat.start >= leader_start


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return
