"""What each phase uses and how long it lasts: the numbers that provisioning works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.model.errors import BundleError
from presage.telemetry.series import Series, stack

__all__ = ["QUANTILES", "PhaseStatistics", "names_in_all"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class PhaseStatistics:
    """A row for each phase and a column for each feature or resource; NaN where a phase has no
    samples."""

    names: tuple[str, ...]
    """Features, then the resources that are not features by themselves."""
    mean: Floats
    sd: Floats
    minimum: Floats
    maximum: Floats
    quantiles: Floats
    """(phases, names, QUANTILES)"""
    dwell_s: Floats
    """(phases, QUANTILES): how long a phase lasts once entered. The stretch that a series ends in
    counts as long as it was seen."""
    samples: Ints
    """Per phase."""

    @property
    def share(self) -> Floats:
        """The part of all samples that each phase has."""
        return self.samples / max(1, int(self.samples.sum()))

    def of(self, phase: int, name: str) -> dict[str, float]:
        """One phase's numbers of a feature or resource."""
        column = self.names.index(name)
        figures = {
            "mean": self.mean[phase, column],
            "sd": self.sd[phase, column],
            "min": self.minimum[phase, column],
            "max": self.maximum[phase, column],
        }
        figures |= {
            f"p{round(100 * q)}": value
            for q, value in zip(QUANTILES, self.quantiles[phase, column], strict=True)
        }
        return {key: float(value) for key, value in figures.items()}

    def to_json(self) -> list[dict[str, Any]]:
        """A record for each phase that has samples."""
        return [
            {
                "phase": int(phase),
                "samples": int(self.samples[phase]),
                "share": float(self.share[phase]),
                "dwell_s": {
                    f"p{round(100 * q)}": float(value)
                    for q, value in zip(QUANTILES, self.dwell_s[phase], strict=True)
                },
                "use": {name: self.of(int(phase), name) for name in self.names},
            }
            for phase in np.flatnonzero(self.samples)
        ]

    @classmethod
    def measured(
        cls,
        series: Sequence[Series],
        phases: Sequence[Ints],
        n_phases: int,
        names: Sequence[str],
        every: float,
    ) -> PhaseStatistics:
        """Learned from samples and their phases."""
        values, label = stack(series, names), np.concatenate(phases)
        shape = (n_phases, len(names))
        table = {key: np.full(shape, np.nan) for key in ("mean", "sd", "minimum", "maximum")}
        quantiles = np.full((*shape, len(QUANTILES)), np.nan)
        dwell = np.full((n_phases, len(QUANTILES)), np.nan)
        stretches = _stretches(series, phases, every)
        for phase in range(n_phases):
            rows = values[label == phase]
            for column in range(len(names)):
                seen = rows[:, column][np.isfinite(rows[:, column])]
                if not seen.size:
                    continue
                table["mean"][phase, column] = seen.mean()
                table["sd"][phase, column] = seen.std()
                table["minimum"][phase, column] = seen.min()
                table["maximum"][phase, column] = seen.max()
                quantiles[phase, column] = np.quantile(seen, QUANTILES)
            lasted = stretches[1][stretches[0] == phase]
            if lasted.size:
                dwell[phase] = np.quantile(lasted, QUANTILES)
        samples = np.bincount(label[label >= 0], minlength=n_phases).astype(np.int64)
        return cls(tuple(names), **table, quantiles=quantiles, dwell_s=dwell, samples=samples)

    def with_phases_of(self, other: PhaseStatistics, phases: Sequence[int]) -> PhaseStatistics:
        """These, with the rows of some phases taken from others."""
        parts: dict[str, Any] = {}
        for name in _ARRAYS:
            mine, theirs = getattr(self, name), getattr(other, name)
            joined = np.concatenate([mine, theirs[len(mine) :]])
            joined[list(phases)] = theirs[list(phases)]
            parts[name] = joined
        return PhaseStatistics(self.names, **parts)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        arrays: dict[str, npt.NDArray[Any]] = {name: getattr(self, name) for name in _ARRAYS}
        return arrays | {"names": np.array(self.names)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]], phases: int) -> PhaseStatistics:
        """The statistics in these arrays; refuses any that contradict each other."""
        try:
            names = tuple(str(name) for name in arrays["names"])
            parts = {name: np.asarray(arrays[name]) for name in _ARRAYS}
        except KeyError as missing:
            raise BundleError(f"the statistics of the phases lack {missing}") from None
        shapes = {
            "quantiles": (phases, len(names), len(QUANTILES)),
            "dwell_s": (phases, len(QUANTILES)),
            "samples": (phases,),
        }
        for name, part in parts.items():
            if part.shape != shapes.get(name, (phases, len(names))) or part.dtype.kind not in "fi":
                raise BundleError(f"the statistics of the phases are damaged: {name}")
        return cls(names, **parts)


_ARRAYS = tuple(item.name for item in fields(PhaseStatistics) if item.name != "names")


def names_in_all(series: Sequence[Series], features: Sequence[str]) -> tuple[str, ...]:
    """The features, and the resources that every series has."""
    common = [name for name in series[0].resources if all(name in pod.resources for pod in series)]
    return tuple(dict.fromkeys((*features, *common)))


def _stretches(
    series: Sequence[Series], phases: Sequence[Ints], every: float
) -> tuple[Ints, Floats]:
    """The phase and the duration of each stretch without a change; a stretch lasts until the next
    one begins, at most one row of the grid after its last sample."""
    kinds, lasted = [np.empty(0, np.int64)], [np.empty(0)]
    for pod, label in zip(series, phases, strict=True):
        if not len(label):
            continue
        first = np.flatnonzero(np.concatenate([[True], label[1:] != label[:-1]]))
        last = np.append(first[1:], len(label)) - 1
        until = np.minimum(np.append(pod.times, np.inf)[last + 1], pod.times[last] + every)
        kinds.append(label[first])
        lasted.append(until - pod.times[first])
    return np.concatenate(kinds), np.concatenate(lasted)
