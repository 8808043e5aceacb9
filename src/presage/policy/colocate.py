"""Co-location by prediction: which jobs share a GPU, from what is foreseen of each.

A job whose workers ask for shares of GPUs may join others there, where the p90 of everyone's
predicted memory fits, no more than so many jobs are on the GPU, and every job's predicted slowdown
stays within the bound of its queue. Of the places left it takes the one that costs all jobs
together the least time. Each of its workers gets a GPU of its own, on one node if one is enough.

Jobs that refuse to share, ran out of memory, or ask for whole GPUs get idle ones. The `Predictor`
is the only source of knowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import Any

from presage.core.capacity import bits
from presage.core.changes import Reader
from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.workers import ask_of
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Reason, ReasonCode
from presage.policy.elastic import least_workers
from presage.policy.placer import Placer
from presage.policy.request import nodes_for
from presage.policy.sharing import HasKinds, SharingRules, movable, shares

__all__ = ["Tenancy"]

_Spot = tuple[int, int]
"""A GPU: the index of its node, and its number there."""
_RUNNING = JobState.RUNNING
_SPARE = 1000
_MOST_SAID = 500_000
_COULD = "could take it"
_ROUNDING_S = 1e-3
"""Sums of seconds are right to this."""


class Tenancy:
    """Who is on which GPU, and what it would cost to join them.

    Kept between passes: `look` brings it up to date. It is only a cache: a fresh one says the
    same.
    """

    def __init__(self, rules: SharingRules) -> None:
        self.rules = rules
        self.unsettled: set[Job] = set()
        """Jobs that hold GPUs and do not run."""
        self._reader = Reader()
        self._version: tuple[Predictor, str] | None = None
        self._torn = True
        """Whether the order of jobs on a GPU is another one than that of their starts."""
        self._on: dict[_Spot, tuple[Job, ...]] = {}
        self._spots: dict[Job, tuple[_Spot, ...]] = {}
        self._crews: dict[tuple[Job, ...], _Crew] = {}
        self._slowdowns: dict[tuple[Hashable, tuple[Hashable, ...]], float] = {}
        """What was said of a kind of job beside others."""
        self._offers: dict[int, tuple[list[_Offer], list[_Offer]]] = {}
        """GPUs of nodes that a job may share or have, as far as known."""
        self._largest: tuple[object, int] = (None, 0)
        self._left: dict[Job, float] = {}
        self._weights: dict[Job, tuple[float, int]] = {}
        """Of jobs: the share of a GPU's time that they use, and their workers."""
        self._aside: set[_Spot] = set()
        self._idle_aside = False
        self._stale: dict[Job, None] = {}
        """Jobs whose gain by a move has to be worked out."""
        self._later: list[tuple[float, int, Job]] = []
        """A heap: when the others may gain enough."""
        self._until: dict[Job, float] = {}

    def look(self, plan: Plan, predict: Predictor) -> Tenancy:
        """Bring it up to date with a plan."""
        self.plan, self._predict = plan, predict
        if self._version is None or self._version[0] is not predict:
            self._kind = predict.kind if isinstance(predict, HasKinds) else _no_kind
        self._capacity, state = plan.state.capacity, plan.state
        self._left, self._aside, self._idle_aside = {}, set(), False
        changed = self._reader.read(state.changes)
        version = predict, predict.version
        if version != self._version or len(self._slowdowns) > _MOST_SAID:
            self._slowdowns = {}
        if version != self._version or len(self._crews) > _SPARE + 4 * len(state.active):
            self._crews, self._offers, self._weights = {}, {}, {}
            self._stale = dict.fromkeys(self._spots)
        if version != self._version:
            self._version = version
        if changed is not None and not self._torn and not state.reservations:
            for job in dict.fromkeys(changed):
                self._update(job)
            if not self._torn:
                return self
        self._torn = bool(state.reservations)
        self._on, self._spots, self._stale, self.unsettled = {}, {}, {}, set()
        self._offers = {}
        for job in state.active.values():
            self._update(job)
        for job_id, hold in state.reservations.items():
            self._put(state.jobs[job_id], self._spots_of(hold))
        return self

    def _update(self, job: Job) -> None:
        """Put a job where it is, or take it away."""
        active = self.plan.state.active.get(job.spec.id) is job
        had, has = self._spots.get(job, ()), self._spots_of(_held(job)) if active else ()
        self.unsettled.discard(job)
        if active and job.state is not _RUNNING:
            self.unsettled.add(job)
        if not had:
            self._put(job, has)
        elif not has:
            self._take(job)
        elif has != had:
            self._torn = True
        for spot in has or had:
            self._stale.update(dict.fromkeys(self._on.get(spot, ())))

    def _spots_of(self, workers: Sequence[Worker]) -> tuple[_Spot, ...]:
        index = self._capacity.index
        return tuple([(index[w.node], d) for w in workers for d in w.devices])

    def _put(self, job: Job, spots: tuple[_Spot, ...]) -> None:
        if spots:
            self._spots[job] = spots
        for spot in spots:
            self._on[spot] = (*self._on.get(spot, ()), job)
            self._offers.pop(spot[0], None)

    def _take(self, job: Job) -> None:
        self._until.pop(job, None)
        self._weights.pop(job, None)
        for spot in dict.fromkeys(self._spots.pop(job)):
            self._offers.pop(spot[0], None)
            rest = tuple([one for one in self._on[spot] if one is not job])
            if rest:
                self._on[spot] = rest
            else:
                del self._on[spot]

    def add(self, job: Job) -> None:
        """A job is on its GPUs from now on."""
        self._update(job)

    def leaves(self, job: Job) -> None:
        """A job gives its GPUs back: its neighbours have them for themselves soon, and nothing
        else happens in this pass. Until it is gone, it is there."""
        self._torn = True
        for spot in self._spots_of(job.allocation):
            self._offers.pop(spot[0], None)
            self._on[spot] = tuple([one for one in self._on[spot] if one is not job])

    def find(self, job: Job, placer: Placer, nodes: int = ~0) -> tuple[Worker, ...] | None:
        """The workers of a job where they cost the least, or None.

        `nodes` are those where it may fit; a job that needs several of them looks at all.
        """
        if not shares(job):
            return placer.find(job, self.plan, least_workers(job))
        capacity, wanted = self._capacity, least_workers(job)
        open_nodes = nodes_for(job.spec.roles[0], capacity)
        largest = self._largest_of(open_nodes)
        if not largest:
            return None
        if len(wanted) == 1:
            spots = self._cheapest(job, open_nodes & nodes)
        elif len(wanted) <= largest:
            best = min(self._places(job, open_nodes & nodes, len(wanted)), default=None)
            spots = [] if best is None else best.spots
        else:
            spots = self._several(job, open_nodes, len(wanted), largest)
        if not spots:
            return None
        return tuple(
            Worker(role, index, capacity.nodes[i].name, (d,))
            for (role, index), (i, d) in zip(wanted, spots, strict=True)
        )

    def _largest_of(self, nodes: int) -> int:
        """The most GPUs that a node of a mask has."""
        key = nodes, len(self._capacity.nodes)
        if self._largest[0] != key:
            most = max((len(self._capacity.free_gpu[i]) for i in bits(nodes)), default=0)
            self._largest = key, most
        return self._largest[1]

    def hosts(self, job: Job) -> tuple[Job, ...]:
        """The jobs with whom one that has its GPU alone would share another instead, if any."""
        if not shares(job) or len(job.allocation) != 1:
            return ()
        worker = job.allocation[0]
        here = self._capacity.index[worker.node], worker.devices[0]
        if self._on.get(here) != (job,):
            return ()
        open_nodes = nodes_for(job.spec.roles[0], self._capacity)
        self._on[here] = ()
        self._offers.pop(here[0], None)
        places = sorted(self._places(job, open_nodes, 1))
        self._on[here] = (job,)
        self._offers.pop(here[0], None)
        joined = (self._on.get(place.spots[0], ()) for place in places)
        return next((tenants for tenants in joined if tenants and tenants != (job,)), ())

    def gains(self) -> list[tuple[float, int, Job]]:
        """Jobs that gain enough by a move to idle GPUs: how much, and their sequence backwards.

        How long jobs still need changes by no more than a second in a second. So a job that does
        not gain enough is looked at again when it could, or when those beside it are others.
        """
        now, enough, movers = self.plan.now, self.rules.move_gain_s, []
        while self._later and self._later[0][0] <= now:
            at, _, job = heappop(self._later)
            if self._until.get(job) == at:
                self._stale[job] = None
        stale, self._stale = self._stale, {}
        for job in stale:
            if job not in self._spots:
                continue
            gain, pace = self._gain(job)
            if gain >= enough:
                movers.append((gain, -job.seq, job))
            short = enough - gain - _ROUNDING_S
            if short <= 0:
                self._stale[job] = None
            elif pace:
                at = self._until[job] = now + short / pace
                heappush(self._later, (at, job.seq, job))
        return movers

    def gain(self, job: Job) -> float:
        """Seconds that all jobs together save when a job moves from shared GPUs to idle ones."""
        return self._gain(job)[0]

    def _gain(self, job: Job) -> tuple[float, float]:
        """That, and how much it may rise in a second."""
        if not shares(job) or not movable(job) or not job.spec.checkpointable:
            return 0.0, 0.0
        index = self._capacity.index
        beside = dict.fromkeys(self._on[index[w.node], w.devices[0]] for w in job.allocation)
        slowest, others_s, pace = 1.0, 0.0, 0.0
        for everyone in beside:
            others = tuple([one for one in everyone if one is not job])
            if not others:
                continue
            price = self._price(job, others)
            slowest, others_s = max(slowest, price.own), others_s + price.others_s
            pace += price.pace
        rate = slowest - 1 - self.rules.idle_worth * len(job.allocation)
        return rate * self.left_of(job) + others_s, abs(rate) + pace

    def left_of(self, job: Job) -> float:
        """Seconds a job still needs. One that outran its estimate goes on for as long again."""
        left = self._left.get(job)
        if left is None:
            ran = job.ran(self.plan.now)
            left = self._left[job] = max(self._predict.runtime(job).p50 - ran, ran, 1.0)
        return left

    @property
    def version(self) -> object:
        """Another one when the predictor may say something else."""
        return self._version

    def work_of(self, job: Job) -> float:
        """Seconds for which a job would keep a GPU busy."""
        weight = self._weights.get(job)
        if weight is None:
            weight = self._predict.utilization(job).p50, len(least_workers(job))
            if job in self._spots:
                self._weights[job] = weight
        return self.left_of(job) * weight[0] * weight[1]

    def running_work(self) -> list[float]:
        """Seconds for which the jobs that hold GPUs would keep one busy, each of them."""
        work_of = self.work_of
        return [work_of(job) for job in self.plan.state.active.values()]

    def set_aside(self, count: int) -> None:
        """Keep the first GPUs for jobs that have to be profiled, or all idle ones for 0."""
        self._idle_aside = not count
        nodes = bits(self._capacity.open)
        spots = ((i, d) for i in nodes for d in range(len(self._capacity.free_gpu[i])))
        self._aside = set(islice(spots, count))

    def profiling(self, job: Job) -> bool:
        """Whether a job is on a GPU that is set aside."""
        index = self._capacity.index
        return any((index[w.node], d) in self._aside for w in job.allocation for d in w.devices)

    def _fits_aside(self, job: Job) -> bool | None:
        """True for a job of one GPU that could run on one that is set aside; else None."""
        capacity, ask = self._capacity, ask_of(job, 0)
        for i, d in self._aside if len(least_workers(job)) == 1 else ():
            node = capacity.nodes[i]
            enough = node.cpu_milli >= ask.cpu_milli and node.memory_mib >= ask.memory_mib
            enough = enough and node.devices[d].memory_mib >= ask.gpu_memory_mib
            if enough and nodes_for(job.spec.roles[0], capacity) >> i & 1:
                return True
        return None

    def explain(self, job: Job) -> Reason:
        """What keeps a job off each GPU, counted."""
        capacity, ask, wanted = self._capacity, ask_of(job, 0), len(least_workers(job))
        counts: dict[str, int] = {}
        for i in bits(nodes_for(job.spec.roles[0], capacity)):
            for d, free in enumerate(capacity.free_gpu[i]):
                tenants = self._on.get((i, d), ())
                why = _COULD
                if free < ask.gpu_milli or capacity.free_gpu_memory[i][d] < ask.gpu_memory_mib:
                    why = "are taken"
                elif tenants:
                    room = capacity.nodes[i].devices[d].memory_mib
                    why = self._refusal(job, tenants, room) or why
                    if why == _COULD and self._price(job, tenants).strain > 1:
                        why = "would slow a job down too much"
                counts[why] = counts.get(why, 0) + 1
        listed = ", ".join(f"{count} {why}" for why, count in sorted(counts.items()))
        many = "a GPU" if wanted == 1 else f"{wanted} GPUs"
        text = f"needs {many} to itself or to share; of the open GPUs {listed or 'there are none'}"
        return Reason(ReasonCode.NO_ROOM, text)

    # -- places ---------------------------------------------------------------------------------

    def _several(self, job: Job, nodes: int, count: int, largest: int) -> list[tuple[int, int]]:
        """The cheapest whole nodes, and GPUs of one more for the rest."""
        whole, rest = divmod(count, largest)
        chosen = sorted(self._places(job, nodes, largest))[:whole]
        if len(chosen) < whole:
            return []
        spots = [spot for place in chosen for spot in place.spots]
        if rest:
            taken = sum(1 << place.node for place in chosen)
            last = min(self._places(job, nodes & ~taken, rest), default=None)
            if last is None:
                return []
            spots += last.spots
        return spots

    def _cheapest(self, job: Job, nodes: int) -> list[_Spot]:
        """The GPU that costs the least for one worker; GPUs that cannot be it are not worked
        out."""
        capacity, ask, left = self._capacity, ask_of(job, 0), self.left_of(job)
        price_of, milli, memory_mib = self._prices(job), ask.gpu_milli, ask.gpu_memory_mib
        best_s, best, spots = inf, (inf, 0, 0), list[_Spot]()
        for i in bits(nodes):
            if capacity.free_cpu[i] < ask.cpu_milli or capacity.free_memory[i] < ask.memory_mib:
                continue
            free, free_memory = capacity.free_gpu[i], capacity.free_gpu_memory[i]
            cheapest, chosen = inf, -1
            for offer in self._offers_of(i)[not self._aside]:
                d = offer[0]
                if free[d] < milli or free_memory[d] < memory_mib:
                    continue
                price = price_of(i, offer, best_s)
                if price is not None:
                    cost = (price.own - 1) * left + price.others_s
                    if cost < cheapest:
                        cheapest, chosen = cost, d
            if chosen >= 0:
                best_s = min(best_s, cheapest)
                place = cheapest, capacity.whole[i], i
                if place < best or not spots:
                    best, spots = place, [(i, chosen)]
        return spots

    def _prices(self, job: Job) -> Callable[[int, _Offer, float], _Price | None]:
        """What GPUs cost a job; None where it cannot go, or would pay more than so much."""
        rules, left, bound = self.rules, self.left_of(job), self.rules.bound(job)
        profiled = rules.profiled(job, self.plan.now)
        aside = None if not self._aside else False if profiled else self._fits_aside(job)
        """Whether it goes to GPUs that are set aside, or never; None: any will do."""
        idle: _Price | None = _Price(1.0, rules.idle_worth * left)
        if self._idle_aside and profiled:
            idle = None
        memory, kind = self._predict.memory(job).p90, self._kind(job)
        known: dict[tuple[int, _Crew], _Price | None] = {}

        def price_of(i: int, offer: _Offer, most_s: float) -> _Price | None:
            d, tenants, crew, room = offer
            if aside is not None and ((i, d) in self._aside) != aside:
                return None
            if crew is None:
                return idle
            key = room, crew
            if key in known:
                return known[key]
            price = None
            refused = crew.memory_mib + memory > room
            if rules.profile_s:
                refused = self._refusal(job, tenants, room) is not None
            if not refused:
                own = crew.joined.get(kind) if kind is not None else None
                if own is None:
                    own = crew.joined[kind] = self._beside(job, kind, tenants, crew.kinds)
                if own / bound <= 1 and (own - 1) * left <= most_s + _ROUNDING_S:
                    price = self._join(job, kind, crew, own)
                    price = price if price.strain <= 1 else None
            known[key] = price
            return price

        return price_of

    def _offers_of(self, i: int) -> tuple[list[_Offer], list[_Offer]]:
        """GPUs of a node that have room, with those who are on them, if not too many to join; then
        only the first of those that are alike."""
        known = self._offers.get(i)
        if known is None:
            capacity, offers, first = self._capacity, list[_Offer](), dict[Any, _Offer]()
            memory, devices = capacity.free_gpu_memory[i], capacity.nodes[i].devices
            for d, milli in enumerate(capacity.free_gpu[i]):
                tenants = self._on.get((i, d), ())
                if milli > 0 and len(tenants) < self.rules.most:
                    crew = self._crew(tenants) if tenants else None
                    offers.append((d, tenants, crew, devices[d].memory_mib))
                    first.setdefault((crew, milli, memory[d], devices[d].memory_mib), offers[-1])
            known = self._offers[i] = offers, list(first.values())
        return known

    def _places(self, job: Job, nodes: int, count: int) -> Iterable[_Place]:
        """For each node that has room for so many workers, the cheapest GPUs of it."""
        capacity, ask, left = self._capacity, ask_of(job, 0), self.left_of(job)
        cpu, memory = count * ask.cpu_milli, count * ask.memory_mib
        price_of = self._prices(job)
        for i in bits(nodes):
            if capacity.free_cpu[i] < cpu or capacity.free_memory[i] < memory:
                continue
            offers = self._offers_of(i)[0]
            if len(offers) < count:
                continue
            free, free_memory = capacity.free_gpu[i], capacity.free_gpu_memory[i]
            options: list[tuple[float, int, _Price, tuple[Job, ...]]] = []
            for offer in offers:
                d, tenants = offer[:2]
                if free[d] < ask.gpu_milli or free_memory[d] < ask.gpu_memory_mib:
                    continue
                price = price_of(i, offer, inf)
                if price is not None:
                    options.append(((price.own - 1) * left + price.others_s, d, price, tenants))
            if len(options) >= count:
                options.sort(key=_by_cost)
                yield self._place(i, options[:count], left)

    def _place(
        self, i: int, chosen: list[tuple[float, int, _Price, tuple[Job, ...]]], left: float
    ) -> _Place:
        """GPUs of a node with what they cost together: the slowest worker holds up the others,
        and a neighbour on several of the GPUs is slowed once."""
        slowest = max(price.own for _, _, price, _ in chosen)
        joined = {tenants: price.others_s for _, _, price, tenants in chosen if tenants}
        idle = sum(price.others_s for _, _, price, tenants in chosen if not tenants)
        cost = (slowest - 1) * left + sum(joined.values()) + idle
        return _Place((cost, self._capacity.whole[i], i), [(i, d) for _, d, _, _ in chosen])

    # -- what sharing does ----------------------------------------------------------------------

    def _price(self, job: Job, tenants: tuple[Job, ...]) -> _Price:
        """What it costs to be with these jobs on a GPU."""
        crew, kind = self._crew(tenants), self._kind(job)
        own = self._beside(job, kind, tenants, crew.kinds) if tenants else 1.0
        return self._join(job, kind, crew, own)

    def _join(self, job: Job, kind: Hashable | None, crew: _Crew, own: float) -> _Price:
        """What it costs to join others, given how much longer the job itself takes there."""
        bound, left_of, lefts = self.rules.bound, self.left_of, self._left
        together_s, others_s, strain, pace = own * left_of(job), 0.0, own / bound(job), 0.0
        for tenant, its_kind, without, rest, kinds in crew.each:
            more = None if kinds is None or kind is None else (*kinds, kind)
            beside = self._beside(tenant, its_kind, (*rest, job), more)
            strain = max(strain, beside / bound(tenant))
            added = beside - without
            left = lefts[tenant] if tenant in lefts else left_of(tenant)
            others_s += added * min(together_s, left)
            pace += abs(added) * max(own, 1.0)
        return _Price(own, others_s, strain, pace)

    def _beside(
        self,
        job: Job,
        kind: Hashable | None,
        others: tuple[Job, ...],
        kinds: tuple[Hashable, ...] | None,
    ) -> float:
        """How many times longer a job takes beside others; asked once for each of their kinds."""
        if kind is None or kinds is None:
            return self._predict.slowdown(job, others).p50
        said = self._slowdowns.get((kind, kinds))
        if said is None:
            said = self._slowdowns[kind, kinds] = self._predict.slowdown(job, others).p50
        return said

    def _crew(self, tenants: tuple[Job, ...]) -> _Crew:
        """What is known of jobs that are on a GPU together."""
        crew = self._crews.get(tenants)
        if crew is None:
            memory, each = self._predict.memory, []
            kinds = [self._kind(one) for one in tenants]
            told = None not in kinds
            for n, tenant in enumerate(tenants):
                rest = tuple([other for other in tenants if other is not tenant])
                others = None
                if told:
                    pairs = zip(tenants, kinds, strict=True)
                    others = tuple([kind for other, kind in pairs if other is not tenant])
                without = self._beside(tenant, kinds[n], rest, others) if rest else 1.0
                each.append((tenant, kinds[n], without, rest, others))
            total = sum([memory(one).p90 for one in tenants])
            crew = _Crew(total, tuple(kinds) if told else None, tuple(each))
            self._crews[tenants] = crew
        return crew

    def _refusal(self, job: Job, tenants: tuple[Job, ...], memory_mib: int) -> str | None:
        """Why a job may not join others on a GPU, whatever it costs."""
        rules, now = self.rules, self.plan.now
        if len(tenants) >= rules.most:
            return f"hold {rules.most} jobs already"
        if rules.profile_s and not all(rules.profiled(one, now) for one in (*tenants, job)):
            return "would share before all were profiled"
        if self._crew(tenants).memory_mib + self._predict.memory(job).p90 > memory_mib:
            return "lack memory for what is foreseen"
        return None


@dataclass(frozen=True, slots=True)
class _Price:
    """What a place on a GPU costs."""

    own: float
    """How many times longer the job takes there."""
    others_s: float
    """Seconds that those on it lose, or what the idle GPU is worth."""
    strain: float = 0.0
    """The slowdown of the job that comes closest to its bound, relative to that; above 1 nobody
    may join."""
    pace: float = 0.0
    """How much `others_s` may change in a second."""


_Tenant = tuple[Job, Hashable | None, float, tuple[Job, ...], tuple[Hashable, ...] | None]
"""A job on a GPU: its kind, its slowdown there, the others, and their kinds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Crew:
    """Jobs that are on a GPU together."""

    memory_mib: float
    """The p90 of what they need, summed up."""
    kinds: tuple[Hashable, ...] | None
    """What the predictor takes them for."""
    each: tuple[_Tenant, ...]
    joined: dict[Hashable, float] = field(default_factory=dict)
    """How many times longer jobs of each kind take beside them."""


_Offer = tuple[int, tuple[Job, ...], _Crew | None, int]
"""A GPU of a node: its number, who is on it, and its memory in MiB."""


@dataclass(slots=True, eq=False)
class _Place:
    """GPUs of one node for workers of a job."""

    key: tuple[float, int, int]
    """Seconds it costs; among equals, the node with the fewest idle GPUs that joined first."""
    spots: list[tuple[int, int]]

    @property
    def node(self) -> int:
        """Its index."""
        return self.key[2]

    def __lt__(self, other: _Place) -> bool:
        return self.key < other.key


def _held(job: Job) -> tuple[Worker, ...]:
    """The workers of a job, those that it grows by last."""
    if job.resizing is None:
        return job.allocation
    had = set(job.allocation)
    return (*job.allocation, *(worker for worker in job.resizing if worker not in had))


def _no_kind(job: Job) -> None:
    return None


def _by_cost(option: tuple[float, int, _Price, tuple[Job, ...]]) -> tuple[float, int]:
    return option[:2]
