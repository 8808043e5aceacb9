"""What is needed to prove that a Slurm was watched rightly: somebody without any privilege, the
accounts and the journal side by side, and who asked the controller for what."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from presage.model import event as ev
from presage.store.sql import SqlStore
from tests.slurm_cluster import SlurmCluster

__all__ = ["AS_NOBODY", "NOBODY", "Told", "accounts_of", "asked_by_nobody", "journal_of"]

NOBODY = 65534
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    # The interpreter and Slurm may be in a home directory that nobody else may enter.
    # access(2) asks without capabilities unless uids leave them alone.
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
    "--securebits=+no_setuid_fixup",
)
_READS = re.compile(r"REQUEST_(\w*INFO\w*|PING|BUILD_INFO|CONFIG)$")
_OUTCOMES = {"COMPLETED": "succeeded", "CANCELLED": "stopped", "PREEMPTED": "stopped"}


@dataclass(slots=True)
class Told:
    """What became of a job; of several runs, of the last."""

    submitted: int
    started: int = 0
    ended: int = 0
    outcome: str = ""


def journal_of(store: SqlStore, clock: Callable[[float], int] = round) -> dict[str, Told]:
    """What the journal says, by job. `clock` makes the cluster's time of the journal's."""
    jobs: dict[str, Told] = {}
    for now, event in store.read():
        if isinstance(event, ev.JobSubmitted):
            row = store.jobs.get(event.spec.id)
            assert row is not None
            jobs[event.spec.id] = Told(clock(row.submitted_at))
        elif isinstance(event, ev.JobStarted):
            jobs[event.job].started = clock(now if event.at is None else event.at)
        elif isinstance(event, ev.JobExited):
            jobs[event.job].ended = clock(now if event.at is None else event.at)
            jobs[event.job].outcome = str(event.outcome)
        elif isinstance(event, ev.CancelRequested) and not jobs[event.job].started:
            jobs[event.job].ended, jobs[event.job].outcome = clock(now), "stopped"
    return jobs


def accounts_of(slurm: SlurmCluster) -> dict[str, Told]:
    """What `sacct` says, by job."""
    words = ("-a", "-X", "-D", "-n", "-P", "-o", "JobID,Submit,Start,End,State,NodeList")
    said = subprocess.run(
        [str(slurm.bin / "sacct"), *words, "-S", "now-1days"],
        env={**slurm.env, "SLURM_TIME_FORMAT": "%s"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = {}
    for line in said.splitlines():
        job, submitted, started, ended, state, nodes = line.split("|")
        ran = nodes != "None assigned"
        times = [int(text) if text.isdecimal() else 0 for text in (submitted, started, ended)]
        outcome = _OUTCOMES.get(state.split()[0], "failed")
        found[job] = Told(times[0], times[1] if ran else 0, times[2], outcome)
    return found


def asked_by_nobody(slurm: SlurmCluster) -> tuple[Counter[str], list[str]]:
    """What nobody asked the controller for (with SlurmctldDebug=debug2), and what of it was more
    than a question."""
    log = (slurm.directory / "slurmctld.log").read_text(errors="replace")
    asked = Counter(re.findall(rf"Processing RPC: (\w+) from UID={NOBODY}\b", log))
    return asked, [name for name in asked if not _READS.match(name)]
