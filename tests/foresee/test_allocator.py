"""The replay of the caching allocator: cases by hand, and what holds for every graph."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.foresee.allocator import MIB, _Allocator, least_bytes, live_peak, reserved_bytes
from presage.foresee.graph.opgraph import KINDS, ROLES, OpGraph, Tensors

Storage = tuple[int, int, float, int, str]
"""Born, died, bytes, power of the batch, role."""


def graph_of(operators: int, storages: Sequence[Storage], forward: int | None = None) -> OpGraph:
    """A graph that only has storages."""
    phase = np.ones(operators, np.int64)
    phase[: operators if forward is None else forward] = 0
    nothing = np.zeros((operators, 3))
    return OpGraph(
        name="made up",
        operators=("relu",) * operators,
        kind=np.full(operators, KINDS.index("activation"), np.int64),
        phase=phase,
        shapes=((),) * operators,
        dtypes=("float32",) * operators,
        macs=nothing,
        read=nothing,
        written=nothing,
        weights=np.zeros(operators),
        edges=np.empty((0, 2), np.int64),
        tensors=Tensors(
            born=np.array([s[0] for s in storages], np.int64),
            died=np.array([s[1] for s in storages], np.int64),
            scale=np.array([s[2] for s in storages], np.float64),
            power=np.array([s[3] for s in storages], np.int64),
            role=np.array([ROLES.index(s[4]) for s in storages], np.int64),
        ),
        params=0,
        trainable=0,
    )


def lasting(*sizes: float) -> OpGraph:
    return graph_of(1, [(-1, 1, size, 0, "weight") for size in sizes])


# -- the peak of what is alive


def test_sizes_are_rounded_to_512_bytes() -> None:
    assert live_peak(lasting(1), 1).bytes == 512
    assert live_peak(lasting(512), 1).bytes == 512
    assert live_peak(lasting(513, 0), 1).bytes == 1024


def test_the_peak_by_hand() -> None:
    graph = graph_of(
        4,
        [
            (-1, 4, 2048, 0, "weight"),
            (-1, 4, 512, 1, "input"),
            (0, 3, 1024, 1, "saved"),
            (1, 2, 512, 2, "transient"),
            (3, 4, 2048, 0, "gradient"),
        ],
        forward=2,
    )
    small = live_peak(graph, 1)  # while the last operator runs
    assert small.bytes == 2048 + 512 + 2048
    assert small.operator == 3
    assert small.by_role["gradient"] == 2048
    assert small.by_role["saved"] == 0
    assert small.forward == 2048 + 512 + 1024 + 512
    assert small.alive.tolist() == [3584, 4096, 3584, 4608]
    large = live_peak(graph, 8)  # what grows with the square decides
    assert large.bytes == 2048 + 8 * 512 + 8 * 1024 + 64 * 512 == large.forward
    assert large.operator == 1
    assert sum(large.by_role.values()) == large.bytes
    assert large.by_role["transient"] == 64 * 512


def test_a_result_is_made_while_its_argument_is_there() -> None:
    """A storage that dies before operator 1 is gone; one that dies before operator 2 is not."""
    freed = graph_of(2, [(0, 1, 1024, 0, "saved"), (1, 2, 1024, 0, "saved")])
    held = graph_of(2, [(0, 2, 1024, 0, "saved"), (1, 2, 1024, 0, "saved")])
    assert live_peak(freed, 1).bytes == 1024
    assert live_peak(held, 1).bytes == 2048


# -- segments


@pytest.mark.parametrize(
    ("sizes", "segments_mib"),
    [
        ([], 0),
        ([0], 0),
        ([1], 2),
        ([MIB], 2),
        ([MIB, MIB], 2),  # two share a small segment
        ([MIB, MIB, 1], 4),
        ([512] * 4096, 2),
        ([512] * 4097, 4),
        ([MIB + 1], 20),
        ([MIB + 1, 5 * MIB, 9 * MIB], 20),
        ([9 * MIB, 9 * MIB, 9 * MIB], 40),
        ([10 * MIB - 512], 20),
        ([10 * MIB], 10),
        ([10 * MIB + 1], 12),
        ([13 * MIB], 14),
        ([100 * MIB, 1], 102),
    ],
)
def test_segments(sizes: list[float], segments_mib: int) -> None:
    assert reserved_bytes(lasting(*sizes), 1) == segments_mib * MIB


def test_a_small_block_never_comes_from_a_large_segment() -> None:
    """5 MiB leave 15 MiB free of 20, and still 1 KiB opens a segment of its own."""
    assert reserved_bytes(lasting(5 * MIB, 1024), 1) == 22 * MIB
    assert reserved_bytes(lasting(5 * MIB, 14 * MIB), 1) == 20 * MIB


def test_a_large_block_is_not_split_for_a_rest_of_one_mib() -> None:
    """13 MiB of 14 leave 1 MiB: too little to split, so it stays with the block."""
    allocator = _Allocator()
    allocator.take(0, 13 * MIB)
    assert allocator._large == []
    allocator.give(0)
    assert [size for size, _ in allocator._large] == [14 * MIB]
    allocator.take(1, 12 * MIB)  # a rest of 2 MiB is split off
    assert [size for size, _ in allocator._large] == [2 * MIB]


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = _Allocator()
    for tensor, size in enumerate([40, 12, 20]):
        allocator.take(tensor, size * MIB)
    for tensor in range(3):
        allocator.give(tensor)
    allocator.take(3, 11 * MIB)
    assert sorted(size // MIB for size, _ in allocator._large) == [20, 40]
    allocator.take(4, 20 * MIB)
    assert [size // MIB for size, _ in allocator._large] == [40]
    allocator.take(5, 30 * MIB)
    assert [size // MIB for size, _ in allocator._large] == [10]
    assert allocator.reserved == 72 * MIB


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_neighbours_are_merged_when_freed(order: tuple[int, ...]) -> None:
    allocator = _Allocator()
    for tensor, size in enumerate([5, 6, 9]):  # all of one segment
        allocator.take(tensor, size * MIB)
    assert allocator.reserved == 20 * MIB
    for tensor in order:
        allocator.give(tensor)
    assert [size for size, _ in allocator._large] == [20 * MIB]
    allocator.take(3, 20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_holes_between_blocks_cost() -> None:
    """Two holes of 6 MiB with a block between them do not hold 12 MiB."""
    allocator = _Allocator()
    for tensor, size in enumerate([6, 8, 6]):
        allocator.take(tensor, size * MIB)
    allocator.give(0)
    allocator.give(2)
    allocator.take(3, 12 * MIB)
    assert allocator.reserved == 32 * MIB


def test_segments_are_not_merged() -> None:
    allocator = _Allocator()
    allocator.take(0, 10 * MIB)
    allocator.take(1, 10 * MIB)
    allocator.give(0)
    allocator.give(1)
    allocator.take(2, 20 * MIB)
    assert allocator.reserved == 40 * MIB


def test_freed_memory_is_used_again_in_the_step_and_in_the_next() -> None:
    freed = graph_of(2, [(0, 1, 10 * MIB, 0, "saved"), (1, 2, 10 * MIB, 0, "saved")])
    held = graph_of(2, [(0, 2, 10 * MIB, 0, "saved"), (1, 2, 10 * MIB, 0, "saved")])
    assert reserved_bytes(freed, 1) == 10 * MIB
    assert reserved_bytes(held, 1) == 20 * MIB


def test_the_second_step_may_need_more_than_the_first() -> None:
    """First 4 and 16 MiB share a segment of 20, and 12 get their own: 32. When these are free, the
    4 go where they fit best, into the 12, which then find no room."""
    sizes = [(0, 4), (0, 16), (1, 12)]
    graph = graph_of(2, [(born, 2, size * MIB, 0, "gradient") for born, size in sizes])
    assert reserved_bytes(graph, 1) == 44 * MIB


def test_a_full_card_gives_back_what_is_kept_for_later() -> None:
    """30 MiB are freed before 50 are wanted, which do not fit there: the card needs 50 and not the
    80 that are reserved where there is room. What is half in use cannot be given back."""
    apart = graph_of(2, [(0, 1, 30 * MIB, 0, "saved"), (1, 2, 50 * MIB, 0, "saved")])
    assert (least_bytes(apart, 1), reserved_bytes(apart, 1)) == (50 * MIB, 80 * MIB)
    split = [(0, 1, 30 * MIB, 0, "saved"), (1, 3, 5 * MIB, 0, "saved")]
    stuck = graph_of(3, [*split, (2, 3, 50 * MIB, 0, "saved")])
    assert least_bytes(stuck, 1) == reserved_bytes(stuck, 1) == 80 * MIB


# -- what always holds


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    operators = draw(st.integers(1, 8))
    storages = []
    for _ in range(draw(st.integers(0, 25))):
        born = draw(st.integers(-1, operators - 1))
        died = operators if born < 0 else draw(st.integers(born + 1, operators))
        size = draw(
            st.one_of(
                st.integers(0, 3 * MIB),
                st.integers(9 * MIB, 30 * MIB),
                st.sampled_from([512, MIB, 2 * MIB, 10 * MIB]),
            )
        )
        power = draw(st.sampled_from([0, 1, 1, 2]))
        storages.append((born, died, float(size), power, "saved"))
    return graph_of(operators, storages)


@given(graphs(), st.integers(1, 3))
def test_what_is_reserved_holds_what_is_alive(graph: OpGraph, batch: int) -> None:
    peak = live_peak(graph, batch)
    reserved = reserved_bytes(graph, batch)
    assert reserved >= peak.bytes
    assert least_bytes(graph, batch) >= peak.bytes
    assert reserved % (2 * MIB) == 0
    assert reserved == reserved_bytes(graph, batch)
    assert sum(peak.by_role.values()) == pytest.approx(peak.bytes)
    assert peak.forward <= peak.bytes
    born, died = graph.tensors.born, graph.tensors.died
    at_each = [peak.sizes[(born <= at) & (died > at)].sum() for at in range(len(graph))]
    assert peak.bytes == max(at_each)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 25 * MIB // 512)), max_size=60))
def test_the_books_of_the_allocator_balance(moves: list[tuple[int, int]]) -> None:
    """A tensor that is there is freed, one that is not is made; blocks never overlap."""
    allocator = _Allocator()
    held: dict[int, int] = {}
    for tensor, grains in moves:
        if tensor in held:
            del held[tensor]
            allocator.give(tensor)
        else:
            held[tensor] = grains * 512
            allocator.take(tensor, held[tensor])
        assert sum(allocator._size.values()) == allocator.reserved
        spans = sorted((start, start + size) for start, size in allocator._size.items())
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert all(allocator._size[allocator._place[t]] >= size for t, size in held.items())
        free = {block for pool in (allocator._small, allocator._large) for _, block in pool}
        assert free == allocator._is_free
        assert free.isdisjoint(allocator._place.values())
        assert len(free) + len(held) == len(spans)
    for tensor in list(held):
        allocator.give(tensor)
    assert sum(size for size, _ in allocator._small + allocator._large) == allocator.reserved
