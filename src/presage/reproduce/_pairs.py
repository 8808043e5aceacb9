"""Workloads that were measured alone and in pairs on a GPU, as a world and as a prediction of it.

In the world, jobs beside each other have the speeds that were measured, at most 1; a pair that was
not measured has the fitted model's. A policy sees what a model says that was fitted without the
job's own model; where a pair was not measured, the world's speed with an error drawn from those.
`unseen` puts in its place what is foreseen of workloads of which there is a graph and nothing
else: nobody has measured them, alone or beside others, on this GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from presage.foresee._jobsteps import JobUtilization
from presage.foresee._realjobs import RealJobs, read_lucid_jobs, read_miso_jobs
from presage.foresee.fitting import MODELS
from presage.foresee.gpus import find
from presage.foresee.interference import (
    InterferenceEstimator,
    JobAlone,
    over_capacity,
    read_lucid,
)
from presage.learn import Floats
from presage.learn.bundle import load_bundle
from presage.model.cluster import Device
from presage.model.errors import UserError
from presage.model.estimate import Estimate, Estimates
from presage.model.job import Job

__all__ = [
    "DEVICE",
    "KNOWS",
    "Errors",
    "MeasuredPairs",
    "Table",
    "measured_pairs",
    "read_table",
    "unseen",
    "workload_names",
]

_GPU = find("rtx3090")
DEVICE = Device(_GPU.name, int(_GPU.usable_mib))
"""What the pairs were measured on."""

_KEY = ("model", "dataset", "batchsize", "amp")
_ALONE = "profiles/lucid_single_rtx3090.parquet"
_PAIRS = "colocation/lucid_pairs_rtx3090.parquet"
_SLOWEST = 0.05
_P90 = 1.2816
"""Standard deviations from the middle to the p90 of a normal distribution."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredPairs:
    """Workloads by name, what each needs alone, and their speeds beside each other."""

    alone: Mapping[str, JobAlone]
    index: Mapping[str, int]
    speed: Floats
    """In the world: of a workload (row) beside another (column), 1 is alone."""
    foreseen: Floats
    """The same as a policy may know it."""
    in_pairs: tuple[str, ...]
    """Workloads of which pairs were measured."""
    believed: Mapping[str, JobAlone] | None = None
    """What a policy may know of each alone, if that is not what was measured."""

    def slowdown(self, own: str, others: Sequence[str]) -> float:
        """How many times longer a job takes in the world. Triples were not measured: what each
        neighbour adds to the time of a step is added up."""
        return _added(self.speed, self.index[own], [self.index[name] for name in others])

    def predictions(self, error: float = 1.0) -> Table:
        """What a policy sees, with so many times the real errors; 0 is the truth."""
        return Table(self.index, self.speed * (self.foreseen / self.speed) ** error, error)


@dataclass(slots=True, eq=False)
class Table:
    """Slowdowns that are foreseen, by the models of jobs."""

    index: Mapping[str, int]
    speed: Floats
    error: float
    _known: dict[tuple[str, ...], Estimate] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """Says how wrong it is."""
        return f"held-out pairs, error × {self.error:g}"

    @version.setter
    def version(self, value: str) -> None:
        raise AttributeError("the version follows from the error")

    def kind(self, job: Job) -> str:
        """Its model."""
        return job.spec.model or ""

    def slowdown(self, job: Job, neighbours: Sequence[Job]) -> Estimate:
        """How many times longer a job is foreseen to take."""
        names = (job.spec.model or "", *(other.spec.model or "" for other in neighbours))
        estimate = self._known.get(names)
        if estimate is None:
            own, *others = (self.index[name] for name in names)
            value = _added(self.speed, own, others)
            estimate = self._known[names] = Estimate.exact(value, "times", self.version)
        return estimate


@dataclass(frozen=True, slots=True)
class Errors:
    """How wrong Presage's shipped estimators are about models they have not seen: the standard
    deviation of the logarithm, from their cards."""

    utilization: float
    memory: float
    step_time: float

    @classmethod
    def of_shipped_models(cls) -> Errors:
        """Read from the cards."""

        def card(name: str) -> Any:
            return load_bundle(MODELS / f"{name}.npz")[1]["errors"]

        return cls(
            utilization=card("utilization")["rmsle1p"],
            memory=card("memory")["graph"]["rmsle"],
            step_time=card("step_time")["graph_nchw"]["rmsle"],
        )

    @classmethod
    def of_unseen_workloads(cls, utilization: float) -> Errors:
        """Those that real workloads of other labs have: memory and step time as Presage aims at
        for published trainings whose family is left out."""
        return cls(utilization, memory=0.15, step_time=0.35)

    def foresee(
        self, alone: JobAlone, runtime_s: float, error: float, chance: np.random.Generator
    ) -> Estimates:
        """What would be foreseen of a job, with so many times these errors."""

        def drawn(value: float, spread: float, unit: str) -> Estimate:
            off, wide = error * spread * chance.standard_normal(), _P90 * error * spread
            low, middle, high = (value * np.exp(off + side) for side in (-wide, 0.0, wide))
            return Estimate(float(low), float(middle), float(high), unit, "drawn error")

        return Estimates(
            "drawn errors",
            runtime_s=drawn(runtime_s, self.step_time, "s"),
            memory_mib=drawn(alone.memory_mib, self.memory, "MiB"),
            utilization=drawn(alone.util_pct / 100, self.utilization, "share"),
        )


def measured_pairs(
    data: Path, more: Mapping[str, JobAlone] | None = None, trees: int = 60
) -> MeasuredPairs:
    """Lucid's measurements on an RTX 3090; `more` are workloads without measured pairs."""
    alone = {**(more or {}), **_alone(read_table(data, _ALONE))}
    index = {name: n for n, name in enumerate(alone)}
    rows = read_lucid(data)
    model = InterferenceEstimator(trees).fit(rows.X, rows.speed, rows.models)
    held_out = np.minimum(model.held_out_speed_, 1.0)
    true = np.minimum(rows.speed, 1.0)
    speed = np.clip(model.speeds(list(alone.values()), _GPU), _SLOWEST, 1.0)
    errors = np.random.default_rng(0).choice(np.log(held_out / true), speed.shape)
    foreseen = np.clip(speed * np.exp(errors), _SLOWEST, 1.0)
    pairs = read_table(data, _PAIRS)
    names = [workload_names(pairs, side) for side in ("1", "2")]
    for own, other, first in ((0, 1, 0), (1, 0, 1)):  # rows of a pair follow each other
        at = [index[name] for name in names[own]], [index[name] for name in names[other]]
        speed[at], foreseen[at] = true[first::2], np.clip(held_out[first::2], _SLOWEST, 1.0)
    return MeasuredPairs(alone, index, speed, foreseen, tuple(dict.fromkeys(names[0] + names[1])))


KNOWS = {
    "a graph": (False, None),
    "a graph and honest intervals": (True, None),
    "a graph and its loader": (True, 0.2),
}
"""What may be known of an unseen workload: whether intervals count, and the spread of the
logarithm of utilization where its loader was timed (`benchmarks.loader_live` aims at that)."""


def unseen(measured: MeasuredPairs, data: Path, knows: str) -> MeasuredPairs:
    """The same world; a policy goes by utilization that is foreseen without the workload's model.

    Of workloads without a graph, the error of another one is drawn. With a point for utilization,
    jobs that are thought to fill the GPU do so for sure; with an interval, they may be starved.
    """
    intervals, timed = KNOWS[knows]
    busy = _foreseen_use(measured, data, timed)
    jobs = {
        name: JobAlone(util_pct=middle, util_low_pct=low, util_high_pct=high)
        if intervals
        else JobAlone(util_pct=middle)
        for name, (low, middle, high) in busy.items()
    }
    foreseen = np.array(
        [[over_capacity(own, [other])[1] for other in jobs.values()] for own in jobs.values()]
    )
    believed = {
        name: replace(one, util_pct=jobs[name].util_pct) for name, one in measured.alone.items()
    }
    return replace(measured, foreseen=np.clip(foreseen, _SLOWEST, 1.0), believed=believed)


def _foreseen_use(
    measured: MeasuredPairs, data: Path, timed: float | None
) -> dict[str, tuple[float, float, float]]:
    """p10, p50 and p90 of each workload's utilization in percent."""
    chance = np.random.default_rng(0)
    if timed is not None:
        wide = np.exp(_P90 * timed * np.array([-1.0, 0.0, 1.0]))
        off = {name: np.exp(timed * chance.standard_normal()) for name in measured.alone}
        return {
            name: _percent(one.util_pct * off[name] * wide) for name, one in measured.alone.items()
        }
    told, truth = _models_left_out(data)
    names = workload_names(read_table(data, _ALONE))
    foreseen = {name: _percent(row) for name, row in zip(names, told, strict=True)}
    times = told / truth[:, None]
    for name, one in measured.alone.items():
        drawn = times[chance.integers(len(times))]
        foreseen.setdefault(name, _percent(one.util_pct * drawn))
    return {name: foreseen[name] for name in measured.alone}


@cache
def _models_left_out(data: Path) -> tuple[Floats, Floats]:
    """Utilization of Lucid's workloads, foreseen without their model, and measured."""
    own = read_lucid_jobs(data)
    both = RealJobs.joined([own, read_miso_jobs(data)])
    told = np.empty((len(own.util_pct), 3))
    for model in np.unique(own.models):
        others, mine = both.models != model, own.models == model
        fitted = JobUtilization(folds=3).fit(
            both.X[others], both.util_pct[others], both.models[others]
        )
        told[mine] = fitted.predict_interval(own.X[mine])
    return told, own.util_pct


def _percent(values: Floats) -> tuple[float, float, float]:
    low, middle, high = (float(value) for value in np.clip(values, 0.1, 100.0))
    return low, middle, high


def workload_names(table: pl.DataFrame, side: str = "") -> list[str]:
    """The names of the workloads in a table's rows."""
    columns = [f"{name}{side}" for name in _KEY]
    return [" ".join(map(str, values)) for values in table.select(columns).rows()]


def _alone(table: pl.DataFrame) -> dict[str, JobAlone]:
    return {
        name: JobAlone(
            util_pct=row["gpu_util"],
            mem_util_pct=row["gmem_util"],
            memory_mib=row["gmem"],
            step_ms=1e3 * row["batchsize"] / row["speed"],
        )
        for name, row in zip(workload_names(table), table.iter_rows(named=True), strict=True)
    }


def read_table(data: Path, name: str) -> pl.DataFrame:
    """A table of the public data."""
    path = data / name
    if not path.is_file():
        raise UserError(f"{path} is missing; --data names the directory of the public data")
    return pl.read_parquet(path)


def _added(speed: Floats, own: int, others: Sequence[int]) -> float:
    return float(1 + sum(1 / speed[own, other] - 1 for other in others))
