"""Which elastic job gets or gives workers: what `policy.elastic.ByGain` decides, chosen.

At the end of a pass running elastic jobs are put into slots. *Get* gives a job the fewest further
workers that help it; *give* takes its last worker, for the first job that waits and has no room,
else for a job to which workers bring something. Nobody gives to a job that waits unless it starts
on what is given: what was chosen for it in vain is not done. Jobs of lower priority give without
being asked, as in the policy `elastic`.

`share` asks a network; without one the pass is left open, for an environment to go on with
`choose`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, log, log1p, log2

import numpy as np

from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.workers import ask_of, least_milli, shrunk
from presage.model.cluster import WHOLE_GPU, Worker
from presage.model.job import Job
from presage.policy.backlog import waits
from presage.policy.elastic import (
    MARGIN,
    PAYS_TWICE,
    ByGain,
    PlacerOf,
    least_workers,
    more_workers,
    resizable,
    settled,
)
from presage.policy.learned.net import Decides, Floats, SlotLayout
from presage.policy.queues import Queues
from presage.policy.reclaim import Chip, leaving, lend

__all__ = ["SCALE_RULES", "ScaleByChoice", "scale_layout"]

SLOT_FIELDS = (
    "present",
    "can_get",
    "can_give",
    "gpus",
    "workers",
    "surplus",
    "gain",
    "loss",
    "left",
    "ran",
    "service",
    "kept",
    "rested",
    "due",
    "pays",
    "serves",
    "patient",
    "moves",
)
CLUSTER_FIELDS = (
    "free",
    "waiting",
    "running",
    "elastic",
    "head_gpus",
    "head_waited",
    "head_left",
    "lacking",
    "best_gain",
)
SCALE_RULES = {
    "resize_cost_s": 40.0,
    "pays": 2.0,
    "keep_s": 60.0,
    "shrink_after_s": 30.0,
    "grow_after_s": 60.0,
}
"""What a resize is taken to cost; how many times that a job must be foreseen to save, or it gets
nothing; how long it keeps its size at least; and the times at which the fields `patient` and
`rested` turn to 1."""

_GET, _GIVE = 0, 1
_LONG = log(1e6)


def scale_layout(slots: int = 16) -> SlotLayout:
    """What is observed: two things can be done with each slot, get and give."""
    return SlotLayout(slots, SLOT_FIELDS, CLUSTER_FIELDS, actions=2)


@dataclass(slots=True, eq=False)
class _Sized:
    """A running job, with what was chosen for it in this pass."""

    job: Job
    held: tuple[Worker, ...]
    """With the workers that it gets."""
    given: int = 0
    """Workers that it gives."""
    stuck: bool = False
    """Whether it was to get workers and there was no place."""

    @property
    def count(self) -> int:
        """Workers as chosen."""
        return len(self.held) - self.given


class ScaleByChoice(ByGain):
    """Workers come and go as chosen; what they bring is worked out as in `ByGain`."""

    def __init__(
        self, layout: SlotLayout, rules: Mapping[str, float], net: Decides | None = None
    ) -> None:
        super().__init__(rules["resize_cost_s"])
        self.layout, self._numbers, self._net = layout, rules, net
        self._slots: list[_Sized] = []
        self._head: Job | None = None
        """The first who waits, if it would start on what others can give."""
        self._taker: Job | None = None
        """To whom a worker brings most, while nobody waits."""
        self._able: list[_Sized] = []
        """All who may get or give."""
        self._gave: list[_Sized] = []
        """Who did, one entry for each worker."""
        self.observation: Floats = np.zeros(layout.size)
        """What there is to choose from; its own, and good until the next choice."""
        count, width = layout.slots, len(SLOT_FIELDS)
        self._rows = self.observation[: count * width].reshape(count, width)
        self._cluster = self.observation[count * width :]
        self.can_choose = False
        """Whether anything but nothing can be done."""

    def share(self, plan: Plan, predict: Predictor, placer: PlacerOf, queues: Queues) -> None:
        """The end of a pass; without a network it is only begun."""
        self._refresh(plan, predict)
        self._plan, self._predict, self._placer, self._queues = plan, predict, placer, queues
        self.begin()
        if self._net is not None:
            while self.can_choose:
                self.choose(self._net.choose(self.observation, self.layout))

    # -- a pass, step by step -------------------------------------------------------------------

    def begin(self) -> None:
        """Put jobs into slots."""
        plan, predict = self._plan, self._predict
        self._slots, self._gave, self.can_choose = [], [], False
        self._head = self._taker = None
        self._able = able = [
            _Sized(job, job.allocation) for job in resizable(plan) if job.spec.checkpointable
        ]
        if not able:
            return
        growable = [one.job for one in able if _grows(one)]
        gains = {job: self._next(job, predict) for job in growable}
        first = self._first_waiting()
        if first is not None:
            everything = [_chip(one.job, count) for one in able if (count := _surplus(one))]
            if self._find_room(first, everything) is not None:
                self._head = first
        elif not plan.state.pending and gains:
            self._taker = max(gains, key=lambda job: (gains[job], -job.seq))
        self._best_gain = max(gains.values(), default=0.0)
        self._elastic = len(able)
        self._wake(able, gains, first)
        self._gains = gains
        self._fill()

    def choose(self, action: int) -> bool:
        """Let the job of a slot get or give; or end the pass. Whether that was possible."""
        k, what = divmod(action, self.layout.actions)
        if k >= len(self._slots):
            self._end()
            return action == self.layout.choices - 1
        if not self._rows[k, 1 + what]:
            return False
        one = self._slots[k]
        done = self._gets(one) if what == _GET else self._takes(one)
        if self._head is not None and what == _GIVE:
            workers = self._room_given(self._head)
            if workers is not None:
                self._end(self._spare(self._head, workers))
                self.begin()
                return True
        self._look()
        if not self.can_choose:
            self._fill()
        if not self.can_choose:
            self._end()
        return done

    def _gets(self, one: _Sized) -> bool:
        job, plan = one.job, self._plan
        step = self._step(
            job, one.held, plan, self._predict, self._placer(job), self._queues, self._promised()
        )
        if step is None:
            one.stuck = True
            return False
        one.held += step[1]
        lend(plan, (job, step[1]), -1)
        return True

    def _takes(self, one: _Sized) -> bool:
        one.given += 1
        self._gave.append(one)
        return True

    def _room_given(self, head: Job) -> tuple[Worker, ...] | None:
        """Where a job could start on what was given."""
        givers = dict.fromkeys(self._gave)
        return self._find_room(head, [_chip(one.job, one.given) for one in givers if one.given])

    def _spare(self, head: Job, workers: tuple[Worker, ...]) -> tuple[Worker, ...]:
        """Take nothing that is not needed after all; what was given last is spared first."""
        for one in reversed(self._gave[:-1]):
            one.given -= 1
            again = self._room_given(head)
            if again is None:
                one.given += 1
            else:
                workers = again
        return workers

    def _promised(self) -> tuple[int, int]:
        """What queues were given in this pass; all of it counts against each of them."""
        if not self._queues.bounded:
            return 0, 0
        asks = [
            ask_of(one.job, worker.role)
            for one in self._able
            for worker in one.held[len(one.job.allocation) :]
        ]
        return sum(ask.gpu_milli for ask in asks), sum(ask.cpu_milli for ask in asks)

    def _end(self, for_head: tuple[Worker, ...] = ()) -> None:
        """Make decisions of what was chosen. What was given for a job that waits and does not
        start on it stays."""
        plan = self._plan
        for one in self._able:
            lend(plan, (one.job, one.held[len(one.job.allocation) :]), 1)
        for one in self._able:
            if one.given and (self._head is None or for_head):
                kept = shrunk(one.job, one.given)
                assert kept is not None
                plan.resize(one.job, kept)
            elif len(one.held) > len(one.job.allocation) and self._saves(one):
                plan.resize(one.job, one.held)
        if self._head is not None and for_head:
            plan.reserve(self._head, for_head)
        self._able, self._slots, self.can_choose = [], [], False

    def _saves(self, one: _Sized) -> bool:
        """Whether what a job gets is worth a resize."""
        shape = len(one.held), len({worker.node for worker in one.held})
        least_s = self._numbers["pays"] * self.resize_cost_s
        return self._saved(one.job, shape, self._plan, self._predict) > least_s

    # -- who waits ------------------------------------------------------------------------------

    def _first_waiting(self) -> Job | None:
        """Whose turn it is of those for whom no room is held."""
        state = self._plan.state
        waiting = state.pending.values()
        if state.reservations:
            waiting = [job for job in waiting if waits(job, state)]  # type: ignore[assignment]
        return min(waiting, key=lambda job: (-job.spec.priority, job.seq), default=None)

    def _find_room(self, head: Job, chips: list[Chip]) -> tuple[Worker, ...] | None:
        """Where a job could start if these workers left, beside those that leave anyway."""
        plan, capacity = self._plan, self._plan.state.capacity
        queues = self._queues
        if queues.bounded and queues.admit(head, plan, least_milli(head)):
            return None
        chips = [*leaving(plan), *chips]
        for chip in chips:
            lend(plan, chip, 1)
        workers = None
        if least_milli(head) <= capacity.free_milli:
            workers = self._placer(head).find(head, plan, least_workers(head))
        for chip in reversed(chips):
            lend(plan, chip, -1)
        return workers

    def _wake(self, able: list[_Sized], gains: Mapping[Job, float], first: Job | None) -> None:
        """Come back when more can be done than now, or a field turns to 1."""
        plan, numbers = self._plan, self._numbers
        now, free = plan.now, plan.state.capacity.free_milli
        later = inf
        if self._head is not None and first is not None:
            patient = first.since + numbers["shrink_after_s"]
            later = patient if patient > now else later
        after = (numbers["keep_s"], numbers["grow_after_s"], self.keep_s)
        for one in able:
            job = one.job
            roomy = gains.get(job, 0.0) > 0 and ask_of(job, 0).gpu_milli <= free
            if roomy or (self._taker is not None and _surplus(one)):
                for wait_s in after:
                    if now < job.mark + wait_s < later:
                        later = job.mark + wait_s
        if later < inf:
            plan.wake_at(later)

    # -- what can be done -----------------------------------------------------------------------

    def _rested(self, job: Job) -> bool:
        """Whether it kept its size long enough; the first size may be changed at once."""
        return job.mark <= job.since or job.mark + self._numbers["keep_s"] <= self._plan.now

    def _may_get(self, one: _Sized) -> bool:
        capacity, ask = self._plan.state.capacity, ask_of(one.job, 0)
        if one.given or one.stuck or ask.gpu_milli > capacity.free_milli:
            return False
        if ask.gpu_milli >= WHOLE_GPU and not capacity.has_whole(ask.gpu_milli // WHOLE_GPU):
            return False
        return _grows(one) and self._rested(one.job)

    def _may_give(self, one: _Sized) -> bool:
        if not _surplus(one) or len(one.held) > len(one.job.allocation):
            return False
        if self._head is not None:
            return True
        settled = one.job.mark + max(self.keep_s, self._numbers["keep_s"]) <= self._plan.now
        return settled and self._taker is not None and one.job is not self._taker

    # -- what is observed -----------------------------------------------------------------------

    def _fill(self) -> None:
        """Those to whom workers bring most and who had least, those whom they cost least and who
        had most, in turn."""
        now, predict, count = self._plan.now, self._predict, self.layout.slots
        gains, able = self._gains, self._able
        takers = [one for one in able if gains.get(one.job, 0.0) > 0 and self._may_get(one)]
        givers = [one for one in able if self._may_give(one)]
        self._slots = list(dict.fromkeys([*takers, *givers]))
        if len(self._slots) > count:
            lines = [
                sorted(takers, key=lambda one: (-gains[one.job], one.job.seq)),
                sorted(givers, key=lambda one: self.loss(one.job, one.count, predict)),
                sorted(takers, key=lambda one: one.job.attained(now)),
                sorted(givers, key=lambda one: -one.job.attained(now)),
            ]
            turns = (line[k] for k in range(count) for line in lines if k < len(line))
            self._slots = list(dict.fromkeys(turns))[:count]
        self._rows[:] = 0.0
        self._look()

    def _look(self) -> None:
        """What can be done now."""
        for k, one in enumerate(self._slots):
            self._put(k, one)
        plan, head = self._plan, self._head
        state, capacity = plan.state, plan.state.capacity
        cluster, free = self._cluster, max(capacity.free_milli, 0)
        cluster[:] = 0.0
        cluster[0] = free / max(capacity.open_milli, 1)
        cluster[1] = log1p(len(state.pending)) / 7
        cluster[2] = log1p(len(state.active)) / 7
        cluster[3] = log1p(self._elastic) / 7
        if head is not None:
            need = max(least_milli(head), 1)
            cluster[4] = log2(1 + need / WHOLE_GPU) / 6
            cluster[5] = log1p(plan.now - head.since) / _LONG
            cluster[6] = log1p(self._predict.runtime(head).p50) / _LONG
            cluster[7] = max(need - free, 0) / need
        cluster[8] = min(self._best_gain, 1.0)
        self.can_choose = bool(self._rows[:, 1:3].any())

    def _put(self, k: int, one: _Sized) -> None:
        job, plan, predict, row = one.job, self._plan, self._predict, self._rows[k]
        now, surplus, grows = plan.now, _surplus(one), _grows(one)
        kept_s = now - job.mark
        gain = self._brought(one) if grows else 0.0
        loss = self.loss(job, one.count, predict) if surplus else 0.0
        shape = self._now(job, predict).shape
        row[0] = 1.0
        row[1], row[2] = gain > 0 and self._may_get(one), self._may_give(one)
        row[3] = log2(1 + _worker_milli(job) / WHOLE_GPU) / 6
        row[4] = log2(1 + one.count) / 6
        row[5] = log2(1 + surplus) / 6
        row[6], row[7] = (min(max(one, 0.0), 1.0) for one in (gain, loss))
        row[8] = log1p(self._left(job, shape, plan, predict)) / _LONG
        row[9] = log1p(job.ran(now)) / _LONG
        row[10] = log1p(job.attained(now)) / _LONG
        row[11] = log1p(kept_s) / _LONG
        row[12] = kept_s >= self._numbers["grow_after_s"]
        row[13] = job.mark <= job.since or kept_s >= self.keep_s
        row[14] = grows and self._may_pay(job, plan, predict)
        row[15] = row[2] and self._head is not None
        patient_s = inf if self._head is None else now - self._head.since
        row[16] = row[15] and patient_s >= self._numbers["shrink_after_s"]
        row[17] = row[2] and self._taker is not None and self._brings(one, loss)

    def _brought(self, one: _Sized) -> float:
        """What the next workers bring: one on its own nodes where they have room, else the fewest
        on another one that help."""
        job, predict, capacity = one.job, self._predict, self._plan.state.capacity
        own = {worker.node for worker in one.held}
        whole = max(_worker_milli(job) // WHOLE_GPU, 1)
        shape = len(one.held), len(own)
        if any(capacity.whole[capacity.index[node]] >= whole for node in own):
            return self._gain(job, shape, (shape[0] + 1, shape[1]), predict)
        count = 1
        while more_workers(job, one.held, count):
            gain = self._gain(job, shape, (shape[0] + count, shape[1] + 1), predict)
            if gain > 0:
                return gain
            count *= 2
        return 0.0

    def _brings(self, one: _Sized, loss: float) -> bool:
        """Whether one more worker that leaves brings enough to another job, by the rule of
        `ByGain`."""
        taker, plan, predict = self._taker, self._plan, self._predict
        assert taker is not None
        settled_s = max(self.keep_s, self._numbers["keep_s"])
        if plan.now < max(taker.mark, one.job.mark) + settled_s:
            return False
        had, has = self._now(taker, predict).shape, self._now(one.job, predict).shape
        more, fewer = had[0] + len(self._gave), one.count
        gain = self._gain(taker, (more, had[1]), (more + 1, had[1]), predict)
        if gain <= loss * (1 + MARGIN):
            return False
        leaves = {worker.node for worker in _chip(one.job, one.given + 1)[1]}
        nodes = had[1] + len(leaves - {worker.node for worker in taker.allocation})
        saved = self._saved(taker, (more + 1, nodes), plan, predict)
        lost = -self._saved(one.job, (fewer - 1, min(has[1], fewer - 1)), plan, predict)
        return saved - lost > 2 * PAYS_TWICE * self.resize_cost_s


def _chip(job: Job, count: int) -> Chip:
    """The last workers of a job."""
    kept = set(shrunk(job, count) or ())
    return job, tuple(worker for worker in job.allocation if worker not in kept)


def _grows(one: _Sized) -> bool:
    """Whether it may have one more worker of its first role that may have more."""
    return not one.given and bool(more_workers(one.job, one.held, 1))


def _surplus(one: _Sized) -> int:
    """Workers above the least, of a job whose number nobody asked for."""
    return 0 if settled(one.job) else one.count - sum(role.min for role in one.job.spec.roles)


def _worker_milli(job: Job) -> int:
    return ask_of(job, 0).gpu_milli
