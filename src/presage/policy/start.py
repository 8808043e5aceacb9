"""How one waiting job starts: where it fits, on room that is made for it, or worker by worker.

Which job is next is the business of a walk (`policy.walks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import partial
from math import inf

from presage.core.plan import Plan
from presage.core.ports import Predictor
from presage.core.workers import missing
from presage.model.job import Job, JobState
from presage.policy.backlog import Group
from presage.policy.elastic import fits_queue, least_workers, resizable, sizes
from presage.policy.placer import Placer, Wanted
from presage.policy.reclaim import make_room
from presage.policy.rules import Rules

__all__ = ["HELD_BACK", "NO_ROOM", "Kept", "Starter"]


class Kept(Enum):
    """What keeps a job from starting."""

    HELD_BACK = "held back"
    """Its queue may not hold more now."""
    NO_ROOM = "no room"
    """It does not fit, and no room can be made."""


HELD_BACK, NO_ROOM = Kept.HELD_BACK, Kept.NO_ROOM


class Starter:
    """Starts jobs by the rules of a pipeline."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.makes_room = rules.reclaim is not None or rules.elastic
        """Whether room can be made where there is none."""
        self._bounded = rules.queues.bounded

    def start(self, job: Job, group: Group, plan: Plan, predict: Predictor) -> Kept | None:
        """Launch a job or make room for it; else say what keeps it."""
        rules, capacity, bounded = self.rules, plan.state.capacity, self._bounded
        if bounded and rules.queues.admit(job, plan, group.milli):
            return HELD_BACK
        if group.failed_at == capacity.released and not self.makes_room:
            return NO_ROOM
        placer = rules.placer if job.spec.placement is None else rules.placer_of(job)
        if not rules.gang:
            part = self._place_part(job, plan, placer)
            if part and (rules.greedy or job.id not in plan.state.incomplete):
                return None
            group.failed_at = capacity.released
            return NO_ROOM
        for wanted in self._sizes(job, plan, predict) if group.elastic else group.wishes:
            if bounded and not fits_queue(job, plan, wanted, rules.queues):
                continue
            workers = placer.find(job, plan, wanted)
            if workers is not None:
                plan.place(job, workers)
                return None
        group.failed_at = capacity.released
        if self.makes_room:
            victims = rules.reclaim(job, plan, predict) if rules.reclaim is not None else []
            donors = self._donors(job, plan)
            loss = partial(rules.gain.loss, predict=predict) if rules.gain else None
            if make_room(job, plan, placer, group.least, victims, donors, loss):
                return None
        return NO_ROOM

    def complete(self, plan: Plan) -> bool:
        """Give started jobs their missing workers; False when one still blocks those behind it."""
        for job in sorted(plan.state.incomplete.values(), key=lambda job: job.seq):
            if job.state is JobState.STARTING:
                self._place_part(job, plan, self.rules.placer_of(job))
                if job.id in plan.state.incomplete and not self.rules.greedy:
                    return False
        return True

    def _sizes(self, job: Job, plan: Plan, predict: Predictor) -> Sequence[Wanted]:
        """The numbers of workers to try for an elastic job, the best first."""
        rules = self.rules
        if rules.gain is not None and len(plan.state.pending) == 1:
            return rules.gain.sizes(job, plan, predict)
        if not rules.elastic or self._alone(plan):
            return sizes(job)
        return (least_workers(job),)

    def _donors(self, job: Job, plan: Plan) -> list[Job]:
        """Elastic jobs that would give workers to a waiting one: those of lower priority at once,
        the others when it has waited long enough."""
        if not self.rules.elastic:
            return []
        donors = [other for other in resizable(plan) if other.spec.checkpointable]
        patient_until = job.since + self.rules.shrink_after_s
        if plan.now >= patient_until:
            return donors
        if patient_until < inf:
            plan.wake_at(patient_until)
        return [other for other in donors if other.spec.priority < job.spec.priority]

    def _alone(self, plan: Plan) -> bool:
        """Whether no other job waits for room or would like to grow into it."""
        state = plan.state
        return len(state.pending) == 1 and not any(j.spec.elastic for j in state.active.values())

    def _place_part(self, job: Job, plan: Plan, placer: Placer) -> bool:
        """Launch as many of the missing workers as fit, one by one; False when none does."""
        before = len(job.allocation)
        full: set[int] = set()
        for lacking in missing(job):
            if lacking[0] in full:
                continue
            workers = placer.find(job, plan, [lacking])
            if workers is not None:
                plan.place(job, workers)
            elif self.rules.greedy:
                full.add(lacking[0])
            else:
                break
        return len(job.allocation) > before
