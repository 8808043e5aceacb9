"""How a Slurm job ended, in words that its owner understands.

Pure: it asks Slurm nothing.
"""

from __future__ import annotations

import pwd
from contextlib import suppress

from presage.executors.slurm.commands import SlurmCommands, SlurmJob
from presage.model.errors import SlurmRefused, SlurmUnreachable

__all__ = ["how_it_ended", "why_it_waits"]

_DAY_S = 86_400.0
_WORDS = {
    "BOOT_FAIL": "its node could not boot",
    "COMPLETED": "its batch script ended",
    "DEADLINE": "its deadline passed",
    "FAILED": "its batch script failed",
    "NODE_FAIL": "a node of it failed",
    "OUT_OF_MEMORY": "it used more memory than Slurm gave it",
    "PREEMPTED": "it was preempted by another job",
    "REVOKED": "another cluster runs it",
    "SPECIAL_EXIT": "its batch script ended with the code that holds a job back",
    "TIMEOUT": "its time limit passed",
}
_REASONS = {
    "Resources": "other jobs hold what it needs",
    "Priority": "jobs with a higher priority are before it",
    "Dependency": "it depends on another job",
    "QOSMaxGRESPerUser": "your QOS allows no more GPUs at a time",
    "AssocGrpGRES": "your account allows no more GPUs at a time",
    "AssocGrpGRESMinutes": "your account has spent its GPU hours",
    "QOSMaxJobsPerUserLimit": "your QOS allows no more jobs at a time",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "PartitionNodeLimit": "it asks for more nodes than the partition allows",
    "ReqNodeNotAvail": "a node it needs is down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "JobHeldUser": "its owner holds it back",
    "JobHeldAdmin": "an administrator holds it back",
    "BeginTime": "it may not start yet",
}


def how_it_ended(job: SlurmJob, commands: SlurmCommands) -> str:
    """Why a job is over; accounting says who cancelled it, where it is kept."""
    if job.state == "CANCELLED":
        return f"Slurm job {job.id} was cancelled{_by_whom(job, commands)}"
    words = _WORDS.get(job.state, f"it is {job.state}")
    if job.state == "FAILED" and job.exit_code:
        words += f" with exit code {job.exit_code}"
    elif job.state == "FAILED" and job.reason not in ("None", "", "NonZeroExitCode"):
        words += f" ({job.reason})"
    return f"Slurm ended job {job.id}: {words}"


def why_it_waits(job: SlurmJob) -> str:
    """What Slurm says a job waits for."""
    reason = job.reason.split(",")[0]
    words = _REASONS.get(reason)
    if words is None:
        return "in Slurm's queue" if reason in ("", "None") else f"in Slurm's queue: {reason}"
    return f"in Slurm's queue: {words} ({reason})"


def _by_whom(job: SlurmJob, commands: SlurmCommands) -> str:
    with suppress(SlurmUnreachable, SlurmRefused, KeyError, ValueError):
        for known in commands.accounting(job.submitted_at - _DAY_S):
            if known.id == str(job.id) and known.cancelled_by:
                uid = known.cancelled_by
                return f" by {pwd.getpwuid(int(uid)).pw_name if uid.isdecimal() else uid}"
    return ""
