"""Three views of what is free: lists, masks and arrays agree whatever was taken and given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.core.capacity import Capacity, bits, lowest
from presage.core.plan import Plan
from presage.core.state import State
from presage.model.cluster import (
    UNLIMITED,
    WHOLE_GPU,
    Device,
    LabelOperator,
    LabelRule,
    Node,
    Resources,
    Where,
)
from presage.model.cluster import Taken as Held
from presage.model.event import JobSubmitted
from presage.model.job import JobSpec, Role
from presage.policy.request import Request, feasible
from presage.testing.strategies import clusters, resources


def filled(nodes: tuple[Node, ...]) -> Capacity:
    capacity = Capacity()
    for node in nodes:
        capacity.set_open(capacity.add(node), True)
    return capacity


Taken = tuple[int, Resources, tuple[int, ...]]


def use(
    capacity: Capacity, asks: list[tuple[int, Resources]], most: int | None = None
) -> list[Taken]:
    """Take what fits of some requests, each on its node."""
    taken: list[Taken] = []
    for pick, ask in asks:
        i = pick % len(capacity.nodes)
        if capacity.fits(i, ask, most):
            devices = capacity.devices(i, ask, most)
            capacity.take(i, ask, devices)
            taken.append((i, ask, devices))
    return taken


asks = st.lists(st.tuples(st.integers(0, 7), resources()), max_size=12)


@given(clusters(), asks, st.lists(st.integers(0, 11), max_size=6), st.sampled_from((None, 1, 2)))
def test_all_views_agree(
    nodes: tuple[Node, ...],
    requests: list[tuple[int, Resources]],
    gone: list[int],
    most: int | None,
) -> None:
    capacity = filled(nodes)
    taken = use(capacity, requests, most)
    capacity.arrays()  # so that what follows has to refresh them
    for pick in gone:
        if taken:
            capacity.give(*taken.pop(pick % len(taken)))
    _compare(capacity, taken)
    for item in reversed(taken):
        capacity.give(*item)
    _compare(capacity, [])
    assert all(capacity.idle(i) for i in range(len(nodes)))


def _compare(capacity: Capacity, taken: list[Taken]) -> None:
    """The views against a sum over everything that was taken."""
    arrays = capacity.arrays()
    total = 0
    for i, node in enumerate(capacity.nodes):
        mine = [(ask, devices) for at, ask, devices in taken if at == i]
        free = [
            WHOLE_GPU - sum(min(ask.gpu_milli, WHOLE_GPU) for ask, on in mine if d in on)
            for d in range(len(node.devices))
        ]
        count = len(free)
        assert capacity.free_gpu[i] == free == arrays.gpu[i, :count].tolist()
        assert (arrays.gpu[i, count:] == -1).all()
        sharers = [sum(d in on for _, on in mine) for d in range(count)]
        assert capacity.sharers[i] == sharers == arrays.sharers[i, :count].tolist()
        memory = [
            device.memory_mib - sum(ask.gpu_memory_mib for ask, on in mine if d in on)
            for d, device in enumerate(node.devices)
        ]
        assert capacity.free_gpu_memory[i] == memory == arrays.gpu_memory[i, :count].tolist()
        cpu = node.cpu_milli - sum(ask.cpu_milli for ask, _ in mine)
        assert capacity.free_cpu[i] == cpu == arrays.cpu[i]
        ram = node.memory_mib - sum(ask.memory_mib for ask, _ in mine)
        assert capacity.free_memory[i] == ram == arrays.memory[i]
        whole = free.count(WHOLE_GPU)
        assert capacity.whole[i] == whole == arrays.whole[i]
        assert [k for k, mask in enumerate(capacity.by_whole) if mask >> i & 1] == [whole]
        total += sum(free)
    assert capacity.free_milli == total


@given(clusters(), asks, resources(), st.sampled_from((None, 1, 2)), st.integers(0, 31))
def test_fits_is_what_the_arrays_say(
    nodes: tuple[Node, ...],
    requests: list[tuple[int, Resources]],
    ask: Resources,
    most: int | None,
    mask: int,
) -> None:
    state = State()
    state.apply(0.0, JobSubmitted(JobSpec("j", (Role("worker", ask),))))
    state.capacity = capacity = filled(nodes)
    use(capacity, requests)
    mask &= (1 << len(nodes)) - 1
    request = Request(state.jobs["j"], Plan(state), capacity, ask, (), most, 1, ask)
    one_by_one = [bool(mask >> i & 1) and capacity.fits(i, ask, most) for i in range(len(nodes))]
    assert feasible(request, mask).tolist() == one_by_one
    for i, fits in enumerate(one_by_one):
        if fits:
            devices = capacity.devices(i, ask, most)
            assert len(set(devices)) == ask.devices
            assert set(devices) <= set(capacity.usable(i, ask, most)) or not ask.gpu_milli


@given(st.integers(0, 1 << 70))
def test_bits_of_a_mask(mask: int) -> None:
    found = list(bits(mask))
    assert sum(1 << i for i in found) == mask
    assert found == sorted(found)
    assert not mask or lowest(mask) == found[0]


def test_a_promise_shows_as_negative_and_nobody_else_can_take_it() -> None:
    capacity = filled((Node("n0", (Device(),) * 2),))
    whole = Resources(gpu_milli=1000)
    capacity.take(0, whole, (0,))
    capacity.take(0, whole, (0,))  # promised to somebody while the first is leaving
    assert capacity.free_gpu[0] == [-1000, 1000]
    assert capacity.devices(0, whole) == (1,)
    assert not capacity.fits(0, Resources(gpu_milli=2000))
    capacity.give(0, whole, (0,))
    assert capacity.whole == [1]
    capacity.give(0, whole, (0,))
    assert capacity.whole == [2]


@pytest.mark.parametrize(
    ("types", "expected"),
    [((), [0, 1, 2]), (("a",), [0, 2]), (("b",), [1]), (("a", "b"), [0, 1, 2]), (("c",), [])],
)
def test_types(types: tuple[str, ...], expected: list[int]) -> None:
    capacity = filled(
        (Node("x", (Device("a"),)), Node("y", (Device("b"),)), Node("z", (Device("a"),)))
    )
    assert list(bits(capacity.accepts(types))) == expected
    capacity.set_open(0, False)
    assert list(bits(capacity.accepts(types))) == [i for i in expected if i]


def test_labels_and_limits() -> None:
    capacity = filled((Node("x", labels={"rack": "r0"}), Node("y", labels={"rack": "r1"})))
    assert capacity.labels == {"rack": {"r0": 0b01, "r1": 0b10}}
    assert capacity.plain
    capacity.add(Node("z", (), 1000, UNLIMITED))
    assert not capacity.plain


def test_a_retired_node_leaves_its_name_and_its_gpus() -> None:
    capacity = filled((Node("x", (Device(),) * 4), Node("y", (Device(),) * 2)))
    capacity.retire(0)
    assert (capacity.total_milli, capacity.free_milli) == (2000, 2000)
    assert list(bits(capacity.open)) == [1]
    assert capacity.add(Node("x", (Device(),))) == 2
    assert capacity.index == {"y": 1, "x": 2}


def test_what_did_not_fit_is_worth_another_try_only_after_a_release() -> None:
    capacity = filled((Node("x", (Device(),) * 2),))
    before = capacity.released
    capacity.take(0, Resources(gpu_milli=1000), (0,))
    assert capacity.released == before
    capacity.give(0, Resources(gpu_milli=1000), (0,))
    assert capacity.released > before


def test_masks_as_arrays() -> None:
    capacity = filled(tuple(Node(f"n{i}") for i in range(11)))
    mask = 0b10000000101
    assert np.flatnonzero(capacity.mask_array(mask)).tolist() == list(bits(mask))


def test_what_others_take_more_of_is_no_release_and_leaves_nodes_as_they_were_found() -> None:
    gpus, where = (Device(),) * 2, Where(((LabelRule("zone", LabelOperator.IN, ("a",)),),))
    plain = Node("x", gpus, 8000, 8000, {"zone": "a"})
    capacity = filled((plain, Node("y", gpus, 8000, 8000, {"zone": "b"})))
    assert capacity.accepts((), where) == 0b01
    before = capacity.released, capacity.described
    capacity.change(replace(plain, taken=Held(1000, 500, (1,))))
    assert (capacity.released, capacity.described) == before
    assert (capacity.free_cpu[0], capacity.free_memory[0], capacity.whole[0]) == (7000, 7500, 1)
    capacity.change(replace(plain, taken=Held(2000, 500, (0,))))  # more of one, less of another
    assert (capacity.released, capacity.described) == (before[0] + 1, before[1])
    assert capacity.free_gpu[0] == [0, WHOLE_GPU]
    capacity.change(replace(plain, labels={"zone": "b"}, taken=Held(2000, 500, (0,))))
    assert capacity.accepts((), where) == 0
    assert capacity.described == before[1] + 1
