"""The list schedule of a query's stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from presage.foresee.runtime.dag import StageWork, in_order, simulate
from presage.model.errors import UserError


def test_a_first_wave_and_the_rest() -> None:
    made = simulate({0: StageWork(2, 3, 4.0, 1.0)}, [], 2)
    assert made.total_s == 6.0  # two first tasks till 4, then 3 of the rest on 2 executors


def test_a_stage_waits_for_its_parents_and_others_fill_in() -> None:
    works = {
        0: StageWork(1, 0, 5.0, 0.0),
        1: StageWork(1, 0, 1.0, 0.0),
        2: StageWork(2, 0, 2.0, 0.0),
    }
    made = simulate(works, [(0, 2)], 2)
    assert made.start_s == {0: 0.0, 1: 0.0, 2: 5.0}
    assert made.total_s == 7.0


def test_a_cycle_is_named() -> None:
    with pytest.raises(UserError, match="cycle: 1 → 2 → 1"):
        in_order([0, 1, 2], [(0, 1), (1, 2), (2, 1)])


def test_an_edge_to_nowhere_is_named() -> None:
    with pytest.raises(UserError, match="names stage 7"):
        in_order([0], [(0, 7)])


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), min_size=1, max_size=6),
    st.integers(1, 8),
)
def test_no_schedule_beats_the_work_or_the_longest_path(
    sizes: list[tuple[int, int]], executors: int
) -> None:
    works = {n: StageWork(first, rest, 2.0, 1.0) for n, (first, rest) in enumerate(sizes)}
    edges = [(n, n + 1) for n in range(len(sizes) - 1)]
    made = simulate(works, edges, executors)
    total = sum(2.0 * first + rest for first, rest in sizes)
    assert made.total_s >= total / executors - 1e-9
    assert made.total_s >= 2.0 * len(sizes) - 1e-9
    assert made.total_s <= total + 1e-9
    assert set(made.end_s) == set(works)
