"""Elastic jobs: how many workers to start with, growing into idle room, and doing what owners
asked.

Shrinking for others is `reclaim.make_room`'s work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from heapq import heapify, heappop, heapreplace

from presage.core.plan import Plan
from presage.core.workers import ask_of, new_workers, shrunk
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Role
from presage.policy.placer import Placer, Wanted
from presage.policy.queues import Queues

__all__ = ["fits_queue", "grow", "least_workers", "obey_scale_requests", "resizable", "sizes"]

PlacerOf = Callable[[Job], Placer]


def sizes(job: Job) -> tuple[Wanted, ...]:
    """Worker lists to try when an elastic job starts: all it would like, then one less of each
    elastic role at a time, down to what it needs."""
    roles = job.spec.roles
    tops = [_target(job, r, role.max) for r, role in enumerate(roles)]
    steps = max(top - role.min for top, role in zip(tops, roles, strict=True))
    return tuple(
        tuple(
            (r, k)
            for r, (top, role) in enumerate(zip(tops, roles, strict=True))
            for k in range(max(role.min, top - less))
        )
        for less in range(steps + 1)
    )


def least_workers(job: Job) -> Wanted:
    """The (role, index) of the workers a job cannot start without."""
    return _least(job.spec.roles)


@cache
def _least(roles: tuple[Role, ...]) -> tuple[tuple[int, int], ...]:
    return tuple((r, k) for r, role in enumerate(roles) for k in range(role.min))


def grow(plan: Plan, placer: PlacerOf, queues: Queues, after_s: float = 0.0) -> None:
    """Give idle room to running elastic jobs, one worker at a time, those with the fewest first.

    Not to jobs that would lose their work by it, nor to those whose size changed just now.
    """
    jobs = [job for job in resizable(plan) if job.spec.checkpointable]
    if after_s:
        due = {job.id: job.mark + after_s for job in jobs}
        jobs = [job for job in jobs if due[job.id] <= plan.now]
        later = [at for at in due.values() if at > plan.now]
        if later:
            plan.wake_at(min(later))
    capacity = plan.state.capacity
    extra: dict[str, list[Worker]] = {job.id: [] for job in jobs}
    promised = dict.fromkeys((job.spec.queue for job in jobs), 0)
    heap = [(len(job.allocation), job.seq, job) for job in jobs]
    heapify(heap)
    while heap:
        size, seq, job = heap[0]
        already = promised[job.spec.queue]
        worker = _one_more(job, plan, placer(job), extra[job.id], queues, already)
        if worker is None:
            heappop(heap)
            continue
        extra[job.id].append(worker)
        promised[job.spec.queue] += ask_of(job, worker.role).gpu_milli
        capacity.take(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)
        heapreplace(heap, (size + 1, seq, job))
    for job in jobs:
        for worker in extra[job.id]:
            capacity.lend(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)
    for job in jobs:
        if extra[job.id]:
            plan.resize(job, (*job.allocation, *extra[job.id]))


def obey_scale_requests(
    plan: Plan, placer: PlacerOf, queues: Queues, *, may_grow: bool = True
) -> None:
    """Bring jobs whose owner asked for a number of workers to it, as far as there is room.

    Under preemption by rank nobody grows while others wait: a larger job may no longer rank high
    enough, would be stopped and start small again, for ever.
    """
    for job in resizable(plan) if plan.state.scaling else ():
        if job.wants is None:
            continue
        have = sum(worker.role == 0 for worker in job.allocation)
        if job.wants < have:
            kept = shrunk(job, have - job.wants, role=0)
            if kept is not None:
                plan.resize(job, kept)
        elif job.wants > have and may_grow:
            for more in range(job.wants - have, 0, -1):
                wanted: Wanted = new_workers(job.allocation, 0, more)
                if not fits_queue(job, plan, wanted, queues):
                    continue
                found = placer(job).find(job, plan, wanted)
                if found is not None:
                    plan.resize(job, job.allocation + found)
                    break


def resizable(plan: Plan) -> list[Job]:
    """Elastic jobs that run and are not being resized."""
    return [
        job
        for job in plan.state.active.values()
        if job.state is JobState.RUNNING and job.resizing is None and job.spec.elastic
    ]


def fits_queue(
    job: Job, plan: Plan, wanted: Wanted, queues: Queues, promised_milli: int = 0
) -> bool:
    """Whether the job's queue may hold these workers too, beside what is promised already."""
    if not queues.bounded:
        return True
    milli = promised_milli + sum(ask_of(job, r).gpu_milli for r, _ in wanted)
    return queues.admit(job, plan, milli) is None


def _target(job: Job, r: int, most: int) -> int:
    return job.wants if r == 0 and job.wants is not None else most


def _one_more(
    job: Job, plan: Plan, placer: Placer, extra: list[Worker], queues: Queues, promised: int
) -> Worker | None:
    held = (*job.allocation, *extra)
    for r, role in enumerate(job.spec.roles):
        if sum(worker.role == r for worker in held) < _target(job, r, role.max):
            wanted = new_workers(held, r, 1)
            if fits_queue(job, plan, wanted, queues, promised):
                found = placer.find(job, plan, wanted)
                if found is not None:
                    return found[0]
    return None
