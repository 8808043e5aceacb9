"""Fractions of a GPU: milli, memory, and how many jobs a device may hold."""

from __future__ import annotations

import pytest

from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.job import JobSpec, Role
from presage.policy.config import PolicyConfig
from presage.policy.registry import placements
from tests.scenario import Scenario, job, nodes


@pytest.mark.parametrize("placement", placements())
def test_shares_fill_a_device_and_no_more(placement: str) -> None:
    s = Scenario(nodes(1), PolicyConfig.model_validate({"placement": placement}))
    s.submit(*(job(name, gpus=0.4) for name in "abc"))
    assert (s.running, s.waiting) == (["a", "b"], ["c"])
    s.end("a")
    assert s.running == ["b", "c"]


def test_pack_prefers_a_device_that_is_shared_already() -> None:
    s = Scenario(nodes(2))
    s.submit(job("a", gpus=0.5), job("whole"), job("b", gpus=0.5))
    assert s.devices("a") == s.devices("b")


def test_at_most_so_many_jobs_on_a_device() -> None:
    s = Scenario(nodes(2), PolicyConfig(max_jobs_per_gpu=2))
    s.submit(*(job(name, gpus=0.1) for name in "abcde"))
    assert (len(s.running), s.waiting) == (4, ["e"])


def test_gpu_memory_is_a_resource_of_the_device() -> None:
    node = Node("n", (Device(memory_mib=16_000),))
    ask = Role("worker", Resources(gpu_milli=100, gpu_memory_mib=6_000))
    s = Scenario([node])
    s.submit(*(JobSpec(name, (ask,)) for name in "abc"))
    assert (s.running, s.waiting) == (["a", "b"], ["c"])


def test_a_job_that_will_not_share_gets_a_device_alone() -> None:
    s = Scenario(nodes(2))
    s.submit(job("shy", gpus=0.3, shareable=False), job("a", gpus=0.3), job("b", gpus=0.3))
    assert s.devices("a") == s.devices("b") != s.devices("shy")


def test_a_job_that_ran_out_of_memory_is_retried_alone() -> None:
    s = Scenario(nodes(2))
    s.submit(job("a", gpus=0.5), job("b", gpus=0.5, max_retries=1))
    assert s.devices("a") == s.devices("b")
    s.go(ev.JobExited("b", 1, ev.Outcome.OUT_OF_MEMORY))
    assert s.devices("a") != s.devices("b")
    assert s.engine.state.usage["default"] == 1500
    s.go(ev.JobExited("b", 2, ev.Outcome.OUT_OF_MEMORY))
    assert "b" not in s.engine.state.jobs
