"""One simulated cluster that stops whenever something is to be chosen, and goes on when it was.

The same engine, plan and world as a simulation. The policy only opens its pass: the plan stays
open while somebody outside chooses, and what it holds then is the decision. What happens in
between is added up as parts of a reward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from presage.core.engine import Engine
from presage.core.loop import act
from presage.core.ports import Policy
from presage.core.state import State
from presage.gym.worlds import Scene
from presage.model.event import Decision, Fact, JobSubmitted, NodeUp, Resize, Woke
from presage.model.job import JobState
from presage.policy.learned.serve import Chooses
from presage.sim.foreseen import FromHistory
from presage.sim.oracle import LearnsMemory, Oracle
from presage.sim.world import Task, World

__all__ = ["ClusterEpisode", "Parts"]

_SUCCEEDED = JobState.SUCCEEDED
_HOUR_S = 3600.0


@dataclass(slots=True)
class Parts:
    """What happened, in job-hours, GPU-hours and numbers; each the more, the worse, but for
    utilization."""

    jct: float = 0.0
    """Job-hours in the system: summed over an episode, the completion times of all jobs."""
    wait: float = 0.0
    """Job-hours in the queue."""
    fairness: float = 0.0
    """Job-hours in the queue, each weighted by how many hours that job has waited already."""
    utilization: float = 0.0
    """Hours that the whole cluster was held: a share of it counts in proportion."""
    stops: float = 0.0
    """Runs that were stopped for others."""
    resizes: float = 0.0
    """Runs whose number of workers was changed."""

    def minus(self, other: Parts) -> dict[str, float]:
        """By name, what came since."""
        return {
            "jct": self.jct - other.jct,
            "wait": self.wait - other.wait,
            "fairness": self.fairness - other.fairness,
            "utilization": self.utilization - other.utilization,
            "stops": self.stops - other.stops,
            "resizes": self.resizes - other.resizes,
        }

    def copy(self) -> Parts:
        """As it is now."""
        return Parts(
            self.jct, self.wait, self.fairness, self.utilization, self.stops, self.resizes
        )


class ClusterEpisode:
    """From the first submission of a trace to its last end."""

    def __init__(
        self,
        scene: Scene,
        make: Callable[[], tuple[Policy, Chooses]],
        *,
        fairness: bool = False,
        seed: int = 0,
    ) -> None:
        """`make` makes a policy and the part of it that is chosen for; `fairness` whether that
        part of the reward is added up, which costs a look at all who wait."""
        self.scene = scene
        self.world = World(scene.nodes, scene.rules)
        self.history = FromHistory() if scene.foresee is None else None
        policy, self.chooser = make()
        self._oracle = Oracle(self.world, False)
        foresee = scene.foresee if self.history is None else self.history.predictor
        assert foresee is not None
        predict = foresee(self._oracle)
        self.engine = Engine(policy, predict, State(seed))
        self.state = self.engine.state
        self.parts = Parts()
        self._fairness = fairness
        self._gpus = max(sum(len(node.devices) for node in scene.nodes), 1) * 1000
        self._incoming = iter(scene.workload())
        self._next: tuple[float, Task | None] = next(self._incoming, (inf, None))
        self._decisions = self.engine.handle(0.0, [NodeUp(node) for node in scene.nodes])
        self._at = 0.0

    def go_on(self) -> bool:
        """To the next moment at which something is to be chosen; False when all is over."""
        self._act()
        while self._step():
            if self.chooser.can_choose:
                return True
            self._act()
        return False

    @property
    def now(self) -> float:
        """Seconds since the first submission."""
        return self._at

    def _act(self) -> None:
        """Nothing more is chosen at this moment: do it."""
        decisions: list[Decision] = self._decisions
        if decisions:
            self.parts.resizes += sum(type(one) is Resize for one in decisions)
            act(self.world, decisions)
            self._decisions = []

    def _step(self) -> bool:
        """Jump to the next event and let the core decide; False when there is none."""
        world, state = self.world, self.state
        at, task = self._next
        now = min(world.next_event(), at)
        wake_at = state.wake_at
        if wake_at is not None and wake_at < now:
            now = wake_at
        if now == inf or (task is None and not world.tasks):
            return False
        self._count(now)
        facts: list[Fact] = world.poll(now)
        while at <= now and task is not None:
            world.expect(task, at)
            if self.history is not None:
                task.estimates = self.history.foresee(task.spec, at)
            facts.append(JobSubmitted(task.spec, task.estimates))
            at, task = self._next = next(self._incoming, (inf, None))
        if wake_at is not None and wake_at <= now:
            facts.append(Woke())
        if facts:
            self._decisions = self.engine.handle(now, facts)
            self._collect(now)
        return True

    def _count(self, now: float) -> None:
        """What the time until now adds to the reward."""
        passed, state, parts = (now - self._at) / _HOUR_S, self.state, self.parts
        if passed > 0:
            waiting = len(state.pending)
            parts.jct += passed * (waiting + len(state.active))
            parts.wait += passed * waiting
            parts.utilization += passed * self.world.used_milli / self._gpus
            if self._fairness and waiting:
                middle = (now + self._at) / 2
                waited = sum(middle - job.since for job in state.pending.values())
                parts.fairness += passed * waited / _HOUR_S
        self._at = now

    def _collect(self, now: float) -> None:
        """Forget what ended, and learn from it."""
        world = self.world
        for task in world.overflowed:
            if isinstance(self.engine.predict, LearnsMemory):
                self.engine.predict.out_of_memory(task.spec)
        for task in world.finished:
            if self.history is not None:
                self.history.ended(task, now)
            self._oracle.forget(task.spec.id)
        world.finished.clear()
        for job in self.state.ended:
            if job.state is not _SUCCEEDED and job.spec.id in world.tasks:
                world.forget(job.spec.id)
        for job_id in world.stopped:
            self._oracle.stopped(job_id)
        self.parts.stops = world.stops
        world.stopped.clear()
        world.overflowed.clear()
