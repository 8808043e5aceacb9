"""The vectorised placements of the openb study against slow, obvious ones on random clusters."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.core.capacity import Capacity
from presage.core.state import State
from presage.model.cluster import UNLIMITED, WHOLE_GPU, Device, Node, Resources
from presage.model.event import NodeUp
from presage.policy.fragmentation import Typical, fragmentation, learned
from presage.policy.openb import BestFit, DotProduct, Fgd, GpuClustering, GpuPacking, Random
from presage.policy.request import CanPickDevices, Request, feasible
from tests.policy.placing import cluster, request

Placed = tuple[int, Resources, tuple[int, ...]]

KINDS = ("T4", "V100")
asks = st.builds(
    Resources,
    cpu_milli=st.integers(0, 12).map(lambda cores: cores * 500),
    memory_mib=st.just(0),
    gpu_milli=st.sampled_from([0, 0, 100, 250, 250, 500, 730, 1000, 1000, 2000, 4000, 8000]),
    gpu_memory_mib=st.sampled_from([0, 0, 0, 0, 8]),
)
types_of = st.sampled_from([(), (), (), ("T4",), ("V100",), ("T4", "V100"), ("H100",)])
machines = st.builds(
    lambda gpus, cpu, kind: (gpus, cpu, kind),
    st.sampled_from([0, 1, 2, 2, 4, 8]),
    st.sampled_from([4000, 8000, 16000, UNLIMITED]),
    st.sampled_from(KINDS),
)
workloads = st.lists(st.tuples(asks, types_of, st.integers(0, 9).map(float)), max_size=6)


def node_f(free: list[int], cpu: int, kinds: set[str], typical: Iterable[Typical]) -> float:
    """F of one node, word for word."""
    shapes = list(typical)
    total = sum(weight for _, _, weight in shapes)
    f = 0.0
    idle = sum(max(0, milli) for milli in free)
    for ask, types, weight in shapes:
        need = ask.gpu_milli if ask.shared else WHOLE_GPU
        fitting = [milli for milli in free if milli >= need]
        fits = (
            ask.gpu_milli > 0
            and cpu >= ask.cpu_milli
            and (not types or bool(kinds & set(types)))
            and len(fitting) >= ask.devices
        )
        f += weight / total * (idle - sum(fitting) if fits else idle) if total else 0.0
    return f


def kinds_on(capacity: Capacity, i: int) -> set[str]:
    return {device.type for device in capacity.nodes[i].devices}


def fgd_drops(
    capacity: Capacity, i: int, req: Request, typical: list[Typical]
) -> dict[int, float]:
    """By device (or by the first of several), how much F of a node drops."""
    free, cpu, kinds = capacity.free_gpu[i], capacity.free_cpu[i], kinds_on(capacity, i)
    before = node_f(free, cpu, kinds, typical)
    usable = capacity.usable(i, req.ask, req.most)
    drops: dict[int, float] = {}
    for first in sorted(usable) if req.ask.shared else [0]:
        after = list(free)
        taken = [first] if req.ask.shared else capacity.devices(i, req.ask, req.most)
        for d in taken:
            after[d] -= min(req.ask.gpu_milli, WHOLE_GPU)
        drops[first] = before - node_f(after, cpu - req.ask.cpu_milli, kinds, typical)
    return drops


def prepared(
    hardware: list[tuple[int, int, str]], loads: list[tuple[int, Resources]]
) -> tuple[State, list[Placed]]:
    """A cluster with some load on it."""
    state = cluster(
        *(
            Node(f"n{n}", (Device(kind, 16),) * gpus, cpu)
            for n, (gpus, cpu, kind) in enumerate(hardware)
        )
    )
    placed = [p for n, ask in loads if (p := load(state, n, ask))]
    return state, placed


def load(state: State, n: int, ask: Resources) -> Placed | None:
    """Take something from a node if it fits there."""
    capacity = state.capacity
    i = n % len(capacity.nodes)
    if not capacity.fits(i, ask):
        return None
    devices = tuple(reversed(capacity.usable(i, ask)))[: ask.devices] if ask.gpu_milli else ()
    capacity.take(i, ask, devices)
    return i, ask, devices


@given(
    hardware=st.lists(machines, min_size=1, max_size=6),
    loads=st.lists(st.tuples(st.integers(0, 5), asks), max_size=12),
    typical=workloads,
    tried=st.lists(
        st.tuples(asks, st.sampled_from([None, 2]), st.integers(0, 9)), min_size=1, max_size=6
    ),
    joins=machines,
)
def test_fgd_agrees_with_its_definition(
    hardware: list[tuple[int, int, str]],
    loads: list[tuple[int, Resources]],
    typical: list[Typical],
    tried: list[tuple[Resources, int | None, int]],
    joins: tuple[int, int, str],
) -> None:
    state, placed = prepared(hardware, loads)
    fgd, exact, learner = Fgd(typical), Fgd(typical, exact=True), Fgd(exact=True)
    for step, (ask, most, change) in enumerate(tried * 2):  # twice: what is remembered is used
        req = request(state, ask, most)
        compare_fgd(fgd, exact, req, typical)
        assert learner(req).tolist() == Fgd(learned(state.shapes), exact=True)(req).tolist()
        if placed and change < 3:
            i, gone, devices = placed.pop()
            state.capacity.give(i, gone, devices)
        elif step == 2:
            gpus, cpu, kind = joins
            state.apply(0.0, NodeUp(Node("late", (Device(kind, 16),) * gpus, cpu)))
        elif done := load(state, change, ask):
            placed.append(done)


def compare_fgd(fgd: Fgd, exact: Fgd, req: Request, typical: list[Typical]) -> None:
    """Scores and devices of all nodes where the worker fits."""
    capacity = req.capacity
    coarse, fine = fgd(req), exact(req)
    assert coarse.min() >= 0
    assert coarse.max() <= 1
    width = max(1, *(len(node.devices) for node in capacity.nodes))
    for i in np.flatnonzero(feasible(req, capacity.open)):
        drops = fgd_drops(capacity, int(i), req, typical)
        best = max(drops.values())
        assert fine[i] == pytest.approx(0.5 + best / WHOLE_GPU / (2 * width), abs=1e-6)
        steps = 100 / (1 + math.exp(-best / WHOLE_GPU))
        assert steps - 1 - 1e-4 < 100 * coarse[i] < steps + 1e-4
        if req.ask.shared:
            (device,) = exact.devices(req, int(i))
            assert drops[device] == pytest.approx(best, abs=1e-3)
            (device,) = fgd.devices(req, int(i))
            assert abs(100 / (1 + math.exp(-drops[device] / WHOLE_GPU)) - steps) < 1.001
    assert fragmentation(capacity, typical) == pytest.approx(
        sum(
            node_f(capacity.free_gpu[i], capacity.free_cpu[i], kinds_on(capacity, i), typical)
            for i in range(len(capacity.nodes))
        ),
        abs=1e-3,
    )


def best_fit(capacity: Capacity, i: int, ask: Resources, cpu: int, gpu: int) -> float:
    free = min(capacity.free_cpu[i], cpu) if cpu else 0
    asked = ask.cpu_milli if cpu else 0
    left = sum(max(0, milli) for milli in capacity.free_gpu[i]) - ask.gpu_milli
    return 1 - (free - asked) / max(1, cpu) / 2 - left / gpu / 2


def dot_product(capacity: Capacity, i: int, ask: Resources, cpu: int, gpu: int) -> float:
    free = min(capacity.free_cpu[i], cpu) / cpu * ask.cpu_milli / cpu if cpu else 0
    left = sum(max(0, milli) for milli in capacity.free_gpu[i])
    return 1 - (free + left / gpu * ask.gpu_milli / gpu) / 2


def clustering(capacity: Capacity, i: int, ask: Resources, cpu: int, gpu: int) -> float:
    def kind(milli: int) -> int:
        return 1 if milli < WHOLE_GPU else milli

    if not ask.gpu_milli:
        return 0
    held = {kind(milli) for milli, count in capacity.tenants[i].items() if milli and count}
    band = 0 if held else 1
    if kind(ask.gpu_milli) in held:
        band = 3 if len(held) == 1 else 2
    return (band + 1 - sum(max(0, milli) for milli in capacity.free_gpu[i]) / gpu) / 4


@given(
    hardware=st.lists(machines, min_size=1, max_size=6),
    loads=st.lists(st.tuples(st.integers(0, 5), asks), max_size=16),
    ask=asks,
)
def test_scores_agree_with_their_formulas(
    hardware: list[tuple[int, int, str]], loads: list[tuple[int, Resources]], ask: Resources
) -> None:
    state, _ = prepared(hardware, loads)
    capacity, req = state.capacity, request(state, ask)
    limits = [node.cpu_milli for node in capacity.nodes if node.cpu_milli < UNLIMITED]
    cpu = max(limits, default=0)
    gpu = WHOLE_GPU * max(1, *(len(node.devices) for node in capacity.nodes))
    for exact, coarse, formula in (
        (BestFit(exact=True), BestFit(), best_fit),
        (DotProduct(exact=True), DotProduct(), dot_product),
        (GpuClustering(exact=True), GpuClustering(), clustering),
    ):
        fine, steps = exact(req), coarse(req)
        for i in np.flatnonzero(feasible(req, capacity.open)):
            expected = min(1.0, max(0.0, formula(capacity, int(i), ask, cpu, gpu)))
            assert fine[i] == pytest.approx(expected)
            assert expected - 0.01 - 1e-9 <= steps[i] <= expected + 1e-9


@given(
    hardware=st.lists(machines, min_size=1, max_size=6),
    loads=st.lists(st.tuples(st.integers(0, 5), asks), max_size=16),
    promised=st.tuples(st.integers(0, 5), asks),
    ask=asks,
)
def test_scores_are_between_0_and_1_and_devices_fit(
    hardware: list[tuple[int, int, str]],
    loads: list[tuple[int, Resources]],
    promised: tuple[int, Resources],
    ask: Resources,
) -> None:
    state, _ = prepared(hardware, loads)
    capacity = state.capacity
    i, much = promised[0] % len(capacity.nodes), promised[1]
    if much.devices <= len(capacity.free_gpu[i]):
        capacity.take(i, much, tuple(range(much.devices)))  # free may be negative by now
    for score in (BestFit(), DotProduct(), GpuPacking(), GpuClustering(), Fgd(), Random()):
        req = request(state, ask)
        values = score(req)
        assert values.shape == (len(capacity.nodes),)
        assert values.min() >= 0
        assert values.max() <= 1
        for node in np.flatnonzero(feasible(req, capacity.open)):
            if isinstance(score, CanPickDevices):
                devices = score.devices(req, int(node))
                assert len(devices) == ask.devices
                assert set(devices) <= set(capacity.usable(int(node), ask, None))
