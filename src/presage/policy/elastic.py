"""Elastic jobs: how many workers to start with, growing into idle room, and doing what owners
asked.

Two ways to share what is idle: `grow` gives it to those with the fewest workers; `ByGain` to those
to whom the next worker brings the most. Shrinking for others is `reclaim.make_room`'s work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from heapq import heapify, heappop, heapreplace
from math import inf

from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.state import State
from presage.core.workers import ask_of, new_workers, shrunk
from presage.model.cluster import WHOLE_GPU, Worker
from presage.model.event import Resize
from presage.model.job import Job, JobState, Role
from presage.policy.placer import Placer, Wanted
from presage.policy.queues import Queues
from presage.policy.reclaim import lend

__all__ = [
    "ByGain",
    "fits_queue",
    "grow",
    "least_workers",
    "more_workers",
    "obey_scale_requests",
    "resizable",
    "settled",
    "sizes",
]

PlacerOf = Callable[[Job], Placer]
_Promised = tuple[int, int]
"""Milli-GPUs and milli-CPUs that a queue was given in this pass and does not hold yet."""


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
    promised = dict.fromkeys((job.spec.queue for job in jobs), (0, 0))
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
        promised[job.spec.queue] = _plus(already, job, (worker.role,))
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
        roles = range(len(job.spec.roles))
        asked = {r: wants for r in roles if (wants := job.asked(r)) is not None}
        more = {r: n - sum(w.role == r for w in job.allocation) for r, n in asked.items()}
        # One role at a time; those that leave make room for others.
        for r in sorted(more, key=more.__getitem__):
            if more[r] < 0:
                kept = shrunk(job, -more[r], role=r)
            else:
                kept = _grown(job, r, more[r], plan, placer, queues) if may_grow else None
            if kept is not None:
                plan.resize(job, kept)
                break


def _grown(
    job: Job, role: int, more: int, plan: Plan, placer: PlacerOf, queues: Queues
) -> tuple[Worker, ...] | None:
    """A job's workers with up to so many more of a role, as there is room."""
    for count in range(more, 0, -1):
        wanted: Wanted = new_workers(job.allocation, role, count)
        if fits_queue(job, plan, wanted, queues):
            added = placer(job).find(job, plan, wanted)
            if added is not None:
                return job.allocation + added
    return None


def resizable(plan: Plan) -> list[Job]:
    """Elastic jobs that run and are not being resized; none where the executor cannot do it."""
    if not plan.state.can(Resize):
        return []
    return [
        job
        for job in plan.state.active.values()
        if job.state is JobState.RUNNING and job.resizing is None and job.spec.elastic
    ]


def fits_queue(
    job: Job, plan: Plan, wanted: Wanted, queues: Queues, promised: _Promised = (0, 0)
) -> bool:
    """Whether the job's queue may hold these workers too, beside what is promised already."""
    if not queues.bounded:
        return True
    return queues.admit(job, plan, *_plus(promised, job, (r for r, _ in wanted))) is None


def _plus(promised: _Promised, job: Job, roles: Iterable[int]) -> _Promised:
    """What was promised before and workers of these roles, together."""
    asks = [ask_of(job, r) for r in roles]
    gpu, cpu = promised
    return gpu + sum(ask.gpu_milli for ask in asks), cpu + sum(ask.cpu_milli for ask in asks)


def _target(job: Job, r: int, most: int) -> int:
    asked = job.asked(r)
    return most if asked is None else asked


def _one_more(
    job: Job, plan: Plan, placer: Placer, extra: list[Worker], queues: Queues, promised: _Promised
) -> Worker | None:
    held = (*job.allocation, *extra)
    for r, role in enumerate(job.spec.roles):
        if sum(worker.role == r for worker in held) < _target(job, r, role.max):
            wanted = new_workers(held, r, 1)
            if fits_queue(job, plan, wanted, queues, promised):
                added = placer.find(job, plan, wanted)
                if added is not None:
                    return added[0]
    return None


# -- by gain ------------------------------------------------------------------------------------

UNKNOWN_SYNC = 0.05
"""What each further worker costs a job of which nothing is known, as a share of its step."""
PAYS_TWICE = 2.0
"""A resize must save so many times what it costs: the worker may be wanted back."""
KEEP_COSTS = 10.0
"""A size is kept for so many times what a resize costs: at most a tenth of a job's time goes."""
MARGIN = 0.25
"""How much more a worker must bring to another job before it is moved there."""
MOVE_EVERY_S = 60.0
"""How long a job keeps its size, at least, before a worker is moved from it or to it."""

Shape = tuple[int, int]
"""Workers, and the nodes they are on."""


class ByGain:
    """Workers go where the next one brings the most.

    The gain of a step is the run time it saves for each GPU-second it spends: with t seconds on
    the workers a job has and u with the new ones, t / u - 1 for each new GPU. It is the same
    however long a job is, and 1/n where speed is proportional to workers. A resize must pay back
    in the time the job has left, and a size is kept for a while.

    What is kept between calls is only how the predictor scales a job.
    """

    def __init__(self, resize_cost_s: float = 0.0, after_s: float = 0.0) -> None:
        self.resize_cost_s = resize_cost_s
        self.after_s = after_s
        self.keep_s = max(after_s, KEEP_COSTS * resize_cost_s)
        self._version = ""
        self._state: State | None = None
        self._times: dict[int, _Times] = {}
        """By the sequence of a job."""

    def sizes(self, job: Job, plan: Plan, predict: Predictor) -> tuple[Wanted, ...]:
        """Worker lists to try when a job starts while nobody else waits: as many as bring it more
        than the next worker would bring to any job that runs or starts, then less of them."""
        self._refresh(plan, predict)
        others = [other for other in plan.state.active.values() if _may_grow(other)]
        bar = max((self._next(other, predict) for other in others), default=0.0)
        biggest = max((len(node.devices) for node in plan.state.capacity.nodes), default=1) or 1
        wanted = sizes(job)
        shapes = [(len(one), -(-len(one) * _gpus(job) // biggest)) for one in wanted]
        best = len(wanted) - 1
        for k in range(best - 1, -1, -1):
            if self._gain(job, shapes[best], shapes[k], predict) > bar:
                best = k
        return wanted[best:]

    def loss(self, job: Job, workers: int, predict: Predictor) -> float:
        """What the last of so many workers brings to a job, for each GPU."""
        if workers < 2:
            return inf
        now = self._now(job, predict)
        if workers == now.shape[0]:
            return now.last
        nodes = min(now.shape[1], workers)
        return self._gain(job, (workers - 1, min(nodes, workers - 1)), (workers, nodes), predict)

    def share(self, plan: Plan, predict: Predictor, placer: PlacerOf, queues: Queues) -> None:
        """Give idle room to those who gain most by it, then move workers between jobs."""
        self._refresh(plan, predict)
        growable = _growable(plan)
        if not growable:
            return
        free = plan.state.capacity.free_milli
        roomy = [job for job in growable if ask_of(job, 0).gpu_milli <= free]
        due = [job for job in roomy if self._due(job, plan) and self._may_pay(job, plan, predict)]
        if due:
            self._give(due, plan, predict, placer, queues)
        if not plan.state.pending:
            self._move(plan, predict, placer, queues)

    def _give(
        self, jobs: list[Job], plan: Plan, predict: Predictor, placer: PlacerOf, queues: Queues
    ) -> None:
        """One step after another to the best gain. The heap holds what a step brings at most: on
        the nodes a job has already."""
        capacity = plan.state.capacity
        held = {job.id: job.allocation for job in jobs}
        promised = dict.fromkeys((job.spec.queue for job in jobs), (0, 0))
        heap = [(-self._next(job, predict), job.seq, job) for job in jobs]
        heapify(heap)
        while heap:
            bound, seq, job = heap[0]
            already = promised[job.spec.queue]
            step = self._step(job, held[job.id], plan, predict, placer(job), queues, already)
            if step is None:
                heappop(heap)
                continue
            gain, workers = step
            if -gain > bound and any(-gain > other[0] for other in heap[1:3]):
                heapreplace(heap, (-gain, seq, job))
                continue
            held[job.id] += workers
            promised[job.spec.queue] = _plus(already, job, (w.role for w in workers))
            for worker in workers:
                capacity.take(
                    capacity.index[worker.node], ask_of(job, worker.role), worker.devices
                )
            next_gain = self._next(job, predict, held[job.id])
            if next_gain > 0:
                heapreplace(heap, (-next_gain, seq, job))
            else:
                heappop(heap)
        for job in jobs:
            lend(plan, (job, held[job.id][len(job.allocation) :]), 1)
        for job in jobs:
            if len(held[job.id]) > len(job.allocation) and self._pays(
                job, _shape(held[job.id]), plan, predict
            ):
                plan.resize(job, held[job.id])

    def _step(
        self,
        job: Job,
        held: tuple[Worker, ...],
        plan: Plan,
        predict: Predictor,
        placer: Placer,
        queues: Queues,
        promised: _Promised,
    ) -> tuple[float, tuple[Worker, ...]] | None:
        """The fewest further workers that help, and what they bring: one on its own nodes or
        elsewhere; where another node costs more than one worker brings, two, four …"""
        capacity = plan.state.capacity
        own = 0
        for worker in held:
            own |= 1 << capacity.index[worker.node]
        count = 1
        while (wanted := more_workers(job, held, count)) and fits_queue(
            job, plan, wanted, queues, promised
        ):
            added = placer.find(job, plan, wanted, own) or placer.find(job, plan, wanted)
            if added is None:
                return None
            gain = self._gain(job, _shape(held), _shape(held + added), predict)
            if gain > 0:
                return gain, added
            count *= 2
        return None

    def _move(self, plan: Plan, predict: Predictor, placer: PlacerOf, queues: Queues) -> None:
        """Take workers from the job to which they bring least, for the one to which they bring
        most. They are released first; the pass that follows gives them out."""
        running = [job for job in resizable(plan) if job.spec.checkpointable]
        donors = [job for job in running if not settled(job) and _above_least(job)]
        needy = [job for job in running if _may_grow(job)]
        if not donors or not needy:
            return
        losses = [(self.loss(job, len(job.allocation), predict), -job.seq) for job in donors]
        gains = [(self._next(job, predict), -job.seq) for job in needy]
        least, most = min(losses), max(gains)
        donor, taker = donors[losses.index(least)], needy[gains.index(most)]
        if donor is taker or most[0] <= least[0] * (1 + MARGIN):
            return
        at = max(donor.mark, taker.mark) + max(self.keep_s, MOVE_EVERY_S)
        if at > plan.now:
            plan.wake_at(at)
            return
        kept = self._moved(donor, taker, plan, predict, placer(taker), queues)
        if kept is not None:
            plan.resize(donor, kept)

    def _moved(
        self,
        donor: Job,
        taker: Job,
        plan: Plan,
        predict: Predictor,
        placer: Placer,
        queues: Queues,
    ) -> tuple[Worker, ...] | None:
        """What a donor keeps when as many workers move as gain by it; None if it does not pay."""
        has, gets = len(donor.allocation), len(taker.allocation)
        count = 0
        while shrunk(donor, count + 1) is not None and more_workers(
            taker, taker.allocation, count + 1
        ):
            nodes = _nodes(taker.allocation)
            gain = self._gain(taker, (gets + count, nodes), (gets + count + 1, nodes), predict)
            if gain <= self.loss(donor, has - count, predict) * (1 + MARGIN):
                break
            count += 1
        kept = shrunk(donor, count) if count else None
        wanted = more_workers(taker, taker.allocation, count)
        if kept is None or not fits_queue(taker, plan, wanted, queues):
            return None
        chip = (donor, tuple(worker for worker in donor.allocation if worker not in kept))
        lend(plan, chip, 1)
        added = placer.find(taker, plan, wanted)
        lend(plan, chip, -1)
        if added is None:
            return None
        saved = self._saved(taker, _shape(taker.allocation + added), plan, predict)
        lost = -self._saved(donor, _shape(kept), plan, predict)
        return kept if saved - lost > 2 * PAYS_TWICE * self.resize_cost_s else None

    # -- what a size is worth -------------------------------------------------------------------

    def _next(self, job: Job, predict: Predictor, held: tuple[Worker, ...] | None = None) -> float:
        """What one more worker brings at most."""
        if held is None:
            return self._now(job, predict).next
        workers, nodes = _shape(held)
        return self._gain(job, (workers, nodes), (workers + 1, nodes), predict)

    def _now(self, job: Job, predict: Predictor) -> _Times:
        """What is known of a job on the workers it has."""
        known = self._times.get(job.seq)
        if known is None:
            known = self._times[job.seq] = _Times(job, predict)
        if known.allocation is not job.allocation:
            known.allocation = job.allocation
            known.shape = workers, nodes = _shape(job.allocation)
            known.next = self._gain(job, known.shape, (workers + 1, nodes), predict)
            fewer = (workers - 1, min(nodes, workers - 1))
            known.last = self._gain(job, fewer, known.shape, predict) if workers > 1 else inf
        return known

    def _gain(self, job: Job, old: Shape, new: Shape, predict: Predictor) -> float:
        ratio = self._time(job, old, predict) / self._time(job, new, predict)
        return (ratio - 1.0) / ((new[0] - old[0]) * _gpus(job))

    def _due(self, job: Job, plan: Plan) -> bool:
        """Whether it has kept its size long enough; the cost of the last resize is no reason to
        wait where there was none."""
        resized = job.mark > job.since
        at = job.mark + (self.keep_s if resized else self.after_s)
        if at <= plan.now:
            return True
        plan.wake_at(at)
        return False

    def _may_pay(self, job: Job, plan: Plan, predict: Predictor) -> bool:
        """Whether a resize would pay if there were room without end on the nodes it has."""
        most = sum(_target(job, r, role.max) for r, role in enumerate(job.spec.roles))
        now = self._now(job, predict)
        if now.next <= 0 or most <= now.shape[0]:
            return False
        return self._pays(job, (most, now.shape[1]), plan, predict)

    def _pays(self, job: Job, new: Shape, plan: Plan, predict: Predictor) -> bool:
        """Whether the time saved is worth a resize."""
        cost_s = self.resize_cost_s
        return not cost_s or self._saved(job, new, plan, predict) > PAYS_TWICE * cost_s

    def _saved(self, job: Job, new: Shape, plan: Plan, predict: Predictor) -> float:
        """Seconds by which a running job would end earlier on another shape."""
        shape = self._now(job, predict).shape
        ratio = self._time(job, new, predict) / self._time(job, shape, predict)
        return (1.0 - ratio) * self._left(job, shape, plan, predict)

    def _left(self, job: Job, shape: Shape, plan: Plan, predict: Predictor) -> float:
        """Seconds a job has left on its present workers; one that outlived its estimate is
        expected to go on for as long as it ran."""
        total, ran = predict.runtime(job, _stand_ins(*shape)).p50, job.ran(plan.now)
        if job.progress > 0:
            return total * (1.0 - min(job.progress, 1.0))
        usual = shape
        if ran > 0 and job.held_milli:
            share = job.attained(plan.now) * WHOLE_GPU / (ran * job.held_milli)
            workers = max(1, round(share * shape[0]))
            usual = (workers, min(shape[1], workers))
        done = ran * self._time(job, shape, predict) / self._time(job, usual, predict)
        return total - done if done < total else ran

    def _time(self, job: Job, shape: Shape, predict: Predictor) -> float:
        """Its time on a shape, in units that are the same for all shapes of the job."""
        known = self._times.get(job.seq)
        if known is None:
            known = self._times[job.seq] = _Times(job, predict)
        time = known.by_shape.get(shape)
        if time is None:
            time = known.by_shape[shape] = known.foresee(shape, predict)
        return time

    def _refresh(self, plan: Plan, predict: Predictor) -> None:
        """Forget what another predictor said, and jobs that are gone."""
        if predict.version != self._version or plan.state is not self._state:
            self._version, self._state = predict.version, plan.state
            self._times.clear()
        elif len(self._times) > 2 * len(plan.state.active) + 64:
            alive = {job.seq for job in plan.state.active.values()}
            self._times = {seq: one for seq, one in self._times.items() if seq in alive}


class _Times:
    """How a job's run time depends on its workers, over that on its fewest.

    The predictor is asked about the job as it was submitted. Its ratios are the same while it
    runs, but for the last digit; and a policy that is new, after a server started again, must
    foresee exactly what an older one remembers: between jobs that are alike, a digit decides.
    """

    __slots__ = ("allocation", "by_shape", "last", "next", "shape", "submitted", "tells")

    def __init__(self, job: Job, predict: Predictor) -> None:
        at = job.submitted_at
        self.submitted = Job(job.spec, job.seq, at, at, estimates=job.estimates)
        most = sum(role.max for role in job.spec.roles)
        fewest = self._on_fewest(predict)
        on_most = predict.runtime(self.submitted, _stand_ins(most, 1)).p50
        self.tells = fewest > 0 and on_most != fewest
        """Not for a predictor that says the same of the fewest and the most workers: it does not
        look at them."""
        self.by_shape: dict[Shape, float] = {}
        self.allocation: tuple[Worker, ...] | None = None
        """The workers that these belong to: their shape, and what the next and the last bring."""
        self.shape: Shape = (0, 0)
        self.next = self.last = 0.0

    def foresee(self, shape: Shape, predict: Predictor) -> float:
        """The time on a shape; each worker costs a little where nothing is known. Both times are
        asked for now: what is foreseen of a job may change."""
        if not self.tells:
            return (1.0 + UNKNOWN_SYNC * (shape[0] - 1)) / shape[0]
        there = predict.runtime(self.submitted, _stand_ins(*shape)).p50
        return max(there / self._on_fewest(predict), 1e-9)

    def _on_fewest(self, predict: Predictor) -> float:
        least = sum(role.min for role in self.submitted.spec.roles)
        return predict.runtime(self.submitted, _stand_ins(least, 1)).p50


@lru_cache(maxsize=65_536)
def _stand_ins(workers: int, nodes: int) -> tuple[Worker, ...]:
    """Workers as a predictor is shown them: so many, on so many nodes."""
    return tuple(Worker(0, k, str(k % nodes)) for k in range(workers))


def _growable(plan: Plan) -> list[Job]:
    """Running jobs that may get more workers and would not lose their work by it."""
    return [job for job in resizable(plan) if _may_grow(job)]


def _may_grow(job: Job) -> bool:
    roles = job.spec.roles
    if not (job.spec.elastic and job.spec.checkpointable):
        return False
    if len(roles) == 1:
        return len(job.allocation) < _target(job, 0, roles[0].max)
    counts = [0] * len(roles)
    for worker in job.allocation:
        counts[worker.role] += 1
    return any(n < _target(job, r, roles[r].max) for r, n in enumerate(counts))


def more_workers(job: Job, held: tuple[Worker, ...], count: int) -> Wanted:
    """The (role, index) of so many more workers of the first role that may have them; none when
    no role may have so many."""
    for r, role in enumerate(job.spec.roles):
        have = sum(worker.role == r for worker in held)
        if have + count <= _target(job, r, role.max):
            return new_workers(held, r, count)
    return ()


def settled(job: Job) -> bool:
    """Whether somebody asked for a number of its workers."""
    return job.wants is not None or bool(job.wants_of)


def _above_least(job: Job) -> bool:
    return len(job.allocation) > sum(role.min for role in job.spec.roles)


def _shape(workers: tuple[Worker, ...]) -> Shape:
    return len(workers), _nodes(workers)


def _nodes(workers: tuple[Worker, ...]) -> int:
    return len({worker.node for worker in workers})


def _gpus(job: Job) -> int:
    """GPUs of a worker, at least one."""
    return max(1, job.spec.roles[0].resources.gpu_milli // WHOLE_GPU)
