"""Who may use a device next: the rules, in simulated time."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import product

import pytest

from presage.executors.node.shares.page import FOREVER
from presage.executors.node.shares.turns import DeviceTurns, Grant, ShareTerms, promised

MS = 1_000_000


def play(
    terms: list[ShareTerms],
    seconds: float = 10.0,
    kernel_ms: float = 2.0,
    busy: float = 1.0,
    late_ms: Sequence[float] = (0.0, 0.0, 0.0),
) -> list[float]:
    """What each of some tenants gets of a device that runs kernels of one length; those after the
    first want it for a part of the time only, and some are late to ask for their next turn."""
    turns, now, end = DeviceTurns(0), 0, int(seconds * 1e9)
    kernel, used, free_at = int(kernel_ms * MS), [0] * len(terms), 0
    news: list[tuple[int, int, str, int, int]] = []
    versions = [0] * len(terms)
    started = [0] * len(terms)
    for number, one in enumerate(terms):
        turns.join(number, f"share-{number}", one, 0)
        turns.want(number, 0)
    count = 0
    while now < end:
        grant = turns.next(now)
        while grant is not None:
            seat = int(str(grant.seat))
            until = min(grant.until_ns, end)
            if not started[seat]:
                started[seat] = max(now, free_at) + 1
            begun = started[seat] - 1
            length = max(1, (until - begun) // kernel) * kernel
            free_at = begun + length
            versions[seat] += 1
            count += 1
            heapq.heappush(news, (free_at, count, "done", seat, versions[seat]))
            grant = turns.next(now)
        wait = turns.wait_ns(now)
        due = news[0][0] if news else end
        now = max(now, min(due, now + max(wait, 1) if wait is not None else due))
        while news and news[0][0] <= now:
            at, _, what, seat, version = heapq.heappop(news)
            if what == "want":
                turns.want(seat, now)
            elif version == versions[seat]:
                had, started[seat] = at - (started[seat] - 1), 0
                used[seat] += had
                pause = int(late_ms[seat] * MS) + int(had * (1 / busy - 1) if seat else 0)
                turns.done(seat, had, at, kernel, wants=not pause, now=now)
                if pause:
                    count += 1
                    heapq.heappush(news, (now + pause, count, "want", seat, 0))
    return [one / end for one in used]


def hungry(*pairs: tuple[float, float]) -> list[ShareTerms]:
    return [ShareTerms(request, limit) for request, limit in pairs]


STEPS = [step / 10 for step in range(1, 11)]
GRID = [
    ((r1, l1), (r2, l2))
    for r1, l1, r2, l2 in product(STEPS, STEPS, STEPS, STEPS)
    if r1 <= l1 and r2 <= l2 and r1 + r2 <= 1.0 + 1e-9
]


def test_two_tenants_get_what_the_rules_promise_on_the_grid() -> None:
    for pairs in GRID[::97]:
        terms = hungry(*pairs)
        for got, due, one in zip(play(terms), promised(terms), terms, strict=True):
            assert got == pytest.approx(due, abs=0.03), pairs
            assert got <= one.limit + 0.01, pairs


MISSED = [((0.5, 1.0), (0.3, 1.0)), ((0.1, 1.0), (0.7, 0.9))]
"""Mixes that real processes did not get, when those who ask late lost what they were behind."""


@pytest.mark.parametrize("late_ms", [(0.0, 0.3), (0.3, 0.0), (0.3, 0.3), (0.8, 0.1)])
def test_who_asks_again_a_moment_late_loses_nothing(late_ms: tuple[float, float]) -> None:
    for pairs in [*MISSED, *GRID[::291]]:
        terms = hungry(*pairs)
        got = play(terms, late_ms=late_ms)
        assert got == pytest.approx(promised(terms), abs=0.015), pairs
        for share, one in zip(got, terms, strict=True):
            assert share <= one.limit + 0.01, pairs


@pytest.mark.parametrize(
    "pairs",
    [
        ((0.2, 0.2), (0.3, 0.6), (0.5, 1.0)),
        ((0.1, 1.0), (0.1, 1.0), (0.1, 1.0)),
        ((0.0, 1.0), (0.6, 0.7), (0.0, 0.2)),
        ((0.0, 0.1), (0.0, 0.1), (0.0, 0.1)),
        ((0.1, 0.6), (0.9, 0.9)),
    ],
)
@pytest.mark.parametrize("kernel_ms", [0.05, 2.0, 25.0, 80.0])
def test_kernels_of_any_length(pairs: tuple[tuple[float, float], ...], kernel_ms: float) -> None:
    terms = hungry(*pairs)
    assert play(terms, 20.0, kernel_ms) == pytest.approx(promised(terms), abs=0.03)


def test_what_is_left_over_goes_by_weight() -> None:
    terms = [ShareTerms(0.1, weight=1.0), ShareTerms(0.1, weight=3.0)]
    assert promised(terms) == pytest.approx([0.3, 0.7])
    assert play(terms) == pytest.approx([0.3, 0.7], abs=0.02)
    assert play(terms, late_ms=(0.3, 0.3)) == pytest.approx([0.3, 0.7], abs=0.02)


def test_a_tenant_that_wants_little_gets_it_and_leaves_the_rest() -> None:
    got = play([ShareTerms(0.3), ShareTerms(0.4)], busy=0.2)
    assert sum(got) == pytest.approx(1.0, abs=0.02)
    assert got[1] == pytest.approx(0.2, abs=0.01)


def test_one_alone_has_the_device_until_somebody_else_wants_it() -> None:
    turns = DeviceTurns(0)
    turns.join("a", "a", ShareTerms(0.2), 0)
    turns.want("a", 0)
    grant = turns.next(0)
    assert grant is not None
    assert grant.until_ns == FOREVER
    assert turns.wait_ns(5) is None
    turns.join("b", "b", ShareTerms(0.2), 50 * MS)
    turns.want("b", 50 * MS)
    recall = turns.next(50 * MS)
    assert recall is not None
    assert recall.seat == "a"
    assert recall.until_ns <= 52 * MS


def both_wanting() -> tuple[DeviceTurns, Grant]:
    """Two that want a device, and the first turn that is given."""
    turns = DeviceTurns(0)
    for name in "ab":
        turns.join(name, name, ShareTerms(0.5), 0)
        turns.want(name, 0)
    first = turns.next(0)
    assert first is not None
    return turns, first


def test_nobody_is_alone_before_the_one_before_is_done() -> None:
    turns, first = both_wanting()
    second = turns.next(first.until_ns - MS)  # the first runs still, and so asks for nothing
    assert second is not None
    assert second.seat != first.seat
    assert second.until_ns < FOREVER
    turns.done(first.seat, MS, first.until_ns, MS, wants=False, now=first.until_ns)
    alone = turns.next(second.until_ns - MS)
    assert alone is not None
    assert alone.seat == second.seat
    assert alone.until_ns == FOREVER


def test_time_alone_is_not_held_against_anybody() -> None:
    turns = DeviceTurns(0)
    for name in "ab":
        turns.join(name, name, ShareTerms(0.0), 0)
    turns.want("a", 0)
    turns.next(0)
    later = 3_600_000 * MS
    turns.want("b", later)
    turns.next(later)
    turns.done("a", later, later + MS, MS, wants=True, now=later + MS)
    order = []
    now = later + MS
    for _ in range(8):
        grant = turns.next(now)
        assert grant is not None
        order.append(str(grant.seat))
        now = grant.until_ns
        turns.done(grant.seat, 10 * MS, now, MS, wants=True, now=now)
    assert sorted(order) == ["a"] * 4 + ["b"] * 4


def test_a_soft_limit_holds_only_beside_others() -> None:
    soft = ShareTerms(0.1, 0.3, hard=False)
    assert play([soft], 2.0) == pytest.approx([1.0], abs=0.02)
    assert play([ShareTerms(0.1, 0.3)], 4.0) == pytest.approx([0.3], abs=0.02)
    both = play([soft, ShareTerms(0.5, 1.0)], 8.0)
    assert both[0] <= 0.31


def test_who_does_not_give_its_turn_back_is_passed_over() -> None:
    turns, first = both_wanting()
    second = turns.next(first.until_ns)
    assert second is not None
    assert second.seat != first.seat
    third = turns.next(second.until_ns + 200 * MS)
    assert third is None or third.seat == second.seat
    assert turns.next(second.until_ns + 400 * MS) is None


def test_a_process_that_is_gone_leaves_its_turn() -> None:
    turns, first = both_wanting()
    turns.leave(first.seat, 0, MS)
    then = turns.next(MS)
    assert then is not None
    assert then.seat != first.seat


def test_shares_change_while_they_are_used() -> None:
    turns = DeviceTurns(0)
    turns.join("a", "a", ShareTerms(0.1, 1.0), 0)
    turns.change("a", ShareTerms(0.1, 0.2))
    turns.want("a", 0)
    grant = turns.next(0)
    assert grant is not None
    assert grant.until_ns != FOREVER


def test_a_turn_counts_from_the_end_of_the_one_before() -> None:
    turns = DeviceTurns(0)
    for name in "abc":
        turns.join(name, name, ShareTerms(0.3), 0)
        turns.want(name, 0)
    first = turns.next(0)
    assert first is not None
    early = first.until_ns - MS  # the next is let in while the one before still runs
    second = turns.next(early)
    assert second is not None
    late = first.until_ns + 3 * MS
    assert turns.done(first.seat, late, late, MS, wants=False, now=late) == late
    end = late + 5 * MS
    assert turns.done(second.seat, end - early, end, MS, wants=False, now=end) == 5 * MS


def test_time_alone_is_counted_by_who_had_it() -> None:
    turns = DeviceTurns(0)
    turns.join("a", "a", ShareTerms(0.2), 0)
    turns.want("a", 0)
    turns.next(0)
    assert turns.done("a", 7 * MS, 9 * MS, MS, wants=False, now=9 * MS) is None


def test_a_raised_limit_does_not_bring_back_what_was_left_to_others() -> None:
    turns = DeviceTurns(0)
    for name, limit in (("a", 1.0), ("b", 0.1)):
        turns.join(name, name, ShareTerms(0.0, limit), 0)
        turns.want(name, 0)
    now, ends, had = 0, (60_000 * MS, 70_000 * MS), {"a": 0, "b": 0}
    for end in ends:
        had = {"a": 0, "b": 0}
        while now < end:
            grant = turns.next(now)
            assert grant is not None
            had[str(grant.seat)] += grant.until_ns - now
            now = grant.until_ns
            turns.done(grant.seat, 1, now, MS, wants=True, now=now)
        turns.change("b", ShareTerms(0.0, 1.0))
    assert had["b"] / sum(had.values()) == pytest.approx(0.5, abs=0.03)


def test_a_new_process_is_not_granted_afresh_what_the_one_before_had() -> None:
    turns, now, used, end = DeviceTurns(0), 0, 0, 10_000 * MS
    while now < end:
        turns.join(now, "a", ShareTerms(0.0, 0.1), now)
        turns.want(now, now)
        grant, asked = turns.next(now), now
        while grant is None:
            now += turns.wait_ns(now) or 1
            grant = turns.next(now)
        used += grant.until_ns - now
        now = grant.until_ns
        turns.done(asked, 1, now, MS, wants=False, now=now)
        turns.leave(asked, 0, now)
    assert used / end <= 0.11
    turns.forget("a")
    turns.join("again", "a", ShareTerms(0.0, 0.1), now)
    turns.want("again", now)
    assert turns.next(now) is not None


def test_who_waits_for_an_overdue_turn_does_not_pay_for_it() -> None:
    turns = DeviceTurns(0)
    for name in "ab":
        turns.join(name, name, ShareTerms(0.5, 0.9), 0)
        turns.want(name, 0)
    first = turns.next(0)
    assert first is not None
    late = first.until_ns + 10 * MS  # its last kernel is long
    second = turns.next(late)
    assert second is not None
    assert second.seat != first.seat
    turns.done(second.seat, 0, late + MS, MS, wants=True, now=late + MS)  # nothing was launched
    again = turns.next(late + MS)
    assert again is not None
    assert again.seat == second.seat
    over = late + 20 * MS
    turns.done(first.seat, over, over, MS, wants=False, now=over)
    end = over + 30 * MS
    assert turns.done(second.seat, 50 * MS, end, MS, wants=False, now=end) == 30 * MS
