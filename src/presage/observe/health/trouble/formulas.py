"""The statistics of detectors: exact formulas, small enough not to need a library.

Each answers with a probability. No threshold of a detector is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, exp, inf, lgamma, log, log1p, sqrt

__all__ = [
    "binomial_tail",
    "fisher_tail",
    "pause_tail",
    "posterior",
    "rates_differ",
    "student_cdf",
    "who_is_slow",
]


def posterior(prior: float, chance: float) -> float:
    """How likely trouble is that is there in a share `prior` of the cases and looks like this,
    when what is healthy looks like this with a `chance`."""
    return prior / (prior + (1 - prior) * max(chance, 1e-12))


def pause_tail(count: int, longest_s: float, pause_s: float) -> float:
    """The chance that the next of `count` pauses lasts so long though nothing is wrong: by the
    rule of succession it passes the longest with 1 / (count + 1), and beyond that its tail falls
    with the square (Pareto), as pauses of trainings do not have thin ones."""
    if pause_s <= longest_s:
        return 1.0
    return (longest_s / pause_s) ** 2 / (count + 1)


def student_cdf(t: float, freedom: int) -> float:
    """Student's t distribution for an even number of degrees of freedom, in closed form."""
    if freedom < 2 or freedom % 2:
        raise ValueError("only even degrees of freedom have this form")
    if t in (inf, -inf):
        return float(t > 0)
    cosine2 = freedom / (freedom + t * t)
    sine = t / sqrt(freedom + t * t)
    total = term = 1.0
    for k in range(1, freedom // 2):
        term *= cosine2 * (2 * k - 1) / (2 * k)
        total += term
    return min(1.0, max(0.0, 0.5 + 0.5 * sine * total))


def binomial_tail(successes: int, trials: int, share: float) -> float:
    """The chance of at least so many of the trials, each with the chance `share`."""
    if successes <= trials * share:
        return 1.0
    at_least, term = 0.0, None
    for k in range(successes, trials + 1):
        if term is None:
            rest = (trials - k) * log1p(-share)
            term = exp(_log_comb(trials, k) + k * log(share) + rest)
        else:
            term *= (trials - k + 1) / k * share / (1 - share)
        at_least += term
        if term < at_least * 1e-9:
            break
    return min(1.0, at_least)


def fisher_tail(failed: int, of: int, failed_elsewhere: int, of_elsewhere: int) -> float:
    """Fisher's exact test, one-sided: the chance that so many failures or more fall here when all
    runs fail alike."""
    failures, runs = failed + failed_elsewhere, of + of_elsewhere
    ways = comb(runs, failures)
    most = min(of, failures)
    chance = sum(
        comb(of, k) * comb(of_elsewhere, failures - k)
        for k in range(failed, most + 1)
        if failures - k <= of_elsewhere
    )
    return chance / ways if ways else 1.0


def rates_differ(failed: int, of: int, failed_elsewhere: int, of_elsewhere: int) -> float:
    """The Bayes factor for two rates instead of one, each of them uniform before the data."""

    def mass(k: int, n: int) -> float:
        return lgamma(k + 1) + lgamma(n - k + 1) - lgamma(n + 2)

    apart = mass(failed, of) + mass(failed_elsewhere, of_elsewhere)
    together = mass(failed + failed_elsewhere, of + of_elsewhere)
    return exp(min(700.0, apart - together))


_SLIP = 0.1
"""The slowest worker of an attempt is another one with this chance, by accident."""


def who_is_slow(attempts: Sequence[tuple[Sequence[tuple[int, str]], int]]) -> tuple[float, str]:
    """Node or shard: each attempt is the places (index, node) of the workers, and which of them
    was slow. The probability that the node is to blame, as against the index (what the worker
    does), and which node; half and half while the worker never moved."""
    nodes = sorted({node for places, _ in attempts for _, node in places})
    indices = sorted({index for places, _ in attempts for index, _ in places})

    def likelihood(is_guilty: list[list[bool]]) -> float:
        total = 1.0
        for (places, slow), guilty in zip(attempts, is_guilty, strict=True):
            count = sum(guilty)
            others = len(places) - count
            if count == 0:
                total *= 1 / len(places)
            elif guilty[slow]:
                total *= (1 - _SLIP if others else 1.0) / count
            else:
                total *= _SLIP / others
        return total

    by_node = {
        name: likelihood([[node == name for _, node in places] for places, _ in attempts])
        for name in nodes
    }
    by_index = [
        likelihood([[index == one for index, _ in places] for places, _ in attempts])
        for one in indices
    ]
    worst = max(by_node, key=lambda name: by_node[name])
    on_node = sum(by_node.values()) / len(nodes)
    in_shard = sum(by_index) / len(indices)
    return on_node / (on_node + in_shard), worst


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
