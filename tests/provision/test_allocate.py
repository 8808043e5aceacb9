from __future__ import annotations

import numpy as np
import pytest

from presage.provision.allocate import AllocationRules, Wish, allocate, margin_for, score
from presage.provision.policies import adaptive, dynamic
from presage.provision.usage import Usage, Value
from tests.provision.fleet import fleet, series

PLAIN = AllocationRules()


def test_scores_count_samples_and_windows_without_the_first_window() -> None:
    usage = Usage.of([series(memory=[9, 9, 1, 3, 2, 2])], "memory", 20.0)
    found = score(usage, np.array([np.nan, 2.0, 2.0]), 0.0)
    assert found.alloc_over_use == pytest.approx(8 / 8)
    assert found.fulfilment_pct == 75
    assert (found.oom, found.throttled, found.resizes) == (1, 0, 0)


def test_cpu_is_throttled_and_never_out_of_memory() -> None:
    usage = Usage.of([series(cpu=[9, 9, 3, 3, 2, 2])], "cpu", 20.0)
    found = score(usage, np.array([np.nan, 2.0, 4.0]), 0.0)
    assert (found.oom, found.throttled, found.resizes) == (0, 2, 1)


def test_nothing_used_gives_no_ratio() -> None:
    usage = Usage.of([series(cpu=[0, 0, 0, 0])], "cpu", 20.0)
    found = score(usage, np.array([np.nan, 1.0]), 0.0)
    assert found.alloc_over_use is None
    assert found.fulfilment_pct == 100


def test_memory_never_falls_below_what_is_in_use() -> None:
    usage = Usage.of([series(memory=[1, 1, 1, 9, 9, 9])], "memory", 20.0)
    given = allocate(usage, Wish(np.array([np.nan, 2.0, 3.0])), 0.0, PLAIN)
    assert given[1:].tolist() == [2, 9]
    free = allocate(usage, Wish(np.array([np.nan, 2.0, 3.0]), fixed=True), 0.0, PLAIN)
    assert free[1:].tolist() == [2, 3]


def test_an_oom_is_remembered_up_to_the_ceiling() -> None:
    usage = Usage.of([series(memory=[1, 1, 10, 1, 1, 1, 1, 1])], "memory", 20.0)
    wish = Wish(np.array([np.nan, 2.0, 2.0, 2.0]), bump=1.2)
    assert allocate(usage, wish, 0.0, PLAIN)[1:].tolist() == [2, 12, 12]
    assert allocate(usage, wish, 0.0, AllocationRules(ceiling=11.0))[1:].tolist() == [2, 11, 11]
    more = Wish(wish.values, bump=1.2, bump_least=100.0)
    assert allocate(usage, more, 0.0, PLAIN)[2] == 20  # at most twice the largest use


def test_reduction_can_be_slow() -> None:
    usage = Usage.of([series(cpu=[8, 8, 8, 8, 1, 1, 1, 1])], "cpu", 20.0)
    wish = adaptive(usage, Value(1.0))
    assert allocate(usage, wish, 0.0, PLAIN)[1:].tolist() == [8, 8, 1]
    assert allocate(usage, wish, 0.0, AllocationRules(slow_reduction=0.5))[1:].tolist() == [
        8,
        8,
        4,
    ]


@pytest.mark.parametrize("target", [80.0, 95.0, 100.0])
@pytest.mark.parametrize("resource", ["cpu", "memory"])
def test_the_margin_is_the_smallest_that_fulfils_the_target(resource: str, target: float) -> None:
    usage = Usage.of(fleet(10), resource, 120.0)
    wish = adaptive(usage, Value())
    margin = margin_for(usage, wish, PLAIN, target)
    here, below = (
        score(usage, allocate(usage, wish, one, PLAIN), one) for one in (margin, margin - 0.001)
    )
    assert here.fulfilment_pct >= target > below.fulfilment_pct


def test_a_margin_can_be_negative() -> None:
    usage = Usage.of(fleet(10), "cpu", 120.0)
    assert margin_for(usage, dynamic(usage, Value(1.0)), PLAIN, 90.0) < 0
    assert margin_for(usage, dynamic(usage, Value(1.0)), PLAIN, 90.0, least=0.0) == 0


def test_a_target_out_of_reach_gets_the_closest_margin() -> None:
    usage = Usage.of([series(cpu=[0, 0, 1, 0, 0, 0])], "cpu", 20.0)
    wish = Wish(np.array([np.nan, 0.0, 0.0]))
    assert margin_for(usage, wish, PLAIN, 95.0) < 0
