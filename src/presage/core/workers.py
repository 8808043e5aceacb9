"""Questions about the workers of jobs: what each asks for, which are missing, which could leave or
do.

Pure functions of a job; they change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from presage.model.cluster import WHOLE_GPU, Resources, Worker
from presage.model.job import Job, JobState

__all__ = [
    "ask_of",
    "being_left",
    "devices_of",
    "joining",
    "least_cpu",
    "least_milli",
    "milli_of",
    "missing",
    "new_workers",
    "shrunk",
]


def ask_of(job: Job, role: int) -> Resources:
    """What one worker of a role asks for; a job that must not share asks for a whole device."""
    ask = job.spec.roles[role].resources
    if ask.gpu_milli >= WHOLE_GPU or not ask.gpu_milli:
        return ask
    return _whole(ask) if job.out_of_memory or not job.spec.shareable else ask


def devices_of(workers: tuple[Worker, ...]) -> set[tuple[str, int]]:
    """The (node, device) that workers use."""
    return {(worker.node, d) for worker in workers for d in worker.devices}


def being_left(jobs: Iterable[Job]) -> set[tuple[str, int]]:
    """Devices of workers that were told to go and have not gone yet."""
    devices: set[tuple[str, int]] = set()
    for job in jobs:
        if job.state is _STOPPING:
            devices |= devices_of(job.allocation + (job.resizing or ()))
        elif job.resizing is not None:
            kept = job.resizing
            devices |= devices_of(tuple(w for w in job.allocation if w not in kept))
    return devices


def milli_of(job: Job) -> int:
    """Milli-GPUs of the allocation that a job has, without what a resize will bring."""
    if job.resizing is None:
        return job.held_milli
    return sum(ask_of(job, worker.role).gpu_milli for worker in job.allocation)


def least_cpu(job: Job) -> int:
    """Milli-CPUs of the smallest allocation a job can run on."""
    return sum(role.min * role.resources.cpu_milli for role in job.spec.roles)


def least_milli(job: Job) -> int:
    """Milli-GPUs of the smallest allocation a job can run on, as it would get them."""
    return sum(role.min * ask_of(job, r).gpu_milli for r, role in enumerate(job.spec.roles))


def missing(job: Job) -> tuple[tuple[int, int], ...]:
    """The (role, index) of workers a job still needs before it can start."""
    roles, held = job.spec.roles, job.allocation
    if len(roles) == 1 and len(held) >= roles[0].min:
        return ()
    lacking: list[tuple[int, int]] = []
    for r, role in enumerate(roles):
        lacking += new_workers(held, r, role.min - sum(worker.role == r for worker in held))
    return tuple(lacking)


def new_workers(held: tuple[Worker, ...], role: int, count: int) -> list[tuple[int, int]]:
    """The (role, index) that the next `count` workers of a role get: the lowest numbers not in
    use."""
    used = {worker.index for worker in held if worker.role == role}
    new: list[tuple[int, int]] = []
    index = 0
    while len(new) < count:
        if index not in used:
            new.append((role, index))
        index += 1
    return new


def shrunk(job: Job, drop: int, role: int | None = None) -> tuple[Worker, ...] | None:
    """The allocation left when the last `drop` workers above the minimum leave (of one role, if it
    is named), or None when so many cannot."""
    counts = [sum(w.role == r for w in job.allocation) for r in range(len(job.spec.roles))]
    kept = list(job.allocation)
    for worker in reversed(job.allocation):
        if not drop:
            break
        spare = counts[worker.role] > job.spec.roles[worker.role].min
        if spare and role in (None, worker.role):
            counts[worker.role] -= 1
            kept.remove(worker)
            drop -= 1
    return None if drop else tuple(kept)


_STOPPING = JobState.STOPPING


@cache
def _whole(ask: Resources) -> Resources:
    return Resources(ask.cpu_milli, ask.memory_mib, WHOLE_GPU, ask.gpu_memory_mib)


def joining(workers: tuple[Worker, ...], job: Job) -> tuple[Worker, ...]:
    """Those of them that a job does not have yet."""
    had = set(job.allocation)
    return tuple(worker for worker in workers if worker not in had)
