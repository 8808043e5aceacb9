"""A journal decided again: what a cluster learned while it ran is among its facts, so a what-if, a
server that starts again and the one that goes on decide alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from presage.control.advisors.learning import Learner, sized
from presage.control.advisors.needs import predictor
from presage.control.replay import answer
from presage.core.engine import Engine
from presage.core.loop import fold
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.estimate import Estimate, Estimates
from presage.model.job import JobSpec, Role
from presage.policy.registry import build, policy_config
from presage.sim.whatif import Replay, Step, replay

NODES = (Node("n", (Device(),) * 4),)
OWN = policy_config("elastic")
WORK_S = 2000.0
"""What a job takes on one worker."""


class Cluster:
    """A cluster in which everything goes as decided, with the parts of a real server: its policy,
    what it foresees, and what it learns from reports. A look each second."""

    def __init__(self, home: Path) -> None:
        self.now = 0.0
        self.steps: list[Step] = []
        self.engine = Engine(build(OWN), predictor(NODES, shares=False))
        self.done: dict[str, float] = {}
        self._said: list[ev.Fact] = []
        nobody = SimpleNamespace()
        self.learner = Learner(nobody, nobody, nobody)  # type: ignore[arg-type]
        self.turn(ev.NodeUp(NODES[0]))

    def turn(self, *facts: ev.Fact) -> None:
        facts = (*self._said, *facts)
        decisions = self.engine.handle(self.now, facts)
        self.steps.append((self.now, facts, tuple(decisions)))
        self._said = []
        for decision in decisions:
            if isinstance(decision, ev.Launch):
                self._said.append(ev.JobStarted(decision.job, decision.attempt))
            elif isinstance(decision, ev.Resize):
                self._said.append(ev.JobResized(decision.job, decision.attempt))

    def run(self, seconds: int) -> None:
        """Jobs named `scales…` are as fast as they have workers, others as fast with any."""
        for _ in range(seconds):
            self.now += 1.0
            wake_at = self.engine.state.wake_at
            woke = [ev.Woke()] if wake_at is not None and wake_at <= self.now else []
            self.turn(*self._reports(), *woke, *self.learner.time_sizes(sized(self.engine.state)))

    def _reports(self) -> list[ev.Fact]:
        facts: list[ev.Fact] = []
        for job in self.engine.state.active.values():
            if job.spec.elastic:
                speed = len(job.allocation) if job.id.startswith("scales") else 1
                self.done[job.id] = self.done.get(job.id, 0.0) + speed / WORK_S
                facts.append(ev.Progress(job.id, job.attempt, self.done[job.id]))
        return facts

    def train(self, name: str, work: str = "") -> None:
        role = Role("worker", Resources(gpu_milli=1000), 1, 3)
        said = Estimates("test", Estimate.exact(WORK_S, "s", "test"))
        self.turn(ev.JobSubmitted(JobSpec(name, (role,), entrypoint=(work or name,)), said))

    def start_again(self, state: State) -> None:
        """As a server does: the state from what is on disk, everything else new."""
        assert state.snapshot() == self.engine.state.snapshot()
        self.engine = Engine(build(OWN), predictor(NODES, shares=False), state)

    def sizes(self) -> dict[str, int]:
        return {job.id: len(job.allocation) for job in self.engine.state.active.values()}


def lived(cluster: Cluster, again: Mapping[int, str] | None = None) -> Sequence[Step]:
    """Two jobs that are measured at two sizes each, and then two free GPUs to give away. Starts
    again after these parts of it, from a snapshot or from the journal."""
    whole = JobSpec("other", (Role("worker", Resources(gpu_milli=1000), 2, 2),))
    parts: tuple[Callable[[], None], ...] = (
        lambda: cluster.train("flat"),
        lambda: cluster.train("scales"),
        lambda: cluster.turn(ev.JobSubmitted(whole)),
        lambda: cluster.turn(ev.JobExited("other", 1, ev.Outcome.SUCCEEDED)),
    )
    for number, part in enumerate(parts):
        part()
        cluster.run(80)
        how = (again or {}).get(number)
        if how == "snapshot":
            body = json.loads(json.dumps(cluster.engine.state.snapshot()))
            cluster.start_again(State.restore(body))
        elif how == "journal":
            cluster.start_again(
                fold(
                    (now, event) for now, facts, made in cluster.steps for event in (*facts, *made)
                )
            )
    return cluster.steps


def decided_again(steps: Sequence[Step]) -> Replay:
    return replay(steps, build(OWN), predictor(NODES, shares=False))


def question(**more: Any) -> dict[str, Any]:
    return {"since": None, "policies": {}, "own": OWN.model_dump(mode="json"), **more}


def test_measured_speeds_decide_and_a_replay_decides_the_same(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    steps = lived(cluster)
    measured = [fact for _, facts, _ in steps for fact in facts if type(fact) is ev.SpeedMeasured]
    assert {(fact.job, fact.point.workers) for fact in measured} >= {
        ("flat", 1), ("flat", 3), ("scales", 1)
    }  # fmt: skip
    assert cluster.sizes() == {"flat": 1, "scales": 3}
    audit = answer(question(), steps, steps)["audit"]
    made = sum(len(decisions) for _, _, decisions in steps)
    assert audit == {"same": True, "decisions": made, "first_difference_at": None}


def test_without_them_it_would_have_decided_otherwise(tmp_path: Path) -> None:
    steps = [
        (now, [fact for fact in facts if type(fact) is not ev.SpeedMeasured], decisions)
        for now, facts, decisions in lived(Cluster(tmp_path))
    ]
    other = decided_again(steps).difference
    assert other is not None
    deaf = Cluster(tmp_path)
    deaf.learner.time_sizes = lambda running: []  # type: ignore[method-assign]
    lived(deaf)
    assert deaf.sizes() == {"flat": 2, "scales": 2}


@pytest.mark.parametrize("how", ["snapshot", "journal"])
def test_a_server_that_starts_again_decides_the_same(tmp_path: Path, how: str) -> None:
    went_on = lived(Cluster(tmp_path))
    started = lived(Cluster(tmp_path), {number: how for number in range(3)})
    assert [made for _, _, made in started] == [made for _, _, made in went_on]
    assert decided_again(started).difference is None


def test_jobs_that_are_alike_are_told_apart_the_same_after_a_start(tmp_path: Path) -> None:
    def alike(*, starts_again: bool) -> list[Sequence[ev.Decision]]:
        cluster = Cluster(tmp_path)
        cluster.turn(ev.NodeUp(Node("m", (Device(),) * 4)))
        for number in range(9):
            cluster.train(f"scales-{number}", "scales")
            for _ in range(50):
                cluster.run(1)
                if starts_again:
                    cluster.start_again(State.restore(cluster.engine.state.snapshot()))
        return [made for _, _, made in cluster.steps]

    went_on = alike(starts_again=False)
    assert sum(isinstance(one, ev.Resize) for made in went_on for one in made) >= 3
    assert alike(starts_again=True) == went_on
