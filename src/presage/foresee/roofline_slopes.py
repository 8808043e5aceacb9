"""Measured steps side by side: what effects make of them, and how much each effect matters.

`LogSteps` has the logarithms of steps under any effects and their slopes, which a fit needs and
which say how unsure a step is: `Doubt` keeps what a fit left open of the effects. Nothing here
reads measurements or fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.gpus import Gpu
from presage.foresee.roofline import (
    _HOST_SHARP,
    _SHARP,
    Work,
    fill_effects,
    host_effects,
    kernel_effects,
)
from presage.learn import Floats
from presage.model.setup import Setup

__all__ = [
    "USUAL",
    "Doubt",
    "EffectNames",
    "LogSteps",
    "Observation",
    "effect_spread",
]

Ints = npt.NDArray[np.int64]

USUAL = {
    "compute": 0.6,
    "memory": 0.3,
    "memory compiled": -0.3,
    "host": np.log(0.04),
    "launch": np.log(0.004),
    "fill": -1.0,
    "fixed": np.log(20.0),
}
"""Where the common effects begin: slower than the peak, 40 µs of host and 4 µs of kernel a launch,
a third of a round of tiles lost, a loop that costs as much as 20 launches."""
_SPREAD = (
    ("host compiled", 0.5),
    ("compiled", 0.4),
    ("family", 0.15),
    ("lineage", 0.3),
    ("compute kind rate", 0.4),
    ("memory kind rate", 0.3),
    ("generation kind", 0.15),
    ("generation rate", 0.2),
    ("generation", 0.2),
    ("gpu", 0.1),
    ("phase", 0.2),
    ("class", 0.4),
    ("kind", 0.7),
    ("rate", 0.3),
    ("nhwc", 0.2),
    ("line", 0.4),
    ("host system", 0.4),
    ("host source", 0.4),
    ("host amp", 0.3),
    ("source", 0.03),
    ("compute", 1.0),
    ("memory", 1.0),
    ("host", 2.0),
    ("fixed", 1.0),
    ("copy", 0.5),
    ("launch of", 0.6),
    ("launch", 0.5),
    ("fill", 1.0),
)
"""Standard deviations of effects; the first whose words are in the name holds."""
_SLOTS = 10_000
"""More than there are slots of operators."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured step."""

    work: Work
    launches: float
    gpu: Gpu
    setup: Setup
    ms: float
    source: str
    model: str
    family: str
    extra_ms: float = 0.0
    """What the measurement holds beside the step: a copy from the host."""
    note: dict[str, str] = field(default_factory=dict)


def effect_spread(name: str) -> float:
    """Standard deviation of such effects before anything is measured."""
    return next(size for words, size in _SPREAD if words in name)


class EffectNames:
    """Effects by name, numbered as they are met."""

    def __init__(self, known: Mapping[str, int] | None = None) -> None:
        self.place: dict[str, int] = dict(known or {"": 0})

    def __call__(self, names: Sequence[str]) -> list[int]:
        return [self.place.setdefault(name, len(self.place)) for name in names]


def _padded(lists: list[list[int]]) -> Ints:
    """As one table; place 0 is an effect that is always none."""
    width = max(map(len, lists))
    return np.array([row + [0] * (width - len(row)) for row in lists], np.int64)


class LogSteps:
    """All observations side by side."""

    def __init__(self, rows: Sequence[Observation], names: EffectNames) -> None:
        self.rows = len(rows)
        self._combine(rows, names)
        self.compute_ms = np.concatenate([row.work.compute_ms for row in rows])
        self.waves = np.concatenate([row.work.waves for row in rows])
        self.traffic_ms = np.concatenate([row.work.traffic_ms for row in rows])
        self.count = np.concatenate([row.work.count for row in rows])
        self.launches = np.array([row.launches for row in rows])
        self.extra = np.array([row.extra_ms for row in rows])
        self.host = _padded([names(_host_names(row)) for row in rows])
        self.total = _padded([names([f"source {row.source}"]) for row in rows])
        self.fill = _padded([names(fill_effects(row.gpu)) for row in rows])
        self.fixed, self.copy = names(["fixed", "copy"])

    def _combine(self, rows: Sequence[Observation], names: EffectNames) -> None:
        """Operators of one class on one GPU have the same effects: tables of those, and which
        combination each operator is of."""
        combos: dict[tuple[int, int, str, str, bool], int] = {}
        tables: dict[str, list[list[int]]] = {"compute": [], "memory": [], "launch": []}
        place: list[Ints] = []
        for row in rows:
            key = row.work.rate * _SLOTS + row.work.slot
            mine = np.empty(len(key), np.int64)
            for value in np.unique(key):
                rate, slot = divmod(int(value), _SLOTS)
                combo = (rate, slot, row.gpu.name, row.setup.layout, row.setup.compile)
                if combo not in combos:
                    combos[combo] = len(combos)
                    for what, table in tables.items():
                        effects = kernel_effects(what, slot, rate, row.gpu, row.setup)
                        table.append(names(effects))
                mine[key == value] = combos[combo]
            place.append(mine)
        self.compute, self.memory, self.launch = map(_padded, tables.values())
        self.combo = np.concatenate(place)
        self.row = np.repeat(np.arange(len(rows)), [len(p) for p in place])
        pair = self.row * len(combos) + self.combo
        self.pairs, self.pair = np.unique(pair, return_inverse=True)
        self.pair_row, self.pair_combo = np.divmod(self.pairs, len(combos))

    def predict(self, theta: Floats) -> tuple[Floats, Floats]:
        """Logarithms of the steps, and their slopes by effect."""
        row, count = self.row, self.count
        fill = np.exp(theta[self.fill].sum(1))[row] * self.waves
        done = self.compute_ms * np.exp(theta[self.compute].sum(1))[self.combo] * (1 + fill)
        moved = self.traffic_ms * np.exp(theta[self.memory].sum(1))[self.combo]
        each = np.maximum((done**_SHARP + moved**_SHARP) ** (1 / _SHARP), 1e-12)
        launch = np.exp(theta[self.launch].sum(1))[self.combo]
        kernels = np.bincount(row, (each + launch) * count, self.rows)
        around = np.exp(theta[self.fixed])
        host = (self.launches + around) * np.exp(theta[self.host].sum(1))
        extra = self.extra * np.exp(theta[self.copy])
        step = (kernels**_HOST_SHARP + host**_HOST_SHARP) ** (1 / _HOST_SHARP)
        total = step * np.exp(theta[self.total].sum(1)) + extra
        share = 1.0 - extra / total
        by_kernels = share * (kernels / step) ** _HOST_SHARP / kernels
        by_host = share * (host / step) ** _HOST_SHARP
        moves = count * each ** (1 - _SHARP)
        d_done = moves * done**_SHARP
        slopes = self._by_operator(
            by_kernels, len(theta), (d_done, moves * moved**_SHARP, count * launch)
        )
        d_fill = np.bincount(row, d_done * fill / (1 + fill), self.rows) * by_kernels
        places = np.arange(self.rows)
        for values, table in ((d_fill, self.fill), (by_host, self.host), (share, self.total)):
            for column in table.T:
                slopes[places, column] += values
        slopes[:, self.fixed] += by_host * around / (self.launches + around)
        slopes[:, self.copy] += extra / total
        slopes[:, 0] = 0.0
        return np.log(total), slopes

    def _by_operator(
        self, by_kernels: Floats, size: int, moves: tuple[Floats, Floats, Floats]
    ) -> Floats:
        """Slopes by the effects on arithmetic, traffic and launches of operators."""
        slopes = np.zeros(self.rows * size)
        for values, table in zip(moves, (self.compute, self.memory, self.launch), strict=True):
            summed = np.bincount(self.pair, values, len(self.pairs)) * by_kernels[self.pair_row]
            at = self.pair_row[:, None] * size + table[self.pair_combo]
            slopes += np.bincount(at.ravel(), np.repeat(summed, table.shape[1]), len(slopes))
        return slopes.reshape(self.rows, size)


def _host_names(row: Observation) -> list[str]:
    lab = [f"host source {row.source}", f"host system {row.source} {row.gpu.name}"]
    return [*host_effects(row.setup), *lab]


@dataclass(frozen=True, eq=False)
class Doubt:
    """What a fit leaves open of the effects: each varies as its kind does, but along the
    directions that the measurements told."""

    names: tuple[str, ...]
    directions: Floats
    """One column each, over `names`, in units of their spreads."""
    told: Floats
    """How much of the variance along each direction is gone: 0 to 1."""

    @classmethod
    def of(cls, names: Sequence[str], curved: Floats, most: int = 160) -> Doubt:
        """From the curvature of the fit's cost by the data alone, over these effects."""
        size = np.array([effect_spread(name) for name in names])
        value, vector = np.linalg.eigh(curved * np.outer(size, size))
        kept = np.argsort(-value)[:most]
        curvature = np.maximum(value[kept], 0.0)
        return cls(tuple(names), np.asarray(vector[:, kept]), curvature / (1.0 + curvature))

    def without(self, prefixes: tuple[str, ...]) -> Doubt:
        """Of the other effects alone."""
        kept = [at for at, name in enumerate(self.names) if not name.startswith(prefixes)]
        return replace(
            self,
            names=tuple(self.names[at] for at in kept),
            directions=self.directions[kept],
        )

    def deviation(self, rows: Sequence[Observation], effects: Mapping[str, float]) -> Floats:
        """Standard deviation of the logarithm of each step on the machine of a lab that nobody
        knows."""
        names = EffectNames()
        problem = LogSteps([replace(row, source="another lab") for row in rows], names)
        met = list(names.place)
        theta = np.array([effects.get(name, USUAL.get(name, 0.0)) for name in met])
        theta[0] = 0.0
        slopes = problem.predict(theta)[1][:, 1:]
        slopes = slopes * np.array([effect_spread(name) for name in met[1:]])
        place = {name: at for at, name in enumerate(self.names)}
        mine = [at for at, name in enumerate(met[1:]) if name in place]
        known = self.directions[[place[met[1:][at]] for at in mine]]
        gone = (slopes[:, mine] @ known) ** 2 @ self.told
        return np.asarray(np.sqrt(np.maximum((slopes**2).sum(1) - gone, 0.0)))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            "names": np.array(self.names, np.str_),
            "directions": self.directions.astype(np.float16),
            "told": self.told.astype(np.float32),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Doubt:
        """That in these arrays."""
        return cls(
            tuple(str(name) for name in arrays["names"]),
            arrays["directions"].astype(np.float64),
            arrays["told"].astype(np.float64),
        )
