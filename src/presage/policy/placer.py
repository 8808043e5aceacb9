"""Where the workers of one job go: walks over them, asks the scores, all or nothing.

Pure search: it reads the plan's free capacity, tries workers on it and puts everything back;
deciding to
launch is the pipeline's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from presage.core.capacity import Capacity
from presage.core.plan import Plan
from presage.core.workers import ask_of
from presage.model.cluster import Resources, Worker
from presage.model.job import Job
from presage.policy.request import (
    ByRoom,
    CanDomains,
    CanPick,
    CanPickDevices,
    Request,
    Score,
    feasible,
    nodes_for,
    slots,
)
from presage.policy.score import Pack

__all__ = ["Placer"]

Wanted = Sequence[tuple[int, int]]
"""(role, index) of workers to place."""


class Placer:
    """A weighted sum of scores; most often a single one."""

    def __init__(self, scores: Mapping[Score, float], most: int | None = None) -> None:
        self.scores = dict(scores)
        self.most = most
        first = next(iter(self.scores))
        alone = len(self.scores) == 1
        self._choose = first.pick if alone and isinstance(first, CanPick) else self._best
        packs = alone and isinstance(first, Pack)
        self._last_resort = None if packs else Placer({Pack(): 1.0}, most)
        """Workers go one by one, so scores may walk into a corner; what fits packed still fits."""
        heaviest = sorted(self.scores, key=lambda score: -self.scores[score])
        self._domains = next((s.domains for s in heaviest if isinstance(s, CanDomains)), None)
        pickers = (s.devices for s in heaviest if isinstance(s, CanPickDevices))
        self._devices = next(pickers, _least_room)
        self.by_room = all(isinstance(score, ByRoom) and score.by_room for score in self.scores)
        """Whether room alone decides: jobs that ask for the same would go to the same place."""

    def find(
        self,
        job: Job,
        plan: Plan,
        wanted: Wanted,
        within: int | None = None,
        capacity: Capacity | None = None,
    ) -> tuple[Worker, ...] | None:
        """Workers for all of `wanted` on the free capacity of the plan, or on another; or None.

        `within` is a mask of the nodes to look at."""
        capacity = capacity or plan.state.capacity
        if len(wanted) != 1:
            return self._find_many(job, plan, wanted, within, capacity)
        r, index = wanted[0]
        ask = ask_of(job, r)
        if ask.gpu_milli > capacity.free_milli:
            return None
        role = job.spec.roles[r]
        request = Request(job, plan, capacity, ask, role.gpu_types, self.most, 1, ask)
        nodes = nodes_for(role, capacity)
        if within is not None:
            nodes &= within
        i = self._choose(request, nodes)
        if i is None:
            return None
        return (Worker(r, index, capacity.nodes[i].name, self._devices(request, i)),)

    def _find_many(
        self, job: Job, plan: Plan, wanted: Wanted, within: int | None, capacity: Capacity
    ) -> tuple[Worker, ...] | None:
        nodes = capacity.open if within is None else capacity.open & within
        if not self._has_slots(job, wanted, nodes, capacity):
            return None
        request = self._request(job, plan, wanted, capacity)
        for domain in self._domains(request, nodes) if self._domains else (nodes,):
            workers = self._find_all(request, wanted, domain)
            if workers is not None:
                return workers
        if self._last_resort is None:
            return None
        return self._last_resort.find(job, plan, wanted, within, capacity)

    def _has_slots(self, job: Job, wanted: Wanted, nodes: int, capacity: Capacity) -> bool:
        """Whether each role on its own would find places enough: cheap, and most fail here."""
        roles = job.spec.roles
        if len(roles) == 1:
            ask, count, role = ask_of(job, 0), len(wanted), roles[0]
            if count * ask.gpu_milli > capacity.free_milli:
                return False
            nodes &= nodes_for(role, capacity)
            return slots(capacity, ask, nodes, count) >= count
        counts = Counter(r for r, _ in wanted)
        milli = sum(count * ask_of(job, r).gpu_milli for r, count in counts.items())
        return milli <= capacity.free_milli and all(
            slots(capacity, ask_of(job, r), nodes & nodes_for(roles[r], capacity), count) >= count
            for r, count in counts.items()
        )

    def _find_all(
        self, request: Request, wanted: Wanted, domain: int
    ) -> tuple[Worker, ...] | None:
        capacity, job = request.capacity, request.job
        request.placed = placed = []
        taken: list[tuple[int, Resources, tuple[int, ...]]] = []
        workers: list[Worker] = []
        for r, index in wanted:
            request.ask = ask_of(job, r)
            role = job.spec.roles[r]
            request.types = role.gpu_types
            i = self._choose(request, domain & nodes_for(role, capacity))
            if i is None:
                break
            devices = self._devices(request, i)
            capacity.take(i, request.ask, devices)
            taken.append((i, request.ask, devices))
            placed.append(i)
            workers.append(Worker(r, index, capacity.nodes[i].name, devices))
        for i, ask, devices in reversed(taken):
            capacity.lend(i, ask, devices)
        return tuple(workers) if len(workers) == len(wanted) else None

    def _best(self, request: Request, nodes: int) -> int | None:
        """The feasible node with the highest weighted sum, the first of them on a tie."""
        good = feasible(request, nodes)
        if not good.any():
            return None
        total = np.zeros(len(good))
        for score, weight in self.scores.items():
            total += weight * score(request)
        total[~good] = -np.inf
        return int(total.argmax())

    def _request(self, job: Job, plan: Plan, wanted: Wanted, capacity: Capacity) -> Request:
        asks = [ask_of(job, r) for r, _ in wanted]
        whole = Resources(
            sum(ask.cpu_milli for ask in asks),
            sum(ask.memory_mib for ask in asks),
            sum(ask.gpu_milli for ask in asks),
            max(ask.gpu_memory_mib for ask in asks),
        )
        return Request(job, plan, capacity, asks[0], (), self.most, len(asks), whole)


def _least_room(request: Request, i: int) -> tuple[int, ...]:
    return request.capacity.devices(i, request.ask, request.most)
