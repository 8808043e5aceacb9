"""What of a Slurm is there, for each way to use it: watching it, and running jobs under it.

It asks and reads. Only with `attempt` it writes: a file in the data directory and a Slurm job of a
minute, which says whether nodes see that directory and have the Python that agents run in.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from presage.executors.findings import Finding
from presage.executors.node.runs import boot
from presage.executors.slurm.commands import BatchJob, SlurmCommands, SlurmPartition, StepShape
from presage.executors.slurm.ends import how_it_ended
from presage.layout import Layout
from presage.model.errors import SlurmRefused, SlurmUnreachable

__all__ = ["examine"]

WATCH, RUN = "watch", "run jobs"
_TRY_S = 120.0
_DAY_S = 86_400.0


def examine(
    commands: SlurmCommands, partition: str | None, attempt: Path | None = None
) -> list[Finding]:
    """All that is found; raises SlurmUnreachable where there is no Slurm at all. With `attempt`, a
    job is submitted that looks for that data directory."""
    major, minor = commands.version()
    findings = [Finding(WATCH, "Slurm's commands", True, f"Slurm {major}.{minor:02}")]
    findings += _reading(commands)
    try:
        there = commands.partition(partition)
    except SlurmRefused as error:
        return [*findings, Finding(RUN, "partition", False, str(error))]
    findings += _running(commands, there)
    if attempt is not None and there.up:
        findings.append(_try(commands, there, attempt))
    return findings


def _reading(commands: SlurmCommands) -> Iterator[Finding]:
    jobs = commands.jobs()
    others = len({job.user for job in jobs})
    config = commands.config()
    hidden = config.get("PrivateData", "none")
    yield Finding(WATCH, "jobs", True, f"{len(jobs)} of {others} users")
    seen = "jobs" not in hidden
    words = "" if seen else "PrivateData hides jobs of others: ask for the right of an operator"
    yield Finding(WATCH, "jobs of others", seen, words, needed=False)
    try:
        known = commands.accounting(time.time() - _DAY_S)
        yield Finding(WATCH, "accounting", True, f"{len(known)} jobs since yesterday")
    except (SlurmUnreachable, SlurmRefused) as error:
        text = f"{error}; who cancelled a job, and what ran long ago, stays unknown"
        yield Finding(WATCH, "accounting", False, text, needed=False)
    backfill = config.get("SchedulerType", "").endswith("backfill")
    text = "" if backfill else "without it Slurm does not say when a job will start"
    yield Finding(WATCH, "start estimates", backfill, text, needed=False)


def _running(commands: SlurmCommands, there: SlurmPartition) -> Iterator[Finding]:
    limit = f"{there.most_s / 3600:g} h at most" if there.most_s else "no time limit"
    yield Finding(RUN, f"partition {there.name}", there.up, limit if there.up else "it is not up")
    nodes = commands.nodes(there.name)
    usable = [node for node in nodes if node.usable]
    text = f"{len(usable)} of {len(nodes)} take jobs"
    yield Finding(RUN, "nodes", bool(usable), text)
    gpus = sum(len(node.node.devices) for node in usable)
    kinds = sorted({device.type for node in usable for device in node.node.devices})
    text = f"{gpus} ({', '.join(kinds)})" if gpus else "none as GRES: jobs that ask for one wait"
    yield Finding(RUN, "GPUs", bool(gpus), text, needed=False)
    limited = there.default_s is not None
    text = "" if limited else "jobs without time_limit have none: backfill cannot plan around them"
    yield Finding(RUN, "default time limit", limited, text, needed=False)


def _try(commands: SlurmCommands, there: SlurmPartition, data: Path) -> Finding:
    """Whether a node sees the data directory and can start an agent."""
    what = "data directory and Python on a node"
    home = Layout(data).slurm_agents(f"presage.doctor.{secrets.token_hex(4)}")
    home.mkdir(parents=True, mode=0o700)
    # What an agent imports, and no more: it must not begin to serve.
    argv = boot(sys.executable, "slurm.agent", str(home))
    argv[argv.index("-c") + 1] = argv[argv.index("-c") + 1].replace("; main()", "")
    seen, output = home / "seen", home / "job.out"
    job = BatchJob(
        name=home.name,
        shapes=(StepShape((), 1, 1, 0, 0),),
        script=f"#!/bin/sh\n{shlex.join(argv)} && touch {shlex.quote(str(seen))}\n",
        output=output,
        directory=Path("/"),
        limit_s=60.0,
        options=(f"--partition={there.name}",),
    )
    try:
        number = commands.submit(job)
        text = _wait(commands, number, seen)
        if text is not None and output.exists():
            said = output.read_text(errors="replace").strip().splitlines()
            text = f"{text}: {said[-1][:200]}" if said else text
        return Finding(RUN, what, text is None, text or str(data))
    except SlurmRefused as error:
        return Finding(RUN, what, False, str(error))
    finally:
        _clear(commands, home)


def _wait(commands: SlurmCommands, number: int, seen: Path) -> str | None:
    """Until a job has done its work; what went wrong if it did not."""
    end = time.monotonic() + _TRY_S
    while time.monotonic() < end:
        if seen.exists():
            return None
        job = next((job for job in commands.jobs(mine=True) if job.id == number), None)
        if job is not None and job.over:
            time.sleep(1.0)  # a shared file system shows it a little later
            return (
                None
                if seen.exists()
                else f"a node does not see it ({how_it_ended(job, commands)})"
            )
        time.sleep(0.5)
    return f"Slurm did not start job {number} within {_TRY_S:g} s; is it full?"


def _clear(commands: SlurmCommands, home: Path) -> None:
    with suppress(SlurmUnreachable, SlurmRefused):
        commands.cancel(name=home.name)
    shutil.rmtree(home, ignore_errors=True)
