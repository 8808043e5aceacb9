"""Which devices of a node stand for those that others hold. No I/O.

Kubernetes and Slurm give GPUs of a node by number, not by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

__all__ = ["devices_of_others"]


def devices_of_others(
    there: int, count: int, had: Iterable[int], ours: Set[int]
) -> tuple[int, ...]:
    """`count` of the devices that are `there`, none of `ours`: those that others `had` before, as
    far as possible, then the last ones."""
    every = range(there)
    kept = [d for d in had if d in every and d not in ours][:count]
    free = [d for d in reversed(every) if d not in ours and d not in kept]
    return tuple(sorted((*kept, *free[: max(0, count - len(kept))])))
