"""A journal decided again, and a journal as a trace."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from presage.core.engine import Engine
from presage.core.ports import Policy
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.errors import JournalError
from presage.model.job import JobSpec, Reason, ReasonCode, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import build
from presage.sim.result import SimResult
from presage.sim.run import simulate
from presage.sim.speed import SpeedModel
from presage.sim.traces import Trace, read_trace
from presage.sim.whatif import Step, export_trace, fairness, figures, replay, what_if
from presage.sim.world import Outage
from presage.store.memory import MemoryStore
from tests.scenario import Known, job, nodes
from tests.sim.results import trace_of

CLUSTER = nodes(4, 4)


def week(jobs: int = 120) -> Trace:
    rng = np.random.default_rng(5)
    at = np.cumsum(rng.exponential(40, jobs)).round()
    long, size = rng.lognormal(5, 1, jobs).round() + 1, rng.choice([1, 1, 2, 4], jobs)
    return trace_of([(float(at[k] - at[0]), float(long[k]), float(size[k])) for k in range(jobs)])


def journal_of(trace: Trace, policy: str) -> tuple[MemoryStore, SimResult, Known]:
    store = MemoryStore()
    result = simulate(trace, CLUSTER, build(policy), name=policy, store=store)
    known = Known(dict(zip(trace.jobs["job_id"], trace.jobs["duration_s"], strict=True)))
    return store, result, known


def same_figures(one: SimResult, other: SimResult) -> None:
    mine, theirs = one.summary, other.summary
    for name in mine.keys() - {"cpu_s"}:
        assert mine[name] == pytest.approx(theirs[name]), name


@pytest.mark.parametrize("policy", ["fifo", "sjf", "backfill", "srtf", "tiresias"])
def test_the_same_policy_decides_the_same(policy: str) -> None:
    store, _, known = journal_of(week(), policy)
    found = replay(store.steps(), build(policy), known)
    assert found.difference is None
    launched = sum(isinstance(event, ev.Launch) for _, event in store.read())
    assert found.decisions >= launched >= 120


def test_each_stretch_is_decided_again_by_the_rules_that_held() -> None:
    def placed(where: str) -> Policy:
        return build(PolicyConfig(placement="spread" if where == "spread" else "pack"))

    known, steps = Known({}), []
    engine = Engine(placed("pack"), known)
    for number, where in enumerate(("pack", "spread", "pack")):
        now = float(number)
        facts: list[ev.Fact] = [ev.RulesChanged(where, "known")]
        facts += [ev.NodeUp(node) for node in CLUSTER] if not number else []
        facts += [ev.JobSubmitted(job(f"{where}-{number}-{k}", 1)) for k in range(2)]
        engine = Engine(placed(where), known, engine.state)
        steps.append((now, facts, engine.handle(now, facts)))
    found = replay(steps, placed("pack"), known, rules=lambda fact: (placed(fact.policy), known))
    assert found.difference is None
    assert found.decisions == 6
    one_rule = replay(steps, placed("pack"), known)
    assert one_rule.difference is not None
    assert one_rule.difference.step == 1


def test_another_policy_is_told_by_its_first_other_decision() -> None:
    store, _, known = journal_of(week(), "fifo")
    found = replay(store.steps(), build("sjf"), known)
    assert found.difference is not None
    assert found.difference.recorded != found.difference.replayed
    steps = list(store.steps())
    assert steps[found.difference.step][0] == found.difference.now
    assert found.steps == found.difference.step + 1 < len(steps)


@pytest.mark.parametrize("recorded", ["fifo", "srtf"])
def test_figures_agree_with_a_simulation_of_the_exported_file(
    recorded: str, tmp_path: Path
) -> None:
    trace = week()
    store, as_it_was, _ = journal_of(trace, recorded)
    export = export_trace(store.steps())
    results = what_if(export, {name: partial(build, name) for name in ("fifo", "sjf", "srtf")})
    export.trace.jobs.write_parquet(tmp_path / "exported.parquet")
    file = read_trace(tmp_path / "exported.parquet")
    for name, result in results.items():
        same_figures(result, simulate(file, export.nodes, build(name), name=name))
        same_figures(result, simulate(trace, CLUSTER, build(name), name=name))
    same_figures(results[recorded], as_it_was)
    same_figures(export.recorded, as_it_was)
    assert fairness(export.recorded, export.trace) == pytest.approx(fairness(as_it_was, trace))
    assert results["sjf"].summary["avg_jct_s"] != results["fifo"].summary["avg_jct_s"]
    told = figures(results["sjf"], export.trace)
    assert told.keys() == results["sjf"].summary.keys() | {"fairness"}


class Journal:
    """Steps of an engine whose facts the test gives; launches start at once."""

    def __init__(self, cluster: Sequence[Node] = CLUSTER) -> None:
        self.engine = Engine(build("fifo"), Known())
        self.steps: list[Step] = []
        self.at(0.0, *(ev.NodeUp(node) for node in cluster))

    def at(self, now: float, *facts: ev.Fact) -> None:
        decisions = self.engine.handle(now, facts)
        self.steps.append((now, facts, tuple(decisions)))
        started = [ev.JobStarted(d.job, d.attempt) for d in decisions if isinstance(d, ev.Launch)]
        if started:
            self.steps.append((now, tuple(started), tuple(self.engine.handle(now, started))))

    def submit(self, now: float, *specs: JobSpec) -> None:
        self.at(now, *(ev.JobSubmitted(spec) for spec in specs))

    def exit(
        self, now: float, name: str, outcome: ev.Outcome, reason: Reason | None = None
    ) -> None:
        attempt = self.engine.state.jobs[name].attempt
        self.at(now, ev.JobExited(name, attempt, outcome, reason))

    def durations(self, since: float = float("-inf")) -> dict[str, float]:
        jobs = export_trace(self.steps, since=since).trace.jobs
        return dict(zip(jobs["job_id"], jobs["duration_s"], strict=True))


def test_a_run_time_is_all_that_a_job_held() -> None:
    journal = Journal()
    keeps = {"checkpointable": True, "max_retries": 1}
    journal.submit(10.0, job("goes on", **keeps), job("starts over", checkpointable=False))
    journal.exit(40.0, "goes on", ev.Outcome.LOST)
    journal.exit(40.0, "starts over", ev.Outcome.LOST)
    journal.exit(60.0, "goes on", ev.Outcome.FAILED)
    journal.exit(160.0, "goes on", ev.Outcome.SUCCEEDED)
    journal.exit(100.0 + 60.0, "starts over", ev.Outcome.SUCCEEDED)
    assert journal.durations() == {"goes on": 150.0, "starts over": 120.0}


def test_those_who_failed_or_were_cancelled_count_as_long_as_they_ran() -> None:
    journal = Journal()
    names = ("fails", "over time", "cancelled", "runs on", "never ran", "waits")
    journal.submit(0.0, *(job(name, 2 if name != "waits" else 8, 1) for name in names))
    journal.submit(0.0, job("huge", 99))
    journal.exit(5.0, "fails", ev.Outcome.FAILED)
    limit = Reason(ReasonCode.TIME_LIMIT, "too long")
    journal.exit(9.0, "over time", ev.Outcome.FAILED, limit)
    journal.at(12.0, ev.CancelRequested("cancelled"))
    journal.exit(13.0, "cancelled", ev.Outcome.STOPPED)
    journal.at(13.0, ev.CancelRequested("waits"))
    export = export_trace(journal.steps)
    found = dict(zip(export.trace.jobs["job_id"], export.trace.jobs["duration_s"], strict=True))
    assert found == {
        "fails": 5.0,
        "over time": 9.0,
        "cancelled": 13.0,
        "runs on": 13.0,
        "never ran": 8.0,  # it took the room of the first that failed
    }
    assert export.notes == (
        "2 jobs that never ran: left out",
        "2 jobs that had not ended: taken to end where the journal does",
    )


def test_since_begins_with_those_who_are_there() -> None:
    journal = Journal(nodes(2))
    journal.submit(0.0, job("early", 2))
    journal.submit(10.0, job("long", 1), job("waits", 2))
    journal.exit(20.0, "early", ev.Outcome.SUCCEEDED)
    journal.submit(60.0, job("new", 1))
    journal.exit(100.0, "long", ev.Outcome.SUCCEEDED)
    journal.exit(130.0, "waits", ev.Outcome.SUCCEEDED)
    journal.exit(150.0, "new", ev.Outcome.SUCCEEDED)
    export = export_trace(journal.steps, since=50.0)
    columns = ("job_id", "submit_s", "duration_s")
    assert export.trace.jobs.select(columns).rows() == [
        ("long", 0.0, 50.0),
        ("waits", 0.0, 30.0),
        ("new", 10.0, 20.0),
    ]
    assert export.since == 50.0
    assert export.recorded.jobs.select("wait_s", "jct_s").rows() == [
        (0.0, 50.0),
        (50.0, 80.0),
        (70.0, 90.0),
    ]
    with pytest.raises(JournalError, match="no job ran"):
        export_trace(journal.steps, since=1000.0)


def test_a_resized_job_has_the_workers_it_had_on_average() -> None:
    journal = Journal()
    spec = job("wide", 1, 2, most=6)
    journal.submit(0.0, spec)
    held = journal.engine.state.jobs["wide"].allocation
    attempt = journal.engine.state.jobs["wide"].attempt
    assert len(held) == 6
    journal.engine.state.apply(30.0, ev.Resize("wide", attempt, held[:2]))
    journal.steps.append((30.0, (), (ev.Resize("wide", attempt, held[:2]),)))
    journal.at(30.0, ev.JobResized("wide", attempt))
    journal.exit(60.0, "wide", ev.Outcome.SUCCEEDED)
    row = export_trace(journal.steps).trace.jobs.row(0, named=True)
    assert (row["workers"], row["min_workers"], row["max_workers"]) == (4, 2, 6)
    scale = SpeedModel().scale
    assert row["duration_s"] == pytest.approx(30 * scale(6, 4) + 30 * scale(2, 4))


def test_parameter_servers_and_types_survive() -> None:
    roles = (
        Role("worker", Resources(4000, 1024, 2000), 2, 2, ("A100", "V100")),
        Role("ps", Resources(1000, 512), 3, 3),
    )
    typed = [Node(node.name, node.devices) for node in nodes(8)]
    journal = Journal(typed)
    journal.submit(0.0, JobSpec("j", roles, owner="ann", queue="q", priority=3))
    journal.exit(60.0, "j", ev.Outcome.SUCCEEDED)
    row = export_trace(journal.steps).trace.jobs.row(0, named=True)
    assert (row["workers"], row["gpu_milli"], row["gpu_types"]) == (2, 2000, "A100|V100")
    assert (row["ps_workers"], row["ps_cpu_milli"], row["ps_memory_mib"]) == (3, 1000, 512)
    assert (row["owner"], row["queue"], row["priority"]) == ("ann", "q", 3)
    assert row["min_workers"] is None


def test_nodes_that_were_away_are_away_again() -> None:
    journal = Journal(nodes(1, 1))
    journal.submit(100.0, job("a"))
    journal.at(150.0, ev.NodeDown("n1"))
    journal.submit(160.0, job("b"))
    journal.at(400.0, ev.NodeUp(nodes(1, 1)[1]))
    journal.exit(500.0, "a", ev.Outcome.SUCCEEDED)
    journal.exit(600.0, "b", ev.Outcome.SUCCEEDED)
    export = export_trace(journal.steps)
    assert export.extras.outages == (Outage("n1", 50.0, 250.0),)
    result = what_if(export, {"fifo": lambda: build("fifo")})["fifo"]
    assert result.jobs["wait_s"].to_list() == [0.0, 240.0]


def test_fairness_is_jains_index_of_slowdowns() -> None:
    trace = trace_of([(0, 100, 4), (0, 100, 4), (0, 100, 4)])
    owners = pl.Series("owner", ["ann", "ann", "bob"])
    trace = Trace(trace.name, trace.format, trace.jobs.with_columns(owners))
    result = simulate(trace, nodes(4), build("fifo"), name="fifo")
    # slowdowns: ann 1 and 2, bob 3
    assert fairness(result, trace) == pytest.approx((1.5 + 3) ** 2 / (2 * (1.5**2 + 9)))
    alone = simulate(trace, nodes(12), build("fifo"), name="fifo")
    assert fairness(alone, trace) == pytest.approx(1.0)
    fast = [Node("fast", (Device(speed=4.0),) * 4)]  # all are quicker than measured, two wait
    waits = simulate(trace, fast, build("fifo"), name="fifo")
    assert waits.jobs["jct_s"].to_list() == [25.0, 50.0, 75.0]
    assert fairness(waits, trace) == pytest.approx((1.5 + 3) ** 2 / (2 * (1.5**2 + 9)))
