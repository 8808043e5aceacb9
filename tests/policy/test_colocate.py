"""Co-location by prediction: who may share a GPU, where jobs go, and the published baselines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from presage.core.engine import Engine
from presage.core.loop import fold
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Device, Node
from presage.model.estimate import Estimate
from presage.model.job import Job, JobSpec
from presage.policy.config import PolicyConfig
from presage.policy.registry import NAMED, build
from presage.sim.run import simulate
from presage.sim.traces import Trace, complete
from presage.sim.world import WorldRules
from presage.store.memory import MemoryStore
from presage.testing.machine import StablePredictor
from tests.counting import opcodes
from tests.scenario import Known, Scenario, job, nodes

GIB = 1024


class Told(Known):
    """Foresees what the test says of each job, by its id."""

    def __init__(
        self,
        slowdowns: dict[str, float] | None = None,
        memory: dict[str, tuple[float, float]] | None = None,
        runtimes: dict[str, float] | None = None,
        busy: dict[str, float] | None = None,
    ) -> None:
        super().__init__(runtimes)
        self.slowdowns = slowdowns or {}
        self.given_memory = memory or {}
        self.busy = busy or {}

    def utilization(self, job: Job) -> Estimate:
        return Estimate.exact(self.busy.get(job.id, 0.5), "share", self.version)

    def memory(self, job: Job) -> Estimate:
        middle, high = self.given_memory.get(job.id, (0, 0))
        return Estimate(middle, middle, high, "MiB", self.version)

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        added = sum(self.slowdowns.get(other.id, 1.0) - 1 for other in neighbours)
        return Estimate.exact(1.0 + added, "times", self.version)


def cluster(
    gpus: Sequence[Node] | int = 1, predict: Told | None = None, **changes: object
) -> Scenario:
    """One node of GPUs, or these, under `colocate` with changes."""
    config = NAMED["colocate"].model_copy(update=changes)
    s = Scenario(nodes(gpus) if isinstance(gpus, int) else gpus, config)
    s.engine.predict = predict or Told()
    return s


def shares(*names: str, **spec: Any) -> list[JobSpec]:
    """Jobs that ask for a third of a GPU."""
    return [job(name, gpus=0.333, **spec) for name in names]


def test_at_most_three_jobs_share_a_gpu() -> None:
    s = cluster()
    s.submit(*shares("a", "b", "c", "d"))
    assert (sorted(s.running), s.waiting) == (["a", "b", "c"], ["d"])
    s.end("b")
    assert "d" in s.running


def test_the_bound_of_each_job_in_the_queue_holds() -> None:
    s = cluster(predict=Told({"rude": 2.5}))
    s.submit(*shares("a", "rude", "b"))
    assert (sorted(s.running), s.waiting) == (["a", "b"], ["rude"])


def test_a_queue_may_have_a_bound_of_its_own() -> None:
    config = {"colocate": True, "mode": "greedy", "queues": {"quiet": {"max_slowdown": 1.1}}}
    s = Scenario(nodes(1), PolicyConfig.model_validate(config))
    s.engine.predict = Told({"b": 1.3, "c": 1.3})
    s.submit(*shares("a", queue="quiet"), *shares("b"))
    assert s.waiting == ["b"]
    s.end("a")
    s.submit(*shares("c"))
    assert sorted(s.running) == ["b", "c"]


def test_the_p90_of_memory_must_fit() -> None:
    gpu = Node("n0", (Device(memory_mib=24 * GIB),))
    memory = {"a": (8.0 * GIB, 13.0 * GIB), "b": (8.0 * GIB, 12.0 * GIB), "c": (GIB, 2.0 * GIB)}
    s = cluster([gpu], Told(memory=memory))
    s.submit(*shares("a", "b", "c"))
    assert (sorted(s.running), s.waiting) == (["a", "c"], ["b"])


def test_a_job_that_refuses_to_share_gets_an_idle_gpu() -> None:
    s = cluster(2)
    s.submit(*shares("a", "b"), *shares("shy", shareable=False))
    assert s.devices("a") == s.devices("b") != s.devices("shy")
    s.submit(job("whole", gpus=1))
    assert s.waiting == ["whole"]


def test_a_job_that_ran_out_of_memory_is_started_again_alone() -> None:
    s = cluster(2)
    s.submit(*shares("a", "b", max_retries=1))
    assert s.devices("a") == s.devices("b")
    s.go(ev.JobExited("b", 1, ev.Outcome.OUT_OF_MEMORY))
    assert s.devices("a") != s.devices("b")


def test_each_worker_gets_a_gpu_of_its_own_on_one_node() -> None:
    s = cluster(nodes(2, 4))
    s.submit(job("gang", gpus=0.333, workers=4))
    assert s.devices("gang") == [("n1", (d,)) for d in range(4)]
    s.submit(job("other", gpus=0.333, workers=4))
    assert s.devices("other") == s.devices("gang")


def test_a_job_larger_than_a_node_gets_whole_nodes_and_a_rest() -> None:
    s = cluster(nodes(2, 2, 2))
    s.submit(job("large", gpus=0.5, workers=5))
    assert len(set(s.devices("large"))) == 5


def test_more_workers_than_gpus_never_fit() -> None:
    s = cluster(2)
    s.submit(job("wide", gpus=0.1, workers=3))
    assert "wide" not in s.engine.state.jobs


def test_an_idle_gpu_is_taken_where_sharing_costs_more_than_it_is_worth() -> None:
    s = cluster(2, Told({"a": 1.2, "b": 1.2, "c": 1.2}))
    s.submit(*shares("a", "b", "c"))
    assert s.devices("a") != s.devices("b")
    assert s.devices("c") in (s.devices("a"), s.devices("b"))


def test_a_job_joins_those_whom_it_harms_least() -> None:
    s = cluster(2, Told({"calm": 1.05, "rude": 1.5, "new": 1.1}))
    s.submit(*shares("rude", "calm"), *shares("new"))
    assert s.devices("calm") != s.devices("rude")
    assert s.devices("new") == s.devices("calm")


def test_a_job_moves_to_an_idle_gpu_when_that_saves_enough() -> None:
    slow = Told({"a": 1.4, "b": 1.4}, runtimes={"a": 9000, "b": 9000})
    s = cluster(2, slow)
    s.submit(job("whole", gpus=1))
    s.submit(*shares("a", "b"))
    assert s.devices("a") == s.devices("b")
    s.end("whole")
    assert [type(d) for d in s.decisions] == [ev.Stop]
    moved = s.decisions[0].job  # type: ignore[union-attr]
    s.go(ev.JobExited(moved, 1, ev.Outcome.STOPPED))
    assert s.devices("a") != s.devices("b")


BATCH = {"long": 4000.0, "first": 100.0, **{f"short{k}": 300.0 for k in range(6)}}


def test_a_job_that_would_end_last_goes_first() -> None:
    s = cluster(1, Told(runtimes=BATCH), max_jobs_per_gpu=2)
    s.submit(*shares(*BATCH))
    assert sorted(s.running) == ["first", "long"]


def test_the_long_job_keeps_its_turn_while_there_is_more_work_than_that() -> None:
    many = Told(runtimes={"long": 1000.0, **{f"short{k}": 300.0 for k in range(40)}})
    s = cluster(1, many, max_jobs_per_gpu=2)
    s.submit(*shares(*many.runtimes))
    assert sorted(s.running) == ["short0", "short1"]


@pytest.mark.parametrize("changes", [{"max_jobs_per_gpu": 1}, {"profile_s": 60.0}])
def test_only_what_is_foreseen_and_shared_puts_a_job_first(changes: dict[str, float]) -> None:
    s = cluster(1, Told(runtimes=BATCH), **changes)
    s.submit(*shares(*BATCH))
    assert s.running == ["first"]


def test_one_job_a_gpu_is_the_same_pipeline() -> None:
    s = cluster(2, max_jobs_per_gpu=1)
    s.submit(*shares("a", "b", "c"))
    assert (len(s.running), len(s.waiting)) == (2, 1)


def test_reactive_profiles_alone_and_shares_then() -> None:
    s = cluster(2, profile_s=60.0, move_gain_s=0.0)
    s.submit(*shares("a", "b", "c"))
    assert s.devices("a") != s.devices("b")
    assert s.waiting == ["c"]
    s.go(ev.Woke(), at=60.0)
    moved = [d.job for d in s.decisions if isinstance(d, ev.Stop)]
    assert len(moved) == 1
    s.go(ev.JobExited(moved[0], 1, ev.Outcome.STOPPED))
    assert s.waiting == []
    assert s.devices("a") == s.devices("b") != s.devices("c")


def test_reactive_may_set_a_gpu_aside() -> None:
    s = cluster(2, profile_s=60.0, profile_gpus=1, move_gain_s=0.0)
    s.submit(*shares("a", "b"))
    assert (s.running, s.waiting) == (["a"], ["b"])
    s.go(ev.Woke(), at=60.0)
    s.go(ev.JobExited("a", 1, ev.Outcome.STOPPED))
    assert (sorted(s.running), s.devices("b")) == (["a", "b"], [("n0", (0,))])


def test_the_busiest_go_first_by_utilization() -> None:
    s = cluster(1, Told(busy={"busy": 0.9}), order="utilization", max_jobs_per_gpu=1)
    s.submit(*shares("calm", "busy"))
    assert (s.running, s.waiting) == (["busy"], ["calm"])


def test_why_a_job_waits_is_counted_by_gpu() -> None:
    s = cluster(4, Told({"rude": 3.0, "d": 1.2}), idle_worth=0.0)
    s.submit(*(job(name, gpus=0.2) for name in "abc"), job("whole", gpus=2))
    s.submit(*shares("d"))
    s.submit(*shares("rude"))
    reason = s.engine.explain("rude")
    assert reason is not None
    assert "2 are taken" in reason.text
    assert "1 hold 3 jobs already" in reason.text
    assert "1 would slow a job down too much" in reason.text


@pytest.mark.parametrize(
    "changes",
    [{"preempt": "rank"}, {"elastic": True}, {"backfill": True}, {"gang": False}],
)
def test_what_does_not_go_with_sharing_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="colocate goes with neither"):
        PolicyConfig.model_validate({"colocate": True, **changes})


_JOBS = st.lists(
    st.tuples(
        st.sampled_from((333, 250, 500, 1000, 2000)),
        st.integers(1, 4),
        st.integers(1, 300),
        st.integers(0, 200),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)
_SETTINGS = st.sampled_from(
    ({}, {"profile_s": 20.0}, {"profile_s": 20.0, "profile_gpus": 1}, {"mode": "strict"})
)


@settings(max_examples=settings().max_examples // 2)
@given(_JOBS, _SETTINGS)
def test_every_job_ends_and_a_replay_decides_the_same(
    jobs: list[tuple[int, int, int, int, bool]], changes: dict[str, object]
) -> None:
    config = NAMED["colocate"].model_copy(update={"move_gain_s": 30.0, **changes})
    machines = [Node(f"n{i}", (Device(memory_mib=24 * GIB),) * n) for i, n in enumerate((4, 2))]
    journal = MemoryStore()
    result = simulate(
        _trace(jobs),
        machines,
        build(config),
        name="colocate",
        rules=WorldRules(restart_cost_s=5.0),
        foresee=lambda world: StablePredictor(),
        store=journal,
        check_every=1,
    )
    assert set(result.jobs["status"]) <= {"finished", "rejected"}
    again = Engine(build(config), StablePredictor())
    for now, facts, decisions in journal.steps():
        assert tuple(again.handle(now, facts)) == decisions
    assert not fold(journal.read(), State()).jobs


def _trace(jobs: list[tuple[int, int, int, int, bool]]) -> Trace:
    jobs = sorted(jobs, key=lambda one: one[3])
    columns: dict[str, list[object]] = {
        "job_id": [str(n) for n in range(len(jobs))],
        "gpu_milli": [one[0] for one in jobs],
        "workers": [one[1] for one in jobs],
        "duration_s": [one[2] for one in jobs],
        "submit_s": [one[3] for one in jobs],
        "gpu_memory_mib": [9000 if one[4] and one[0] < 1000 else 0 for one in jobs],
    }
    return Trace("drawn", "test", complete(pl.DataFrame(columns)))


def test_a_pass_costs_the_same_however_many_wait_for_whole_gpus() -> None:
    work = []
    for waiting in (100, 1000):
        engine = Engine(build("colocate"), Told())
        jobs = [ev.JobSubmitted(job(f"j{n}", gpus=2)) for n in range(waiting)]
        engine.handle(0.0, [*map(ev.NodeUp, nodes(2)), *jobs])
        new, done = (
            ev.JobSubmitted(job("last", gpus=2)),
            ev.JobExited("j0", 1, ev.Outcome.SUCCEEDED),
        )
        work.append(opcodes(partial(engine.handle, 1.0, [new])))
        work[-1] += opcodes(partial(engine.handle, 2.0, [done]))
        assert list(engine.state.active) == ["j1"]
    assert work[1] < 1.3 * work[0]
