"""What recorded runs used over time, for a simulated world to use again.

A series of telemetry becomes cores and MiB by the second of a run. Nothing is made up: where the
recording ends before the run does, its last sample holds on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from presage.model.errors import TelemetryError
from presage.telemetry.series import Floats, Series

__all__ = ["RecordedUse", "recorded_uses"]

_TO_MIB = {"bytes": 1 / (1 << 20), "kB": 1 / 1024, "MiB": 1.0, "GiB": 1024.0}
_TO_CORES = {"cores": 1.0}
_SHARES = {"%": 0.01, "share": 1.0}


@dataclass(frozen=True, slots=True)
class RecordedUse:
    """One run: its samples, from its first second on."""

    times_s: tuple[float, ...]
    cores: tuple[float, ...]
    memory_mib: tuple[float, ...]

    def at(self, second: float) -> tuple[float, float]:
        """Cores and MiB in a second of the run."""
        place = max(0, bisect_right(self.times_s, second) - 1)
        return self.cores[place], self.memory_mib[place]

    @property
    def peak_mib(self) -> float:
        """The most memory it used."""
        return max(self.memory_mib)


def recorded_uses(
    series: Sequence[Series], asked: Mapping[str, tuple[float, float]]
) -> dict[str, RecordedUse]:
    """The runs of jobs by their ids, which name their series. `asked` has the cores and MiB of
    each job: what a series that tells shares has shares of."""
    uses = {}
    for one in series:
        if one.pod in asked:
            cores, mib = asked[one.pod]
            busy = _amounts(one, "cpu", _TO_CORES, cores)
            memory = _amounts(one, "memory", _TO_MIB, mib)
            known = np.isfinite(busy) & np.isfinite(memory)
            if known.any():
                columns = (one.times - one.times[0], busy, memory)
                uses[one.pod] = RecordedUse(*(tuple(c[known].tolist()) for c in columns))
    return uses


def _amounts(series: Series, resource: str, units: Mapping[str, float], asked: float) -> Floats:
    names = series.resources.get(resource)
    if names is None:
        raise TelemetryError(f"telemetry of {series.pod} has no {resource}")
    unit = series.units[series.features.index(names[0])] if series.units else ""
    factor = units.get(unit) or (_SHARES[unit] * asked if unit in _SHARES and asked else None)
    if factor is None:
        raise TelemetryError(
            f"telemetry of {series.pod}: {names[0]} is in {unit or 'no known unit'}; "
            f"{', '.join(units)} can be simulated, and shares of jobs that ask for an amount"
        )
    return series.column(resource) * factor
