"""The placements of the openb study on small clusters where the choice can be seen, and one run of
the published experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.openb import POLICIES, experiment, published
from presage.core.capacity import Capacity
from presage.core.plan import Plan
from presage.model.cluster import Device, Node, Resources
from presage.model.event import NodeUp
from presage.model.job import Role
from presage.policy.fragmentation import Typical, fragmentation, learned
from presage.policy.openb import BestFit, DotProduct, Fgd, GpuClustering, GpuPacking, Random
from presage.policy.placer import Placer
from presage.policy.request import Score
from tests.policy.placing import CORE, choose, cluster, machine, put, request, share, submit, whole


def test_best_fit_leaves_the_least_over() -> None:
    state = cluster(machine("a", 8), machine("b", 4), machine("c", 4))
    assert choose(state, BestFit(), whole(2)) == ("b", (0, 1))  # as good as c, and first
    put(state, 2, share(500, cores=8), 1)
    assert choose(state, BestFit(), whole(2)) == ("c", (0, 2))
    assert choose(state, BestFit(), share(300)) == ("c", (1,))  # least room that fits
    assert choose(state, BestFit(), share(600)) == ("c", (0,))
    assert choose(state, BestFit(), whole(8)) == ("a", tuple(range(8)))
    assert choose(state, BestFit(), whole(9)) is None


def test_best_fit_weighs_cpu_and_gpu_by_the_largest_node() -> None:
    state = cluster(machine("many-cores", 2, cores=128), machine("many-gpus", 8, cores=31))
    # Left over: 127/128 + 1/8 against 30/128 + 7/8, each halved.
    expected = [1 - (127 / 128 + 1 / 8) / 2, 1 - (30 / 128 + 7 / 8) / 2]
    assert BestFit(exact=True)(request(state, whole(1))) == pytest.approx(expected)
    assert BestFit()(request(state, whole(1))).tolist() == [0.44, 0.44]
    assert choose(state, BestFit(exact=True), whole(1)) == ("many-gpus", (0,))
    assert choose(state, BestFit(), whole(1)) == ("many-cores", (0,))  # equal in whole percents


def test_dot_product_avoids_what_is_in_line_with_the_request() -> None:
    state = cluster(machine("cores", 2, cores=128), machine("gpus", 8, cores=64))
    # CPU-heavy: 0.5·1 + 0.125·0.25 against 0.5·0.5 + 0.125·1. GPU-heavy the other way round.
    assert choose(state, DotProduct(), whole(1, cores=64)) == ("gpus", (0,))
    assert choose(state, DotProduct(), whole(2, cores=1)) == ("cores", (0, 1))
    exact = DotProduct(exact=True)(request(state, whole(1, cores=64)))
    assert exact == pytest.approx([1 - 0.53125 / 2, 1 - 0.375 / 2])
    put(state, 1, share(700), 3)
    assert choose(state, DotProduct(), share(200, cores=8)) == ("gpus", (3,))  # least room


@pytest.mark.parametrize("score", [BestFit, DotProduct])
def test_cpu_that_nobody_limits_counts_for_nothing(score: Callable[[bool], Score]) -> None:
    state = cluster(Node("a", (Device(),) * 8), Node("b", (Device(),) * 4))
    values = score(True)(request(state, whole(1, cores=500)))
    assert values[1] > values[0]
    assert choose(state, score(False), whole(1, cores=500)) == ("b", (0,))
    mixed = cluster(Node("a", (Device(),) * 8), machine("b", 8, cores=64))
    assert choose(mixed, score(False), whole(1, cores=8)) == ("a", (0,))  # a counts as 64 cores


def test_gpu_packing_uses_shared_gpus_then_nodes_in_use_then_small_nodes() -> None:
    state = cluster(
        machine("idle-8", 8), machine("idle-2", 2), machine("used", 4), machine("x", 4)
    )
    assert choose(state, GpuPacking(), share(500)) == ("idle-2", (0,))
    put(state, 2, whole(1), 0)
    put(state, 3, whole(2), 0, 1)
    assert choose(state, GpuPacking(), share(500)) == ("used", (1,))  # ties with x, and first
    assert choose(state, GpuPacking(), whole(3)) == ("used", (1, 2, 3))
    assert choose(state, GpuPacking(), whole(4)) == ("idle-8", (0, 1, 2, 3))
    put(state, 0, share(300), 5)
    assert choose(state, GpuPacking(), share(500)) == ("idle-8", (5,))
    put(state, 3, share(450), 3)
    assert choose(state, GpuPacking(), share(500)) == ("x", (3,))  # 550 left against 700
    assert choose(state, GpuPacking(), share(600)) == ("idle-8", (5,))
    assert choose(state, GpuPacking(), share(800)) == ("idle-8", (0,))  # in use by now
    assert choose(state, GpuPacking(), Resources(CORE)) == ("idle-8", ())  # no GPU: node order


def test_gpu_packing_counts_room_in_tenths_unless_exact() -> None:
    state = cluster(machine("a", 2), machine("b", 2))
    put(state, 0, share(310), 0)
    put(state, 1, share(390), 0)
    assert choose(state, GpuPacking(), share(100)) == ("a", (0,))  # 690 and 610 are six tenths
    assert choose(state, GpuPacking(exact=True), share(100)) == ("b", (0,))


def test_gpu_packing_skips_a_shared_gpu_that_is_full_of_jobs() -> None:
    state = cluster(machine("a", 2), machine("b", 2))
    put(state, 1, share(100), 0)
    put(state, 1, share(100), 0)
    assert choose(state, GpuPacking(), share(100), most=3) == ("b", (0,))
    assert choose(state, GpuPacking(), share(100), most=2) == ("b", (1,))


def test_gpu_clustering_keeps_requests_of_a_kind_together() -> None:
    names = ["other", "idle", "mixed", "alone"]
    state = cluster(*(machine(name, 8) for name in names))
    put(state, 0, whole(1), 0)
    put(state, 2, whole(1), 0)
    put(state, 2, share(200), 1)
    put(state, 3, share(900), 0)
    score = GpuClustering()
    for taken in reversed(range(4)):  # each band is next when the better ones are closed
        chosen = choose(state, score, share(600))
        assert chosen is not None
        assert chosen[0] == names[taken]
        state.capacity.set_open(taken, False)


def test_gpu_clustering_prefers_the_fuller_node_and_forgets_who_left() -> None:
    state = cluster(machine("a", 8), machine("b", 8), machine("c", 8))
    score = GpuClustering()
    put(state, 1, Resources(CORE))  # no GPU, no kind
    assert choose(state, score, whole(2)) == ("a", (0, 1))
    put(state, 0, whole(2), 0, 1)
    put(state, 2, whole(2), 0, 1)
    put(state, 2, whole(2), 2, 3)
    assert choose(state, score, whole(2)) == ("c", (4, 5))
    assert choose(state, score, whole(1)) == ("b", (0,))  # idle before other kinds
    state.capacity.give(2, whole(2), (0, 1))
    state.capacity.give(2, whole(2), (2, 3))
    assert choose(state, score, whole(2)) == ("a", (2, 3))
    assert score(request(state, whole(2))).tolist() == [0.81, 0.25, 0.25]
    assert score(request(state, whole(1))).tolist() == [0.06, 0.25, 0.25]  # 2 of 8 used, in 25ths


def test_gpu_clustering_notices_a_node_that_joins() -> None:
    state = cluster(machine("a", 8), machine("b", 8))
    score = GpuClustering()
    put(state, 0, share(500), 0)
    assert choose(state, score, share(500)) == ("a", (0,))
    state.apply(0.0, NodeUp(machine("c", 8)))
    state.capacity.give(0, share(500), (0,))
    put(state, 2, share(500), 0)
    assert choose(state, score, share(500)) == ("c", (0,))


def test_fgd_spoils_what_is_spoilt_already() -> None:
    typical: list[Typical] = [(share(500), (), 0.5), (whole(1), (), 0.5)]
    state = cluster(machine("a", 2), machine("b", 2))
    put(state, 1, share(500), 0)
    # On b's begun GPU nothing more is spoilt; elsewhere a whole GPU is.
    assert choose(state, Fgd(typical), share(500)) == ("b", (0,))
    put(state, 1, share(300), 0)
    # b has 200 that only smaller shapes could use; 200 there is a pure gain.
    assert choose(state, Fgd(typical), share(200)) == ("b", (0,))


def test_fgd_keeps_whole_nodes_for_large_requests() -> None:
    typical: list[Typical] = [(whole(1), (), 0.5), (whole(4), (), 0.5)]
    state = cluster(machine("a", 4), machine("b", 4))
    put(state, 1, whole(1), 2)
    # Taking one from a makes three GPUs useless for half of the workload; b's are useless already.
    assert choose(state, Fgd(typical), whole(1)) == ("b", (0,))
    assert choose(state, Fgd(typical), Resources(CORE)) == ("a", ())


def test_fgd_leaves_cpu_where_gpus_need_it_and_types_where_they_are_wanted() -> None:
    state = cluster(machine("a", 2, cores=8), machine("b", 0, cores=8), machine("c", 2, cores=16))
    typical: list[Typical] = [(whole(1, cores=8), (), 1.0)]
    assert choose(state, Fgd(typical), Resources(8 * CORE)) == ("b", ())  # as good as c, and first
    put(state, 1, Resources(CORE))
    assert choose(state, Fgd(typical), Resources(8 * CORE)) == ("c", ())  # a job still fits there
    state = cluster(machine("rare", 2, kind="A100"), machine("plain", 2, kind="T4"))
    typical = [(whole(1), ("A100",), 0.5), (whole(1), ("A100", "T4"), 0.5)]
    assert choose(state, Fgd(typical), whole(1)) == ("plain", (0,))
    assert choose(state, Fgd(typical), whole(1), ("A100",)) == ("rare", (0,))


def test_fgd_takes_a_device_that_serves_however_bad_it_is() -> None:
    state = cluster(machine("a", 8, cores=8))
    put(state, 0, share(500, cores=0), 0)
    typical: list[Typical] = [(share(700, cores=5), (), 1.0)]
    # No CPU is left for anybody else: seven GPUs become useless, the score is nought everywhere.
    assert Fgd(typical)(request(state, share(700, cores=5))).tolist() == [0]
    assert choose(state, Fgd(typical), share(700, cores=5)) == ("a", (1,))


def test_fgd_learns_from_what_was_submitted() -> None:
    state = cluster(machine("a", 4), machine("b", 4))
    put(state, 1, whole(1), 2)
    pair = (Role("worker", whole(1), 3, 3), Role("ps", Resources(CORE), 1, 1))
    submit(state, *pair)
    submit(state, Role(resources=whole(4)))
    assert learned(state.shapes) == [
        (whole(1), (), 3),
        (Resources(CORE), (), 1),
        (whole(4), (), 1),
    ]
    fgd = Fgd(exact=True)
    assert choose(state, fgd, whole(1)) == ("b", (0,))
    for _ in range(20):
        submit(state, *pair)
    req = request(state, whole(1))
    assert fgd(req).tolist() == Fgd(learned(state.shapes), exact=True)(req).tolist()
    # On a: one idle GPU less that 21 servers of 87 workers cannot use, three more that one cannot.
    assert fgd(req)[0] == pytest.approx(0.5 + (21 - 3) / 87 / (2 * 4))


def test_fgd_places_the_workers_of_a_gang_one_after_the_other() -> None:
    typical: list[Typical] = [(whole(1), (), 0.5), (whole(4), (), 0.5)]
    state = cluster(machine("a", 4), machine("b", 4))
    put(state, 1, whole(1), 2)
    job = submit(state, Role(resources=whole(1), min=5, max=5))
    before = state.snapshot()["nodes"]
    found = Placer({Fgd(typical): 1.0}).find(job, Plan(state), [(0, n) for n in range(5)])
    assert found is not None
    places = [(worker.node, worker.devices) for worker in found]
    assert places == [("b", (0,)), ("b", (1,)), ("b", (3,)), ("a", (0,)), ("a", (1,))]
    assert state.snapshot()["nodes"] == before


def test_fragmentation_counts_the_idle_gpus_nobody_can_use() -> None:
    state = cluster(machine("a", 2, cores=8), machine("b", 2, cores=2, kind="T4"))
    put(state, 0, share(700), 1)  # 1000 and 300 left
    typical: list[Typical] = [
        (share(500), (), 0.4),  # a: 300 on the begun GPU; b: nothing
        (whole(1, cores=4), (), 0.3),  # a: 300; b: all 2000, too few cores
        (share(100), ("T4",), 0.2),  # a: all 1300; b: nothing
        (Resources(CORE), (), 0.1),  # no GPU: all 1300 and all 2000
    ]
    expected = 0.4 * 300 + 0.3 * (300 + 2000) + 0.2 * 1300 + 0.1 * 3300
    assert fragmentation(state.capacity, typical) == pytest.approx(expected)
    assert fragmentation(state.capacity, [(*s[:2], 7 * s[2]) for s in typical]) == pytest.approx(
        expected
    )
    state.capacity.set_open(1, False)  # what nobody may use is not idle
    assert fragmentation(state.capacity, typical) == pytest.approx(0.7 * 300 + 0.3 * 1300)
    assert fragmentation(Capacity(), typical) == 0


def test_random_is_a_function_of_seed_job_attempt_and_worker() -> None:
    def draw(seed: int, jobs: int) -> list[tuple[str, tuple[int, ...]] | None]:
        state = cluster(*(machine(f"n{n}", 8) for n in range(20)), seed=seed)
        return [choose(state, Random(), share(500)) for _ in range(jobs)]

    drawn = draw(1, 60)
    assert drawn == draw(1, 60)
    assert drawn != draw(2, 60)
    nodes, devices = zip(*(found for found in drawn if found), strict=True)
    assert len(set(nodes)) > 12
    assert len(set(devices)) == 8


def test_random_draws_anew_for_each_worker_and_attempt() -> None:
    state = cluster(*(machine(f"n{n}", 8) for n in range(20)), seed=-3)
    job = submit(state, Role(resources=whole(2), min=12, max=12))
    placer = Placer({Random(): 1.0})
    wanted = [(0, n) for n in range(12)]
    first = placer.find(job, Plan(state), wanted)
    assert first is not None
    assert first == placer.find(job, Plan(state), wanted)  # trying leaves no trace
    assert len({worker.node for worker in first}) > 5
    assert len({worker.devices for worker in first}) > 5
    job.attempt += 1
    assert placer.find(job, Plan(state), wanted) != first


def test_random_takes_only_what_fits() -> None:
    state = cluster(machine("a", 2), machine("b", 2), machine("c", 0))
    put(state, 0, whole(1), 1)
    put(state, 1, share(600), 0)
    for _ in range(20):
        assert choose(state, Random(), whole(1)) in {("a", (0,)), ("b", (1,))}
        assert choose(state, Random(), share(500)) in {("a", (0,)), ("b", (1,))}
    placed = {choose(state, Random(), Resources(CORE)) for _ in range(60)}
    assert placed == {("a", ()), ("b", ()), ("c", ())}


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fgd", "best_fit", "dot_product"])
def test_openb_default_workload_allocates_as_published(shared_data: Path, policy: str) -> None:
    theirs = published(shared_data, "openb_expected_allocated.parquet", "gpu_allocated_pct")
    outcome = experiment(shared_data, "default", policy, seed=0)
    expected = theirs["default", POLICIES[policy][0]]
    assert outcome.allocated_pct == pytest.approx(expected, abs=0.7)
