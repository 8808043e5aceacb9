"""Pods made up for tests, and a phase model that reads phases off the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from presage.provision.usage import Floats, Ints
from presage.telemetry.series import Series


def series(
    pod: str = "a", every: float = 10.0, unit: str = "", **resources: npt.ArrayLike
) -> Series:
    """One pod; each resource is a feature of its own."""
    columns = [np.asarray(column, dtype=np.float64) for column in resources.values()]
    names = tuple(resources)
    return Series(
        pod,
        np.arange(len(columns[0])) * np.float64(every),
        np.column_stack(columns),
        names,
        tuple(unit for _ in names),
        {name: (name,) for name in names},
    )


def fleet(pods: int = 30, samples: int = 240, seed: int = 0) -> list[Series]:
    """Pods that alternate between idle and busy, each with its own level; memory climbs."""
    random = np.random.default_rng(seed)
    found = []
    for pod in range(pods):
        level = random.uniform(1, 4)
        busy = (np.arange(samples) // 36 + random.integers(2)) % 2
        cpu = level * (0.1 + busy) * random.uniform(0.9, 1.1, samples)
        memory = np.maximum.accumulate(100 * level + 20 * np.cumsum(busy * random.random(samples)))
        found.append(series(f"pod{pod}", cpu=cpu, memory=memory))
    return found


@dataclass(frozen=True)
class Forecast:
    share: Floats
    change: Floats


@dataclass(frozen=True)
class TwoPhases:
    """Phase 1 while the CPU is above half of the pod's largest; phases are expected to stay."""

    training: list[Series] = field(default_factory=fleet)
    n_phases: int = 2

    def predict_many(self, series: Sequence[Series]) -> list[Ints]:
        return [(one.values[:, 0] > one.values[:, 0].max() / 2).astype(np.int64) for one in series]

    def forecast_many(self, series: Sequence[Series], horizon_s: float) -> list[Forecast]:
        return [
            Forecast(np.eye(2)[phase], np.zeros(len(phase))) for phase in self.predict_many(series)
        ]
