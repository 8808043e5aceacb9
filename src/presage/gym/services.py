"""A service under a load: requests come, wait in one queue and are served by replicas, whose
number somebody sets every few seconds.

Every request is played by itself: arrivals are Poisson along a curve, each needs an exponential
time of one replica, the oldest goes first (M/M/c with a rate and a number of replicas that
change). A new replica costs GPU time from the moment it is asked for and serves from the first
step after it has started. One that is given back ends its request first. All randomness is in the
seed; two rules with one seed see the same requests. No clock, no files.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from math import ceil
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = [
    "LoadCurve",
    "ReplicaRule",
    "ServiceParts",
    "ServicePrices",
    "ServiceRun",
    "ServiceScene",
    "ServiceSeen",
    "ServiceSetting",
    "play",
]

Floats = npt.NDArray[np.float64]
_FIRST_USE = 0.6
"""How busy the replicas are that a service begins with."""


@dataclass(frozen=True, slots=True)
class ServiceSetting:
    """How a service behaves."""

    service_s: float = 10.0
    """What a request takes of one replica, on average."""
    startup_s: float = 120.0
    """From asking for a replica to its first request."""
    late_s: float = 10.0
    """Who waits longer is late."""
    patience_s: float = 60.0
    """Who has waited so long leaves unserved."""
    sync_s: float = 15.0
    """How often the number of replicas is set."""
    least: int = 1
    most: int = 64


@dataclass(frozen=True, slots=True, eq=False)
class LoadCurve:
    """How much work comes: replicas that it would keep busy (erlangs), for each step."""

    name: str
    step_s: float
    erlangs: Floats

    @property
    def length_s(self) -> float:
        """Until its end."""
        return self.step_s * len(self.erlangs)


@dataclass(frozen=True, slots=True)
class ServiceScene:
    """What one episode is about; the seed says which requests come."""

    curve: LoadCurve
    setting: ServiceSetting = field(default_factory=ServiceSetting)
    seed: int = 0


@dataclass(slots=True)
class ServiceParts:
    """What happened; each the more, the worse."""

    gpu_s: float = 0.0
    """Seconds of replicas, those that start or end among them."""
    late: float = 0.0
    """Requests that were served, but late."""
    unserved: float = 0.0
    """Requests that left."""
    changes: float = 0.0
    """Replicas that were asked for or given back."""

    def minus(self, other: ServiceParts) -> dict[str, float]:
        """By name, what came since."""
        return {
            "gpu_s": self.gpu_s - other.gpu_s,
            "late": self.late - other.late,
            "unserved": self.unserved - other.unserved,
            "changes": self.changes - other.changes,
        }

    def copy(self) -> ServiceParts:
        """As it is now."""
        return ServiceParts(self.gpu_s, self.late, self.unserved, self.changes)


@dataclass(frozen=True, slots=True)
class ServicePrices:
    """What each part costs, in GPU seconds."""

    gpu_s: float = 1.0
    late: float = 300.0
    unserved: float = 600.0
    changes: float = 15.0

    def cost(self, parts: dict[str, float]) -> float:
        """GPU seconds that all of it is worth."""
        return (
            self.gpu_s * parts["gpu_s"]
            + self.late * parts["late"]
            + self.unserved * parts["unserved"]
            + self.changes * parts["changes"]
        )


@dataclass(slots=True, eq=False)
class ServiceSeen:
    """What can be measured of a service: all that rules and networks go by. Lists have a number
    for each step of `sync_s`, the latest last."""

    setting: ServiceSetting
    now: float = 0.0
    ready: int = 0
    """Replicas that serve."""
    starting: int = 0
    queue: int = 0
    """Requests that wait."""
    arrived: list[int] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """Replicas that were busy, on average over the step."""
    served_by: list[int] = field(default_factory=list)
    """Replicas that were ready in the step."""

    @property
    def replicas(self) -> int:
        """That were asked for and not given back."""
        return self.ready + self.starting

    def load(self, window_s: float) -> float:
        """Replicas that what came lately would keep busy: arrivals × mean service time."""
        steps = self.arrived[-max(round(window_s / self.setting.sync_s), 1) :]
        if not steps:
            return 0.0
        return sum(steps) * self.setting.service_s / (len(steps) * self.setting.sync_s)


class ReplicaRule(Protocol):
    """Says how many replicas there should be; asked at every step of one service."""

    def wanted(self, seen: ServiceSeen) -> int:
        """So many."""
        ...


class ServiceRun:
    """One service from the beginning of its curve to the end."""

    def __init__(self, scene: ServiceScene) -> None:
        setting, curve = scene.setting, scene.curve
        self.setting, self.length_s = setting, curve.length_s
        rng = np.random.default_rng(scene.seed)
        counts = rng.poisson(curve.erlangs * curve.step_s / setting.service_s)
        starts = np.repeat(np.arange(len(counts)) * curve.step_s, counts)
        came = np.sort(starts + rng.random(len(starts)) * curve.step_s)
        self._came: list[float] = came.tolist()
        self._needs: list[float] = rng.exponential(setting.service_s, len(came)).tolist()
        self._head = self._next = 0
        """The oldest request that waits, and the first that has not come."""
        first = ceil(float(curve.erlangs[:5].mean()) / _FIRST_USE)
        count = min(max(first, setting.least), setting.most)
        self._free: list[float] = [0.0] * count
        """A heap: when each ready replica is free."""
        self._starting: list[float] = []
        """When replicas will be ready, in order."""
        self.seen = ServiceSeen(setting, ready=count)
        self.parts = ServiceParts()

    @property
    def requests(self) -> int:
        """That come in all."""
        return len(self._came)

    @property
    def over(self) -> bool:
        """Whether the curve has ended."""
        return self.seen.now >= self.length_s

    def advance(self, wanted: int) -> None:
        """Set the number of replicas, and serve for one step. Who waits when all is over was not
        served."""
        setting, seen = self.setting, self.seen
        now, until = seen.now, seen.now + setting.sync_s
        self._scale(min(max(wanted, setting.least), setting.most), now)
        while self._starting and self._starting[0] <= now:
            heappush(self._free, self._starting.pop(0))
        self.parts.gpu_s += (len(self._free) + len(self._starting)) * setting.sync_s
        busy_s = sum(min(free, until) - now for free in self._free if free > now)
        busy_s += self._serve(until)
        arrived = bisect_left(self._came, until, self._next)
        seen.arrived.append(arrived - self._next)
        self._next = arrived
        seen.busy.append(busy_s / setting.sync_s)
        seen.served_by.append(len(self._free))
        seen.ready, seen.starting = len(self._free), len(self._starting)
        seen.queue, seen.now = arrived - self._head, until
        if self.over:
            self.parts.unserved += seen.queue

    def _scale(self, wanted: int, now: float) -> None:
        """Give back those that have not started, then idle ones, then who is free soonest."""
        more = wanted - len(self._free) - len(self._starting)
        self.parts.changes += abs(more)
        for _ in range(more):
            self._starting.append(now + self.setting.startup_s)
        for _ in range(-more):
            if self._starting:
                self._starting.pop()
            else:
                self.parts.gpu_s += max(heappop(self._free) - now, 0.0)

    def _serve(self, until: float) -> float:
        """Requests until a time; seconds that they keep replicas busy before it."""
        came, needs, free, head = self._came, self._needs, self._free, self._head
        late_s, patience_s = self.setting.late_s, self.setting.patience_s
        busy_s, late, left, count = 0.0, 0, 0, len(self._came)
        while head < count:
            asked = came[head]
            if asked >= until:
                break
            begin = max(asked, free[0])
            if min(begin, until) - asked > patience_s:
                left += 1
            elif begin >= until:
                break
            else:
                end = begin + needs[head]
                heapreplace(free, end)
                busy_s += min(end, until) - begin
                late += begin - asked > late_s
            head += 1
        self._head = head
        self.parts.late += late
        self.parts.unserved += left
        return busy_s


def play(scene: ServiceScene, rule: ReplicaRule) -> tuple[ServiceParts, int]:
    """A whole scene under one rule: what happened, and how many requests came."""
    service = ServiceRun(scene)
    while not service.over:
        service.advance(rule.wanted(service.seen))
    return service.parts, service.requests
