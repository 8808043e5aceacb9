"""Co-location by prediction: which jobs share a GPU, from what is foreseen of each.

A job whose workers ask for shares of GPUs may join others there, where the p90 of everyone's
predicted memory fits, no more than so many jobs are on the GPU, and every job's predicted slowdown
stays within the bound of its queue. Of the places left it takes the one that costs all jobs
together the least time. Each of its workers gets a GPU of its own, on one node if one is enough.

Jobs that refuse to share, ran out of memory, or ask for whole GPUs get idle ones. The `Predictor`
is the only source of knowledge.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from presage.core.capacity import Capacity, bits
from presage.core.plan import Plan
from presage.core.ports import Predictor, SortKey
from presage.core.workers import ask_of, least_milli
from presage.model.cluster import Worker
from presage.model.job import Job, JobState, Reason, ReasonCode, StopIntent
from presage.policy.backlog import waits
from presage.policy.elastic import least_workers
from presage.policy.placer import Placer
from presage.policy.queues import Queues

__all__ = ["Sharing", "SharingRules", "utilization"]

PlacerOf = Callable[[Job], Placer]
_COULD = "could take it"
_ROUNDING_S = 1e-3
"""A clock that was asked for 60 s may say 59.999999."""


def utilization(job: Job, plan: Plan, predict: Predictor) -> SortKey:
    """First fit decreasing: those that keep a GPU busiest go first."""
    return (-predict.utilization(job).p50, job.seq)


@dataclass(frozen=True, slots=True)
class SharingRules:
    """When jobs share a GPU."""

    most: int = 3
    """Jobs on one GPU."""
    max_slowdown: float = 1.5
    """How many times longer a job may be foreseen to take because it shares."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """The same, for some queues."""
    idle_worth: float = 0.03
    """What an idle GPU is worth: a job shares instead of taking it when all slowdowns that this
    adds, summed up, are below."""
    profile_s: float = 0.0
    """Seconds that a job runs alone before it shares with anyone; 0: what is foreseen at
    submission is enough."""
    profile_gpus: int = 0
    """GPUs set aside for that while somebody waits for it; 0: any idle GPU will do, and it always
    does for jobs of several GPUs."""

    move_gain_s: float = 0.0
    """A job that shares is stopped and started on idle GPUs when nobody waits for them and this
    saves all jobs together so many seconds; 0: never."""
    long_first: float = 2.0
    """A waiting job goes before all others when so many times what it still needs is more than
    all work there is would keep the GPUs busy: it would end last. 0: never, as where jobs do not
    share by what is foreseen of them at submission."""

    def bound(self, job: Job) -> float:
        """The slowdown that a job may be foreseen to have."""
        return self.bounds.get(job.spec.queue, self.max_slowdown)

    @property
    def puts_long_first(self) -> bool:
        """Whether jobs may go before their turn."""
        return self.long_first > 0 and self.most > 1 and not self.profile_s

    def profiled(self, job: Job, now: float) -> bool:
        """Whether a job ran alone for long enough."""
        return not self.profile_s or job.ran(now) >= self.profile_s - _ROUNDING_S


class Sharing:
    """The waiting jobs of a pipeline in which jobs share GPUs, and the walk over them.

    What it keeps between two walks is a cache: who waits, in order, and for each the walk in which
    it last found no place. Places appear only where somebody left since.
    """

    def __init__(self, rules: SharingRules, *, greedy: bool) -> None:
        self.rules = rules
        self._greedy = greedy
        self._line: list[_Waiting] = []
        self._freed = _Freed()
        self._spread_at = -1

    def reset(self) -> None:
        """Forget everything: the state is another one."""
        self._line, self._freed, self._spread_at = [], _Freed(), -1

    def push(self, key: SortKey, job: Job, now: float) -> None:
        """Add a job that began to wait."""
        ready = not _shares(job) or self.rules.profiled(job, now)
        insort(self._line, _Waiting((ready, key), job))

    def walk(self, plan: Plan, predict: Predictor, queues: Queues, placer: PlacerOf) -> None:
        """Start every waiting job that finds a place; a strict walk ends at the first that does
        not."""
        state = plan.state
        self._line = [entry for entry in self._line if waits(entry.job, state)]
        if not self._line:
            if self.rules.move_gain_s and not state.reservations:
                self._spread(plan, predict)
            return
        walk = self._freed.look(state.capacity)
        view = View(self.rules, plan, predict)
        if not self._line[0].key[0]:
            view.set_aside(self.rules.profile_gpus)
        for entry in self._turns(view) if self.rules.puts_long_first else self._line:
            job = entry.job
            if not waits(job, state):
                continue  # it was halted and resumed while it waited, and is there twice
            if queues.bounded and queues.admit(job, plan, least_milli(job)):
                continue
            nodes = ~0 if self.rules.profile_s else self._freed.since(entry.tried)
            found = view.find(job, placer(job), nodes) if nodes else None
            if found is not None:
                plan.place(job, found)
                view.add(job)
                continue
            entry.tried = walk
            if not self._greedy:
                break
        if self.rules.profile_s:
            self._move_profiled(plan, view)
        self._freed.keep(state.capacity)

    def find(
        self, job: Job, plan: Plan, predict: Predictor, placer: Placer
    ) -> tuple[Worker, ...] | None:
        """Where a job could start now."""
        return View(self.rules, plan, predict).find(job, placer)

    def shares(self, job: Job) -> bool:
        """Whether a job asks for shares of GPUs."""
        return _shares(job)

    def explain(self, job: Job, plan: Plan, predict: Predictor) -> Reason:
        """Why a job that asks for shares finds no place."""
        return View(self.rules, plan, predict).explain(job)

    def _turns(self, view: View) -> list[_Waiting]:
        """Those that would end last if they waited for their turn, longest first; then the
        others."""
        waiting = [entry.job for entry in self._line]
        enough = view.busy_s(waiting) / self.rules.long_first
        lefts = {job.id: view.left_of(job) for job in waiting}
        late = [entry for entry in self._line if lefts[entry.job.id] >= enough]
        late.sort(key=lambda entry: -lefts[entry.job.id])
        return late + [entry for entry in self._line if lefts[entry.job.id] < enough]

    def _spread(self, plan: Plan, predict: Predictor) -> None:
        """Move jobs that slow each other down to GPUs that are idle."""
        capacity = plan.state.capacity
        if self._spread_at == capacity.released:
            return  # nothing became idle since
        self._spread_at = capacity.released
        idle = {i: capacity.whole[i] for i in bits(capacity.open) if capacity.whole[i]}
        active = plan.state.active.values()
        if not idle or any(job.state is not JobState.RUNNING for job in active):
            return
        view = View(self.rules, plan, predict)
        gains = [(view.gain(job), -job.seq, job) for job in active]
        gains = [entry for entry in gains if entry[0] >= self.rules.move_gain_s]
        for _, _, job in sorted(gains, reverse=True):
            count = len(job.allocation)
            home = next((i for i, free in idle.items() if free >= count), None)
            if home is not None and view.gain(job) >= self.rules.move_gain_s:
                idle[home] -= count
                view.leaves(job)
                reason = Reason(ReasonCode.PREEMPTED, "it moves to idle GPUs, where it is faster")
                plan.stop(job, StopIntent.REQUEUE, reason)

    def _move_profiled(self, plan: Plan, view: View) -> None:
        """Let jobs that were profiled share, so that the next can be profiled on their GPUs."""
        waiting = sum(waits(entry.job, plan.state) and not entry.key[0] for entry in self._line)
        stay: set[Job] = set()
        for job in list(plan.state.active.values()) if waiting else ():
            if not self.rules.profiled(job, plan.now):
                plan.wake_at(plan.now + self.rules.profile_s - job.ran(plan.now))
                continue
            if not (waiting and _shares(job) and _movable(job)) or job in stay:
                continue
            hosts = () if self.rules.profile_gpus else view.hosts(job)
            if hosts or view.profiling(job):
                stay.update(hosts)
                view.leaves(job)
                reason = Reason(ReasonCode.PREEMPTED, "it was profiled and can share now")
                plan.stop(job, StopIntent.REQUEUE, reason)
                waiting -= 1


class View:
    """Who is on which GPU in a plan, and what it would cost to join them."""

    def __init__(self, rules: SharingRules, plan: Plan, predict: Predictor) -> None:
        self.rules = rules
        self.plan = plan
        self._predict = predict
        self._capacity = plan.state.capacity
        self._on: dict[tuple[int, int], tuple[Job, ...]] = {}
        self._left: dict[str, float] = {}
        self._aside: set[tuple[int, int]] = set()
        self._idle_aside = False
        for job in plan.state.active.values():
            self.add(job)
        for job_id, hold in plan.state.reservations.items():
            self._put(plan.state.jobs[job_id], hold)

    def add(self, job: Job) -> None:
        """A job is on its GPUs from now on."""
        self._put(job, job.allocation)
        if job.resizing is not None:
            had = set(job.allocation)
            self._put(job, [worker for worker in job.resizing if worker not in had])

    def find(self, job: Job, placer: Placer, nodes: int = ~0) -> tuple[Worker, ...] | None:
        """The workers of a job where they cost the least, or None.

        `nodes` are those where it may fit; a job that needs several of them looks at all.
        """
        if not _shares(job):
            return placer.find(job, self.plan, least_workers(job))
        capacity, wanted = self._capacity, least_workers(job)
        open_nodes = capacity.accepts(job.spec.roles[0].gpu_types)
        largest = max((len(capacity.free_gpu[i]) for i in bits(open_nodes)), default=0)
        if not largest:
            return None
        if len(wanted) <= largest:
            places = self._places(job, open_nodes & nodes, len(wanted))
            best = min(places, default=None)
            spots = [] if best is None else best.spots
        else:
            spots = self._several(job, open_nodes, len(wanted), largest)
        if not spots:
            return None
        return tuple(
            Worker(role, index, capacity.nodes[i].name, (d,))
            for (role, index), (i, d) in zip(wanted, spots, strict=True)
        )

    def hosts(self, job: Job) -> tuple[Job, ...]:
        """The jobs with whom one that has its GPU alone would share another instead, if any."""
        if not _shares(job) or len(job.allocation) != 1:
            return ()
        worker = job.allocation[0]
        here = self._capacity.index[worker.node], worker.devices[0]
        if self._on.get(here) != (job,):
            return ()
        open_nodes = self._capacity.accepts(job.spec.roles[0].gpu_types)
        self._on[here] = ()
        places = sorted(self._places(job, open_nodes, 1))
        self._on[here] = (job,)
        joined = (self._on.get(place.spots[0], ()) for place in places)
        return next((tenants for tenants in joined if tenants and tenants != (job,)), ())

    def gain(self, job: Job) -> float:
        """Seconds that all jobs together save when a job moves from shared GPUs to idle ones."""
        if not _shares(job) or not _movable(job) or not job.spec.checkpointable:
            return 0.0
        index = self._capacity.index
        beside = {self._on[index[w.node], w.devices[0]] for w in job.allocation}
        slowest, others_s = 1.0, 0.0
        for everyone in beside:
            price = self._price(job, tuple(one for one in everyone if one is not job))
            slowest, others_s = max(slowest, price.own), others_s + price.others_s
        idle = self.rules.idle_worth * len(job.allocation)
        return (slowest - 1 - idle) * self.left_of(job) + others_s

    def left_of(self, job: Job) -> float:
        """Seconds a job still needs. One that outran its estimate goes on for as long again."""
        left = self._left.get(job.id)
        if left is None:
            ran = job.ran(self.plan.now)
            left = max(self._predict.runtime(job).p50 - ran, ran, 1.0)
            self._left[job.id] = left
        return left

    def busy_s(self, waiting: Iterable[Job]) -> float:
        """Seconds for which the jobs that run and these ones would keep every GPU busy."""
        capacity, predict = self._capacity, self._predict
        gpus = sum(len(capacity.free_gpu[i]) for i in bits(capacity.open))
        work = sum(
            self.left_of(job) * predict.utilization(job).p50 * len(least_workers(job))
            for job in chain(self.plan.state.active.values(), waiting)
        )
        return work / max(1, gpus)

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
        capacity, ask, types = self._capacity, ask_of(job, 0), job.spec.roles[0].gpu_types
        for i, d in self._aside if len(least_workers(job)) == 1 else ():
            node = capacity.nodes[i]
            enough = node.cpu_milli >= ask.cpu_milli and node.memory_mib >= ask.memory_mib
            enough = enough and node.devices[d].memory_mib >= ask.gpu_memory_mib
            if enough and capacity.accepts(types) >> i & 1:
                return True
        return None

    def leaves(self, job: Job) -> None:
        """A job gives its GPUs back; its neighbours have them for themselves soon."""
        index = self._capacity.index
        for worker in job.allocation:
            spot = index[worker.node], worker.devices[0]
            self._on[spot] = tuple(one for one in self._on[spot] if one is not job)

    def explain(self, job: Job) -> Reason:
        """What keeps a job off each GPU, counted."""
        capacity, ask, wanted = self._capacity, ask_of(job, 0), len(least_workers(job))
        counts: dict[str, int] = {}
        for i in bits(capacity.accepts(job.spec.roles[0].gpu_types)):
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

    def _places(self, job: Job, nodes: int, count: int) -> Iterable[_Place]:
        """For each node that has room for so many workers, the cheapest GPUs of it."""
        capacity, ask, left = self._capacity, ask_of(job, 0), self.left_of(job)
        cpu, memory = count * ask.cpu_milli, count * ask.memory_mib
        profiled = self.rules.profiled(job, self.plan.now)
        aside = None if not self._aside else False if profiled else self._fits_aside(job)
        """Whether it goes to GPUs that are set aside, or never; None: any will do."""
        idle: _Price | None = _Price(1.0, self.rules.idle_worth * left)
        if self._idle_aside and profiled:
            idle = None
        known: dict[tuple[int, tuple[Job, ...]], _Price | None] = {}
        for i in bits(nodes):
            if capacity.free_cpu[i] < cpu or capacity.free_memory[i] < memory:
                continue
            free, free_memory = capacity.free_gpu[i], capacity.free_gpu_memory[i]
            options: list[tuple[float, int, _Price, tuple[Job, ...]]] = []
            for d, milli in enumerate(free):
                if milli < ask.gpu_milli or free_memory[d] < ask.gpu_memory_mib:
                    continue
                if aside is not None and ((i, d) in self._aside) != aside:
                    continue
                tenants = self._on.get((i, d), ())
                price = idle
                if tenants:
                    key = capacity.nodes[i].devices[d].memory_mib, tenants
                    if key not in known:
                        refused = self._refusal(job, tenants, key[0])
                        known[key] = None if refused else self._price(job, tenants)
                    price = known[key]
                    if price is not None and price.strain > 1:
                        continue
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
        bound = self.rules.bound
        own = self._slowdown(job, tenants)
        together_s, others_s, strain = own * self.left_of(job), 0.0, own / bound(job)
        for tenant in tenants:
            rest = tuple([other for other in tenants if other is not tenant])
            slowdown = self._slowdown(tenant, (*rest, job))
            strain = max(strain, slowdown / bound(tenant))
            added = slowdown - self._slowdown(tenant, rest)
            others_s += added * min(together_s, self.left_of(tenant))
        return _Price(own, others_s, strain)

    def _refusal(self, job: Job, tenants: tuple[Job, ...], memory_mib: int) -> str | None:
        """Why a job may not join others on a GPU, whatever it costs."""
        rules, memory = self.rules, self._predict.memory
        if len(tenants) >= rules.most:
            return f"hold {rules.most} jobs already"
        everyone = (*tenants, job)
        if rules.profile_s and not all(rules.profiled(one, self.plan.now) for one in everyone):
            return "would share before all were profiled"
        if sum([memory(one).p90 for one in everyone]) > memory_mib:
            return "lack memory for what is foreseen"
        return None

    def _slowdown(self, job: Job, others: tuple[Job, ...]) -> float:
        return self._predict.slowdown(job, others).p50 if others else 1.0

    def _put(self, job: Job, workers: Sequence[Worker]) -> None:
        index, on = self._capacity.index, self._on
        for worker in workers:
            i = index[worker.node]
            for d in worker.devices:
                on[i, d] = (*on.get((i, d), ()), job)


@dataclass(slots=True, eq=False)
class _Waiting:
    """A job in the queue."""

    key: tuple[bool, SortKey]
    """Whether it has not to be profiled first, and its place in the order."""
    job: Job
    tried: int = -1
    """The walk in which it last found no place."""

    def __lt__(self, other: _Waiting) -> bool:
        return self.key < other.key


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


class _Freed:
    """On which nodes something was freed, by the walk that noticed it."""

    def __init__(self) -> None:
        self._walk = 0
        self._open = 0
        self._free: list[tuple[int, int, list[int]]] = []
        self._at: list[int] = []
        """For each node, the walk before which something was freed there last."""
        self._known: dict[int, int] = {}

    def look(self, capacity: Capacity) -> int:
        """Compare with what was kept; returns the number of this walk."""
        self._walk = walk = self._walk + 1
        self._known = {-1: ~0}
        opened = capacity.open & ~self._open
        self._at += [walk] * (len(capacity.nodes) - len(self._at))
        for i, (cpu, memory, before) in enumerate(self._free):
            more = capacity.free_cpu[i] > cpu or capacity.free_memory[i] > memory
            if more or opened >> i & 1 or any(map(int.__gt__, capacity.free_gpu[i], before)):
                self._at[i] = walk
        return walk

    def since(self, walk: int) -> int:
        """Mask of the nodes on which something was freed after a walk; all of them for -1."""
        if walk not in self._known:
            self._known[walk] = sum(1 << i for i, at in enumerate(self._at) if at > walk)
        return self._known[walk]

    def keep(self, capacity: Capacity) -> None:
        """Remember what is free now."""
        self._open = capacity.open
        free = zip(capacity.free_cpu, capacity.free_memory, capacity.free_gpu, strict=True)
        self._free = [(cpu, memory, gpu.copy()) for cpu, memory, gpu in free]


def _shares(job: Job) -> bool:
    """Whether all workers of a job ask for shares of a GPU."""
    return len(job.spec.roles) == 1 and ask_of(job, 0).shared


def _movable(job: Job) -> bool:
    return job.state is JobState.RUNNING and job.spec.preemptible


def _by_cost(option: tuple[float, int, _Price, tuple[Job, ...]]) -> tuple[float, int]:
    return option[:2]
