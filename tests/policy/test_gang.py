"""All workers of all roles or none; or one by one, when a policy says so."""

from __future__ import annotations

import pytest

from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.job import JobSpec, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import names, placements
from tests.scenario import Scenario, job, nodes


@pytest.mark.parametrize("cluster", [(8,), (4, 4), (2, 2, 2, 2), (1,) * 8], ids=str)
@pytest.mark.parametrize("mode", ["strict", "greedy"])
@pytest.mark.parametrize("placement", placements())
def test_two_of_four_gangs_run(cluster: tuple[int, ...], mode: str, placement: str) -> None:
    config = PolicyConfig.model_validate({"mode": mode, "placement": placement})
    s = Scenario(nodes(*cluster), config)
    s.submit(*(job(name, workers=4) for name in "abcd"))
    assert (s.running, s.waiting) == (["a", "b"], ["c", "d"])
    s.end("a")
    assert (s.running, s.waiting) == (["b", "c"], ["d"])


@pytest.mark.parametrize("policy", names())
def test_two_of_four_gangs_run_under_every_named_policy(policy: str) -> None:
    s = Scenario(nodes(4, 4), policy)
    s.submit(*(job(name, workers=4) for name in "abcd"))
    assert len(s.running) == 2
    assert len(s.waiting) == 2


def test_a_gang_that_lacks_one_worker_takes_nothing() -> None:
    s = Scenario(nodes(2, 2))
    s.submit(job("small"), job("gang", workers=4))
    assert s.waiting == ["gang"]
    assert s.engine.state.usage == {"default": 1000}


def test_all_roles_start_together() -> None:
    roles = (
        Role("worker", Resources(gpu_milli=1000), 2, 2),
        Role("ps", Resources(cpu_milli=4000), 1, 1),
    )
    s = Scenario(nodes(1, 1))
    s.submit(JobSpec("train", roles))
    assert set(s.where("train")) == {"n0", "n1"}
    assert len(s.where("train")) == 3
    s = Scenario(nodes(1, 1))
    s.submit(job("first"), JobSpec("train", roles))
    assert s.waiting == ["train"]


def test_without_gang_workers_start_as_they_fit_and_hold_their_gpus() -> None:
    s = Scenario(nodes(4), PolicyConfig(gang=False))
    s.submit(job("a", workers=3))
    launched = s.submit(job("b", workers=3))
    assert [len(d.workers) for d in launched if isinstance(d, ev.Launch)] == [1]
    assert list(s.engine.state.incomplete) == ["b"]
    s.end("a")
    assert not s.engine.state.incomplete
    assert len(s.where("b")) == 3


def test_without_gang_strict_order_never_deadlocks() -> None:
    s = Scenario(nodes(4), PolicyConfig(gang=False))
    s.submit(*(job(name, workers=3) for name in "abc"))
    for name in "abc":
        assert len(s.where(name)) == 3
        s.end(name)
    assert not s.engine.state.jobs
