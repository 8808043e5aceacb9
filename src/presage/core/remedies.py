"""Remedies: what is done about a run in trouble. The one place with these rules.

Pure: the job as it stands and what was advised in, its spec from now on out; the engine makes the
decision of it. Whether something is to be done was settled by whoever advised it.
"""

from __future__ import annotations

from dataclasses import replace

from presage.model.event import Remedy, RemedyAdvised
from presage.model.job import Job, JobSpec, JobState

__all__ = ["amended", "stops"]


def stops(job: Job | None, advice: RemedyAdvised) -> bool:
    """Whether a run is to stop with a checkpoint and start again."""
    if job is None or job.attempt != advice.attempt or job.state is not JobState.RUNNING:
        return False
    return advice.remedy in (Remedy.CHECKPOINT, Remedy.RESTART)


def amended(spec: JobSpec, advice: RemedyAdvised) -> JobSpec:
    """What the job asks for from now on."""
    if advice.remedy is Remedy.MEMORY:
        return replace(spec, oom=spec.oom or advice.oom)
    if advice.remedy is Remedy.RESTART and advice.avoid:
        roles = []
        for role in spec.roles:
            avoid = tuple(dict.fromkeys((*role.where.avoid, *advice.avoid)))
            roles.append(replace(role, where=replace(role.where, avoid=avoid)))
        return replace(spec, roles=tuple(roles))
    return spec
