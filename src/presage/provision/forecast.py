"""The forecast policy: the distribution of what the next window will need, and the allocation at
which giving more would cost more than it saves.

A forest predicts, from the phase, the expected change and what the pod did so far, which share of
the window's samples will be at most so many times what was used lately, for some 40 such multiples
at once. That is the last window's peak; where it idled, the mean of about the last ten windows, as
multiples of nothing say nothing.

A price of a missed sample then decides for each window: where use is steady, a little more covers
everything and is bought; where it is wild, the last few samples would cost too much. A large pod's
misses cost more, by the square root of its size: in proportion, too little is saved on large pods;
not at all, everything is saved on them, and a fleet of another size is served badly (both were
worse on validation). The price is the lowest one that fulfils the target on the training pods,
each judged by trees that have not seen it, with the standard error over pods to spare: the fewer
pods, the more caution. So that nobody is starved for the good of the whole, no window is planned
below a least coverage.

Memory is different: a window in which it runs short is lost whole, however briefly. There the
forest predicts whether the *whole* window will fit, and the target counts windows, which is
caution enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from presage.learn import sklearn_ensemble
from presage.provision.allocate import Wish
from presage.provision.policies import ExpectedPhases, PhaseTable
from presage.provision.usage import MEMORY, Floats, Ints, Usage

__all__ = ["UsageForecaster"]

_FOLDS = 4
_LEAST_TREES, _MOST_TREES = 6, 80
"""In each fold; the fewer windows, the more trees, as each differs more."""
_WINDOWS_X_TREES = 16_000
_LEAST_PODS = 8
"""With fewer pods, each is judged by stretches of time."""
_LEAST_WINDOWS = 24
_LEAST_COVERAGE = 0.9
_LEAST_COVERAGE_MEMORY = 0.5
_USUAL = 0.9
"""The usual use counts each window that much of the one after it."""
_SMALL = 0.01
"""Next to this part of the mean use, multiples of a use make sense even if it was zero."""
_LEVELS = np.unique(
    np.concatenate(
        [
            np.linspace(0.02, 0.5, 5),
            np.linspace(0.5, 0.9, 17),
            np.linspace(0.9, 0.99, 13),
            np.linspace(0.99, 1.0, 8),
        ]
    )
)
"""Which quantiles of the multiples seen in training the forest is asked about."""


@dataclass(frozen=True, eq=False)
class UsageForecaster:
    """Fitted on the windows of one resource."""

    forests: list[Any]
    """One for each fold, which has not seen that fold."""
    multiples: Floats
    small: float
    table: PhaseTable
    price: float
    least_coverage: float
    own: Floats
    """Per training window: the allocation by the forest that has not seen it."""

    @staticmethod
    def can_learn(usage: Usage) -> bool:
        """Whether there are enough windows to learn from."""
        return int((~usage.first).sum()) >= _LEAST_WINDOWS

    @classmethod
    def fit(
        cls,
        usage: Usage,
        now: ExpectedPhases,
        table: PhaseTable,
        target_pct: float,
        seed: int = 0,
        kin: Ints | None = None,
    ) -> UsageForecaster:
        """Learn from all windows but the first of each pod. With `kin`, the workload of each pod,
        pods are judged by trees that have not seen their workload."""
        rows = np.flatnonzero(~usage.first)
        make = sklearn_ensemble("the forecast policy").RandomForestRegressor
        small = max(_SMALL * float(np.mean(usage.use)), float(np.finfo(np.float64).tiny))
        is_memory = usage.resource in MEMORY
        base = _base(usage, small)
        counted = np.repeat(~usage.first, usage.counts)
        seen = (usage.use + small) / usage.spread(base)
        multiples = np.unique(np.quantile(seen[counted], _LEVELS))
        covered = _covered(usage, seen, multiples)[rows]
        target = covered
        if is_memory:
            stays = usage.maximum <= usage.before(usage.last)
            target = ((covered >= 1) | stays[rows, None]).astype(np.float64)
        features = _features(usage, now, table, small)[rows]
        weights = np.ones(len(rows)) if is_memory else usage.counts[rows].astype(np.float64)
        units = _units(usage, kin)[rows]
        fold = units % _FOLDS
        trees = int(np.clip(_WINDOWS_X_TREES / len(rows), _LEAST_TREES, _MOST_TREES))
        forests, cover = [], np.empty_like(target)
        for one in range(_FOLDS):
            others, mine = fold != one, fold == one
            forest = make(
                trees,
                min_samples_leaf=int(np.clip(len(rows) / 500, 3, 30)),
                max_features=0.5,
                random_state=seed + one,
                n_jobs=1,
            ).fit(features[others], target[others], sample_weight=weights[others])
            forests.append(forest)
            if mine.any():
                cover[mine] = forest.predict(features[mine])
        least = _LEAST_COVERAGE_MEMORY if is_memory else _LEAST_COVERAGE
        amounts = _amounts(usage, multiples, small)[rows]
        sizes = np.sqrt(base[rows])
        cautious = None if is_memory else units
        price = _price(amounts, sizes, cover, target, weights, cautious, target_pct, least)
        own = np.full(len(usage), np.nan)
        own[rows] = _at(amounts, _chosen(amounts, cover, price * sizes, least))
        return cls(forests, multiples, small, table, price, least, own)

    def wish(self, usage: Usage, now: ExpectedPhases) -> Wish:
        """What each window should have."""
        rows = np.flatnonzero(~usage.first)
        wanted = np.full(len(usage), np.nan)
        if rows.size:
            features = _features(usage, now, self.table, self.small)[rows]
            cover = np.mean([forest.predict(features) for forest in self.forests], axis=0)
            amounts = _amounts(usage, self.multiples, self.small)[rows]
            prices = self.price * np.sqrt(_base(usage, self.small)[rows])
            wanted[rows] = _at(amounts, _chosen(amounts, cover, prices, self.least_coverage))
        return Wish(wanted)

    def own_wish(self) -> Wish:
        """What each training window should have, by trees that have not seen its pod."""
        return Wish(self.own)


def _base(usage: Usage, small: float) -> Floats:
    """What multiples refer to: the last window's peak, or the usual use if that was more. Memory
    does not come and go in bursts: its last peak."""
    peak = np.nan_to_num(usage.before(usage.maximum))
    if usage.resource in MEMORY:
        return peak + small
    usual = np.nan_to_num(usage.before(usage.so_far(usage.mean, _USUAL)))
    base: Floats = np.maximum(peak, usual) + small
    return base


def _amounts(usage: Usage, multiples: Floats, small: float) -> Floats:
    """(windows, multiples): what may be given; of memory, never less than is in use."""
    amounts: Floats = np.maximum(_base(usage, small)[:, None] * multiples - small, 0)
    if usage.resource in MEMORY:
        amounts = np.maximum(amounts, np.nan_to_num(usage.before(usage.last))[:, None])
    return amounts


def _covered(usage: Usage, seen: Floats, multiples: Floats) -> Floats:
    """(windows, multiples): the share of a window's samples that are at most the multiple."""
    rank = np.searchsorted(multiples, seen * (1 - 1e-12))
    size = len(multiples) + 1
    window = np.repeat(np.arange(len(usage)), usage.counts)
    counts = np.bincount(window * size + rank, minlength=len(usage) * size)
    share = np.cumsum(counts.reshape(-1, size), axis=1)[:, :-1] / usage.counts[:, None]
    return np.asarray(share)


def _features(usage: Usage, now: ExpectedPhases, table: PhaseTable, small: float) -> Floats:
    """Per window, what is known before it. Amounts are logarithms of their ratio to the last peak
    (0 when there is nothing to say), so that pods of any size look alike."""
    base = _base(usage, small)

    def ratio(amount: Floats) -> Floats:
        return np.nan_to_num(np.log((np.maximum(amount, 0) + small) / base))

    peak, mean, sd = usage.maximum, usage.mean, usage.sd
    counts = usage.running_total(usage.counts.astype(np.float64))
    level = usage.running_total(mean * usage.counts) / counts
    square = usage.running_total((mean**2 + sd**2) * usage.counts) / counts
    jump = np.log((peak + small) / base)
    jump[usage.first] = 0.0
    recent = np.stack([usage.before(peak, steps) for steps in range(1, 7)])
    recent[np.isnan(recent)] = np.broadcast_to(recent[:1], recent.shape)[np.isnan(recent)]
    at = np.maximum(now.phase, 0)
    in_phase = np.where(now.phase >= 0, table.mean[at], np.nan)
    known = np.nan_to_num(now.share)
    columns = [
        ratio(usage.before(mean)),
        np.nan_to_num(usage.before(sd) / base),
        ratio(usage.before(usage.minimum)),
        ratio(usage.before(usage.last)),
        ratio(usage.before(usage.use[usage.starts])),
        np.log(base),
        ratio(usage.before(peak, 2)),
        ratio(usage.before(mean, 2)),
        ratio(usage.before(peak, 3)),
        ratio(usage.before(mean, 3)),
        np.nan_to_num(usage.before(sd, 2) / base),
        ratio(usage.before(usage.so_far(peak))),
        ratio(usage.before(level)),
        np.nan_to_num(np.sqrt(np.maximum(usage.before(square - level**2), 0)) / base),
        np.nan_to_num(usage.before(usage.running_total(np.abs(jump)) / (usage.order + 1))),
        np.nan_to_num(usage.before(usage.so_far(jump))),
        ratio(usage.before(usage.so_far(peak, 0.7))),
        ratio(usage.before(usage.so_far(mean, 0.7))),
        ratio(usage.before(usage.so_far(peak, 0.9))),
        ratio(recent.max(axis=0)),
        ratio(recent.min(axis=0)),
        usage.index.astype(np.float64),
        ratio(in_phase),
        ratio(np.where(now.phase >= 0, known @ np.nan_to_num(table.mean), np.nan)),
        ratio(np.where(now.phase >= 0, known @ np.nan_to_num(table.upper), np.nan)),
        np.nan_to_num(now.change, nan=-1.0),
    ]
    return np.column_stack(columns)


def _units(usage: Usage, kin: Ints | None = None) -> Ints:
    """Per window, what it is judged with: its workload where that is known of enough pods, else
    its pod, or where pods are few a stretch of time."""
    if kin is not None and np.unique(kin).size >= _LEAST_PODS:
        return kin[usage.pod]
    if len(usage.pods) >= _LEAST_PODS:
        return usage.pod
    stretch = max(1, (int(usage.order.max()) + 1) // (3 * _FOLDS))
    units: Ints = usage.pod + len(usage.pods) * (usage.order // stretch)
    return units


def _chosen(amounts: Floats, covered: Floats, prices: Floats, least: float) -> Ints:
    """Per window, the multiple at which allocation + price × samples missed is least. If no
    multiple has the least coverage, the largest is taken."""
    cost = amounts + prices[:, None] * (1 - covered)
    cost[covered < np.minimum(least, covered[:, -1:])] = np.inf
    return np.asarray(np.argmin(cost, axis=1), dtype=np.int64)


def _at(amounts: Floats, chosen: Ints) -> Floats:
    picked: Floats = amounts[np.arange(len(chosen)), chosen]
    return picked


def _price(
    amounts: Floats,
    sizes: Floats,
    cover: Floats,
    covered: Floats,
    weights: Floats,
    units: Ints | None,
    target_pct: float,
    least: float,
) -> float:
    """The lowest price of missing a sample (or, of memory, a window) with which the fulfilment,
    less its standard error over units (if given), reaches the target."""
    scale = max(float(np.abs(amounts).mean()), float(np.finfo(np.float64).tiny)) / sizes.mean()
    low, high = -7.0, 12.0  # powers of ten of the scale
    rows = np.arange(len(amounts))
    for _ in range(32):
        middle = (low + high) / 2
        chosen = _chosen(amounts, cover, scale * 10**middle * sizes, least)
        met = weights * covered[rows, chosen]
        mean = met.sum() / weights.sum()
        error = 0.0
        if units is not None:
            away = np.bincount(units, met - mean * weights)
            error = float(np.sqrt((away**2).sum()) / weights.sum())
        low, high = (low, middle) if 100 * (mean - error) >= target_pct else (middle, high)
    return float(scale * 10**high)
