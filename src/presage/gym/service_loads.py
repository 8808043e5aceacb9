"""Where the load of services comes from: GPU telemetry of serving pods, or curves that are made.

No public trace has requests of GPU services, so a rate is derived: a GPU that is busy for a share
d of the time had d seconds of work in each second. Of a set of pods, the mean duty cycle, smoothed
over five samples since single requests are drawn anew, is the shape of a service's load; it is
scaled to the replicas that the service shall need at its peak. What a saturated GPU turned away is
not known and left out. No clock; all chance comes from the generator that is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from presage.gym.services import Floats, LoadCurve, ServiceScene, ServiceSetting
from presage.model.errors import TelemetryError
from presage.telemetry.readers import read_telemetry

__all__ = ["DutyPods", "MadeLoads", "PodLoads", "ServiceWorlds", "duty_pods", "made_curve"]

_SMOOTH = 5
"""Samples of a mean."""
_LEAST_SAMPLES = 60
_PEAK = 0.99
"""The quantile of a curve that is called its peak."""


@dataclass(frozen=True, slots=True, eq=False)
class DutyPods:
    """Duty cycles of serving pods on one grid of time: pods × steps, from 0 to 1, NaN where a pod
    was not there."""

    names: tuple[str, ...]
    step_s: float
    duty: Floats

    def only(self, wanted: Sequence[bool]) -> DutyPods:
        """Some of them."""
        rows = np.flatnonzero(np.asarray(wanted))
        return DutyPods(tuple(self.names[k] for k in rows), self.step_s, self.duty[rows])

    def heavy(self) -> list[bool]:
        """Of each pod, whether it is busy for more than half of the time in one sample of twenty:
        pods that serve something else than the others."""
        return [bool(np.nanquantile(row, 0.95) > 0.5) for row in self.duty]

    def curve(self, rows: Sequence[int], peak: float, name: str) -> LoadCurve:
        """The load of a service on these pods that needs so many replicas at its peak."""
        part = self.duty[list(rows)]
        there = np.isfinite(part)
        mean = np.where(there, part, 0.0).sum(axis=0) / np.maximum(there.sum(axis=0), 1)
        padded = np.pad(mean, _SMOOTH // 2, mode="edge")
        shape = np.convolve(padded, np.ones(_SMOOTH) / _SMOOTH, mode="valid")
        high = float(np.quantile(shape, _PEAK))
        return LoadCurve(name, self.step_s, shape * (peak / max(high, 1e-9)))


def duty_pods(path: Path, least: int = 600) -> DutyPods:
    """Pods with so many samples of their GPU's duty cycle (`gpu`, in percent)."""
    pods = [one for one in read_telemetry(path) if len(one) >= max(least, _LEAST_SAMPLES)]
    pods = [one for one in pods if "gpu" in one.resources]
    if not pods:
        raise TelemetryError(
            f"{path} has no pod with {least} samples of GPU use; services need that much"
        )
    step_s = float(np.median(np.concatenate([np.diff(one.times) for one in pods])))
    begin = min(float(one.times[0]) for one in pods)
    end = max(float(one.times[-1]) for one in pods)
    duty = np.full((len(pods), round((end - begin) / step_s) + 1), np.nan)
    for row, one in zip(duty, pods, strict=True):
        at = np.rint((one.times - begin) / step_s).astype(np.intp)
        row[at] = np.clip(one.column("gpu") / 100.0, 0.0, 1.0)
    return DutyPods(tuple(one.pod for one in pods), step_s, duty)


class ServiceWorlds:
    """Where scenes come from."""

    def draw(self, rng: np.random.Generator) -> ServiceScene:
        """Another one."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class PodLoads(ServiceWorlds):
    """Services on some of the pods of a telemetry file, for a stretch of the time."""

    pods: DutyPods
    hours: float | None = 3.0
    """How long an episode is; None: all there is."""
    peak: tuple[float, float] = (3.0, 30.0)
    service_s: tuple[float, float] = (5.0, 20.0)
    startup_s: tuple[float, float] = (60.0, 180.0)
    setting: ServiceSetting = field(default_factory=ServiceSetting)

    def draw(self, rng: np.random.Generator) -> ServiceScene:
        """A quarter of the pods to all of them, a peak, a service time and a start-up time."""
        count = len(self.pods.names)
        size = int(rng.integers(max(count // 4, 1), count + 1))
        rows = sorted(rng.permutation(count)[:size].tolist())
        peak = _between(self.peak, rng)
        whole = self.pods.curve(rows, peak, f"{size} pods, peak {peak:.0f}")
        setting = replace(
            self.setting,
            service_s=_between(self.service_s, rng),
            startup_s=_between(self.startup_s, rng),
        )
        return ServiceScene(_stretch(whole, self.hours, rng), setting, int(rng.integers(2**31)))


@dataclass(frozen=True, slots=True)
class MadeLoads(ServiceWorlds):
    """Made services: a wave through the day, noise that stays for a while, and bursts."""

    hours: float = 3.0
    peak: tuple[float, float] = (3.0, 30.0)
    service_s: tuple[float, float] = (5.0, 20.0)
    startup_s: tuple[float, float] = (60.0, 180.0)

    def draw(self, rng: np.random.Generator) -> ServiceScene:
        """Another one."""
        setting = ServiceSetting(
            service_s=_between(self.service_s, rng), startup_s=_between(self.startup_s, rng)
        )
        whole = made_curve(24.0, _between(self.peak, rng), rng)
        return ServiceScene(_stretch(whole, self.hours, rng), setting, int(rng.integers(2**31)))


def made_curve(hours: float, peak: float, rng: np.random.Generator) -> LoadCurve:
    """A made load, in steps of a minute."""
    count = round(hours * 60)
    at = np.arange(count) / 60.0
    wave = 1 + 0.8 * np.sin(2 * np.pi * (at / 24 + rng.random()))
    noise, state = np.empty(count), 0.0
    for k, lot in enumerate(rng.normal(0.0, 0.05, count)):
        noise[k] = state = 0.97 * state + lot
    shape = wave * np.exp(noise)
    for begin in rng.integers(0, count, max(round(hours / 3), 1)):
        length = int(rng.integers(5, 30))
        shape[begin : begin + length] *= rng.uniform(1.3, 2.5)
    return LoadCurve("made", 60.0, shape * (peak / float(np.quantile(shape, _PEAK))))


def _between(bounds: tuple[float, float], rng: np.random.Generator) -> float:
    """Of all sizes, small ones as often as large ones."""
    low, high = np.log(bounds)
    return float(np.exp(rng.uniform(low, high)))


def _stretch(curve: LoadCurve, hours: float | None, rng: np.random.Generator) -> LoadCurve:
    if hours is None:
        return curve
    count = min(max(round(hours * 3600 / curve.step_s), 1), len(curve.erlangs))
    first = int(rng.integers(len(curve.erlangs) - count + 1))
    return LoadCurve(curve.name, curve.step_s, curve.erlangs[first : first + count])
