"""Fit the effects of a `Roofline` to measured steps.

One Gauss–Newton fit of all effects at once, in logarithms, with Huber's loss; each effect has a
penalty that says how large such effects usually are, which is what shares them among GPUs.
Sources and machines have effects of their own while fitting, which nobody asks for later: a lab
with a slow host does not make a class of operators slow. Nothing here predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from presage.foresee.gpus import Gpu
from presage.foresee.roofline import (
    _HOST_SHARP,
    _SHARP,
    Roofline,
    Work,
    fill_effects,
    host_effects,
    kernel_effects,
)
from presage.foresee.roofline_steps import RooflineSteps, StepParts, difficulty
from presage.learn import Floats
from presage.learn.evaluate import grouped_folds
from presage.learn.groups import GroupConformal
from presage.model.setup import Setup

__all__ = [
    "WAYS",
    "Observation",
    "fit_roofline",
    "fit_steps",
    "foreseen",
    "label",
    "left_out",
    "machine",
]

Ints = npt.NDArray[np.int64]

_USUAL = {
    "compute": 0.6,
    "memory": 0.3,
    "host": np.log(0.04),
    "launch": np.log(0.004),
    "fill": -1.0,
    "fixed": np.log(20.0),
}
"""Where the common effects begin: slower than the peak, 40 µs of host and 4 µs of kernel a launch,
a third of a round of tiles lost, a loop that costs as much as 20 launches."""
_SPREAD = (
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
    ("host compiled", 0.5),
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
_NUISANCE = ("source ", "host source ", "host system ")
_FAR = 0.25
"""Where Huber's loss turns from quadratic to linear."""
_ROUNDS = 40
_TRUST = 0.15**-2
"""One over the variance of a measured step that all effects explain."""
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


def _spread(name: str) -> float:
    return next(size for words, size in _SPREAD if words in name)


class _Names:
    """Effects by name, numbered as they are met."""

    def __init__(self) -> None:
        self.place: dict[str, int] = {"": 0}

    def __call__(self, names: Sequence[str]) -> list[int]:
        return [self.place.setdefault(name, len(self.place)) for name in names]


def _padded(lists: list[list[int]]) -> Ints:
    """As one table; place 0 is an effect that is always none."""
    width = max(map(len, lists))
    return np.array([row + [0] * (width - len(row)) for row in lists], np.int64)


class _LogSteps:
    """All observations side by side."""

    def __init__(self, rows: Sequence[Observation], names: _Names) -> None:
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

    def _combine(self, rows: Sequence[Observation], names: _Names) -> None:
        """Operators of one class on one GPU have the same effects: tables of those, and which
        combination each operator is of."""
        combos: dict[tuple[int, int, str, str], int] = {}
        tables: dict[str, list[list[int]]] = {"compute": [], "memory": [], "launch": []}
        place: list[Ints] = []
        for row in rows:
            key = row.work.rate * _SLOTS + row.work.slot
            mine = np.empty(len(key), np.int64)
            for value in np.unique(key):
                rate, slot = divmod(int(value), _SLOTS)
                combo = (rate, slot, row.gpu.name, row.setup.layout)
                if combo not in combos:
                    combos[combo] = len(combos)
                    for what, table in tables.items():
                        effects = kernel_effects(what, slot, rate, row.gpu, row.setup.layout)
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


def _huber(error: Floats) -> float:
    """Half the squares of small errors, and no more than the lines that go on from them."""
    off = np.abs(error)
    return float(np.where(off < _FAR, 0.5 * off**2, _FAR * (off - 0.5 * _FAR)).sum())


def fit_roofline(rows: Sequence[Observation], begin: Roofline | None = None) -> Roofline:
    """The effects that explain the rows best; where to `begin` only saves time."""
    names = _Names()
    problem = _LogSteps(rows, names)
    known = list(names.place)
    centre = np.array([_USUAL.get(name, 0.0) for name in known])
    stiff = np.array([1.0] + [_spread(name) ** -2 for name in known[1:]])
    truth = np.log([row.ms for row in rows])

    def cost(guess: Floats, theta: Floats) -> float:
        prior = 0.5 * float((stiff * (theta - centre) ** 2).sum())
        return _TRUST * _huber(truth - guess) + prior

    theta, damp = centre.copy(), 1.0
    if begin is not None:
        theta[1:] = [begin.effects.get(name, 0.0) for name in known[1:]]
        damp = 0.01
    guess, slopes = problem.predict(theta)
    best = cost(guess, theta)
    for _ in range(_ROUNDS):
        error = truth - guess
        weights = _TRUST * np.minimum(1.0, _FAR / np.maximum(np.abs(error), 1e-9))
        square = slopes.T @ (slopes * weights[:, None])
        square[np.diag_indices_from(square)] += stiff * (1.0 + damp)
        toward = slopes.T @ (error * weights) - stiff * (theta - centre)
        step = np.clip(np.linalg.solve(square, toward), -0.7, 0.7)
        tried = problem.predict(theta + step)
        found = cost(tried[0], theta + step)
        if found < best:
            gained, best = best - found, found
            theta, (guess, slopes), damp = theta + step, tried, damp / 4
            if gained < 3e-4 * best:
                break
        else:
            damp = min(damp * 8, 1e6)
    return Roofline(dict(zip(known[1:], theta[1:].tolist(), strict=True)))


WAYS = ("family", "gpu", "source")
"""Ways to leave rows out."""
_FOLDS = 8
"""Groups that are left out together, to save time: families and GPUs. There are fewer sources."""


def label(row: Observation, way: str) -> str:
    """The group of a row."""
    return row.gpu.name if way == "gpu" else row.family if way == "family" else row.source


def machine(row: Observation) -> str:
    """What errs alike, whatever is left out: the steps of one source on one GPU. Sources alone are
    too few to tell how the next one will err."""
    return f"{row.source} {row.gpu.name}"


def foreseen(roofline: Roofline, row: Observation) -> tuple[float, StepParts]:
    """Milliseconds that the measurement of a row should show, and the parts of its step."""
    each = roofline.kernels(row.work, row.gpu, row.setup.layout) * row.work.count
    parts = StepParts(float(each.sum()), roofline.host_ms(row.launches, row.setup))
    return parts.step_ms + roofline.copied_ms(row.extra_ms), parts


def left_out(
    rows: Sequence[Observation],
    helpers: Sequence[Observation],
    way: str,
    begin: Roofline,
    judged: Sequence[Observation] = (),
) -> tuple[Floats, Floats]:
    """What each of `rows` and `judged` is foreseen as by a fit without its group, and by how much
    its interval is wider. `helpers` are fitted on where they are not of the group, `judged` never.
    """
    asked = [*rows, *judged]
    groups = np.array([label(row, way) for row in asked])
    fold = grouped_folds(groups, min(_FOLDS, len(np.unique(groups))), 0)
    guess, scale = np.empty(len(asked)), np.empty(len(asked))
    for n in np.unique(fold):
        gone = set(groups[fold == n])
        kept = [row for row in (*rows, *helpers) if label(row, way) not in gone]
        same = len(kept) == len(rows) + len(helpers)
        fitted = begin if same else fit_roofline(kept, begin=begin)
        for place in np.flatnonzero(fold == n):
            guess[place], parts = foreseen(fitted, asked[place])
            scale[place] = difficulty(parts, asked[place].gpu)
    return guess, scale


def fit_steps(
    rows: Sequence[Observation], helpers: Sequence[Observation]
) -> tuple[RooflineSteps, dict[str, Floats]]:
    """A roofline with the intervals of groups left out, and what each of `rows` was foreseen as
    with its group left out, by way."""
    roofline = fit_roofline([*rows, *helpers])
    found = {way: left_out(rows, helpers, way, roofline) for way in WAYS}
    labels = dict.fromkeys(WAYS, np.array([machine(row) for row in rows]))
    truth = np.array([row.ms for row in rows])
    scaled = {
        way: truth * np.exp(np.log(guess / truth) / scale) for way, (guess, scale) in found.items()
    }
    intervals = GroupConformal.fit(truth, scaled, labels)
    kept = {k: v for k, v in roofline.effects.items() if not k.startswith(_NUISANCE)}
    steps = RooflineSteps(Roofline(kept), intervals)
    return steps, {way: guess for way, (guess, _) in found.items()}
