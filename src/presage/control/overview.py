"""The cluster at a glance: what runs, what waits and why, what is wasted. Figures are of
everything, lists of jobs that somebody may see.

Reads a state and the accounts; it decides nothing and knows no HTTP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from heapq import nlargest
from typing import Any

from presage.control.history import RunUse
from presage.control.people.accounts import UserRole
from presage.core.engine import Engine
from presage.core.state import State
from presage.model.cluster import UNLIMITED, WHOLE_GPU
from presage.model.job import Job
from presage.store.records import User
from presage.store.sql import SqlStore

__all__ = ["glance", "of_today"]

_SECONDS_A_DAY = 86_400


def glance(engine: Engine, uses: Mapping[str, RunUse], top: int, me: User) -> dict[str, Any]:
    """What is there and what is held; the largest jobs that run, those that hold most without
    using it, and those that wait longest, so many of each."""
    state = engine.state
    active, pending = state.active.values(), state.pending.values()
    running = nlargest(top, _seen(active, me), key=_size)
    unused = _idle if state.capacity.total_milli else _unused_cores
    wasteful = nlargest(top, _seen(active, me), key=lambda job: unused(job, uses))
    waiting, members = _first_ones(sorted(_seen(pending, me), key=lambda job: job.seq), top)
    return {
        **_capacity(state, uses),
        "running": [_job(job, uses) for job in running],
        "idle": [_job(job, uses) for job in wasteful if unused(job, uses)],
        "waiting": [_waits(job, members[job.spec.array], engine) for job in waiting],
    }


def of_today(store: SqlStore, me: User, now: float) -> dict[str, Any]:
    """Of today: hours that were held, measured idle and lost; and whether there was ever a job."""
    day = int(now // _SECONDS_A_DAY)
    rows = [row for _, row in store.usage.read(day, day)]
    whose: dict[str, Any] = {}
    if me.role == UserRole.USER:
        whose = {"team": me.team} if me.team else {"owner": me.name}
    idle = sum(max(0.0, row.measured_gpu_s - row.used_gpu_s) for row in rows)
    today = {
        "day": datetime.fromtimestamp(now, UTC).date().isoformat(),
        "held_gpu_h": round(sum(row.held_gpu_s for row in rows) / 3600, 3),
        "idle_gpu_h": round(idle / 3600, 3),
        "lost_gpu_h": round(sum(row.lost_gpu_s for row in rows) / 3600, 3),
        "held_cpu_h": round(sum(row.held_cpu_s for row in rows) / 3600, 3),
        "used_cpu_h": round(sum(row.used_cpu_s for row in rows) / 3600, 3),
    }
    return {"today": today, "any_job": bool(store.jobs.list(**whose, limit=1))}


def _seen(jobs: Iterable[Job], me: User) -> Iterable[Job]:
    """Those that somebody may know of: the rule of `accounts.may_see`, on what the state has."""
    if me.role != UserRole.USER:
        return jobs
    own = (
        job for job in jobs if job.spec.owner == me.name or (me.team and job.spec.team == me.team)
    )
    return own


def _capacity(state: State, uses: Mapping[str, RunUse]) -> dict[str, Any]:
    """What there is and what is held, on nodes that are not down."""
    capacity = state.capacity
    gpus = gpus_free = cpus = cpus_free = uncounted = 0
    for name, i in capacity.index.items():
        if name in state.down:
            continue
        node = capacity.nodes[i]
        gpus += len(node.devices)
        gpus_free += sum(max(0, free) for free in capacity.free_gpu[i])
        if node.cpu_milli < UNLIMITED:
            cpus += node.cpu_milli
            cpus_free += max(0, capacity.free_cpu[i])
        else:
            uncounted += 1
    active = state.active
    known = [uses[job] for job in active if job in uses]
    counted = [use.cpus_used for job, use in uses.items() if job in active and _cpus(active[job])]
    return {
        "nodes": {
            "up": len(capacity.index) - len(state.down) - len(state.draining),
            "draining": len(state.draining),
            "down": len(state.down),
        },
        "gpus": {
            "all": gpus,
            "held": round(gpus - gpus_free / WHOLE_GPU, 3),
            "free": round(gpus_free / WHOLE_GPU, 3),
            "idle": sum(use.gpus_idle for use in known),
            "measured": sum(use.gpus_measured for use in known),
        },
        "cpus": {
            "all": cpus / 1000 if not uncounted else None,
            "held": round(sum(map(_cpus, active.values())), 3),
            "free": cpus_free / 1000 if not uncounted else None,
            "used": round(sum(counted), 3) if counted else None,
        },
        "jobs": {"running": len(active), "waiting": len(state.pending)},
    }


def _gpus(job: Job) -> float:
    return job.held_milli / WHOLE_GPU


def _cpus(job: Job) -> float:
    roles = job.spec.roles
    return sum(roles[worker.role].resources.cpu_milli for worker in job.allocation) / 1000


def _size(job: Job) -> tuple[float, float, int]:
    return _gpus(job), _cpus(job), -job.seq


def _idle(job: Job, uses: Mapping[str, RunUse]) -> int:
    use = uses.get(job.id)
    return use.gpus_idle if use is not None else 0


def _unused_cores(job: Job, uses: Mapping[str, RunUse]) -> float:
    """Cores that are held and not used, where they are the larger part."""
    use, cpus = uses.get(job.id), _cpus(job)
    unused = cpus - use.cpus_used if use is not None else 0.0
    return unused if unused > cpus / 2 else 0.0


def _job(job: Job, uses: Mapping[str, RunUse]) -> dict[str, Any]:
    use = uses.get(job.id)
    return {
        "id": job.id,
        "owner": job.spec.owner,
        "queue": job.spec.queue,
        "workers": len(job.allocation),
        "gpus": _gpus(job),
        "cpus": _cpus(job),
        "idle_gpus": use.gpus_idle if use is not None and use.gpus_measured else None,
        "used_cpus": use.cpus_used if use is not None else None,
        "since": job.since,
        "done": job.progress or None,
    }


def _first_ones(waiting: Sequence[Job], top: int) -> tuple[list[Job], Counter[str]]:
    """Who waits longest, and how many of each array wait: those count as one."""
    members = Counter(job.spec.array for job in waiting)
    seen: set[str] = set()
    first = []
    for job in waiting:
        if job.spec.array not in seen:
            first.append(job)
        if job.spec.array:
            seen.add(job.spec.array)
        if len(first) == top:
            break
    return first, members


def _waits(job: Job, members: int, engine: Engine) -> dict[str, Any]:
    reason = engine.explain(job.id)
    spec = job.spec
    return {
        "id": job.id,
        "owner": spec.owner,
        "queue": spec.queue,
        "array": spec.array or None,
        "jobs": members if spec.array else 1,
        "gpus": spec.min_gpu_milli / WHOLE_GPU,
        "cpus": sum(role.min * role.resources.cpu_milli for role in spec.roles) / 1000,
        "submitted_at": job.submitted_at,
        "reason": {"code": reason.code if reason else "ok", "text": reason.text if reason else ""},
    }
