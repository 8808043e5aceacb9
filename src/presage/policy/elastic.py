"""Elastic jobs: how many workers to start with, growing into idle room, and doing what owners
asked.

Shrinking for others is `reclaim.make_room`'s work.
"""

from __future__ import annotations

from functools import cache

from presage.core.plan import Plan
from presage.core.workers import ask_of, new_workers, shrunk
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Role
from presage.policy.placer import Placer, Wanted

__all__ = ["grow", "least_workers", "obey_scale_requests", "sizes"]


def sizes(job: Job) -> tuple[Wanted, ...]:
    """Worker lists to try when an elastic job starts: all it would like, then what it needs."""
    least = least_workers(job)
    most = tuple(
        (r, k) for r, role in enumerate(job.spec.roles) for k in range(_target(job, r, role.max))
    )
    return (most, least) if len(most) > len(least) else (least,)


def least_workers(job: Job) -> Wanted:
    """The (role, index) of the workers a job cannot start without."""
    return _least(job.spec.roles)


@cache
def _least(roles: tuple[Role, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((r, k) for r, role in enumerate(roles) for k in range(role.min))


def grow(plan: Plan, placer: Placer) -> None:
    """Give idle room to running elastic jobs, one worker at a time, those with the fewest
    first."""
    jobs = [job for job in _resizable(plan) if job.spec.elastic]
    if not jobs:
        return
    capacity = plan.state.capacity
    extra: dict[str, list[Worker]] = {}
    open_jobs = jobs
    while open_jobs:
        open_jobs.sort(key=lambda job: (len(job.allocation) + len(extra.get(job.id, ())), job.seq))
        worker = _one_more(open_jobs[0], plan, placer, extra.get(open_jobs[0].id, []))
        if worker is None:
            open_jobs = open_jobs[1:]
            continue
        job = open_jobs[0]
        extra.setdefault(job.id, []).append(worker)
        capacity.take(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)
    for job in jobs:
        for worker in extra.get(job.id, ()):
            capacity.lend(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)
    for job in jobs:
        if job.id in extra:
            plan.resize(job, (*job.allocation, *extra[job.id]))


def obey_scale_requests(plan: Plan, placer: Placer) -> None:
    """Bring jobs whose owner asked for a number of workers to it, as far as there is room."""
    for job in _resizable(plan) if plan.state.scaling else ():
        if job.wants is None:
            continue
        have = sum(worker.role == 0 for worker in job.allocation)
        if job.wants < have:
            kept = shrunk(job, have - job.wants)
            if kept is not None:
                plan.resize(job, kept)
        elif job.wants > have:
            wanted: Wanted = new_workers(job.allocation, 0, job.wants - have)
            found = placer.find(job, plan, wanted)
            if found is not None:
                plan.resize(job, job.allocation + found)


def _resizable(plan: Plan) -> list[Job]:
    return [
        job
        for job in plan.state.active.values()
        if job.state is JobState.RUNNING and job.resizing is None
    ]


def _target(job: Job, r: int, most: int) -> int:
    return job.wants if r == 0 and job.wants is not None else most


def _one_more(job: Job, plan: Plan, placer: Placer, extra: list[Worker]) -> Worker | None:
    held = (*job.allocation, *extra)
    for r, role in enumerate(job.spec.roles):
        if sum(worker.role == r for worker in held) < _target(job, r, role.max):
            found = placer.find(job, plan, new_workers(held, r, 1))
            if found is not None:
                return found[0]
    return None
