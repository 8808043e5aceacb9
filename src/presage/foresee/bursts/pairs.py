"""Which jobs should share a link, or a device, so that one computes while the other talks.

A job loads what it shares for a part of the time (`Pulse`, from twelve numbers that were measured
or foreseen). Where two loads meet at random, the time of each grows by the product of both, on
each shared resource; pairs are chosen so that this is least in all. Nothing here places a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from presage.learn import Floats
from presage.telemetry.bursts import RESOURCES

__all__ = ["Pulse", "best_pairs", "slowdown"]

_EXACT = 14
"""Jobs up to which all ways to pair them are compared; beyond, the worst two are parted first."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Shares of the time in which a job loads what it may share with another, 0 to 1."""

    link: float
    device: float = 0.0

    @classmethod
    def of(cls, numbers: Floats, link_mib_s: float, *, devices_shared: bool = False) -> Pulse:
        """From the twelve numbers of a worker, on a link that carries so much each way."""
        busy = {
            name: heights * lasts / max(lasts + idle, 1e-9)
            for name, (heights, lasts, idle) in zip(
                RESOURCES, np.reshape(numbers, (len(RESOURCES), 3)), strict=True
            )
        }
        link = max(busy["sent"], busy["received"]) / link_mib_s
        device = busy["util"] / 100 if devices_shared else 0.0
        return cls(min(float(link), 1.0), min(float(device), 1.0))


def slowdown(one: Pulse, other: Pulse) -> float:
    """How much longer steps of each take beside the other."""
    return 1.0 + one.link * other.link + one.device * other.device


def best_pairs(jobs: Sequence[Pulse]) -> list[tuple[int, int]]:
    """Pairs of an even number of jobs whose slowdowns add up to the least."""
    if len(jobs) % 2:
        raise ValueError("an odd number of jobs cannot be paired")
    if len(jobs) > _EXACT:
        return sorted(_greedy(jobs))

    @cache
    def best(left: frozenset[int]) -> tuple[float, tuple[tuple[int, int], ...]]:
        if not left:
            return 0.0, ()
        first = min(left)
        options = []
        for second in sorted(left - {first}):
            cost, pairs = best(left - {first, second})
            cost += slowdown(jobs[first], jobs[second])
            options.append((cost, ((first, second), *pairs)))
        return min(options)

    return list(best(frozenset(range(len(jobs))))[1])


def _greedy(jobs: Sequence[Pulse]) -> Iterator[tuple[int, int]]:
    """The heaviest of those that are left, with the one that it disturbs least."""
    left = sorted(range(len(jobs)), key=lambda at: -(jobs[at].link + jobs[at].device))
    while left:
        heavy = left.pop(0)
        partner = min(left, key=lambda at: slowdown(jobs[heavy], jobs[at]))
        left.remove(partner)
        yield min(heavy, partner), max(heavy, partner)
