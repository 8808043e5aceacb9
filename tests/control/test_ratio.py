"""The advisor that tunes servers against workers: what it tells of a bottleneck, what it asks for,
and when it stops. Jobs run as a split of computing and serving says; time is an argument."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from presage.control.advisors.ratio import RatioAdvisor, RatioRules, Split, best_size, fitted
from presage.core.engine import Engine
from presage.model import event as ev
from presage.model.cluster import Node, Resources
from presage.model.job import JobSpec, Role
from presage.policy import registry
from presage.telemetry.rows import Row
from tests.scenario import Known

Size = tuple[int, int]
ASK = Resources(cpu_milli=1000)


def test_a_split_is_found_from_the_sizes_that_were_measured() -> None:
    truth = Split(0.2, 0.5)
    speeds = {size: truth.speed(size) for size in ((3, 1), (2, 2), (2, 1))}
    found = fitted(speeds, busy=0.9)
    assert (found.computing, found.serving) == pytest.approx((0.2, 0.5))
    # With one load alone, how busy the workers are says it: 0.2 of 1.7 here.
    found = fitted({(3, 1): truth.speed((3, 1))}, busy=0.2 / 1.7)
    assert (found.computing, found.serving) == pytest.approx((0.2, 0.5))


def test_the_best_size_is_by_hand() -> None:
    """Three tasks: 2/1 makes 2 / (1 + 2) = 0.67 of a step in a second, 1/2 makes 1 / 2. Four: 3/1
    makes 3 / 4, 2/2 makes 2 / 2. What was measured counts more than what is foreseen."""
    even = Split(1.0, 1.0)
    assert even.speed((2, 1)) == pytest.approx(2 / 3)
    assert best_size([(2, 1), (1, 2)], {}, even) == (2, 1)
    assert best_size([(3, 1), (2, 2), (1, 3)], {}, even) == (2, 2)
    assert best_size([(3, 1), (2, 2), (1, 3)], {(2, 2): 0.5}, even) == (3, 1)
    assert best_size([(2, 1), (2, 2), (2, 3)], {}, Split(1.0, 0.0)) == (2, 1)  # no server more


class Cluster:
    """An engine, a job with servers, and the world that it runs in."""

    def __init__(self, truth: Split, rules: RatioRules, steps: float = 4000.0) -> None:
        self.truth, self.steps = truth, steps
        self.engine = Engine(registry.build("fifo"), Known(), check_every=1)
        self.advisor = RatioAdvisor(rules)
        self.now, self.made, self.paused = 0.0, 0.0, 0
        self.asked: list[ev.ScaleRequested] = []
        self.rows: list[Row] = []
        self.between: list[ev.Fact] = []
        """What happens just before something that is asked for."""
        self.handle(ev.NodeUp(Node("n", cpu_milli=4000)))

    def handle(self, *facts: ev.Fact) -> None:
        self.engine.handle(self.now, facts)

    def submit(self, workers: Size, servers: Size, **labels: str) -> None:
        roles = (Role("worker", ASK, *workers), Role("ps", ASK, *servers))
        self.handle(ev.JobSubmitted(JobSpec("j", roles, labels=labels)))
        self.handle(ev.JobStarted("j", 1))

    @property
    def size(self) -> Size:
        held = self.engine.state.jobs["j"].allocation
        return sum(w.role == 0 for w in held), sum(w.role == 1 for w in held)

    def new(self, job: str, attempt: int, mark: int = 0) -> tuple[Sequence[Row], int]:
        return self.rows[mark:], len(self.rows)

    def of(self, job: str) -> Sequence[Row]:
        return self.rows

    def latest(self, job: str, attempt: int, workers: int, since: float) -> Sequence[Row]:
        return []

    def second(self) -> None:
        """A second passes: a resize takes five, in which nothing is done."""
        self.now += 1.0
        job = self.engine.state.jobs["j"]
        if job.resizing is not None:
            self.paused += 1
            if self.paused % 5 == 0:
                self.handle(ev.JobResized("j", 1))
        else:
            speed = self.truth.speed(self.size)
            self.made += speed
            self.handle(ev.Progress("j", 1, min(self.made / self.steps, 1.0)))
            busy = self.truth.computing * speed / self.size[0]
            self.rows.append(Row(self.now, "worker-0", cpu_s=0.0, cpu_cores=busy, wait_s=0.0))
        for fact in self.advisor.look(self.now, lambda ask: ask(self.engine.state), self):
            assert isinstance(fact, ev.ScaleRequested)
            self.asked.append(fact)
            between, self.between = self.between, []
            self.handle(*between, fact)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.second()


RULES = RatioRules(measure_s=5, reports=4, cost_s=10)


@pytest.mark.parametrize(
    ("truth", "best"),
    [
        (Split(0.1, 1.0), (2, 2)),  # the servers' links hold it up
        (Split(1.0, 0.05), (3, 1)),  # computing does
    ],
)
def test_a_job_comes_to_the_best_ratio_and_stays(truth: Split, best: Size) -> None:
    for workers, servers in (((1, 3), (1, 2)), ((1, 2), (1, 3))):
        cluster = Cluster(truth, RULES)
        cluster.submit(workers, servers, tune="roles")
        cluster.run(120)
        sizes = [
            (w, s)
            for w in range(1, workers[1] + 1)
            for s in range(1, servers[1] + 1)
            if w + s <= 4
        ]
        top = max(truth.speed(size) for size in sizes)
        assert truth.speed(cluster.size) >= 0.97 * top
        assert cluster.size == best or best not in sizes
        asked = len(cluster.asked)
        cluster.run(200)
        assert len(cluster.asked) == asked


@pytest.mark.parametrize(("steps", "asks"), [(40.0, False), (4000.0, True)])
def test_nothing_is_asked_for_when_the_end_is_near(steps: float, asks: bool) -> None:
    """At 2/1 a second makes 0.95 of a step, at 2/2 1.8: of 40 steps, that saves less than twice
    the ten seconds that a change costs."""
    cluster = Cluster(Split(0.1, 1.0), RULES, steps=steps)
    cluster.submit((2, 3), (1, 2), tune="roles")
    assert cluster.size == (2, 1)
    cluster.run(30)
    assert bool(cluster.asked) is asks


def test_a_change_costs_the_work_that_was_not_done(caplog: pytest.LogCaptureFixture) -> None:
    """From 2/1 to 2/2 takes five seconds without a step. The seconds for which a size is measured,
    and first reports that do not count, are not lost."""
    caplog.set_level("INFO")
    cluster = Cluster(Split(0.1, 1.0), RatioRules(measure_s=20, reports=4))
    cluster.submit((1, 3), (1, 2), tune="roles")
    cluster.run(120)
    assert cluster.size == (2, 2)
    assert cluster.paused == 5
    (kept,) = [line for line in caplog.messages if "kept" in line]
    assert 5 <= float(kept.split("costs ")[1].split()[0]) <= 7


def test_jobs_that_did_not_ask_for_it_are_left_alone() -> None:
    for labels in ({}, {"tune": "no"}):
        cluster = Cluster(Split(0.1, 1.0), RULES)
        cluster.submit((1, 3), (1, 2), **labels)
        cluster.run(60)
        assert not cluster.asked


def test_what_finds_no_room_is_taken_back() -> None:
    """Another job takes the room just before: after a while the job keeps what it has, and what
    was asked for is not asked for again."""
    cluster = Cluster(Split(0.1, 1.0), RatioRules(measure_s=5, reports=4, patience_s=20))
    first = JobSpec("first", (Role("worker", ASK),))
    cluster.handle(ev.JobSubmitted(first))
    cluster.handle(ev.JobStarted("first", 1))
    cluster.submit((2, 2), (1, 2), tune="roles")
    assert cluster.size == (2, 1)
    cluster.run(30)
    assert not cluster.asked  # there is no room, and it sees that
    cluster.handle(ev.JobExited("first", 1, ev.Outcome.SUCCEEDED))
    assert cluster.size == (2, 1)
    cluster.between = [ev.JobSubmitted(JobSpec("second", first.roles))]
    cluster.run(100)
    asked = [(fact.role, fact.workers) for fact in cluster.asked]
    assert asked == [(0, 2), (1, 2), (0, 2), (1, 1)]
    assert cluster.size == (2, 1)


def test_a_role_is_scaled_apart_from_the_others() -> None:
    cluster = Cluster(Split(1.0, 1.0), RULES)
    cluster.submit((1, 3), (1, 3))
    start = cluster.size
    assert sum(start) == 4
    cluster.handle(ev.ScaleRequested("j", 3, 1), ev.ScaleRequested("j", 1, 0))
    for _ in range(3):
        if cluster.engine.state.jobs["j"].resizing is not None:
            cluster.handle(ev.JobResized("j", 1))
    assert cluster.size == (1, 3)
    cluster.handle(ev.ScaleRequested("j", 9, 1))  # held to its range
    assert cluster.engine.state.jobs["j"].asked(1) == 3
    cluster.handle(ev.ScaleRequested("j", 2, 7))  # there is no such role
    assert cluster.size == (1, 3)
