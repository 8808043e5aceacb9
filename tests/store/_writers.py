"""Processes that write to a store until something stops them; the tests of crashes start them.

    python _writers.py crash FILE ROUNDS     forked writers, each killed with SIGKILL as it writes
    python _writers.py full DIRECTORY tmpfs|limit     the disk under the writer fills up

Each checks what it finds and prints a line of JSON; an AssertionError ends it otherwise.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from presage.model import event as ev
from presage.model.errors import StoreUnavailable
from presage.model.job import JobSpec, Role
from presage.store import open_store
from presage.store.records import JobChange, JobRow, Notification
from presage.store.sql import SqlStore

JOBS = 3
"""Jobs in a step; each leaves a fact, a row, two transitions and a message."""


def append(store: SqlStore, number: int, lease: int = 0) -> None:
    """Step `number`: everything in it can be recomputed from the number."""
    names = [f"job-{number}-{i}" for i in range(JOBS)]
    store.append(
        float(number),
        [ev.JobSubmitted(JobSpec(name, (Role(),), labels={"pad": "x" * 99})) for name in names],
        [ev.WakeAt(number + 1.0)],
        lease=lease,
        jobs=[
            JobRow(id=name, name="n", owner="ann", submitted_at=0.0, manifest={"pad": "y" * 500})
            for name in names
        ],
        changes=[JobChange(job=name, at=1.0, status="COMPLETED") for name in names],
        outbox=[Notification(name, "http://x", {"n": number}) for name in names],
    )


def check(store: SqlStore) -> int:
    """How many steps there are; they must be the first ones, whole, in order, with their rows."""
    steps = list(store.read_steps())
    for number, (now, facts, decisions) in enumerate(steps):
        assert now == number, f"step {number} is of {now}"
        names = [fact.spec.id for fact in facts if isinstance(fact, ev.JobSubmitted)]
        assert names == [f"job-{number}-{i}" for i in range(JOBS)]
        assert decisions == (ev.WakeAt(number + 1.0),)
    count = len(steps) * JOBS
    assert store.position() == count + len(steps)
    assert store.jobs.count_by_status() == ({"COMPLETED": count} if count else {})
    rows = store.jobs.list(limit=count + 9)
    expected = [f"job-{n}-{i}" for n in range(len(steps)) for i in range(JOBS)]
    assert [row.id for row in reversed(rows)] == expected
    assert [row.seq for row in reversed(rows)] == list(range(1, count + 1))
    assert len(store.jobs.transitions_since(0, limit=count * 2 + 9)) == count * 2
    assert len(store.outbox.due(1e12, limit=count + 9)) == count
    return len(steps)


def crash(path: Path, rounds: int) -> dict[str, int]:
    """Kill a writer at a random moment, again and again."""
    chance = random.Random(7)
    url = f"sqlite:///{path}"
    acknowledged = unconfirmed = 0
    for _ in range(rounds):
        inbox, outbox = os.pipe()
        writer = os.fork()
        if writer == 0:
            os.close(inbox)
            _write_until_killed(url, outbox)
        os.close(outbox)
        patience = chance.randrange(1, 25)
        with os.fdopen(inbox, "rb") as lines:
            for line in lines:
                acknowledged = int(line)
                patience -= 1
                if patience == 0:
                    signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.006 + 1e-6)
                    signal.sigwait({signal.SIGALRM})
                    os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        store = open_store(url)
        found = check(store)
        store.close()
        assert found in (acknowledged, acknowledged + 1), f"{acknowledged} said, {found} there"
        unconfirmed += found - acknowledged
    return {"steps": found, "unconfirmed": unconfirmed}


def _write_until_killed(url: str, outbox: int) -> None:
    store = open_store(url)
    number = store.position() // (JOBS + 1)
    while True:
        append(store, number)
        number += 1
        os.write(outbox, f"{number}\n".encode())


def full(directory: Path, how: str) -> dict[str, int | str]:
    """Write until the disk is full, look, make room, and go on."""
    ballast = directory / "ballast"
    if how == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", str(directory)]
        subprocess.run(command, check=True)
        ballast.write_bytes(bytes(4 << 20))
    store = open_store(f"sqlite:///{directory / 'presage.db'}")
    if how == "limit":
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    written = 0
    try:
        while written < 2000:
            append(store, written)
            written += 1
        raise AssertionError("the disk was not full")
    except StoreUnavailable as error:
        said = str(error)
    for _ in range(3):
        assert check(store) == written
        with suppress(StoreUnavailable):
            append(store, written)
            written += 1  # a small step may still have found room
    if how == "tmpfs":
        ballast.unlink()
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    for _ in range(20):
        append(store, written)
        written += 1
    assert check(store) == written
    store.close()
    store = open_store(f"sqlite:///{directory / 'presage.db'}")
    assert check(store) == written
    store.close()
    return {"steps": written, "said": said}


if __name__ == "__main__":
    what, place, more = sys.argv[1:]
    if what == "crash":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        print(json.dumps(crash(Path(place), int(more))))
    else:
        print(json.dumps(full(Path(place), more)))
