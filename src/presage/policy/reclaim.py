"""Who gives way. A reclaim names running jobs in the order in which they should go, least needed
first.

They are proposals: `make_room` stops only those without whom the waiting job would still not fit,
shrinks
elastic jobs before it stops anyone, and holds the room for the job that caused it. Also here:
moving jobs off
nodes that are drained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import chain
from typing import Protocol

from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.workers import ask_of, least_milli
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Reason, ReasonCode, StopIntent
from presage.policy.order import Order
from presage.policy.placer import Placer, Wanted
from presage.policy.queues import Queues, promised

__all__ = [
    "ByOrder",
    "ByPriority",
    "ByQuota",
    "Chip",
    "Loss",
    "Reclaim",
    "can_stop",
    "candidates",
    "evacuate",
    "leaving",
    "lend",
    "make_room",
]


_STOPPING = JobState.STOPPING


class Reclaim(Protocol):
    """Running jobs that should give way to a waiting one."""

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> list[Job]:
        """Least needed first; only jobs from `candidates`."""
        ...


class ByOrder:
    """Jobs that come after the waiting one in the order itself, the last of them first."""

    def __init__(self, order: Order) -> None:
        self.order = order

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> list[Job]:
        """Everybody whose key is larger."""
        mine = self.order(job, plan, predict)
        keyed = [(self.order(other, plan, predict), other) for other in candidates(plan)]
        later = [(key, other) for key, other in keyed if key > mine]
        later.sort(key=lambda item: item[0], reverse=True)
        return [other for _, other in later]


class ByPriority:
    """Jobs of lower priority, the lowest first, the youngest first among equals."""

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> list[Job]:
        """Everybody of lower priority."""
        lower = [other for other in candidates(plan) if other.spec.priority < job.spec.priority]
        return sorted(lower, key=lambda other: (other.spec.priority, -other.seq))


class ByQuota:
    """Jobs of queues that borrow, the youngest first, for a job whose queue is within its
    quota."""

    def __init__(self, queues: Queues) -> None:
        self.queues = queues

    def __call__(self, job: Job, plan: Plan, predict: Predictor) -> list[Job]:
        """Never more from a queue than it borrowed."""
        usage = plan.state.usage
        quota = self.queues[job.spec.queue].quota_milli
        mine = usage.get(job.spec.queue, 0) + promised(job.spec.queue, plan.state)
        if quota is None or mine + least_milli(job) > quota:
            return []
        borrowed = {
            queue: used - (self.queues[queue].quota_milli or 0)
            for queue, used in usage.items()
            if queue != job.spec.queue
        }
        for other in plan.state.active.values():
            if other.state is JobState.STOPPING and other.spec.queue in borrowed:
                borrowed[other.spec.queue] -= other.held_milli  # it is on its way already
        chosen: list[Job] = []
        for other in sorted(candidates(plan), key=lambda other: -other.seq):
            if borrowed.get(other.spec.queue, 0) >= other.held_milli > 0:
                borrowed[other.spec.queue] -= other.held_milli
                chosen.append(other)
        return chosen


def candidates(plan: Plan) -> list[Job]:
    """Jobs that hold devices and can be told to stop."""
    return [job for job in plan.state.active.values() if can_stop(job)]


def can_stop(job: Job) -> bool:
    """Whether a job that holds devices can be told to stop."""
    return job.state is not _STOPPING and job.resizing is None and job.spec.preemptible


Loss = Callable[[Job, int], float]
"""What the last of so many workers brings to a job."""


def make_room(
    job: Job,
    plan: Plan,
    placer: Placer,
    wanted: Wanted,
    victims: Sequence[Job],
    donors: Sequence[Job],
    loss: Loss | None = None,
) -> bool:
    """Reserve room for a job, shrinking donors and stopping victims, as few as possible; False
    changes nothing.

    Verified: nobody is disturbed unless the job then fits. Room that is being released anyway
    comes first. Donors give in the order of `loss`, what their last worker brings them; without
    it, those with the largest surplus first.
    """
    need = sum(ask_of(job, r).gpu_milli for r, _ in wanted)
    capacity, released = plan.state.capacity, leaving(plan)
    if capacity.free_milli + _offered(released, victims, donors) < need:
        return False
    free_chips = len(released)
    source: Iterator[Chip] = chain(released, _surplus(donors, loss))
    if victims:
        parts = list(source)
        source = chain(parts, _whole(victims, parts))
    chips: list[Chip] = []
    workers = None
    for k, chip in enumerate(source):
        lend(plan, chip, 1)
        chips.append(chip)
        if k < free_chips - 1 or capacity.free_milli < need:
            continue
        if (workers := placer.find(job, plan, wanted)) is not None:
            break
    given = list(range(len(chips)))
    if workers is not None:
        workers = _spare(job, plan, placer, wanted, chips, given, free_chips, workers)
    for k in reversed(given):
        lend(plan, chips[k], -1)
    if workers is None:
        return False
    _evict(job, plan, [chips[k] for k in given if k >= free_chips])
    plan.reserve(job, workers)
    return True


Chip = tuple[Job, tuple[Worker, ...]]


def _spare(
    job: Job,
    plan: Plan,
    placer: Placer,
    wanted: Wanted,
    chips: list[Chip],
    given: list[int],
    free_chips: int,
    workers: tuple[Worker, ...],
) -> tuple[Worker, ...]:
    """Let go of every victim that is not needed after all, the most needed of them first."""
    for k in reversed([k for k in given[:-1] if k >= free_chips]):
        lend(plan, chips[k], -1)
        again = placer.find(job, plan, wanted)
        if again is None:
            lend(plan, chips[k], 1)
        else:
            given.remove(k)
            workers = again
    return workers


def leaving(plan: Plan) -> list[Chip]:
    """What runs release already: those that stop, and those that are made smaller."""
    chips: list[Chip] = []
    for other in plan.state.active.values():
        if other.state is JobState.STOPPING:
            extra = set(other.resizing or ()) - set(other.allocation)
            chips.append((other, other.allocation + tuple(sorted(extra, key=_rank))))
        elif other.resizing is not None:
            kept = set(other.resizing)
            chips.append((other, tuple(w for w in other.allocation if w not in kept)))
    return [(other, workers) for other, workers in chips if workers]


def _offered(released: list[Chip], victims: Sequence[Job], donors: Sequence[Job]) -> int:
    """Milli-GPUs that are released, could be given or taken."""
    milli = sum(ask_of(job, w.role).gpu_milli for job, workers in released for w in workers)
    held = {job.seq: job.held_milli - least_milli(job) for job in donors}
    held |= {job.seq: job.held_milli for job in victims}
    return milli + sum(held.values())


def _whole(victims: Sequence[Job], parts: list[Chip]) -> Iterator[Chip]:
    """What victims hold beside the parts they would give anyway."""
    spared = {(id(victim), workers) for victim, workers in parts}
    for victim in victims:
        yield (
            victim,
            tuple(w for w in victim.allocation if (id(victim), (w,)) not in spared),
        )


def _surplus(donors: Sequence[Job], loss: Loss | None) -> Iterator[Chip]:
    """Workers that these jobs hold above their minimum, one by one, the least needed first."""
    heap: list[tuple[float, int, int, Job]] = []
    for job in donors:
        above = len(job.allocation) - sum(role.min for role in job.spec.roles)
        if above > 0:
            key = float(-above) if loss is None else loss(job, len(job.allocation))
            heap.append((key, job.seq, 0, job))
    heapify(heap)
    spare: dict[int, list[Worker]] = {}
    while heap:
        key, seq, k, job = heap[0]
        if k == 0:
            spare[seq] = _spare_workers(job)
        yield job, (spare[seq][k],)
        if k + 1 == len(spare[seq]):
            heappop(heap)
        else:
            key = key + 1 if loss is None else loss(job, len(job.allocation) - k - 1)
            heapreplace(heap, (key, seq, k + 1, job))


def _spare_workers(job: Job) -> list[Worker]:
    """The workers above the minimum of their roles, in the order in which they would leave."""
    counts = [-role.min for role in job.spec.roles]
    for worker in job.allocation:
        counts[worker.role] += 1
    spare: list[Worker] = []
    for worker in reversed(job.allocation):
        if counts[worker.role] > 0:
            counts[worker.role] -= 1
            spare.append(worker)
    return spare


def _evict(job: Job, plan: Plan, chips: list[Chip]) -> None:
    """Stop the jobs that give everything, shrink the others."""
    gone: dict[str, set[Worker]] = {}
    for victim, workers in chips:
        gone.setdefault(victim.id, set()).update(workers)
    for victim_id, leaving in gone.items():
        victim = plan.state.jobs[victim_id]
        kept = tuple(w for w in victim.allocation if w not in leaving)
        enough = all(
            sum(w.role == r for w in kept) >= role.min for r, role in enumerate(victim.spec.roles)
        )
        if kept and enough:
            plan.resize(victim, kept)
        else:
            reason = Reason(ReasonCode.PREEMPTED, f"made room for job {job.id}")
            plan.stop(victim, StopIntent.REQUEUE, reason)


def lend(plan: Plan, chip: Chip, sign: int) -> None:
    """Show the plan what workers hold as free (1), or no longer (-1)."""
    job, workers = chip
    capacity = plan.state.capacity
    move = capacity.lend if sign > 0 else capacity.take
    for worker in workers:
        move(capacity.index[worker.node], ask_of(job, worker.role), worker.devices)


def _rank(worker: Worker) -> tuple[int, int]:
    return worker.role, worker.index


def evacuate(plan: Plan) -> None:
    """Move jobs off draining nodes: elastic ones shrink if that is enough, others stop and
    wait."""
    draining = plan.state.draining
    for job in candidates(plan):
        if not any(worker.node in draining for worker in job.allocation):
            continue
        kept = tuple(w for w in job.allocation if w.node not in draining)
        enough = all(
            sum(w.role == r for w in kept) >= role.min for r, role in enumerate(job.spec.roles)
        )
        if enough and job.state is JobState.RUNNING:
            plan.resize(job, kept)
        else:
            reason = Reason(ReasonCode.DRAINED, "its node is drained for maintenance")
            plan.stop(job, StopIntent.REQUEUE, reason)
