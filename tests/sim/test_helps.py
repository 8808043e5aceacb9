"""What would help a job that waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from presage.model.cluster import Device, Node
from presage.model.errors import UserError
from presage.policy.config import PolicyConfig, QueueConfig
from presage.policy.registry import build
from presage.sim.helps import what_would_help
from tests.scenario import Scenario, job, nodes
from tests.sim.test_ahead import Exactly


def test_fewer_gpus_and_workers_help_where_they_fit_earlier() -> None:
    greedy = PolicyConfig(mode="greedy")
    scenario = Scenario(nodes(4, 4), greedy)
    scenario.submit(job("a", 2), job("b", 4), at=0.0)
    scenario.submit(job("wide", 1, 4), job("tall", 4), at=0.0)
    state = scenario.engine.state

    def helps(name: str, wait_s: float) -> dict[str, float | None]:
        base, options = what_would_help(
            state, lambda: build(greedy), Exactly(a=5000.0, b=1000.0), name
        )
        assert base is not None
        assert base.p50_s == wait_s
        return {option.change: option.start.p50_s for option in options}

    assert helps("wide", 1000.0) == {"with 2 instead of 4 workers": 0.0}
    assert helps("tall", 1100.0) == {"with 2 instead of 4 GPUs for each worker": 0.0}


def test_another_type_helps_only_who_named_one() -> None:
    cluster = [Node("old", (Device("V100"),)), Node("new", (Device("A100"),) * 2)]
    scenario = Scenario(cluster, PolicyConfig(mode="greedy"))
    picky = job("picky")
    picky = replace(picky, roles=(replace(picky.roles[0], gpu_types=("V100",)),))
    scenario.submit(replace(picky, id="first"), picky, at=0.0)
    state = scenario.engine.state
    _, options = what_would_help(
        state, lambda: build(PolicyConfig(mode="greedy")), Exactly(), "picky"
    )
    assert [option.change for option in options] == ["if it also took A100 GPUs"]
    assert options[0].start.nodes == ("new",)


def test_another_queue_helps_a_job_that_is_not_submitted_yet() -> None:
    config = PolicyConfig(mode="greedy", queues={"small": QueueConfig(limit_gpus=1)})
    scenario = Scenario(nodes(4), config)
    scenario.submit(job("a", queue="small"), at=0.0)
    base, options = what_would_help(
        scenario.engine.state,
        lambda: build(config),
        Exactly(a=900.0),
        job("new", queue="small"),
        queues=("small", "large"),
    )
    assert base is not None
    assert base.p50_s == 900.0
    assert [(option.change, option.start.p50_s) for option in options] == [("in queue large", 0.0)]
    assert "new" not in scenario.engine.state.jobs


def test_a_job_that_does_not_wait_cannot_be_helped() -> None:
    scenario = Scenario(nodes(4))
    scenario.submit(job("a"), at=0.0)
    with pytest.raises(UserError, match="does not wait"):
        what_would_help(scenario.engine.state, lambda: build("fifo"), Exactly(), "a")
