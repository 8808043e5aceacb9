"""How long a step of a distributed training takes: computing, and talking that it does not hide.

A step is a sum of few terms whose sizes follow from the setting: what workers compute, bytes over
the narrowest link, bytes that processors copy, a start for each message. How much each counts is
fitted on measured trainings (never below zero), relative to the step. The same sum answers for
settings that nobody measured. Nothing here knows how long computing takes: that is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from presage.foresee.bursts.settings import NETWORKS, Setting
from presage.learn import Floats
from presage.learn.bundle import load_bundle, prefixed, save_bundle, under
from presage.learn.groups import GroupConformal
from presage.model.errors import BundleError, UserError

__all__ = [
    "DistributedSteps",
    "MeasuredStep",
    "SetupTimes",
    "Timed",
    "fit_steps",
    "left_out",
    "measured_steps",
    "terms",
    "wire_ms",
]

TERMS = (
    "turns",
    "wire",
    "wire_servers",
    "wire_async",
    "copies",
    "fixed",
    "fixed_servers",
    "hidden",
)
_BACKWARD = 2 / 3
"""The share of computing behind which an all-reduce can hide: slopes come one after another."""


@dataclass(frozen=True, slots=True)
class SetupTimes:
    """What is known of a training without its setting."""

    compute_ms: float
    """Of one worker that has its device for itself."""
    slopes: float
    """Bytes of all trained parameters."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A step in a setting, in milliseconds."""

    step_ms: tuple[float, float, float]
    """p10, p50 and p90."""
    compute_ms: float
    exposed_ms: float
    """What talking adds."""


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A workload in a setting, as measured."""

    workload: str
    family: str
    setting: Setting
    work: SetupTimes
    step_ms: float
    cores: float
    """That all tasks shared."""


@dataclass(frozen=True, slots=True, eq=False)
class DistributedSteps:
    """Weights of `TERMS`, with intervals for families and settings left out."""

    weights: Floats
    spread: GroupConformal | None = None
    card: Mapping[str, Any] | None = None

    @classmethod
    def fit(cls, rows: Sequence[MeasuredStep]) -> Self:
        """The weights with the least squares of relative errors."""
        told = np.array([terms(row.work, row.setting, row.cores) for row in rows])
        steps = np.array([row.step_ms for row in rows])
        return cls(_not_negative(told / steps[:, None], np.ones(len(rows))))

    def step_ms(self, work: SetupTimes, setting: Setting, cores: float | None = None) -> float:
        """The likely time of a step; `cores` if all tasks share so many, else each worker and
        server has a device of its own."""
        return max(float(self.weights @ terms(work, setting, cores)), work.compute_ms)

    def foresee(
        self, compute_ms: tuple[float, float, float], slopes: float, setting: Setting
    ) -> Timed:
        """A step from p10, p50 and p90 of computing. What is not known of computing and of talking
        adds up as independent factors do."""
        low, middle, high = (
            self.step_ms(SetupTimes(each, slopes), setting) for each in compute_ms
        )
        own = self._spread(setting)
        down = np.hypot(np.log(middle / low), np.log(own[1] / own[0]))
        up = np.hypot(np.log(high / middle), np.log(own[2] / own[1]))
        alone = min(compute_ms[1], middle)
        spread = (middle * np.exp(-down), middle, middle * np.exp(up))
        told = tuple(float(each) for each in spread)
        return Timed((told[0], told[1], told[2]), alone, middle - alone)

    def _spread(self, setting: Setting) -> list[float]:
        if self.spread is None:
            return [1.0, 1.0, 1.0]
        measured = str(setting) in (self.card or {}).get("settings", ())
        unseen = ["family"] if measured else ["family", "setting"]
        told: list[float] = self.spread.interval([1.0], unseen=unseen)[0].tolist()
        return told

    def save(self, path: Path) -> None:
        """Write it as plain arrays with its card."""
        if self.spread is None or self.card is None:
            raise UserError("a model of steps is kept with its intervals and its card")
        arrays: dict[str, npt.NDArray[Any]] = {"weights": self.weights, "terms": np.array(TERMS)}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_bundle(path, arrays | prefixed("spread", self.spread.to_arrays()), self.card)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        arrays, card = load_bundle(path)
        if card.get("name") != "burst_steps" or tuple(arrays.get("terms", ())) != TERMS:
            raise BundleError(f"{path} is no bundle of distributed steps; fit one first")
        spread = GroupConformal.from_arrays(under("spread", arrays))
        return cls(np.asarray(arrays["weights"], np.float64), spread, card)


def terms(work: SetupTimes, setting: Setting, cores: float | None = None) -> Floats:
    """Milliseconds of each of `TERMS` if it counted whole."""
    workers, servers, sent = setting.workers, setting.servers, work.slopes
    tasks = workers + servers
    if servers:
        copied = [2 * sent] * workers + [2 * sent * workers / servers] * servers
    else:
        copied = [2 * _one_way(sent, setting)] * workers
    wire = wire_ms(sent, setting)
    turns, copies, starts = work.compute_ms, max(copied) / 1e6, float(tasks if workers > 1 else 0)
    if cores is not None:
        in_turns = max(1.0, workers / cores)
        turns *= in_turns
        copies = max(copies, sum(copied) / 1e6 / cores)
    each = setting.asynchronous
    hidden = 0.0
    if not servers:
        hidden = min(_BACKWARD * turns, wire)
    elif each:
        hidden = min(turns, wire)
    return np.array(
        [
            turns,
            0.0 if servers else wire,
            wire if servers and not each else 0.0,
            wire if servers and each else 0.0,
            copies,
            0.0 if servers else starts,
            starts if servers else 0.0,
            -hidden,
        ]
    )


def wire_ms(slopes: float, setting: Setting) -> float:
    """How long the bytes of a step take on the narrowest link, one way; 0 if it has no limit."""
    rate = NETWORKS[setting.network]
    return 0.0 if rate is None else 8e3 * _one_way(slopes, setting) / rate


def _one_way(slopes: float, setting: Setting) -> float:
    """Bytes that the narrowest link carries in a step, one way."""
    workers, servers = setting.workers, setting.servers
    if servers:
        return slopes * max(1.0, workers / servers)
    return 2 * (workers - 1) / workers * slopes


def _not_negative(rows: Floats, targets: Floats) -> Floats:
    """Least squares with no weight below zero, one weight after another until none moves."""
    weights = np.zeros(rows.shape[1])
    squares, left = (rows**2).sum(0), targets.copy()
    for _ in range(5000):
        before = weights.copy()
        for at in np.flatnonzero(squares > 1e-12):
            new = max(0.0, weights[at] + float(rows[:, at] @ left) / squares[at])
            left -= (new - weights[at]) * rows[:, at]
            weights[at] = new
        if np.abs(weights - before).max() < 1e-9:
            break
    return weights


def measured_steps(
    runs: Sequence[Mapping[str, Any]], slopes: Mapping[str, float], families: Mapping[str, str]
) -> list[MeasuredStep]:
    """What runs tell of steps, repeats as their mean. `slopes` has the bytes of trained parameters
    by workload (its JSON with sorted keys), `families` that of each model. Computing of a workload
    is the time that its workers kept their cores busy in a step, the median over its settings."""
    measured: dict[tuple[str, str], list[tuple[float, float]]] = {}
    cores: dict[str, float] = {}
    models: dict[str, str] = {}
    for run in runs:
        name = json.dumps(run["workload"], sort_keys=True)
        models[name] = run["workload"]["model"]
        setting = Setting.parse(run["setting"])
        step = float(run["step_ms"])
        busy = _mean(run["labels"], "util_burst_pct", "util") / 100 * step
        measured.setdefault((name, str(setting)), []).append((step, busy))
        cores[name] = float(run["machine"]["cores"])
    means = {key: np.mean(values, axis=0) for key, values in measured.items()}
    out = []
    for (name, setting_name), (step, _) in means.items():
        busy = float(np.median([each[1] for key, each in means.items() if key[0] == name]))
        work = SetupTimes(busy, slopes[name])
        family, setting = families[models[name]], Setting.parse(setting_name)
        out.append(MeasuredStep(name, family, setting, work, float(step), cores[name]))
    return out


def _mean(labels: Mapping[str, float], burst: str, resource: str) -> float:
    """The mean of a resource over the whole time."""
    busy, idle = labels[f"{resource}_burst_ms"], labels[f"{resource}_idle_ms"]
    return labels[burst] * busy / max(busy + idle, 1e-9)


def fit_steps(rows: Sequence[MeasuredStep], date: str) -> DistributedSteps:
    """The model of all rows, with intervals from families and from settings left out."""
    steps = np.array([row.step_ms for row in rows])
    families = [row.family for row in rows]
    settings = [str(row.setting) for row in rows]
    if len(set(families)) < 2 or len(set(settings)) < 2:
        raise UserError("steps are fitted on runs of two model families and two settings at least")
    by_family = left_out(rows, families)
    # weights of a kind of setting that no other has cannot be told without it
    kinds = [_kind(row.setting) for row in rows]
    alone = [
        len({s for s, k in zip(settings, kinds, strict=True) if k == kind}) < 2 for kind in kinds
    ]
    by_setting = np.where(alone, by_family, left_out(rows, settings))
    ratios = {"family": by_family / steps, "setting": by_setting / steps}
    groups = {"family": families, "setting": settings}
    spread = GroupConformal.fit(np.ones(len(rows)), ratios, groups)
    model = DistributedSteps.fit(rows)
    card = {
        "name": "burst_steps",
        "version": "1",
        "date": date,
        "data": f"{len(rows)} workloads in settings, {len(set(families))} families",
        "settings": sorted(set(settings)),
        "licence": "that of the data",
        "features": list(TERMS),
        "weights": {n: round(float(w), 4) for n, w in zip(TERMS, model.weights, strict=True)},
        "splits": "a family, and a setting, left out by turns; computing as measured",
        "errors": {name: _told(ratio) for name, ratio in ratios.items()},
    }
    return replace(model, spread=spread, card=card)


def left_out(rows: Sequence[MeasuredStep], groups: Sequence[str]) -> Floats:
    """The step of each row, foreseen by a model that saw nothing of its group."""
    guess = np.empty(len(rows))
    for group in set(groups):
        here = [at for at, name in enumerate(groups) if name == group]
        model = DistributedSteps.fit(
            [row for row, name in zip(rows, groups, strict=True) if name != group]
        )
        guess[here] = [
            model.step_ms(rows[at].work, rows[at].setting, rows[at].cores) for at in here
        ]
    return guess


def _kind(setting: Setting) -> tuple[bool, bool]:
    return setting.servers > 0, setting.asynchronous


def _told(ratios: Floats) -> dict[str, float]:
    off = np.abs(ratios - 1)
    return {"median": round(float(np.median(off)), 4), "mean": round(float(off.mean()), 4)}
