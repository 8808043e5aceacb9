"""Preemption by rank, as SRTF and Tiresias are published: running and waiting jobs in one ranking,
and the first of them that the cluster's GPUs hold by number are the ones to run.

A running job outside that set gives way while one inside it waits for GPUs of a kind that it
holds, even if the waiting one needs still more room than that: so room collects for large jobs.
For preemption that never stops anyone in vain, see `reclaim.make_room`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heapreplace
from typing import Any

from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.workers import devices_of, least_milli
from presage.model.cluster import WHOLE_GPU
from presage.model.job import Job, Reason, ReasonCode, StopIntent
from presage.policy.backlog import Backlog, waits
from presage.policy.elastic import least_workers
from presage.policy.order import Order
from presage.policy.placer import Placer
from presage.policy.queues import Queues
from presage.policy.reclaim import candidates, lend

__all__ = ["walk_ranked"]

_Entry = tuple[SortKey, Job]


def walk_ranked(
    plan: Plan,
    predict: Predictor,
    order: Order,
    backlog: Backlog,
    queues: Queues,
    placer: Callable[[Job], Placer],
) -> None:
    """Start the waiting jobs that rank high enough, on the room of running ones that do not."""
    state = plan.state
    chosen, losers = _rank(plan, predict, order, backlog)
    for loser in losers:
        lend(plan, (loser, loser.allocation), 1)
    waiting: list[Job] = []
    for key, job in chosen:
        found = None
        if not (queues.bounded and queues.admit(job, plan, least_milli(job))):
            found = placer(job).find(job, plan, least_workers(job))
        if found is None:
            backlog.push(key, job)
            waiting.append(job)
        elif losers:
            plan.reserve(job, found)
        else:
            plan.place(job, found)
    for loser in reversed(losers):
        lend(plan, (loser, loser.allocation), -1)
    if losers:
        lent = set[tuple[str, int]]().union(*(devices_of(loser.allocation) for loser in losers))
        for _, job in chosen:
            if job.id in state.reservations:
                in_use = lent & devices_of(state.reservations[job.id])
                if state.ready(job.id) and not in_use:
                    plan.place(job, state.reservations[job.id])
                else:
                    waiting.append(job)
        _stop(plan, losers, waiting)


def _rank(
    plan: Plan, predict: Predictor, order: Order, backlog: Backlog
) -> tuple[list[_Entry], list[Job]]:
    """Waiting jobs that rank high enough, taken off the backlog, and running ones that do not."""
    state = plan.state
    movable = candidates(plan)
    running = sorted((order(job, plan, predict), job) for job in movable)
    quota = _open_milli(plan) - sum(state.usage.values()) + sum(job.held_milli for job in movable)
    chosen: list[_Entry] = []
    seen: set[str] = set()  # a job that was halted and resumed while it waited is there twice
    losers: list[Job] = []
    heads: list[Any] = [(g.heap[0][0], k, g) for k, g in enumerate(backlog.groups.values())]
    heapify(heads)
    at = 0
    while heads or at < len(running):
        if not heads or (at < len(running) and running[at][0] < heads[0][0]):
            job = running[at][1]
            at += 1
            if job.held_milli <= quota:
                quota -= job.held_milli
            else:
                losers.append(job)
            continue
        _, k, group = heads[0]
        key, job = group.heap[0]
        if group.milli > quota:
            heappop(heads)
            continue
        backlog.pop(group)
        if waits(job, state) and job.id not in seen:
            seen.add(job.id)
            quota -= group.milli
            chosen.append((key, job))
        if group.heap:
            heapreplace(heads, (group.heap[0][0], k, group))
        else:
            heappop(heads)
    return chosen, losers


def _stop(plan: Plan, losers: list[Job], waiting: list[Job]) -> None:
    """Stop the losers who hold a kind of GPU that somebody who ranks higher waits for."""
    capacity = plan.state.capacity
    wanted = 0
    for job in waiting:
        for role in job.spec.roles:
            wanted |= capacity.accepts(role.gpu_types)
    for loser in losers:
        if any(wanted >> capacity.index[worker.node] & 1 for worker in loser.allocation):
            reason = Reason(ReasonCode.PREEMPTED, f"{len(waiting)} waiting jobs rank before it")
            plan.stop(loser, StopIntent.REQUEUE, reason)


def _open_milli(plan: Plan) -> int:
    """Milli-GPUs on nodes that take work."""
    capacity = plan.state.capacity
    return sum(
        len(node.devices) * WHOLE_GPU
        for i, node in enumerate(capacity.nodes)
        if capacity.open >> i & 1
    )
