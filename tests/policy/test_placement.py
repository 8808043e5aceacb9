"""Where workers go: pack, spread and topology."""

from __future__ import annotations

import pytest

from presage.core.plan import Plan
from presage.model import event as ev
from presage.model.cluster import Device, Node, Resources, Worker
from presage.model.job import JobSpec, Placement, Role
from presage.policy.config import PolicyConfig
from tests.scenario import Scenario, job, nodes


@pytest.mark.parametrize(
    ("busy", "gpus", "expected"),
    [
        ((0, 0, 0), 1, ["n0"]),  # all alike: the node that joined first
        ((2, 5, 4), 3, ["n1"]),  # fewest free GPUs that fit
        ((2, 6, 5), 3, ["n2"]),  # n1 has only 2 free
        ((8, 0, 3), 8, ["n1"]),
    ],
)
def test_pack_takes_the_fullest_node_that_fits(
    busy: tuple[int, ...], gpus: int, expected: list[str]
) -> None:
    s = _filled(busy)
    s.submit(job("new", gpus=gpus))
    assert s.where("new") == expected


@pytest.mark.parametrize(
    ("busy", "full_nodes", "rest", "expected"),
    [
        (
            (1, 0, 0, 0),
            2,
            4,
            ["n1", "n2", "n3"],
        ),  # wholly free nodes, then the freest of the others
        ((1, 3, 0, 0), 2, 4, ["n2", "n3", "n0"]),
        ((2, 1, 0, 0), 2, 4, ["n2", "n3", "n1"]),  # the freest, not the best fit
        ((2, 2, 0, 0), 2, 4, ["n2", "n3", "n0"]),  # a tie goes to the first
    ],
)
def test_pack_over_several_nodes(
    busy: tuple[int, ...], full_nodes: int, rest: int, expected: list[str]
) -> None:
    roles = (
        Role("worker", Resources(gpu_milli=8000), full_nodes, full_nodes),
        Role("rest", Resources(gpu_milli=1000 * rest), 1, 1),
    )
    s = _filled(busy)
    s.submit(JobSpec("new", roles))
    assert s.where("new") == expected


def test_pack_keeps_a_gang_on_one_node_if_one_holds_it() -> None:
    s = _filled((5, 2, 4))
    s.submit(job("new", workers=4))
    assert s.where("new") == ["n2"] * 4


def test_pack_fills_the_freest_nodes_with_a_gang_that_none_holds() -> None:
    s = _filled((5, 2, 4))
    s.submit(job("new", workers=8))
    assert s.where("new") == ["n1"] * 6 + ["n2"] * 2


def test_spread_uses_as_many_nodes_as_there_are() -> None:
    s = Scenario(nodes(4, 4, 4), PolicyConfig(placement="spread"))
    s.submit(job("new", workers=5))
    assert sorted(s.where("new")) == ["n0", "n0", "n1", "n1", "n2"]


def test_a_job_may_ask_for_its_own_placement() -> None:
    s = Scenario(nodes(4, 4))
    s.submit(job("together", workers=2), job("apart", workers=2, placement=Placement.SPREAD))
    assert s.where("together") == ["n0", "n0"]
    assert sorted(s.where("apart")) == ["n0", "n1"]


RACKS = {"rack": ["r0", "r0", "r1", "r1", "r2"], "area": ["a0", "a0", "a0", "a0", "a1"]}


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (3, {"n3"}),  # the fullest node that holds it
        (6, {"n2", "n3"}),  # one rack: r1 has less room than r0
        (10, {"n0", "n1", "n2"}),  # no rack holds it, the area does
        (18, {"n0", "n1", "n2", "n3", "n4"}),  # anywhere
    ],
)
def test_topology_rack_then_area_then_anywhere(workers: int, expected: set[str]) -> None:
    s = Scenario(nodes(4, 4, 4, 3, 4, **RACKS), PolicyConfig(placement="topology"))
    s.submit(job("new", workers=workers))
    assert set(s.where("new")) == expected


def test_gpu_types_are_constraints() -> None:
    cluster = [Node("old", (Device("V100"),) * 4), Node("new", (Device("A100"),) * 4)]
    typed = Role("worker", Resources(gpu_milli=1000), 1, 1, ("A100",))
    s = Scenario(cluster)
    s.submit(JobSpec("picky", (typed,)), job("easy"))
    assert s.where("picky") == ["new"]
    none = Role("worker", Resources(gpu_milli=1000), 1, 1, ("H100",))
    s.submit(JobSpec("nowhere", (none,)))
    assert "nowhere" not in s.engine.state.jobs
    assert "H100" in str(s.decisions[0])


def test_cpu_and_memory_bind_where_they_are_declared() -> None:
    small = Node("small", (Device(),) * 8, cpu_milli=4000, memory_mib=8192)
    s = Scenario([small])
    ask = Resources(cpu_milli=3000, memory_mib=1024, gpu_milli=1000)
    s.submit(*(JobSpec(n, (Role("worker", ask),)) for n in ("a", "b")))
    assert (s.running, s.waiting) == (["a"], ["b"])


def _filled(busy: tuple[int, ...]) -> Scenario:
    """8-GPU nodes with that many GPUs in use on each."""
    cluster = nodes(*(8 for _ in busy))
    s = Scenario(cluster)
    for i, count in enumerate(busy):
        if count:
            _pin(s, job(f"fill{i}", gpus=count), cluster[i].name)
    return s


def _pin(s: Scenario, spec: JobSpec, node: str) -> None:
    """Run a job on a certain node, whatever the policy thinks."""
    state = s.engine.state
    state.apply(s.now, ev.JobSubmitted(spec))
    count = spec.roles[0].resources.gpu_milli // 1000
    Plan(state).place(state.jobs[spec.id], (Worker(0, 0, node, tuple(range(count))),))
    state.apply(s.now, ev.JobStarted(spec.id, 1))
