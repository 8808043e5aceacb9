"""What detectors are told of a run: where its workers are, what they were given, and how far the
run said that it is. Nothing is judged here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["LiveRun", "ProgressPace", "WatchedRun", "WorkerPlace"]

_POINTS = 64
"""Of each metric, the latest."""


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Where a worker is, and what it was given; 0 where nobody said how much."""

    node: str
    index: int = 0
    devices: tuple[int, ...] = ()
    cores: float = 0.0
    memory_mib: float = 0.0
    gpu_memory_mib: float = 0.0
    """Of one of its devices."""
    node_memory_mib: float = 0.0


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that is under way."""

    job: str
    attempt: int
    started_at: float
    workers: Mapping[str, WorkerPlace] = field(hash=False)


class ProgressPace:
    """How often a run got further, and how long its pauses were."""

    __slots__ = ("advances", "last_at", "longest_s", "where")

    def __init__(self, at: float) -> None:
        self.advances = 0
        self.longest_s = 0.0
        self.last_at = at
        self.where: tuple[float, ...] = ()

    def see(self, at: float, where: tuple[float, ...]) -> None:
        """It says it is there; only another place than before counts."""
        if where == self.where:
            return
        if self.advances:  # what went before the first was the start
            self.longest_s = max(self.longest_s, at - self.last_at)
        self.advances += 1
        self.last_at, self.where = at, where


class WatchedRun:
    """A run, and what it reported so far."""

    __slots__ = ("metrics", "not_finite", "not_finite_at", "pace", "view")

    def __init__(self, view: LiveRun) -> None:
        self.view = view
        self.pace = ProgressPace(view.started_at)
        self.metrics: dict[str, deque[tuple[float, float]]] = {}
        self.not_finite: tuple[str, ...] = ()
        self.not_finite_at = 0.0

    def report(
        self, at: float, done: float, detail: Mapping[str, float], not_finite: Iterable[str]
    ) -> None:
        """Take in what it said of itself."""
        self.pace.see(at, (done, detail.get("step", -1.0), detail.get("epoch", -1.0)))
        for name, value in detail.items():
            if "loss" in name.lower() and name not in ("step", "epoch"):
                points = self.metrics.setdefault(name, deque(maxlen=_POINTS))
                points.append((at, value))
        named = tuple(not_finite)
        if named and not self.not_finite:
            self.not_finite_at = at
        self.not_finite = named
