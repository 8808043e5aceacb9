"""Whether a fault leaves any trace in the metrics of its pod: how unusual the pod's minutes are
against all quiet minutes of its day, later ones too. That is more than `find_causes` may know, so
it bounds what it could find. Nothing is chosen here, and no label is used but the guilty pod's.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from presage.telemetry.series import Floats, Series

__all__ = ["QuietDay", "quiet_pods"]

BEFORE, WINDOW = 5, 3
"""Samples of a minute: what came before, and the window."""
FAULT_S = (-30.0, 360.0)
"""From when to when a fault may show."""
SELDOM = 0.99
LOAD, BUSY = 0.5, 0.9
"""QuietDay minutes have at least this share of the load of the day's busy ones."""
TINY = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class QuietDay:
    """One pod's day: how far it went in each window, and how far it goes in quiet ones."""

    times: Floats
    strongest: Floats
    """Of each window, the change of the metric that changed most, in what it seldom exceeds."""
    quiet: Floats
    """The same, of quiet windows, rising."""

    def chance(self, begin: float) -> tuple[float, float] | None:
        """How often a quiet window goes as far as that from `begin`, and how far that is."""
        at = int(np.searchsorted(self.times, begin))
        if at == len(self.times) or self.times[at] > begin + 120:
            return None
        far = float(self.strongest[at])
        beyond = len(self.quiet) - np.searchsorted(self.quiet, far, side="left")
        return float(beyond / len(self.quiet)), far


def quiet_pods(pods: Sequence[Series], faults: Sequence[float]) -> list[QuietDay]:
    """Each pod of a day, whose faults began at these times."""
    ops: dict[int, float] = {}
    for pod in pods:
        work = pod.values[:, pod.features.index("PodWorkload_Ops")]
        for minute, value in zip(pod.times // 60, work, strict=True):
            ops[int(minute)] = ops.get(int(minute), 0.0) + float(np.nan_to_num(value))
    least = LOAD * float(np.quantile(list(ops.values()), BUSY))
    return [
        _quiet(pod, faults, {minute for minute, load in ops.items() if load < least})
        for pod in pods
    ]


def _quiet(pod: Series, faults: Sequence[float], idle: set[int]) -> QuietDay:
    told = ["Latency" in name for name in pod.features]
    own = [not name.startswith("Node") for name in pod.features]
    logs = np.where(
        told, np.log(np.maximum(pod.values, 1e-4)), np.log1p(np.maximum(pod.values, 0))
    )
    parts = np.lib.stride_tricks.sliding_window_view(logs[:, own], BEFORE + WINDOW, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of metrics that were not measured
        then = np.nanmean(parts[..., BEFORE:], axis=-1)
        change = np.abs(np.nan_to_num(then - np.nanmedian(parts[..., :BEFORE], axis=-1)))
    taken = np.array([int(time // 60) in idle for time in pod.times])
    for begin in faults:
        taken |= (pod.times >= begin + FAULT_S[0]) & (pod.times < begin + FAULT_S[1])
    free = ~np.lib.stride_tricks.sliding_window_view(taken, BEFORE + WINDOW).any(axis=1)
    usual: npt.NDArray[np.float64] = np.quantile(change[free], SELDOM, axis=0) + TINY
    strongest = (change / usual).max(axis=1)
    return QuietDay(
        pod.times[BEFORE : len(pod.times) - WINDOW + 1], strongest, np.sort(strongest[free])
    )
