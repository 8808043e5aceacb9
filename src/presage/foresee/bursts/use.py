"""Which bundle answers: a user's own, else the shipped one; and what is told of a setting.

Nothing is fitted here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from presage.foresee.answer import Quantiles
from presage.foresee.bursts.bundles import BurstBundle
from presage.foresee.bursts.settings import Setting
from presage.foresee.bursts.steps import DistributedSteps, Timed
from presage.foresee.estimators import own_models
from presage.model.errors import ConfigError

__all__ = [
    "SHIPPED",
    "STEPS",
    "Distributed",
    "WithWorkers",
    "base_for",
    "bundle_for",
    "distributed",
    "known_settings",
    "own_bundle",
    "step_model",
]

SHIPPED = Path(__file__).parents[1] / "models" / "bursts"
STEPS = "steps.npz"
"""The bundle of step times, beside those of settings."""
_MORE = (1, 2, 3, 4, 6, 8)
"""Numbers of workers that an answer compares."""


@dataclass(frozen=True, slots=True)
class WithWorkers:
    """A step with so many workers."""

    workers: int
    step_ms: float
    samples_per_s: float
    """Of all workers together."""


@dataclass(frozen=True, slots=True)
class Distributed:
    """A step of a distributed training, and what another task would bring."""

    step_ms: Quantiles
    compute_ms: float
    exposed_ms: float
    """What talking adds to computing."""
    slopes_mib: float
    """What a worker tells the others in a step."""
    samples_per_s: float
    by_workers: list[WithWorkers]
    adding_a_worker_pct: float
    """By how much more samples a second there would be."""
    adding_a_server_pct: float | None
    other: dict[str, float]
    """The step with parameter servers where it was asked with an all-reduce, or the other way
    round, by setting."""


def own_bundle(setting: Setting) -> Path:
    """Where a user's own bundle of a setting is kept."""
    return own_models() / "bursts" / f"{setting.file}.npz"


def bundle_for(setting: Setting) -> BurstBundle | None:
    """The bundle that knows a setting, if there is one."""
    for path in (own_bundle(setting), SHIPPED / f"{setting.file}.npz"):
        if path.is_file():
            return _read(path, path.stat().st_mtime_ns)
    return None


def step_model() -> DistributedSteps | None:
    """What knows steps of distributed trainings, if there is one."""
    for path in (own_models() / "bursts" / STEPS, SHIPPED / STEPS):
        if path.is_file():
            return _read_steps(path, path.stat().st_mtime_ns)
    return None


def distributed(
    model: DistributedSteps, compute: Quantiles, slopes: float, batch: int, setting: Setting
) -> Distributed:
    """A step in a setting where each worker computes as foreseen, on a device of its own."""

    def timed(asked: Setting) -> Timed:
        return model.foresee((compute.p10, compute.p50, compute.p90), slopes, asked)

    def samples(asked: Setting) -> float:
        return 1e3 * batch * asked.workers / timed(asked).step_ms[1]

    here, now = timed(setting), samples(setting)
    counts = sorted({*_MORE, setting.workers, setting.workers + 1})
    several = [replace(setting, workers=count) for count in counts]
    more = samples(replace(setting, workers=setting.workers + 1))
    served = replace(setting, servers=setting.servers + 1) if setting.servers else None
    other = replace(setting, servers=0 if served else setting.workers, asynchronous=False)
    return Distributed(
        Quantiles(*(round(each, 2) for each in here.step_ms)),
        round(here.compute_ms, 2),
        round(here.exposed_ms, 2),
        round(slopes / (1 << 20), 4),
        round(now, 2),
        [
            WithWorkers(each.workers, round(timed(each).step_ms[1], 2), round(samples(each), 2))
            for each in several
        ],
        round(100 * (more / now - 1), 1),
        None if served is None else round(100 * (samples(served) / now - 1), 1),
        {str(other): round(timed(other).step_ms[1], 2)},
    )


def base_for(name: str) -> BurstBundle:
    """What a transfer starts from: a bundle's path, or a setting whose network is shipped."""
    path = Path(name)
    if not path.is_file():
        with suppress(ConfigError):
            shipped = SHIPPED / "networks" / f"{Setting.parse(name).file}.npz"
            path = shipped if shipped.is_file() else path
    return BurstBundle.load(path)


def known_settings() -> list[Setting]:
    """Settings that a bundle knows, in order."""
    files = {
        path.stem
        for folder in (own_models() / "bursts", SHIPPED)
        for path in folder.glob("*W*.npz")
    }
    return sorted((Setting.parse(name.replace("-", "/")) for name in files), key=str)


@cache
def _read(path: Path, changed_ns: int) -> BurstBundle:
    return BurstBundle.load(path)


@cache
def _read_steps(path: Path, changed_ns: int) -> DistributedSteps:
    return DistributedSteps.load(path)
