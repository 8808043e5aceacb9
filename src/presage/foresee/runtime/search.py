"""Which configuration to try next: Bayesian optimisation that starts from what other jobs taught.

What is believed of a workload is `surrogate`'s: guesses from the known ones and a Gaussian process
around them. The next trial is the one with the highest expected improvement. The search stops when
what a trial can be expected to gain, over all later runs, is less than the trial takes. Asks for
measurements through a function; measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.runtime.surrogate import Case, Guesses, KernelShares, likely_shares
from presage.foresee.runtime.trials import Trials
from presage.learn import Floats
from presage.model.errors import UserError

__all__ = ["ConfigSearch", "Pick", "SearchSettings", "Taught", "Tuning", "settings_for", "teach"]

_LEAST_SHARED = 3
"""Configurations that a known workload must share with others to teach anything."""
_USUAL_LEVEL = 5.0
_FORMS = ((1.0, False), (4.0, False), (1.0, True), (4.0, True))
"""`alike` and `cliffs` to choose from."""
_MOST_SEARCHES = 40
_MOST_CONFIGS = 120
"""Configurations of a workload that is searched as if it were new."""
_TRIALS_TOLD = 10
"""Measurements that the shares of kernels are to explain at once, as there are few in a search."""
_DRAWS = 2
_FAILED = float(np.log(2.0))
"""How much worse than the worst a trial counts that failed, in logarithms."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """What is believed before the first trial; chosen on workloads left out of the known ones."""

    alike: float = 4.0
    """How many times more a known workload counts for each word (framework, size, cluster) that it
    shares with the new one."""
    cliffs: bool = False
    """Whether it may take much longer where memory is short."""
    shares: KernelShares | None = None
    """Of the kernels; usual ones without."""


@dataclass(frozen=True, slots=True)
class Pick:
    """One trial: what was expected of it and what it took."""

    config: dict[str, Any]
    expected: float | None
    """None before anything is known; so are its bounds."""
    low: float | None
    high: float | None
    gain_pct: float
    """Expected improvement on the best so far, in percent of it; of the first trial on the median
    configuration."""
    gain_low_pct: float | None
    """With 10 % probability it is less; None before anything is known."""
    gain_high_pct: float | None
    """With 10 % probability it is more."""
    took: float
    """Infinite for a trial that failed."""

    @property
    def failed(self) -> bool:
        """Whether it came to nothing."""
        return not np.isfinite(self.took)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "took": None if self.failed else self.took}


@dataclass(frozen=True, slots=True)
class Tuning:
    """A search from its first trial to its end."""

    workload: str
    objective: str
    picks: tuple[Pick, ...]
    chosen: dict[str, Any]
    took: float
    stopped: str
    gain_left_pct: float
    """What the next trial could still be expected to gain."""
    taught_by: int
    """How many other workloads were known."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "workload": self.workload,
            "objective": self.objective,
            "picks": [pick.to_dict() for pick in self.picks],
            "trials": len(self.picks),
            "chosen": self.chosen,
            "took": self.took,
            "stopped": self.stopped,
            "expected_gain_left_pct": self.gain_left_pct,
            "taught_by": self.taught_by,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Taught:
    """What known workloads took: logarithms."""

    table: Floats
    """A row for each configuration, a column for each known workload; NaN where nothing was
    measured."""
    weights: Floats
    """How much each workload counts: programs count alike, whatever the number of sizes."""
    shared: npt.NDArray[np.int64]
    """How many words each workload shares with the new one."""

    def among(self, allowed: npt.NDArray[np.intp], features: Floats, alike: float) -> _Known:
        """What they say of the configurations that may be chosen: of those workloads that share
        some of them."""
        table = self.table[allowed]
        enough = np.sum(~np.isnan(table), axis=0) >= min(_LEAST_SHARED, len(allowed))
        if not enough.any():
            none = np.zeros((0, len(allowed)))
            return _Known(np.zeros(len(allowed)), none, np.zeros(0), _USUAL_LEVEL)
        weights = (self.weights * alike**self.shared)[enough]
        return _Known.of(table[:, enough].T, weights / weights.sum(), features)


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The mean of known workloads, how each differs from it, and how long they take."""

    mean: Floats
    differ: Floats
    weights: Floats
    level: float

    @classmethod
    def of(cls, table: Floats, weights: Floats, features: Floats) -> _Known:
        """From a table with gaps, a row for each workload: what was not measured is foreseen from
        like configurations."""
        gaps = np.isnan(table)
        levels, mean = np.nanmean(table, axis=1), np.zeros(table.shape[1])
        counts = weights[:, None] * ~gaps
        for _ in range(50):
            above = np.where(gaps, 0.0, table - levels[:, None])
            mean = np.sum(counts * above, axis=0) / (counts.sum(axis=0) + 1e-3 * weights.mean())
            levels = np.where(gaps, 0.0, table - mean).sum(axis=1) / (~gaps).sum(axis=1)
        differ = np.where(gaps, 0.0, table - levels[:, None] - mean)
        if gaps.any():
            near = np.exp(-0.5 * _distances(features))
            differ = np.where(gaps, (differ @ near) / (~gaps @ near + 0.3), differ)
        return cls(mean, differ, weights, float(weights @ levels))


def teach(known: Trials | None, configs: int, words: Sequence[str] = ()) -> Taught:
    """Join the known workloads; `words` is what is known of the new one."""
    if known is None:
        return Taught(np.zeros((configs, 0)), np.zeros(0), np.zeros(0, np.int64))
    workloads, column = np.unique(known.workload, return_inverse=True)
    names = workloads.tolist()
    table = np.full((configs, len(names)), np.nan)
    table[known.config, column] = np.log(known.value)
    programs = [known.programs.get(name, name) for name in names]
    weights = np.array([1 / programs.count(program) for program in programs])
    shared = [sum(map(str.__eq__, known.words.get(name, ()), words)) for name in names]
    return Taught(table, weights, np.array(shared, np.int64))


def _distances(features: Floats) -> Floats:
    squares = np.sum(features**2, axis=1)
    out: Floats = squares[:, None] + squares[None, :] - 2 * features @ features.T
    return out


@dataclass(frozen=True, slots=True, eq=False)
class _Rehearsal:
    """A known workload that is searched as if its program were new."""

    program: str
    values: dict[int, float]
    taught: Taught


def settings_for(known: Trials | None, runs: int, seed: int = 0) -> SearchSettings:
    """The settings that found the best configurations of known workloads, each searched as if its
    program were new; with the shares of kernels that make those workloads most probable."""
    if known is None or len(set(known.programs.values())) < 3:
        return SearchSettings()
    rehearsals = _rehearsals(known, runs, np.random.default_rng(seed))
    if not rehearsals:
        return SearchSettings()
    candidates = []
    for alike, cliffs in _FORMS if known.described.memory is not None else _FORMS[:2]:
        draft = SearchSettings(alike, cliffs)
        rng = np.random.default_rng(seed)
        settings = replace(draft, shares=_shares(known, rehearsals, draft, rng))
        regret = 0.0
        for one in rehearsals:
            search = ConfigSearch(known, list(one.values), one.taught, settings)
            done = search.run(one.values.__getitem__, runs, later_runs=np.inf)
            regret += min(1.0, done.took / min(one.values.values()) - 1)
        candidates.append((regret, settings))
    return min(candidates, key=lambda one: one[0])[1]


def _rehearsals(known: Trials, runs: int, rng: np.random.Generator) -> list[_Rehearsal]:
    programs = sorted(set(known.programs.values()))
    each = max(1, -(-_MOST_SEARCHES // len(programs)))
    out = []
    for program in programs:
        mine = [name for name in sorted(known.programs) if known.programs[name] == program]
        rest = known.only(set(known.programs) - set(mine))
        for name in rng.permutation(mine)[:each].tolist():
            values = known.of(name)
            if len(values) <= max(runs, _LEAST_SHARED):
                continue
            some = rng.permutation(sorted(values))[:_MOST_CONFIGS].tolist()
            taught = teach(rest, known.configs.height, known.words.get(name, ()))
            out.append(_Rehearsal(program, {config: values[config] for config in some}, taught))
    return out


def _shares(
    known: Trials,
    rehearsals: Sequence[_Rehearsal],
    settings: SearchSettings,
    rng: np.random.Generator,
) -> KernelShares:
    often = [one.program for one in rehearsals]
    cases = []
    for one in rehearsals:
        allowed = np.array(sorted(one.values), np.intp)
        guesses, _ = _guesses(known, allowed, one.taught, settings)
        logs = np.log([one.values[config] for config in allowed.tolist()])
        for _ in range(_DRAWS):
            rows = rng.permutation(len(allowed))[:_TRIALS_TOLD].astype(np.intp)
            cases.append(Case.of(guesses, logs, rows, 1 / often.count(one.program)))
    return likely_shares(cases)


def _guesses(
    trials: Trials, allowed: npt.NDArray[np.intp], taught: Taught, settings: SearchSettings
) -> tuple[Guesses, _Known]:
    described = trials.described.at(allowed)
    known = taught.among(allowed, described.features, settings.alike)
    made = Guesses.of(described, known.mean, known.differ, known.weights, settings.cliffs)
    return made, known


@dataclass(frozen=True, slots=True)
class _Ahead:
    """What is to be tried next, and what is expected of it; logarithms."""

    place: int
    expected: float
    deviation: float
    gain: float
    """Expected improvement, as a share of ..."""
    best: float
    """... the best so far (of the first trial: the median configuration) ..."""
    apart: float
    """... and the standard deviation of how far it is from that."""

    def pick(self, config: dict[str, Any], took: float, *, told: bool) -> Pick:
        """The trial, when it is over; `told` is whether anything was known before it."""
        if not told:
            return Pick(config, None, None, None, 100 * self.gain, None, None, took)
        ends = 1.2816 * np.array([-1, 0, 1])
        low, middle, high = np.exp(self.expected + self.deviation * ends).tolist()
        gains = 100 * (1 - np.exp(self.expected - self.best + self.apart * ends))
        most, _, least = np.maximum(gains, 0.0).tolist()
        return Pick(config, middle, low, high, 100 * self.gain, least, most, took)


class ConfigSearch:
    """One workload's search among the configurations that it may use."""

    def __init__(
        self,
        trials: Trials,
        allowed: Sequence[int],
        taught: Taught,
        settings: SearchSettings = SearchSettings(),  # noqa: B008  # frozen
    ) -> None:
        if not allowed:
            raise UserError("there is no configuration to choose from")
        self._allowed = np.array(sorted(allowed), np.intp)
        self._configs = trials.configs
        guesses, known = _guesses(trials, self._allowed, taught, settings)
        shares = settings.shares or KernelShares.usual(max(trials.described.blocks) + 1)
        self._belief = guesses.believe(shares)
        self._mean, self._level = known.mean, known.level
        self._n_known = len(known.weights)
        self._tried: dict[int, float] = {}

    def run(
        self,
        measure: Callable[[int], float],
        runs: int,
        *,
        workload: str = "",
        objective: str = "time",
        later_runs: float = 1000.0,
        told: Callable[[Pick], None] = lambda _: None,
    ) -> Tuning:
        """Try configurations until `runs` are used up or another would not pay; a measurement that
        is infinite is one that failed. `told` hears of each trial when it is over."""
        picks: list[Pick] = []
        stopped = f"{runs} runs were asked for"
        while len(picks) < runs:
            if len(self._tried) == len(self._allowed):
                stopped = "every configuration was tried"
                break
            ahead = self._next()
            if picks and ahead.gain * later_runs < 1:
                later = f"{later_runs:g} later run{'s' if later_runs != 1 else ''}"
                stopped = (
                    f"another trial would gain {100 * ahead.gain:.3g} % of a run, over {later}"
                    " less than the trial takes"
                )
                break
            value = measure(int(self._allowed[ahead.place]))
            self._tried[ahead.place] = float(np.log(value))
            config = self._configs.row(int(self._allowed[ahead.place]), named=True)
            picks.append(ahead.pick(config, value, told=bool(picks or self._n_known)))
            told(picks[-1])
        best = min(picks, key=lambda pick: pick.took)
        if best.failed:
            raise UserError(f"none of the {len(picks)} trials came to an end")
        left = 0.0 if len(self._tried) == len(self._allowed) else self._next().gain
        return Tuning(
            workload,
            objective,
            tuple(picks),
            best.config,
            best.took,
            stopped,
            100 * left,
            self._n_known,
        )

    def _first(self) -> _Ahead:
        """What is best on average."""
        _, deviation, _ = self._belief.told((), np.empty(0))
        at = int(np.argmin(self._mean))
        usual = int(np.argsort(self._mean, kind="stable")[len(self._mean) // 2])
        median, between = float(np.median(self._mean)), self._belief.between
        apart = between[at, at] + between[usual, usual] - 2 * between[at, usual]
        expected = float(self._mean[at])
        gain = 1 - float(np.exp(expected - median))
        return _Ahead(
            at,
            expected + self._level,
            float(deviation[at]),
            gain,
            median + self._level,
            float(np.sqrt(max(apart, 0.0))),
        )

    def _next(self) -> _Ahead:
        """Where the expected improvement is largest."""
        if not self._tried:
            return self._first()
        left = np.array([n for n in range(len(self._allowed)) if n not in self._tried])
        values = np.array(list(self._tried.values()))
        ended = values[np.isfinite(values)]
        worst = float(ended.max()) if len(ended) else self._level
        values = np.where(np.isfinite(values), values, worst + _FAILED)
        means, around, odds = self._belief.told(list(self._tried), values - self._level)
        best = float(ended.min() if len(ended) else values.min()) - self._level
        gains = odds @ _improvement(best, means[:, left], around[left])
        chosen = int(np.argmax(gains))
        at = int(left[chosen])
        expected = float(odds @ means[:, at])
        apart = float(odds @ (means[:, at] - expected) ** 2)
        deviation_there = float(np.sqrt(around[at] ** 2 + apart))
        return _Ahead(
            at,
            expected + self._level,
            deviation_there,
            float(gains[chosen]),
            best + self._level,
            deviation_there,
        )


def _improvement(best: float, means: Floats, deviation: Floats) -> Floats:
    """Expected improvement as a share of the best (a logarithm)."""
    from scipy.special import ndtr

    ahead = (best - means) / deviation
    later = np.exp(np.minimum(means - best + deviation**2 / 2, 50.0))
    out: Floats = ndtr(ahead) - later * ndtr(ahead - deviation)
    return np.maximum(out, 0.0)


def median_over_best(values: Mapping[int, float]) -> float:
    """How many times longer the median configuration takes than the best."""
    times: npt.NDArray[np.float64] = np.array(list(values.values()))
    return float(np.median(times) / times.min())
