"""Elastic by gain: workers go where the next one brings the most, and a resize must pay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from presage.core.engine import Engine
from presage.model import event as ev
from presage.model.cluster import Node, Worker
from presage.model.estimate import Estimate
from presage.model.job import Job
from presage.policy.config import PolicyConfig
from presage.policy.elastic import ByGain
from presage.policy.registry import build
from presage.sim.world import WorldRules
from presage.testing.machine import ClusterMachine
from presage.testing.strategies import clusters
from tests.scenario import Known, Scenario, job, nodes

ELASTIC = PolicyConfig(order="priority", elastic=True)
COSTLY = PolicyConfig(order="priority", elastic=True, resize_cost_s=40.0)


class Scaling(Known):
    """Foresees a run time of 1,000 s (or as told) on one worker, and how it scales: the share of
    a step that each further worker costs, and what each further node does."""

    def __init__(
        self,
        sync: Mapping[str, float],
        runtimes: Mapping[str, float] | None = None,
        apart: float = 0.0,
    ) -> None:
        super().__init__(dict(runtimes or {}))
        self.sync, self.apart = sync, apart

    def runtime(self, job: Job, workers: Sequence[Worker] = ()) -> Estimate:
        count = len(workers) or 1
        far = self.apart * (len({worker.node for worker in workers} or {""}) - 1)
        step = 1.0 + self.sync.get(job.id, 0.0) * (count - 1) + far
        value = self.runtimes.get(job.id, 1000.0) * step / count
        return Estimate.exact(value, "s", self.version)


def scenario(cluster: Sequence[Node], config: PolicyConfig, known: Scaling) -> Scenario:
    s = Scenario([], config)
    s.engine = Engine(build(config), known, check_every=1)
    s.go(*(ev.NodeUp(node) for node in cluster))
    return s


def size(s: Scenario, name: str) -> int:
    return len(s.where(name))


def test_idle_gpus_go_to_the_job_that_scales() -> None:
    s = scenario(nodes(8), ELASTIC, Scaling({"poor": 0.99, "good": 0.0}))
    s.submit(job("poor", workers=1, most=8), job("good", workers=1, most=8))
    s.settle()
    assert (size(s, "poor"), size(s, "good")) == (1, 7)


def test_a_run_time_that_changes_as_a_job_runs_does_not_change_how_it_scales() -> None:
    known = Scaling({"poor": 0.9})
    s = scenario(nodes(2), ELASTIC, known)
    s.submit(job("poor", workers=1, most=4))
    poor, gain = s.engine.state.jobs["poor"], ByGain()
    second = gain.loss(poor, 2, known)
    known.runtimes["poor"] = 10.0  # its progress says that it is nearly done
    assert 0 < gain.loss(poor, 4, known) < second


def test_the_next_gpu_brings_less_than_the_last_so_equals_share() -> None:
    s = scenario(nodes(8), ELASTIC, Scaling({"a": 0.05, "b": 0.05}))
    s.submit(job("a", workers=1, most=8), job("b", workers=1, most=8))
    s.settle()
    assert (size(s, "a"), size(s, "b")) == (4, 4)


def test_who_scales_worst_gives_first() -> None:
    s = scenario(nodes(8), ELASTIC, Scaling({"poor": 0.3, "good": 0.0}))
    s.submit(job("poor", workers=1, most=4), job("good", workers=1, most=4))
    s.settle()
    assert (size(s, "poor"), size(s, "good")) == (4, 4)
    s.submit(job("new", workers=2))
    s.settle()  # the last worker of poor brings it 12 %, the one before 22 %; good loses 33 %
    assert (size(s, "poor"), size(s, "good"), size(s, "new")) == (2, 4, 2)


def test_a_job_does_not_grow_where_more_workers_make_it_slower() -> None:
    s = scenario(nodes(8), ELASTIC, Scaling({"a": 1.5}))
    s.submit(job("other", workers=7), job("a", workers=1, most=8))
    s.end("other")
    s.settle()
    assert size(s, "a") == 1


def test_a_lone_job_starts_as_large_as_helps_it() -> None:
    known = Scaling({"a": 0.0}, apart=3.0)
    s = scenario(nodes(4, 4), ELASTIC, known)
    s.submit(job("a", workers=1, most=6))
    assert size(s, "a") == 4


def test_another_node_is_crossed_to_when_enough_workers_go_there_at_once() -> None:
    known = Scaling({"a": 0.0}, apart=0.5)
    s = scenario(nodes(4, 4), ELASTIC, known)
    s.submit(job("b", workers=4), job("a", workers=4, most=8))
    s.end("b")
    s.settle()  # a fifth worker alone would slow it down: 4 / 1 against 5 / 1.5
    assert size(s, "a") == 8


def test_growth_stays_on_the_nodes_that_a_job_has() -> None:
    known = Scaling({"a": 0.0}, apart=0.1)
    s = scenario(nodes(2, 4), ELASTIC, known)
    s.submit(job("left", workers=1), job("a", gpus=1, workers=2, most=3))
    on = set(s.where("a"))
    s.end("left")
    s.settle()
    assert size(s, "a") == 3
    assert len(set(s.where("a"))) == len(on)


def test_a_resize_that_does_not_pay_back_is_not_made() -> None:
    known = Scaling({"short": 0.0, "long": 0.0}, {"short": 60.0, "long": 6000.0})
    s = scenario(nodes(4), COSTLY, known)
    s.submit(job("other", workers=2), job("short", most=2), job("long", most=2))
    s.end("other", at=10.0)
    s.settle()
    assert (size(s, "short"), size(s, "long")) == (1, 2)


def test_a_size_is_kept_for_ten_times_what_a_resize_costs() -> None:
    s = scenario(nodes(4), COSTLY, Scaling({"a": 0.0}, {"a": 1e6}))
    s.submit(job("x"), job("y"), job("a", workers=1, most=4))
    s.settle()
    assert size(s, "a") == 2
    s.end("x", at=100.0)
    s.settle()
    assert size(s, "a") == 3
    s.end("y", at=200.0)
    s.settle()
    assert size(s, "a") == 3
    assert s.engine.state.wake_at == 500.0
    s.go(ev.Woke(), at=500.0)
    s.settle()
    assert size(s, "a") == 4


def test_workers_move_to_a_running_job_that_gains_more_but_not_at_once() -> None:
    s = scenario(nodes(8), ELASTIC, Scaling({"a": 0.2, "b": 0.0}))
    s.submit(job("a", workers=1, most=8))
    s.submit(job("b", workers=1, most=8))
    s.settle()
    assert size(s, "b") == 1
    assert s.engine.state.wake_at == 60.0
    for at in (60.0, 120.0, 180.0, 240.0):
        s.go(ev.Woke(), at=at)
        s.settle()
    a, b = size(s, "a"), size(s, "b")
    assert a + b == 8
    assert b > a
    s.go(ev.Woke(), at=1000.0)
    assert not [d for d in s.decisions if isinstance(d, ev.Resize)]


def test_the_cost_of_a_resize_belongs_to_growth_by_gain() -> None:
    with pytest.raises(ValueError, match="resize_cost_s needs elastic: true and grow_by: gain"):
        PolicyConfig(elastic=True, grow_by="fewest", resize_cost_s=10.0)
    with pytest.raises(ValueError, match="resize_cost_s needs elastic: true"):
        PolicyConfig(resize_cost_s=10.0)


_elastic: st.SearchStrategy[PolicyConfig] = st.builds(
    PolicyConfig,
    order=st.sampled_from(("fifo", "priority", "sjf")),
    preempt=st.sampled_from(("none", "priority")),
    elastic=st.just(True),
    backfill=st.booleans(),
    resize_cost_s=st.sampled_from((0.0, 1.0, 7.0)),
    shrink_after_s=st.sampled_from((0.0, 5.0)),
)
_times = st.sampled_from((0.0, 7.0))


class ElasticMachine(ClusterMachine):
    """The cluster machine with workers given by gain in every run."""

    @initialize(
        nodes=clusters(),
        config=_elastic,
        rules=st.builds(WorldRules, restart_cost_s=_times, resize_cost_s=_times),
        stop_delay_s=_times,
    )
    def start(self, **drawn: Any) -> None:
        """An empty cluster."""
        super().start(**drawn)


TestElasticCluster = ElasticMachine.TestCase
TestElasticCluster.settings = settings(max_examples=40, stateful_step_count=30)
