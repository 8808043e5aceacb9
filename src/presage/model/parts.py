"""How a GPU's time is divided where shares of it are enforced: to each what it requested, and the
rest by weight to those who still want more. Pure arithmetic; it measures and grants nothing."""

from __future__ import annotations

from collections.abc import Sequence

from presage.model.job import JobSpec

__all__ = ["ENFORCED", "TURN_COST", "divided", "enforced_limit", "held_slowdowns"]

ENFORCED = "presage/gpu-limit"
"""The label of a job whose workers have an enforced share of a GPU; its value is their limit."""
TURN_COST = 0.05
"""The part of a device's time that goes with changes of turns."""
_ROUNDING = 1e-9


def enforced_limit(spec: JobSpec) -> float | None:
    """What the share of a GPU of each worker is held to; None if nothing is enforced."""
    said = spec.labels.get(ENFORCED) if spec.labels else None
    return None if said is None else float(said)


def divided(
    requests: Sequence[float],
    most: Sequence[float],
    weights: Sequence[float],
    there: float = 1.0,
) -> list[float]:
    """What each gets of the time there is: its request, and of the rest by weight, up to the most
    it may have or wants. Where requests add up to more than the whole, each gets its part of
    them."""
    asked = sum(requests)
    got = [request / max(1.0, asked) for request in requests]
    while True:
        rest = there - sum(got)
        open_ = [at for at, has in enumerate(got) if has < most[at] - _ROUNDING]
        if rest <= _ROUNDING or not open_:
            return got
        together = sum(weights[at] for at in open_)
        for at in open_:
            got[at] = min(most[at], got[at] + rest * weights[at] / together)


def held_slowdowns(
    wants: Sequence[float],
    requests: Sequence[float],
    limits: Sequence[float],
    free: Sequence[float],
    turn_cost: float,
) -> list[float]:
    """How many times longer jobs take whose shares of a device are enforced. Each wants it for a
    part of the time, and would take `free` times as long if nothing were.

    Turns are exclusive, and a part of a full device's time goes with their changes. So together
    they get what they would get without, but no more than the rest; and each at least its request.
    """
    useful = 1.0 - turn_cost
    there = min(useful, sum(want / times for want, times in zip(wants, free, strict=True)))
    most = [min(want, limit) for want, limit in zip(wants, limits, strict=True)]
    least = [min(asked, cap) for asked, cap in zip(requests, most, strict=True)]
    fits = min(1.0, useful / sum(least))
    got = divided([fits * part for part in least], most, [1.0] * len(wants), there)
    return [max(1.0, want / part) for want, part in zip(wants, got, strict=True)]
