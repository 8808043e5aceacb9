"""Pairs of jobs that share a link: by hand, and against all ways to pair them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from presage.foresee.bursts.pairs import Pulse, best_pairs, slowdown


def test_a_pulse_by_hand() -> None:
    """Sends 10 MiB/s for 30 of 100 ms on a link of 12: a quarter of it; receives less. Computes
    with 80 % of its device for half of the time."""
    numbers = np.array([80, 50, 50, 0, 0, 0, 10, 30, 70, 5, 30, 70], float)
    alone = Pulse.of(numbers, 12.0)
    assert alone.link == pytest.approx(0.25)
    assert alone.device == 0.0
    both = Pulse.of(numbers, 12.0, devices_shared=True)
    assert both.device == pytest.approx(0.4)
    assert slowdown(both, Pulse(1.0, 0.5)) == pytest.approx(1 + 0.25 + 0.2)


def test_talkers_are_parted() -> None:
    jobs = [Pulse(0.9), Pulse(0.8), Pulse(0.1), Pulse(0.05)]
    assert best_pairs(jobs) == [(0, 3), (1, 2)]
    computing = [Pulse(0.9, 0.1), Pulse(0.1, 0.9), Pulse(0.8, 0.2), Pulse(0.2, 0.8)]
    assert best_pairs(computing) == [(0, 1), (2, 3)]


def test_no_other_pairs_are_better() -> None:
    random = np.random.default_rng(3)
    jobs = [Pulse(*random.random(2)) for _ in range(6)]

    def cost(pairs: list[tuple[int, int]]) -> float:
        return sum(slowdown(jobs[a], jobs[b]) for a, b in pairs)

    orders = itertools.permutations(range(6))
    least = min(cost([(o[0], o[1]), (o[2], o[3]), (o[4], o[5])]) for o in orders)
    assert cost(best_pairs(jobs)) == pytest.approx(least)


def test_many_jobs_are_paired_once_each() -> None:
    random = np.random.default_rng(4)
    jobs = [Pulse(*random.random(2)) for _ in range(40)]
    pairs = best_pairs(jobs)
    assert sorted(at for pair in pairs for at in pair) == list(range(40))
    chosen = sum(slowdown(jobs[a], jobs[b]) for a, b in pairs)
    in_turn = sum(slowdown(jobs[at], jobs[at + 1]) for at in range(0, 40, 2))
    assert chosen < in_turn
    with pytest.raises(ValueError, match="odd"):
        best_pairs(jobs[:3])
