"""Retry: what becomes of a job whose run ended badly. The one place with these rules.

A pure function of the job as it stands and of how its run ended; `State` applies what it answers.
Every number it goes by is in the job's spec, so a journal has it. The rules are part of what a
journal means, too: to change one, give the spec a field that chooses it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from presage.model.cluster import UNLIMITED, Resources
from presage.model.event import Outcome
from presage.model.job import Job, JobSpec, OomRetry, Reason, ReasonCode

__all__ = ["RetryVerdict", "judge"]


@dataclass(frozen=True, slots=True)
class RetryVerdict:
    """Whether a job is started again, and what is different about it from now on."""

    again: bool
    spec: JobSpec
    failures: int
    lost: int
    out_of_memory: int


def judge(job: Job, outcome: Outcome, reason: Reason | None) -> RetryVerdict:
    """What follows a run that nobody stopped and that did not end well."""
    spec, failures, lost, overflows = job.spec, job.failures, job.lost, job.out_of_memory
    if outcome is Outcome.LOST and lost < spec.max_lost:
        return RetryVerdict(True, spec, failures, lost + 1, overflows)
    if outcome is Outcome.OUT_OF_MEMORY:
        overflows += 1
        spec = replace(spec, shareable=False)
        more = _with_more_memory(spec, overflows)
        if more is not None:
            return RetryVerdict(True, more, failures, lost, overflows)
    failures += 1
    too_long = reason is not None and reason.code is ReasonCode.TIME_LIMIT
    missing = reason is not None and reason.code is ReasonCode.LAUNCH_FAILED
    hopeless = too_long or (missing and not spec.relaunch)
    again = failures <= spec.max_retries and not hopeless
    return RetryVerdict(again, spec, failures, lost, overflows)


def _with_more_memory(spec: JobSpec, overflows: int) -> JobSpec | None:
    """The same job with more memory, if it may have more."""
    oom = spec.oom
    if oom is None or overflows > oom.times:
        return None
    roles = tuple(replace(role, resources=_raised(role.resources, oom)) for role in spec.roles)
    if roles == spec.roles and overflows > 1:
        return None  # once, since it no longer shares its device; after that, nothing changed
    return replace(spec, roles=roles)


def _raised(ask: Resources, oom: OomRetry) -> Resources:
    """What a worker asks for next time; the same when the ceiling is reached."""

    def more(mib: int) -> int:
        most = oom.ceiling_mib or UNLIMITED
        return max(mib, min(ceil(mib * oom.factor), most)) if mib else 0

    return replace(ask, memory_mib=more(ask.memory_mib), gpu_memory_mib=more(ask.gpu_memory_mib))
