"""Every job that waits has a reason a person understands."""

from __future__ import annotations

from random import Random

import pytest

from presage.core.engine import Engine
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources
from presage.model.job import JobSpec, Role
from presage.policy import registry
from presage.policy.config import PolicyConfig
from tests.scenario import Scenario, job, nodes

RACKS = {"rack": ["r0", "r0", "r1", "r1"]}


def test_one_node_is_not_free_enough() -> None:
    s = Scenario(nodes(8, 8))
    s.submit(job("a", gpus=5), job("b", gpus=6), job("c", gpus=4))
    assert s.why("c") == "needs 4 GPUs on one node; the best node has 3 GPUs free, 5 free in all"


def test_a_gang_knows_how_many_of_its_workers_would_fit() -> None:
    s = Scenario(nodes(4, 4))
    s.submit(job("a", gpus=3), job("b", gpus=2, workers=4))
    text = "needs 4 workers × 2 GPUs; 5 GPUs are free, room for 2 such workers"
    assert s.why("b") == text


def test_the_rack_that_comes_closest_is_named() -> None:
    s = Scenario(nodes(4, 4, 4, 4, **RACKS), PolicyConfig(placement="topology"))
    s.submit(job("a", gpus=2, workers=1), job("b", gpus=4), job("c", gpus=3))
    s.submit(job("gang", gpus=2, workers=4), job("x", gpus=4, workers=4))
    assert "best on one rack; the best rack has" in s.why("x")
    assert s.why("x").startswith("needs 4 workers × 4 GPUs")


def test_the_jobs_ahead_are_counted() -> None:
    s = Scenario(nodes(2))
    s.submit(*(job(f"j{k}", gpus=2) for k in range(5)))
    assert s.why("j4").endswith("; 3 jobs ahead")
    assert s.why("j2").endswith("; 1 job ahead")
    assert "ahead" not in s.why("j1")


@pytest.mark.parametrize("policy", registry.names())
def test_what_a_policy_remembers_does_not_change_what_it_says(policy: str) -> None:
    chance = Random(policy)
    s = Scenario(nodes(4, 2), policy, {f"j{k}": chance.uniform(10, 1000) for k in range(60)})
    for turn in range(30):
        pair = (f"j{2 * turn}", f"j{2 * turn + 1}")
        queues = ("default", "prod")
        s.submit(
            *(
                job(name, chance.choice((1, 2, 4)), queue=queue, priority=chance.randrange(3))
                for name, queue in zip(pair, queues, strict=True)
            ),
            at=60.0 * turn,
        )
        s.settle()
        pending = list(s.engine.state.pending)
        if pending and turn % 3 == 2:
            s.go(ev.CancelRequested(chance.choice(pending)))
        if running := s.running:
            s.end(chance.choice(running))
        fresh = Engine(registry.build(policy), s.engine.predict, s.engine.state)
        for name in list(s.engine.state.pending):
            assert s.engine.explain(name) == fresh.explain(name), (turn, name)


def test_jobs_without_gpus_hear_of_cores_and_memory() -> None:
    s = Scenario([Node("n", cpu_milli=2000, memory_mib=4096)])
    role = Role("worker", Resources(cpu_milli=1000, memory_mib=3072), 1, 1)
    s.submit(JobSpec("a", (role,)), JobSpec("b", (role,)))
    text = "needs 1 core, 3 GiB on one node; the freest node has 1 core, 1 GiB free"
    assert s.why("b") == text


def test_a_job_that_fits_but_must_wait_its_turn() -> None:
    s = Scenario(nodes(4))
    s.submit(job("a", gpus=2), job("head", gpus=4), job("small"))
    text = "1 GPU on one node would fit, but 1 job ahead of it must start first"
    assert s.why("small") == text


@pytest.mark.parametrize(
    ("node", "ask", "words"),
    [
        (Node("n", (Device("V100"),) * 4), {"gpu_types": ("A100",)}, "no node with A100"),
        (Node("n", (Device(),) * 4, cpu_milli=1000), {"cpu_milli": 2000}, "lack CPU or memory"),
    ],
)
def test_what_the_cluster_lacks_is_named(node: Node, ask: dict[str, object], words: str) -> None:
    types = ask.pop("gpu_types", ())
    role = Role("worker", Resources(gpu_milli=1000, **ask), 1, 1, types)  # type: ignore[arg-type]
    s = Scenario([node])
    (decision,) = s.submit(JobSpec("x", (role,)))
    assert words in str(decision)
