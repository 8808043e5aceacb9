"""How fast runs were at the sizes they had, by workload: what a cluster learns from its own jobs.

Points come in as facts (`SpeedMeasured`), so that a journal has all that was known when it was
decided. What is kept of them is bounded: one point a size, the latest workloads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp, inf, log

__all__ = ["SpeedBook", "SpeedPoint"]

MOST_WORKLOADS = 500
"""Of more workloads, the one that was not measured for the longest is forgotten."""
MOST_SIZES = 32
"""Of more sizes of a workload, the same."""
PAST_S = 4 * 3600.0
"""Seconds that the past of a size weighs at most when a new point comes in."""


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """A stretch of a run at one size, or what several of them come to."""

    workers: int
    nodes: int
    """Those that the workers are on."""
    whole_s: float
    """Seconds that the whole work takes at this speed."""
    measured_s: float
    """How long the stretch was."""

    def __post_init__(self) -> None:
        if not (0 < self.whole_s < inf and 0 < self.measured_s < inf):
            raise ValueError("a point of a speed needs positive times")
        if not 1 <= self.nodes <= self.workers:
            raise ValueError("a point of a speed needs workers on nodes, one or more on each")

    def after(self, before: SpeedPoint) -> SpeedPoint:
        """Both as one: the mean in logarithms by how long each was measured."""
        past_s = min(before.measured_s, PAST_S)
        measured_s = past_s + self.measured_s
        whole = past_s * log(before.whole_s) + self.measured_s * log(self.whole_s)
        return SpeedPoint(self.workers, self.nodes, exp(whole / measured_s), measured_s)


@dataclass(slots=True, eq=False)
class SpeedBook:
    """What is known of each workload. Written by `State` alone."""

    count: int = 0
    """Points that ever came in; another number says that something was learned."""
    points: dict[str, tuple[SpeedPoint, ...]] = field(default_factory=dict)
    """By the name of the work (`model.workload.same_work`): a point a size. Those that were
    measured last are last. A tuple is replaced as a whole."""

    def add(self, work: str, point: SpeedPoint) -> None:
        """A run of this workload had this speed."""
        size, others = (point.workers, point.nodes), []
        for known in self.points.pop(work, ()):
            if (known.workers, known.nodes) == size:
                point = point.after(known)
            else:
                others.append(known)
        self.points[work] = (*others[-(MOST_SIZES - 1) :], point)
        if len(self.points) > MOST_WORKLOADS:
            del self.points[next(iter(self.points))]
        self.count += 1

    def of(self, work: str) -> tuple[SpeedPoint, ...]:
        """What runs of a workload told."""
        return self.points.get(work, ())

    def copy(self) -> SpeedBook:
        """One of its own, equal to this one."""
        return SpeedBook(self.count, dict(self.points))
