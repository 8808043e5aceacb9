"""EASY backfill: holes are used, and the head starts no later than it would have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from presage.core.plan import Plan
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.estimate import Estimate
from presage.model.job import Job, JobSpec, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import build, pipeline
from presage.policy.runs import Runs
from presage.policy.walks.shadow import Shadow, end, soonest
from presage.sim.clusters import read_cluster
from presage.sim.run import simulate
from presage.sim.traces import Trace
from tests.scenario import Known, Scenario, job, nodes
from tests.sim.results import trace_of

EASY = PolicyConfig(backfill=True)


def test_a_short_job_fills_the_hole_and_a_long_one_does_not() -> None:
    s = Scenario(nodes(4), EASY, {"a": 100, "head": 10, "short": 90, "long": 110})
    s.submit(job("a", gpus=2), job("head", gpus=4))
    s.submit(job("long", gpus=2), job("short", gpus=2))
    assert s.running == ["a", "short"]


def test_a_long_job_may_start_on_gpus_that_the_head_will_not_need() -> None:
    s = Scenario(nodes(4, 4), EASY, {"a": 100, "b": 200, "head": 10, "long": 1000})
    s.submit(job("a", gpus=3), job("b", gpus=2), job("head", gpus=4))
    s.submit(job("long", gpus=2))  # the head will start on n0, when `a` ends
    assert s.where("long") == ["n1"]


def test_nothing_passes_a_blocked_head_without_backfill() -> None:
    s = Scenario(nodes(4), "fifo", {"short": 1})
    s.submit(job("a", gpus=2), job("head", gpus=4), job("short", gpus=2))
    assert s.running == ["a"]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 60), st.integers(1, 4)),
        min_size=2,
        max_size=14,
    )
)
def test_with_exact_estimates_the_first_blocked_job_is_never_delayed(
    rows: list[tuple[int, int, int]],
) -> None:
    trace = trace_of(rows)
    fifo, easy = (_starts(trace, config) for config in (PolicyConfig(), EASY))
    # The first job that waits under fifo is a head: nothing that passed it may have cost it time.
    first = next((k for k in range(len(rows)) if fifo[k][0] < fifo[k][1]), None)
    if first is not None:
        assert easy[first][1] <= fifo[first][1]


def _starts(trace: Trace, config: PolicyConfig) -> list[tuple[float, float]]:
    result = simulate(trace, read_cluster("1x4"), build(config), name="x", check_every=1)
    return list(result.jobs.select("submit_s", "start_s").iter_rows())


# -- ends that are kept between passes ------------------------------------------------------------


class Changing(Known):
    """Foresees by progress and by the number of workers, in numbers that floats hold exactly."""

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        total = self.runtimes[job.id] / (len(workers) or 1)
        if job.progress:
            total = job.progress_s / job.progress
        return Estimate.exact(total, "s", self.version)


class Cluster(Scenario):
    """Elastic and rigid jobs that start late, report progress, and are stopped."""

    def __init__(self) -> None:
        policy = PolicyConfig(backfill=True, elastic=True, grow_by="fewest")
        super().__init__(nodes(4, 4, 4), policy)
        self.predict = self.engine.predict = Changing()

    def step(self, kind: str, pick: int, amount: int) -> None:
        """Something happens, to one of the jobs it can happen to."""
        state, self.now = self.engine.state, self.now + amount
        jobs = list(state.active.values())
        chosen = jobs[pick % len(jobs)] if jobs else None
        if kind == "submit" or chosen is None:
            name = f"j{state.submitted}"
            self.predict.runtimes[name] = 64.0 * (1 + pick % 5)
            spec = job(name, 1 + pick % 3, most=1 + pick % 2, max_retries=9)
            self.engine.handle(self.now, [ev.JobSubmitted(spec)])
            return
        run = chosen.id, chosen.attempt
        fact: ev.Fact = ev.CancelRequested(chosen.id)
        if kind == "confirm":
            fact = ev.JobStarted(*run) if chosen.resizing is None else ev.JobResized(*run)
        elif kind == "progress":
            fact = ev.Progress(*run, (0.0, 0.25, 0.5, 1.0)[pick % 4])
        elif kind == "fail":
            fact = ev.JobExited(*run, ev.Outcome.FAILED)
        elif kind == "end":
            fact = ev.JobExited(*run, ev.Outcome.SUCCEEDED)
        self.engine.handle(self.now, [fact])

    def ends(self) -> list[tuple[float, int]]:
        """From scratch."""
        found = []
        for one in self.engine.state.active.values():
            left = self.predict.runtime(one, one.allocation).p50 - one.ran(self.now)
            found.append((self.now + max(0.0, left), one.seq))
        return sorted(found)


KINDS = ("submit", "submit", "confirm", "confirm", "progress", "fail", "end", "cancel")


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.sampled_from([0, 0, 1, 16, 100])),
        min_size=1,
        max_size=40,
    ),
    st.integers(0, 2),
)
def test_ends_that_were_kept_are_those_that_are_true_now(
    steps: list[tuple[str, int, int]], when: int
) -> None:
    cluster, kept = Cluster(), Runs(end)
    for number, step in enumerate(steps):
        cluster.step(*step)
        if number % 3 == when:  # not all passes look
            assert ends(kept, cluster, cluster.predict) == cluster.ends()
    assert ends(kept, cluster, cluster.predict) == cluster.ends()


def ends(runs: Runs, scenario: Scenario, predict: Known) -> list[tuple[float, int]]:
    plan = Plan(scenario.engine.state)
    return [(at, seq) for at, seq, _ in soonest(runs.look(plan, predict), plan.now)]


def test_a_job_that_begins_anew_no_longer_ends_as_its_progress_said() -> None:
    s, kept, predict = Scenario(nodes(1), EASY), Runs(end), Changing({"a": 100.0})
    s.submit(job("a", max_retries=1))
    s.go(ev.Progress("a", 1, 0.25), at=50.0)
    assert ends(kept, s, predict) == [(200.0, 0)]
    s.go(ev.JobExited("a", 1, ev.Outcome.FAILED), at=60.0)  # it starts again at once
    assert ends(kept, s, predict) == [(200.0, 0)]
    s.go(ev.Progress("a", 2, 0.0), at=70.0)
    assert ends(kept, s, predict) == [(100.0, 0)]


def test_runs_that_are_over_are_forgotten() -> None:
    s, kept = Scenario(nodes(1), EASY), Runs(end)
    for k in range(500):
        s.submit(job(f"j{k}"), at=float(k))
        assert len(ends(kept, s, Known())) == 1
        s.end(f"j{k}")
    assert len(kept._known) + len(kept.line) + len(kept._due) < 5


@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(0, 9), st.sampled_from([0, 0, 1, 16, 100])),
        min_size=5,
        max_size=40,
    ),
    st.sampled_from([(3, 1), (1, 4), (3, 3), (4, 2)]),
)
def test_the_cluster_of_later_that_was_kept_is_the_one_that_is_foreseen_now(
    steps: list[tuple[str, int, int]], size: tuple[int, int]
) -> None:
    cluster, rules = Cluster(), pipeline(EASY).rules
    head, kept = Job(job("head", *size), 99, 0.0, 0.0), Shadow(rules)
    for number, step in enumerate(steps):
        cluster.step(*step)
        if number % 2:
            plan, fresh = Plan(cluster.engine.state), Shadow(rules)
            told = kept.find(head, plan, cluster.predict)
            assert told == fresh.find(head, plan, cluster.predict)
            assert kept.capacity.free_gpu == fresh.capacity.free_gpu
            assert kept.capacity.free_milli == fresh.capacity.free_milli


def test_a_job_without_gpus_starts_while_all_gpus_are_held() -> None:
    cluster = [Node("n0", (Device(),), 4000, 4096)]
    s = Scenario(cluster, "backfill")
    web = JobSpec("web", (Role(resources=Resources(1000, 512)),))
    s.submit(job("one"), job("two"), web)
    assert set(s.engine.state.active) == {"one", "web"}
    s.submit(replace(web, id="late"), job("three"), at=1.0)
    assert set(s.engine.state.active) == {"one", "web", "late"}
