"""Whether something fits, from its quantiles: in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, log, sqrt
from typing import Any

from presage.foresee.gpus import Gpu
from presage.learn import Floats

__all__ = ["chance_below", "verdict"]

_P90 = 1.2815515655446004
"""Standard deviations between the median and the 90 % quantile of a normal distribution."""


def chance_below(quantiles: Sequence[float] | Floats, room: float) -> float:
    """The chance that something with these p10, p50, p90 is at most `room`: normal in logarithms,
    with a width for each side."""
    low, middle, high = (max(float(value), 1e-9) for value in quantiles)
    away = log(max(room, 1e-9) / middle)
    width = log(high / middle) if away > 0 else log(middle / low)
    return 0.5 * (1 + erf(away / max(width, 1e-9) * _P90 / sqrt(2)))


def verdict(
    memory: Sequence[float] | Floats, gpu: Gpu, most: int, batch: int, what: str = "batch"
) -> dict[str, Any]:
    """Whether quantiles of memory fit: the fields `fits`, `headroom_mib` and `reason`."""
    room = float(gpu.usable_mib)
    return {
        "fits": bool(memory[2] <= room),
        "headroom_mib": round(room - float(memory[2]), 1),
        "reason": _reason(memory, room, most, batch, what),
    }


def _reason(
    memory: Sequence[float] | Floats, room: float, most: int, batch: int, what: str
) -> str:
    need = f"{memory[2] / 1024:.1f} of {room / 1024:.1f} GiB at the 90 % quantile"
    if memory[2] <= room:
        return f"fits: {need}; {what} up to {most:,}"
    if memory[0] <= room:
        safe = f"{what} {most:,} is safe" if most else f"no {what} is safe"
        return f"may not fit: {need}, {memory[1] / 1024:.1f} at the median; {safe}"
    less = f"{what} {most:,} would" if most else "not even one sample would"
    return f"does not fit: {need}; {less} of the {batch:,} asked"
