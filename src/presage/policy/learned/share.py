"""Who goes with whom on a GPU: the walk of jobs that share, in which each place is chosen.

Waiting jobs have their turns as in the policy `colocate`. When a job's turn comes, a slot holds a
place where it could go: GPUs with the jobs that are on them, or idle ones. Places are those that
`colocate` allows: memory, the number of jobs and everybody's bound of slowdown hold. A choice
starts the job there; doing nothing lets it wait until something is freed. A job of whole GPUs, or
of more than a node has, is placed as by `colocate`; so is every job while nothing runs.

`walk` asks a network; without one the pass is left open, for an environment to go on with
`choose`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import copysign, inf, log, log1p, log2

import numpy as np

from presage.core.capacity import bits
from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.workers import ask_of, least_milli
from presage.model.cluster import Worker
from presage.model.job import Job
from presage.policy.backlog import waits
from presage.policy.colocate import Tenancy
from presage.policy.elastic import least_workers
from presage.policy.learned.net import Decides, Floats, SlotLayout
from presage.policy.request import nodes_for
from presage.policy.rules import Rules
from presage.policy.sharing import SharingRules, shares
from presage.policy.walks.shared import Shared, SharingTurn

__all__ = ["SHARE_RULES", "ShareWalk", "share_layout"]

SLOT_FIELDS = (
    "present",
    "able",
    "alone",
    "idle",
    "tenants",
    "own",
    "others",
    "strain",
    "cost",
    "above",
    "busy",
    "memory",
    "longest",
    "shortest",
    "room",
)
CLUSTER_FIELDS = ("free", "waiting", "running", "left", "gpus", "busy", "memory", "waited")
SHARE_RULES: dict[str, float] = {}
"""It has no numbers of its own: bounds and the worth of an idle GPU are those of the policy."""

_Spot = tuple[int, int]
_LONG = log(1e6)
_MOST = 3.0
"""Ratios are shown up to this."""


def share_layout(slots: int = 16) -> SlotLayout:
    """What the walk observes."""
    return SlotLayout(slots, SLOT_FIELDS, CLUSTER_FIELDS)


@dataclass(frozen=True, slots=True, eq=False)
class GpuPlace:
    """A place where a job could go."""

    spots: tuple[_Spot, ...]
    tenants: tuple[Job, ...]
    """All who are on these GPUs."""
    idle: int
    """How many of the GPUs nobody is on."""
    own: float
    """How many times longer the job is foreseen to take there."""
    others_s: float
    """Seconds that the others lose, and what the idle GPUs are worth."""
    strain: float
    """The slowdown that comes closest to its bound, relative to that."""
    cost_s: float
    """Seconds that all jobs together lose."""
    crowd: float
    """The summed utilization of the fullest of the GPUs, with the job."""
    memory: float
    """The share of its memory that is foreseen to be used there."""
    whole: int
    """Idle GPUs of its first node."""


class Choices(Tenancy):
    """Tells all places of a job, instead of the cheapest."""

    def candidates(self, job: Job, most: int, nodes: int) -> list[GpuPlace] | None:
        """The cheapest places, so many at most; always one of idle GPUs if there is one. None for
        a job that is not to be asked about."""
        count = len(least_workers(job))
        if not shares(job):
            return None
        open_nodes = nodes_for(job.spec.roles[0], self._capacity)
        if count > self._largest_of(open_nodes):
            return None
        places = list(self._all_of(job, open_nodes & nodes, count))
        places.sort(key=lambda one: (one.cost_s, one.whole, one.spots))
        alone = next((one for one in places if one.idle == count), None)
        kept = places[:most]
        if alone is not None and alone not in kept:
            kept[-1] = alone
        return kept

    def _all_of(self, job: Job, nodes: int, count: int) -> Iterator[GpuPlace]:
        capacity, ask = self._capacity, ask_of(job, 0)
        cpu, memory = count * ask.cpu_milli, count * ask.memory_mib
        price_of, left = self._prices(job), self.left_of(job)
        first_idle: tuple[int, GpuPlace] | None = None
        for i in bits(nodes):
            if capacity.free_cpu[i] < cpu or capacity.free_memory[i] < memory:
                continue
            free, free_memory = capacity.free_gpu[i], capacity.free_gpu_memory[i]
            options: list[tuple[float, int]] = []
            for offer in self._offers_of(i)[count == 1]:
                d = offer[0]
                if free[d] < ask.gpu_milli or free_memory[d] < ask.gpu_memory_mib:
                    continue
                price = price_of(i, offer, inf)
                if price is not None:
                    options.append(((price.own - 1) * left + price.others_s, d))
            if len(options) < count:
                continue
            idle = [d for _, d in options if not self._on.get((i, d))]
            if count == 1:
                for _, d in options:
                    if d not in idle:
                        yield self._candidate(job, ((i, d),))
            else:
                options.sort()
                cheapest = tuple((i, d) for _, d in options[:count])
                if any(d not in idle for _, d in cheapest):
                    yield self._candidate(job, cheapest)
            if len(idle) >= count and (first_idle is None or capacity.whole[i] < first_idle[0]):
                spots = tuple((i, d) for d in idle[:count])
                first_idle = capacity.whole[i], self._candidate(job, spots)
        if first_idle is not None:
            yield first_idle[1]

    def _candidate(self, job: Job, spots: tuple[_Spot, ...]) -> GpuPlace:
        """What it means to be there: the slowest worker holds up the others, and a neighbour on
        several of the GPUs is slowed once."""
        left, predict = self.left_of(job), self._predict
        mine, need = predict.utilization(job).p50, predict.memory(job).p90
        own, strain, crowd, filled, idle = 1.0, 1.0 / self.rules.bound(job), mine, 0.0, 0
        joined: dict[tuple[Job, ...], float] = {}
        for i, d in spots:
            room = max(self._capacity.nodes[i].devices[d].memory_mib, 1)
            tenants = self._on.get((i, d), ())
            if not tenants:
                idle += 1
                filled = max(filled, need / room)
                continue
            if tenants not in joined:
                price = self._price(job, tenants)
                own, strain = max(own, price.own), max(strain, price.strain)
                joined[tenants] = price.others_s
                busy = sum(predict.utilization(one).p50 for one in tenants)
                crowd = max(crowd, mine + busy)
            filled = max(filled, (self._crew(tenants).memory_mib + need) / room)
        others_s = sum(joined.values()) + idle * self.rules.idle_worth * left
        everyone = tuple(dict.fromkeys(one for tenants in joined for one in tenants))
        cost_s = (own - 1) * left + others_s
        whole = self._capacity.whole[spots[0][0]]
        return GpuPlace(spots, everyone, idle, own, others_s, strain, cost_s, crowd, filled, whole)


class ShareWalk(Shared):
    """Places are chosen."""

    def __init__(
        self,
        rules: Rules,
        sharing: SharingRules,
        layout: SlotLayout,
        net: Decides | None = None,
    ) -> None:
        self.layout, self._net = layout, net
        self.observation: Floats = np.zeros(layout.size)
        """What there is to choose from; the walk's own, and good until the next choice."""
        count, width = layout.slots, len(SLOT_FIELDS)
        self._cells = self.observation[: count * width].reshape(count, width)
        self._cluster = self.observation[count * width :]
        self.can_choose = False
        """Whether somebody's turn it is."""
        super().__init__(rules, sharing)

    def reset(self) -> None:
        """Nobody waits."""
        super().reset()
        self._view = self._choices = Choices(self.sharing)
        self._order: Iterator[SharingTurn] = iter(())
        self._now: SharingTurn | None = None
        self._places: list[GpuPlace] = []
        self._let_wait: set[Job] = set()
        """Those who could have started."""
        self.can_choose = False

    def walk(self, plan: Plan, predict: Predictor) -> None:
        """One pass; without a network it is only begun."""
        self.begin(plan, predict)
        if self._net is not None:
            while self.can_choose:
                self.choose(self._net.choose(self.observation, self.layout))

    # -- a pass, step by step -------------------------------------------------------------------

    def begin(self, plan: Plan, predict: Predictor) -> None:
        """Whose turn it is first."""
        self.can_choose = False
        if not self.opens(plan, predict):
            return
        self._plan, self._foresees = plan, predict
        self._let_wait &= {entry.job for entry in self._line}
        self._order = iter(self._turns(self._view))
        self._go_on()

    def choose(self, action: int) -> bool:
        """Start the job whose turn it is in a place, or let it wait; whether that was possible."""
        entry = self._now
        if entry is None or (action < self.layout.slots and action >= len(self._places)):
            return False
        if action < len(self._places):
            self._start(entry.job, self._places[action])
        else:
            self._let_wait.add(entry.job)
            entry.tried = self._number
        self._go_on()
        return True

    def _go_on(self) -> None:
        """To the next job of which there is something to choose; else the pass is over."""
        plan, state, queues = self._plan, self._plan.state, self.rules.queues
        self._now, self.can_choose = None, False
        for entry in self._order:
            job, lane = entry.job, entry.lane
            if lane.stuck(state.capacity) or not waits(job, state):
                continue
            if queues.bounded and queues.admit(job, plan, least_milli(job)):
                continue
            nodes = ~0 if lane.alike else self._freed.since(entry.tried)
            if nodes and job in self._let_wait:
                nodes = ~0  # it could have had any of them
            places = self._choices.candidates(job, self.layout.slots, nodes) if nodes else []
            if places is None or (places and not state.active):
                if not self._place_as_usual(entry, nodes) and not self._fails(entry):
                    break
            elif places:
                self._now, self._places, self.can_choose = entry, places, True
                self._look(job)
                return
            elif not self._fails(entry):
                break
        self.closes(plan)

    def _fails(self, entry: SharingTurn) -> bool:
        return self.fails(entry, self._plan.state.capacity.released)

    def _place_as_usual(self, entry: SharingTurn, nodes: int) -> bool:
        job = entry.job
        workers = self._view.find(job, self.rules.placer_of(job), nodes)
        if workers is not None:
            self._plan.place(job, workers)
            self._view.add(job)
        return workers is not None

    def _start(self, job: Job, place: GpuPlace) -> None:
        nodes = self._plan.state.capacity.nodes
        pairs = zip(least_workers(job), place.spots, strict=True)
        workers = tuple(Worker(r, k, nodes[i].name, (d,)) for (r, k), (i, d) in pairs)
        self._let_wait.discard(job)
        self._plan.place(job, workers)
        self._view.add(job)

    # -- what is observed -----------------------------------------------------------------------

    def _look(self, job: Job) -> None:
        plan, predict = self._plan, self._foresees
        state, capacity, cells = plan.state, plan.state.capacity, self._cells
        least_s, count = min(one.cost_s for one in self._places), len(least_workers(job))
        cells[:] = 0.0
        for row, place in zip(cells, self._places, strict=False):
            lefts = [self._view.left_of(one) for one in place.tenants] or [0.0]
            row[0] = row[1] = 1.0
            row[2] = place.idle == count
            row[3] = place.idle / count
            row[4] = len(place.tenants) / (self.sharing.most * count)
            row[5] = min(place.own - 1, _MOST)
            row[6] = log1p(max(place.others_s, 0.0)) / _LONG
            row[7] = min(place.strain, _MOST)
            row[8] = 0.5 + copysign(log1p(abs(place.cost_s)), place.cost_s) / _LONG / 2
            row[9] = log1p(place.cost_s - least_s) / _LONG
            row[10] = min(place.crowd, _MOST)
            row[11] = min(place.memory, _MOST)
            row[12], row[13] = (log1p(one) / _LONG for one in (max(lefts), min(lefts)))
            row[14] = log2(1 + place.whole) / 6
        i, d = self._places[0].spots[0]
        room = max(capacity.nodes[i].devices[d].memory_mib, 1)
        cluster = self._cluster
        cluster[0] = sum(capacity.whole[i] for i in bits(capacity.open)) * 1000
        cluster[0] /= max(capacity.open_milli, 1)
        cluster[1] = log1p(len(state.pending)) / 7
        cluster[2] = log1p(len(state.active)) / 7
        cluster[3] = log1p(self._view.left_of(job)) / _LONG
        cluster[4] = log2(1 + count) / 6
        cluster[5] = min(predict.utilization(job).p50, _MOST)
        cluster[6] = min(predict.memory(job).p90 / room, _MOST)
        cluster[7] = log1p(plan.now - job.submitted_at) / _LONG
