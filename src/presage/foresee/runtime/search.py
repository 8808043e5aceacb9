"""Which configuration to try next: Bayesian optimisation that starts from what other jobs taught.

The surrogate is scikit-learn's Gaussian process. A configuration is described by what it made of
each known workload (so workloads that rank configurations alike speak for one another) and by its
own numbers; the next trial is the one with the highest expected improvement. The search stops when
what a trial can be expected to gain, over all later runs, is less than the trial takes. Asks for
measurements through a function; measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.foresee.runtime.trials import Trials
from presage.learn import Floats
from presage.model.errors import MissingExtra, UserError

__all__ = ["ConfigSearch", "Pick", "SearchSettings", "Taught", "Tuning", "settings_for", "teach"]

_LEAST_SHARED = 3
"""Configurations that a known workload must share with others to teach anything."""
_FAILED = float(np.log(2.0))
"""How much worse than the worst a trial counts that failed, in logarithms."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    """Sizes of the kernels; chosen on workloads left out of the known ones."""

    linear: float = 1.0
    """How far a new workload may differ as the known ones do."""
    smooth: float = 0.25
    """Standard deviation of what only the configuration's own numbers explain."""
    length: float = 1.0
    trend: float = 0.2
    """How far a workload's own slope in each number may differ from that of the known ones."""
    alike: float = 3.0
    """How many times more a known workload counts for each word (framework, size, cluster) that it
    shares with the new one."""
    noise: float = 0.03


@dataclass(frozen=True, slots=True)
class Pick:
    """One trial: what was expected of it and what it took."""

    config: dict[str, Any]
    expected: float | None
    """None before anything is known; so are its bounds."""
    low: float | None
    high: float | None
    gain_pct: float
    """Expected improvement on the best so far, in percent of it."""
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
    """What known workloads say of each configuration: logarithms, less each workload's mean."""

    tasks: Floats
    """A row for each configuration, a column for each known workload."""
    levels: Floats
    """The mean logarithm of each known workload."""
    weights: Floats
    """How much each workload counts: programs count alike, whatever the number of sizes."""
    shared: npt.NDArray[np.int64]
    """How many words each workload shares with the new one."""
    programs: tuple[str, ...]

    @classmethod
    def nothing(cls, configs: int) -> Taught:
        """What is known before anything is."""
        none = np.zeros(0)
        return cls(np.zeros((configs, 0)), none, none, np.zeros(0, np.int64), ())


def teach(
    known: Trials | None,
    configs: int,
    features: Floats,
    words: Sequence[str] = (),
) -> Taught:
    """Join the known workloads; what was not measured is foreseen from like workloads. `words` is
    what is known of the new one."""
    if known is None:
        return Taught.nothing(configs)
    names = sorted(set(known.workload.tolist()))
    table = np.full((configs, len(names)), np.nan)
    for column, name in enumerate(names):
        for config, value in known.of(name).items():
            table[config, column] = np.log(value)
    enough = np.sum(~np.isnan(table), axis=0) >= _LEAST_SHARED
    table, names = table[:, enough], [n for n, keep in zip(names, enough, strict=True) if keep]
    if not names:
        return Taught.nothing(configs)
    whole, levels = _completed(table, features)
    programs = [known.programs.get(name, name) for name in names]
    weights = np.array([1 / programs.count(program) for program in programs])
    shared = [sum(map(str.__eq__, known.words.get(name, ()), words)) for name in names]
    return Taught(whole, levels, weights, np.array(shared), tuple(programs))


def _completed(table: Floats, features: Floats) -> tuple[Floats, Floats]:
    """The table without gaps, each column around 0, and what was taken off."""
    gaps = np.isnan(table)
    levels = np.nanmean(table, axis=0)
    filled = np.where(gaps, 0.0, table - levels)
    if not gaps.any():
        return filled, levels
    near = np.exp(-0.5 * _distances(features, features))
    for _ in range(30):
        # smooth over like configurations, then what the main directions of all workloads say
        row = np.where(gaps, 0.0, table - levels).sum(axis=1) / np.maximum((~gaps).sum(axis=1), 1)
        weight = near @ (~gaps)
        around = near @ np.where(gaps, 0.0, table - levels - row[:, None])
        smooth = row[:, None] + around / (weight + 0.5)
        left, sizes, right = np.linalg.svd(filled - smooth, full_matrices=False)
        kept = np.maximum(sizes - 0.1 * sizes[0], 0.0)
        guess = smooth + (left * kept) @ right
        new = np.where(gaps, guess, table - levels)
        shift = new.mean(axis=0)
        levels = levels + shift
        done = float(np.max(np.abs(new - shift - filled))) < 1e-4
        filled = new - shift
        if done:
            break
    return filled, levels


def _distances(left: Floats, right: Floats) -> Floats:
    out: Floats = np.sum((left[:, None, :] - right[None, :, :]) ** 2, axis=2)
    return out


_GRID = tuple(
    SearchSettings(linear=linear, smooth=smooth, trend=trend, alike=alike)
    for linear in (1.0, 4.0)
    for smooth, trend in ((0.1, 0.05), (0.4, 0.3))
    for alike in (1.0, 8.0)
)
_MOST_SEARCHES = 24


def settings_for(known: Trials | None, runs: int, seed: int = 0) -> SearchSettings:
    """The settings that found the best configurations of known workloads, each searched as if its
    program were new."""
    if known is None or len(set(known.programs.values())) < 3:
        return SearchSettings()
    rng = np.random.default_rng(seed)
    programs = sorted(set(known.programs.values()))
    each = max(1, _MOST_SEARCHES // len(programs))
    regrets = np.zeros(len(_GRID))
    for program in programs:
        mine = [name for name in sorted(known.programs) if known.programs[name] == program]
        rest = known.only(set(known.programs) - set(mine))
        for name in rng.permutation(mine)[:each].tolist():
            values = known.of(name)
            if len(values) <= runs:
                continue
            words = known.words.get(name, ())
            taught = teach(rest, known.configs.height, known.features, words)
            for place, settings in enumerate(_GRID):
                search = ConfigSearch(known, list(values), taught, settings)
                done = search.run(values.__getitem__, runs, later_runs=np.inf)
                regrets[place] += min(1.0, done.took / min(values.values()) - 1)
    return _GRID[int(np.argmin(regrets))]


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
        self._settings = settings
        tasks = taught.tasks[self._allowed]
        weights = taught.weights * settings.alike**taught.shared
        weights = weights / weights.sum() if len(weights) else weights
        self._levels = taught.levels
        self._mean = tasks @ weights if len(weights) else np.zeros(len(self._allowed))
        spread = (tasks - self._mean[:, None]) * np.sqrt(weights)
        numbers = trials.features[self._allowed]
        slope = settings.trend / np.sqrt(max(1, numbers.shape[1]))
        self._rows = np.hstack([np.sqrt(settings.linear) * spread, slope * numbers])
        self._slope = slope
        self._n_tasks = spread.shape[1]
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
            place, expected, deviation, gain = self._next()
            if picks and gain * later_runs < 1:
                stopped = (
                    f"another trial would gain {100 * gain:.3g} % of a run, over {later_runs:g}"
                    " later runs less than the trial takes"
                )
                break
            value = measure(int(self._allowed[place]))
            self._tried[place] = float(np.log(value))
            low, middle, high = np.exp(expected + 1.2816 * deviation * np.array([-1, 0, 1]))
            config = self._configs.row(int(self._allowed[place]), named=True)
            pick = Pick(config, float(middle), float(low), float(high), 100 * gain, value)
            if not picks and not self._n_tasks:
                pick = replace(pick, expected=None, low=None, high=None)
            picks.append(pick)
            told(pick)
        best = min(picks, key=lambda pick: pick.took)
        if best.failed:
            raise UserError(f"none of the {len(picks)} trials came to an end")
        left = 0.0 if len(self._tried) == len(self._allowed) else self._next()[3]
        return Tuning(
            workload,
            objective,
            tuple(picks),
            best.config,
            best.took,
            stopped,
            100 * left,
            self._n_tasks,
        )

    def _next(self) -> tuple[int, float, float, float]:
        """The place to try, what is expected there, how sure that is, and the expected gain as a
        share of the best so far."""
        expected, deviation = self._foreseen()
        left = np.array([n for n in range(len(self._allowed)) if n not in self._tried])
        if not self._tried:
            order = np.lexsort((left, expected[left]))
            first = int(left[order[0]])
            typical = float(np.median(expected[left]))
            gain = float(1 - np.exp(expected[first] - typical))
            return first, float(expected[first]), float(deviation[first]), gain
        ended = [value for value in self._tried.values() if np.isfinite(value)]
        best = min(ended, default=float(np.median(expected)))
        gains = _improvement(best - expected[left], deviation[left])
        at = int(np.argmax(gains))
        place = int(left[at])
        return place, float(expected[place]), float(deviation[place]), float(gains[at])

    def _foreseen(self) -> tuple[Floats, Floats]:
        try:
            from sklearn.gaussian_process import GaussianProcessRegressor
        except ImportError:
            raise MissingExtra("learn", "tuning") from None
        told = list(self._tried)
        level = float(np.mean(self._levels)) if len(self._levels) else 5.0
        if not told:
            return self._mean + level, np.sqrt(self._kernel().diag(self._rows))
        process = GaussianProcessRegressor(
            self._kernel(), alpha=self._settings.noise**2, optimizer=None
        )
        values = np.array([self._tried[place] for place in told])
        ended = values[np.isfinite(values)]
        worst = float(ended.max()) if len(ended) else level
        values = np.where(np.isfinite(values), values, worst + _FAILED)
        off = values - self._mean[told]
        middle = float(off.mean())
        process.fit(self._rows[told], off - middle)
        said, deviation = process.predict(self._rows, return_std=True)
        return said + middle + self._mean, deviation

    def _kernel(self) -> Any:
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct

        settings = self._settings
        far = np.full(self._n_tasks, 1e6)
        numbers = self._rows.shape[1] - self._n_tasks
        near = np.full(numbers, settings.length * self._slope * np.sqrt(max(1, numbers)))
        smooth = ConstantKernel(settings.smooth**2) * RBF(np.concatenate([far, near]))
        return DotProduct(sigma_0=1.0) + smooth


def _improvement(ahead: Floats, deviation: Floats) -> Floats:
    """Expected improvement, in logarithms: about a share of the best."""
    from scipy.stats import norm

    sure = np.maximum(deviation, 1e-9)
    out: Floats = ahead * norm.cdf(ahead / sure) + sure * norm.pdf(ahead / sure)
    return np.maximum(out, 0.0)


def median_over_best(values: Mapping[int, float]) -> float:
    """How many times longer the median configuration takes than the best."""
    found: npt.NDArray[np.float64] = np.array(list(values.values()))
    return float(np.median(found) / found.min())
