"""The fitted estimators: shipped ones, or a user's own where `presage fit` has put some.

Each is imported when it is first asked for: most of them read tables with Polars, and a server
starts without.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from presage.learn.bundle import load_bundle, under

if TYPE_CHECKING:
    from presage.foresee.interference import InterferenceEstimator, MemoryLimit
    from presage.foresee.utilization import Features, JobUtilization, UtilizationEstimator
    from presage.learn import Floats

__all__ = [
    "Memory",
    "StepTime",
    "interference",
    "job_utilization",
    "memory",
    "own_models",
    "sharing_limit",
    "step_time",
    "utilization",
    "utilization_of",
    "version",
]

_SHIPPED = Path(__file__).with_name("models")


def own_models() -> Path:
    """Where a user's own bundles are."""
    home = os.environ.get("PRESAGE_HOME") or str(Path.home() / ".local" / "share" / "presage")
    return Path(home) / "models"


@cache
def _bundle(name: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    own = own_models() / f"{name}.npz"
    return load_bundle(own if own.is_file() else _SHIPPED / f"{name}.npz")


def version(name: str) -> str:
    """What answers, for people and journals: `memory 1 (2026-11-16)`."""
    card = _bundle(name)[1]
    return f"{card['name']} {card['version']} ({card['date']})"


class Memory:
    """Both memory estimators."""

    def __init__(self) -> None:
        from presage.foresee.memory import MemoryEstimator
        from presage.foresee.memory_table import TableMemoryEstimator

        arrays, self.card = _bundle("memory")
        self.graph = MemoryEstimator.from_arrays(under("graph", arrays))
        self.table = TableMemoryEstimator.from_arrays(under("table", arrays))


class StepTime:
    """Training from graphs and totals, inference from totals."""

    def __init__(self) -> None:
        from presage.foresee.steptime import StepTimeEstimator, TotalsStepTimeEstimator

        arrays, self.card = _bundle("step_time")
        self.graph = StepTimeEstimator.from_arrays(under("graph", arrays))
        self.train = TotalsStepTimeEstimator.from_arrays(under("train", arrays))
        infer = under("infer", arrays) or under(
            "infer", load_bundle(_SHIPPED / "step_time.npz")[0]
        )
        self.infer = TotalsStepTimeEstimator.from_arrays(infer)


@cache
def memory() -> Memory:
    """The memory estimators."""
    return Memory()


@cache
def step_time() -> StepTime:
    """The step time estimators."""
    return StepTime()


@cache
def utilization() -> UtilizationEstimator:
    """The utilization estimator."""
    from presage.foresee.utilization import UtilizationEstimator

    return UtilizationEstimator.from_arrays(_bundle("utilization")[0])


@cache
def job_utilization() -> JobUtilization:
    """The utilization of real jobs."""
    from presage.foresee.utilization import JobUtilization

    jobs = under("jobs", _bundle("utilization")[0])
    return JobUtilization.from_arrays(
        jobs or under("jobs", load_bundle(_SHIPPED / "utilization.npz")[0])
    )


def utilization_of(jobs: Features) -> Floats:
    """p10, p50 and p90 of the utilization of jobs in percent: by a user's own estimator where
    there is one, else by that of real jobs."""
    own = not under("jobs", _bundle("utilization")[0])
    return (utilization() if own else job_utilization()).predict_interval(jobs)


@cache
def interference() -> InterferenceEstimator:
    """The interference estimator."""
    from presage.foresee.interference import InterferenceEstimator

    return InterferenceEstimator.from_arrays(_bundle("interference")[0])


@cache
def sharing_limit() -> MemoryLimit:
    """Whether jobs fit together at all."""
    from presage.foresee.interference import MemoryLimit

    made = MemoryLimit()
    made.weights_ = np.asarray(_bundle("interference")[0]["limit"])
    return made
