"""What own runs teach: how far the estimators are off here, and what workloads seen before used.

Runs that were alone on their device are compared with what was foreseen of them (or, where nothing
can be foreseen, with the size of the work). A ridge regression in logarithms learns the factor by
device from the size of the work and from how many GPUs work together, so it is also the efficiency
and the communication of this cluster; of memory, what is the same for all runs on a device (the
floor of its driver) is learned first, as an amount. Workloads that ran before carry their own
factor on top, believed the more, the more often they ran. Intervals come from runs left out: for
workloads seen before by leaving out the run, for new ones by leaving out the workload.

The model is a handful of numbers, kept as JSON. NumPy alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

import numpy as np

from presage.learn import Floats
from presage.model.codec import decode, encode
from presage.model.errors import UserError
from presage.model.estimate import Estimate

__all__ = ["SIZES", "OwnRun", "OwnRuns"]

SIZES = ("step_gflop", "params_m", "activations_m", "batch", "gpus")
"""What is known of the size of a workload; 0 stands for not known. Later ones are added at the
end: a model of an earlier release has no weights for them."""

_FIRST_SIZES = 4
_RIDGE = 1.0
_BELIEF = 0.5
"""Runs after which a workload's own factor is believed as much as that of all."""
_LEAST = 0.05
"""The share of what was foreseen that is left at least when a floor is taken off."""
_DOUBT = log(2.0)
"""Half the width of an interval, in logarithms, when nothing is known of it."""
_LEAST_RESIDUALS = 5
_HAS_FLOOR = "MiB"
"""The unit of which a constant part is learned."""
_LEAST_FOR_FLOOR = 3
"""Workloads from which on a constant part can be told from a factor."""
_LEVELS = (0.1, 0.9)


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One run that was alone on its device."""

    signature: str
    device: str
    at: float
    """When it ended, in seconds since 1970."""
    actual: float
    foreseen: float | None = None
    """What the shipped estimators said, in the same unit."""
    sizes: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class _Factor:
    """Of one device."""

    intercept: float
    weights: tuple[float, ...]
    floor: float = 0.0
    """What is added to everything that was foreseen, in its unit."""
    effects: Mapping[str, float] = field(default_factory=dict, hash=False)
    """Workload -> its own factor, in logarithms."""
    seen: tuple[float, float] = (-_DOUBT, _DOUBT)
    """Where runs of workloads seen before fall around their prediction, 10 % and 90 %."""
    new: tuple[float, float] = (-_DOUBT, _DOUBT)
    runs: int = 0


@dataclass(frozen=True, slots=True)
class OwnRuns:
    """A fitted model of one quantity, in one unit."""

    unit: str
    factors: Mapping[str, _Factor] = field(default_factory=dict, hash=False)

    @classmethod
    def fit(cls, runs: Sequence[OwnRun], unit: str) -> OwnRuns:
        """Learn from runs, each device by itself, and those that nobody foresaw by themselves."""
        by_kind: dict[str, list[OwnRun]] = {}
        for run in runs:
            if run.actual > 0:
                by_kind.setdefault(_kind(run), []).append(run)
        return cls(
            unit,
            {
                kind: _fitted(mine, _floor(mine) if unit == _HAS_FLOOR else 0.0)
                for kind, mine in by_kind.items()
            },
        )

    def predict(
        self,
        signature: str,
        device: str,
        foreseen: float | None = None,
        sizes: Mapping[str, float] | None = None,
    ) -> Estimate | None:
        """What a workload will use; None when neither own runs nor estimators know anything."""
        run = OwnRun(signature, device, 0.0, 1.0, foreseen, sizes or {})
        factor = self.factors.get(_kind(run))
        if factor is None:
            return None if not foreseen else _around(foreseen, -_DOUBT, _DOUBT, self.unit, 0)
        middle = _base(run, factor.floor) + factor.intercept
        middle += float(_row(run)[: len(factor.weights)] @ np.array(factor.weights))
        effect = factor.effects.get(signature)
        low, high = factor.seen if effect is not None else factor.new
        return _around(exp(middle + (effect or 0.0)), low, high, self.unit, factor.runs)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        body: dict[str, Any] = encode(self)
        return body

    @classmethod
    def from_json(cls, data: object) -> OwnRuns:
        """What `to_json` wrote; `UserError` for anything else."""
        try:
            runs: OwnRuns = decode(cls, data)
            for factor in runs.factors.values():
                if not _FIRST_SIZES <= len(factor.weights) <= len(SIZES):
                    raise ValueError("its weights are of another version")
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"this is no model of own runs: {error}") from None
        return runs


def _around(middle: float, low: float, high: float, unit: str, runs: int) -> Estimate:
    source = f"own runs ({runs})" if runs else "estimators"
    return Estimate(
        middle * exp(min(low, 0.0)), middle, middle * exp(max(high, 0.0)), unit, source
    )


def _kind(run: OwnRun) -> str:
    """What is learned together: a factor on what was foreseen is no amount."""
    return run.device if run.foreseen else f"{run.device}, not foreseen"


def _base(run: OwnRun, floor: float = 0.0) -> float:
    return log(max(run.foreseen + floor, _LEAST * run.foreseen)) if run.foreseen else 0.0


def _floor(runs: Sequence[OwnRun]) -> float:
    """The constant part of what was foreseen wrongly, if it explains workloads left out better
    than a factor does; else 0."""
    told = [(run.signature, run.foreseen, run.actual) for run in runs if run.foreseen]
    names = np.array([name for name, _, _ in told])
    if len(np.unique(names)) < _LEAST_FOR_FLOOR:
        return 0.0
    said, seen = np.array([row[1:] for row in told], np.float64).T
    added, times = np.empty(len(told)), np.empty(len(told))
    for name in np.unique(names):
        mine, rest = names == name, names != name
        moved = said[mine] + float(np.median(seen[rest] - said[rest]))
        added[mine] = np.log(seen[mine] / np.maximum(moved, _LEAST * said[mine]))
        times[mine] = np.log(seen[mine] / said[mine])
        times[mine] -= float(np.median(np.log(seen[rest] / said[rest])))
    better = np.abs(added).mean() < np.abs(times).mean()
    return float(np.median(seen - said)) if better else 0.0


def _row(run: OwnRun) -> Floats:
    sizes: Floats = np.array([max(0.0, run.sizes.get(name, 0.0)) for name in SIZES])
    return np.log1p(sizes, out=sizes)


def _fitted(runs: Sequence[OwnRun], floor: float) -> _Factor:
    names = np.array([run.signature for run in runs])
    rows = np.stack([_row(run) for run in runs])
    target = np.array([log(run.actual) - _base(run, floor) for run in runs])
    intercept, weights = _ridge(rows, target)
    rest = target - intercept - rows @ weights
    effects = {str(name): _effect(rest[names == name]) for name in np.unique(names)}
    again, new = [], []
    for name in np.unique(names):
        mine = names == name
        for place in np.flatnonzero(mine) if mine.sum() > 1 else ():
            others = mine.copy()
            others[place] = False
            again.append(float(rest[place]) - _effect(rest[others]))
        if not mine.all():
            start, slopes = _ridge(rows[~mine], target[~mine])
            new += (target[mine] - start - rows[mine] @ slopes).tolist()
    return _Factor(
        intercept,
        tuple(weights.tolist()),
        floor,
        effects,
        _interval(again),
        _interval(new),
        len(runs),
    )


def _ridge(rows: Floats, target: Floats) -> tuple[float, Floats]:
    """Towards one factor for all: slopes cost, the intercept does not."""
    centre, middle = rows.mean(axis=0), float(target.mean())
    away = rows - centre
    system = away.T @ away + _RIDGE * np.eye(rows.shape[1])
    weights: Floats = np.linalg.solve(system, away.T @ (target - middle))
    return middle - float(centre @ weights), weights


def _effect(rest: Floats) -> float:
    return float(rest.sum() / (rest.size + _BELIEF)) if rest.size else 0.0


def _interval(residuals: Sequence[float]) -> tuple[float, float]:
    """Ten and ninety percent, with the finite-sample correction of conformal prediction."""
    if len(residuals) < _LEAST_RESIDUALS:
        return -_DOUBT, _DOUBT
    rising = np.sort(residuals)
    places = np.array(_LEVELS) * (rising.size + 1) - 1
    low, high = np.interp(places, np.arange(rising.size), rising)
    return float(low), float(high)
