"""Rules that set the number of replicas of a service without having learned: Kubernetes'
horizontal pod autoscaler as it is by default, and three simple ones that know more.

Each is made for one service and asked at every step. They go by `ServiceSeen` alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil, sqrt

import numpy as np

from presage.gym.services import ServiceSeen

__all__ = [
    "RULES",
    "FixedCount",
    "InFlight",
    "RootStaffing",
    "Stabilized",
    "SteadyRule",
    "TargetUse",
    "Trend",
    "ahead",
    "rule_of",
]

WINDOW_S = 300.0
"""How long the number of replicas stays at the highest that was asked for: HPA's default."""
_TOLERANCE = 0.1


class Stabilized:
    """Never fewer replicas than were recommended in a window, and never more than twice as many,
    or four more, as a step before: the autoscaler's default behaviour at steps of 15 s."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._said: deque[tuple[float, int]] = deque()
        """When, and what was recommended; none is below one behind it."""

    def settle(self, desired: int, seen: ServiceSeen) -> int:
        """What is done about a recommendation."""
        now, current, said = seen.now, seen.replicas, self._said
        setting = seen.setting
        while said and said[-1][1] <= desired:
            said.pop()
        said.append((now, desired))
        while said[0][0] < now - self._window_s:
            said.popleft()
        most = said[0][1]
        after = desired if current < desired else min(current, most)
        after = min(after, max(2 * current, current + 4))
        return min(max(after, setting.least), setting.most)


class SteadyRule:
    """A rule that says what it would like, and is stabilized."""

    def __init__(self) -> None:
        self.stable = Stabilized()

    def wanted(self, seen: ServiceSeen) -> int:
        """So many."""
        return self.stable.settle(self.desired(seen) if seen.busy else seen.replicas, seen)

    def desired(self, seen: ServiceSeen) -> int:
        """What it would like now, after a step at least."""
        raise NotImplementedError


class TargetUse(SteadyRule):
    """The target-utilization rule of Kubernetes' horizontal pod autoscaler: ceil(current × use ÷
    target), nothing within a tenth of the target. Replicas that start count as idle before more
    are asked for, and not at all before some are given back. The metric is the mean over
    `metric_s`."""

    def __init__(self, target: float, metric_s: float = 60.0) -> None:
        super().__init__()
        self._target, self._metric_s = target, metric_s

    def desired(self, seen: ServiceSeen) -> int:
        """As many as bring the use to its target."""
        steps = max(round(self._metric_s / seen.setting.sync_s), 1)
        use = sum(seen.busy[-steps:]) / sum(seen.served_by[-steps:])
        ratio, current = use / self._target, seen.replicas
        if not seen.starting or ratio <= 1:
            return current if abs(ratio - 1) <= _TOLERANCE else ceil(ratio * seen.ready)
        again = ratio * seen.ready / current
        if again <= 1 + _TOLERANCE:
            return current
        return ceil(again * current)


class InFlight(SteadyRule):
    """Reacts to requests in flight (served or waiting) per replica, as serverless platforms do: it
    sees a backlog, which utilization does not."""

    def __init__(self, target: float, metric_s: float = 60.0) -> None:
        super().__init__()
        self._target, self._metric_s = target, metric_s

    def desired(self, seen: ServiceSeen) -> int:
        """As many as bring them to the target."""
        busy = seen.busy[-max(round(self._metric_s / seen.setting.sync_s), 1) :]
        return ceil((sum(busy) / len(busy) + seen.queue) / self._target)


class Trend(SteadyRule):
    """Goes by the load as it will be when a replica that is asked for now has started, and by a
    target for its use."""

    def __init__(self, target: float) -> None:
        super().__init__()
        self._target = target

    def desired(self, seen: ServiceSeen) -> int:
        """The same share more than that load, whatever its size."""
        return ceil(ahead(seen) / self._target)


class RootStaffing(SteadyRule):
    """That load and a margin that grows with its root, as queues of many servers need it (after
    Erlang): small services get relatively more."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self._margin = margin

    def desired(self, seen: ServiceSeen) -> int:
        """So many roots more."""
        load = ahead(seen)
        return ceil(load + self._margin * sqrt(load))


class FixedCount(SteadyRule):
    """Always the same."""

    def __init__(self, count: float) -> None:
        super().__init__()
        self._count = int(count)

    def wanted(self, seen: ServiceSeen) -> int:
        """At once, and for ever."""
        return self._count

    def desired(self, seen: ServiceSeen) -> int:
        """The same."""
        return self._count


_PAST_S, _BEYOND_S = 600.0, 60.0


def ahead(seen: ServiceSeen) -> float:
    """The load when a replica that is asked for now has started: on a straight line through the
    last ten minutes, at least as in the last two; and what clears the queue in a minute."""
    setting = seen.setting
    steps = max(round(_PAST_S / setting.sync_s), 2)
    told = seen.arrived[-steps:]
    late = seen.load(120.0)
    count, per = len(told), setting.service_s / setting.sync_s
    rise = 0.0
    if count == steps:
        middle = (count - 1) / 2
        slope = sum((k - middle) * one for k, one in enumerate(told)) / (
            count * (count**2 - 1) / 12
        )
        reach = middle + (setting.startup_s + _BEYOND_S) / setting.sync_s
        rise = (sum(told) / count + slope * reach) * per
    return max(rise, late) + seen.queue * setting.service_s / 60.0


Knobs = tuple[float, ...]
RULES: dict[str, tuple[Callable[[float], SteadyRule], Knobs]] = {
    "hpa": (TargetUse, tuple(np.round(np.arange(0.2, 0.96, 0.05), 2).tolist())),
    "in-flight": (InFlight, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
    "trend": (Trend, (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)),
    "root": (RootStaffing, (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0)),
}
"""By name, how to make it and the settings that are tried."""


def rule_of(name: str, knob: float) -> SteadyRule:
    """A fresh one, for one service."""
    return RULES[name][0](knob)
