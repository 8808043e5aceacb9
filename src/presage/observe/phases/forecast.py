"""The phase after the current one, and when: probabilities for any horizon.

Two forecasts are learned, and the one that did better on pods kept aside answers:

- `semi-markov`: how often what followed, counted for the phase, the time spent in it and the phase
  before. States seen rarely lean on what is known without the phase before, then without the time.
- `mlp`: a perceptron on the time window (the last rows' values), the phase, the one before, the
  time in the phase, and the horizon. Its probabilities are sharpened or softened by a temperature
  fitted on the pods kept aside.

The next phase and the expected wait always come from the counts. Horizons are rows of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from presage.learn.bundle import prefixed, under
from presage.model.errors import BundleError
from presage.observe.phases.mlp import MLP, Head
from presage.observe.phases.paths import AGE_BINS, Outcomes, Path, age_bin
from presage.observe.phases.windows import Situations, Windows
from presage.telemetry.resample import Grid

__all__ = ["ForecastKind", "PhaseForecast", "PhaseForecaster", "SemiMarkov", "macro_f1"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
ForecastKind = Literal["semi-markov", "mlp"]

HORIZONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""In rows: what the perceptron is trained on. It is asked for no more than the last."""
_STRENGTH = 10.0
"""How many samples the less detailed estimate counts for."""
_RARE = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_STAY = (1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 1e9)
_MOST_ROWS = 300_000
_MOST_EXAMPLES = 120_000
_HIDDEN = 64
_EPOCHS = 10
_BATCH = 512


@dataclass(frozen=True, slots=True, eq=False)
class PhaseForecast:
    """What to expect of some samples; NaN for samples that have no phase."""

    horizon_s: float
    phase: Ints
    """(n,): the phase to name for the horizon, −1 for none. Not always the most probable one: rare
    phases and the current one get more weight, as served the macro F1 best on the pods kept
    aside."""
    at: Floats
    """(n, phases): the probability of each phase at the horizon."""
    share: Floats
    """(n, phases): the expected part of the time until the horizon."""
    visit: Floats
    """(n, phases): the probability that the phase is there at all before the horizon."""
    change: Floats
    """(n,): the probability that the current phase ends before the horizon."""
    next: Floats
    """(n, phases): the probability that the phase follows the current one, whenever that is."""
    wait_s: Floats
    """(n,): the expected time until the current phase ends; infinite if it never did."""

    def __len__(self) -> int:
        return len(self.change)

    def spread(self, places: Ints, offsets: Ints) -> list[PhaseForecast]:
        """One forecast for each pod, with a row for every sample; these are of some places."""
        parts: list[list[Any]] = [[self.horizon_s] * (len(offsets) - 1)]
        for item in fields(self)[1:]:
            mine = getattr(self, item.name)
            nothing = -1 if item.name == "phase" else np.nan
            full = np.full((int(offsets[-1]), *mine.shape[1:]), nothing, dtype=mine.dtype)
            full[places] = mine
            parts.append(np.split(full, offsets[1:-1]))
        return [PhaseForecast(*each) for each in zip(*parts, strict=True)]


@dataclass(frozen=True, eq=False)
class SemiMarkov:
    """Counts of what followed, kept as the path they were counted on."""

    path: Path
    _tables: dict[int, Floats] = field(default_factory=dict, repr=False)

    def states(self, phase: Ints, rows: Ints, previous: Ints) -> Ints:
        """A number for each (phase before, phase, time in it)."""
        kinds = self.path.n_phases
        return ((previous + 1) * kinds + phase) * len(AGE_BINS) + age_bin(rows)

    def table(self, rows: int) -> Floats:
        """(states, 3 × phases + 1): at, share, visit and change after so many rows."""
        if rows not in self._tables:
            seen = self.path.outcomes(np.flatnonzero(self.path.phases >= 0), rows)
            self._tables[rows] = self._smoothed(seen.places, _columns(seen, self.path.n_phases))
        return self._tables[rows]

    def following(self) -> tuple[Floats, Floats]:
        """(states, phases): which phase follows; (states,): the rows until then."""
        if 0 not in self._tables:
            after, left = self.path.following
            here = np.flatnonzero(self.path.phases >= 0)
            ended = after[here] >= 0
            which = np.eye(self.path.n_phases)[after[here[ended]]]
            which = self._smoothed(here[ended], which)
            ends = np.stack([ended, left[here] + 1.0], axis=1)
            rates = self._smoothed(here, ends.astype(np.float64))
            wait = np.divide(
                rates[:, 1], rates[:, 0], out=np.full(len(rates), np.inf), where=rates[:, 0] > 0
            )
            self._tables[0] = np.column_stack([which, wait])
        both = self._tables[0]
        return both[:, :-1], both[:, -1]

    def _smoothed(self, places: Ints, outcomes: Floats) -> Floats:
        """The mean outcome of each state; with few samples, near that of a coarser state."""
        kinds, ages = self.path.n_phases, len(AGE_BINS)
        path = self.path
        state = self.states(path.phases[places], path.ages[places], path.previous[places])
        prior = (outcomes.sum(axis=0) + 1.0 / kinds) / (len(outcomes) + 1.0)
        prior = np.broadcast_to(prior, (kinds, outcomes.shape[1]))
        by_phase = _leaning(state // ages % kinds, outcomes, prior)
        by_age = _leaning(state % (kinds * ages), outcomes, np.repeat(by_phase, ages, axis=0))
        return _leaning(state, outcomes, np.tile(by_age, (kinds + 1, 1)))


@dataclass(frozen=True, eq=False)
class PhaseForecaster:
    """Both forecasts and which one answers."""

    counts: SemiMarkov
    network: MLP
    temperatures: Floats
    """One for the softmax heads, one for the sigmoids."""
    balance: Floats
    """(kinds, HORIZONS, 2): when one phase must be named, how much rare ones are favoured (0 not,
    1 fully), and by what factor the current one is."""
    choice: ForecastKind
    losses: Mapping[str, float]
    """The log loss of the phase at the horizon on the pods kept aside, mean over horizons."""

    @classmethod
    def learned(
        cls,
        where: Situations,
        windows: Windows,
        grid: Grid,
        row_phases: Ints,
        n_phases: int,
        seed: int,
    ) -> PhaseForecaster:
        """Learn from situations and from what followed them in the same series."""
        path, place_of_row = Path.of_pods(row_phases, grid.offsets, n_phases)
        row = grid.bucket[windows.places]
        last = np.flatnonzero(np.append(row[1:] != row[:-1], True)) if len(row) else row
        examples, places = where.take(last), place_of_row[row[last]]
        random = np.random.default_rng(seed)
        aside = _set_aside(np.searchsorted(grid.offsets, row[last], side="right"), random)
        learn = _some(np.flatnonzero(~aside), _MOST_EXAMPLES, random)
        check = _some(np.flatnonzero(aside), _MOST_EXAMPLES // 4, random)

        width = examples.windows.shape[1] * examples.windows.shape[2]
        network = MLP(_inputs(width, n_phases), _HIDDEN, _heads(n_phases), seed)
        network.train(_batches(examples.take(learn), places[learn], path, random))
        counts = SemiMarkov(_without(path, places[aside]))
        draft = cls(counts, network, np.ones(2), _no_balance(), "mlp", {})
        temperatures, balance, losses = draft._checked(examples.take(check), places[check], path)
        choice: ForecastKind = "mlp" if losses["mlp"] < losses["semi-markov"] else "semi-markov"
        whole = SemiMarkov(Path(path.phases[:_MOST_ROWS], n_phases))
        return cls(whole, network, temperatures, balance, choice, losses)

    def forecast(
        self, where: Situations, rows: int, every: float, kind: ForecastKind | None = None
    ) -> PhaseForecast:
        """What to expect `rows` rows of `every` seconds ahead; `kind` overrules the choice."""
        n_phases = self.counts.path.n_phases
        state = self.counts.states(where.phase, where.rows, where.previous)
        kind = kind or self.choice
        by_counts = kind == "semi-markov"
        table = self.counts.table(rows)[state] if by_counts else self._by_network(where, rows)
        at, share, visit, change = np.split(table, np.arange(1, 4) * n_phases, axis=1)
        following, wait = self.counts.following()
        after = following[state]
        after[np.arange(len(state)), where.phase] = 0.0
        after /= np.maximum(after.sum(axis=1, keepdims=True), 1e-12)
        horizon = int(np.abs(np.log(HORIZONS) - np.log(rows)).argmin())
        rare, stay = self.balance[get_args(ForecastKind).index(kind), horizon]
        named = _named(at, where.phase, self.counts.path.shares, rare, stay)
        wait_s = wait[state] * every
        return PhaseForecast(rows * every, named, at, share, visit, change[:, 0], after, wait_s)

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What `from_arrays` takes."""
        return {
            **prefixed("network", self.network.to_arrays()),
            "path": self.counts.path.phases.astype(np.int16),
            "temperatures": self.temperatures,
            "balance": self.balance,
            "choice": np.array(self.choice),
            "losses": np.array([self.losses[kind] for kind in get_args(ForecastKind)]),
        }

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, npt.NDArray[Any]], n_phases: int, width: int
    ) -> PhaseForecaster:
        """The forecaster in these arrays; refuses any that do not fit."""
        try:
            path, temperatures, balance, losses, choice = (
                arrays[name] for name in ("path", "temperatures", "balance", "losses", "choice")
            )
        except KeyError as missing:
            raise BundleError(f"the forecast lacks {missing}") from None
        sound = (
            path.ndim == 1
            and path.dtype.kind == "i"
            and bool(((path >= -1) & (path < n_phases)).all())
            and temperatures.shape == losses.shape == (2,)
            and balance.shape == _no_balance().shape
            and bool((np.isfinite(balance) & (balance >= 0)).all())
            and bool((np.isfinite(temperatures) & (temperatures > 0)).all())
            and str(choice) in get_args(ForecastKind)
        )
        if not sound:
            raise BundleError("the forecast is damaged: its arrays contradict each other")
        return cls(
            SemiMarkov(Path(path.astype(np.int64), n_phases)),
            MLP.from_arrays(under("network", arrays), _inputs(width, n_phases), _heads(n_phases)),
            np.asarray(temperatures, dtype=np.float64),
            np.asarray(balance, dtype=np.float64),
            str(choice),  # type: ignore[arg-type]  # checked above
            dict(zip(get_args(ForecastKind), losses.tolist(), strict=True)),
        )

    def _by_network(self, where: Situations, rows: int) -> Floats:
        n_phases = self.counts.path.n_phases
        horizon = np.full(len(where), min(rows, HORIZONS[-1]))
        logits = self.network.logits(_rows(where, horizon, n_phases))
        return self._calibrated(logits)

    def _calibrated(self, logits: Floats) -> Floats:
        at, share, rest = self.network.split(logits)
        sharp, soft = self.temperatures
        odds = 0.5 + 0.5 * np.tanh(0.5 * rest / soft)
        return np.concatenate([_softmax(at / sharp), _softmax(share / sharp), odds], axis=1)

    def _checked(
        self, examples: Situations, places: Ints, path: Path
    ) -> tuple[Floats, Floats, dict[str, float]]:
        """The best temperatures, the best balance of each kind, and the log losses with them, on
        examples kept aside."""
        logits, counted, targets, phases = [], [], [], []
        order = np.argsort(places)
        for rows in HORIZONS:
            seen = path.outcomes(places, rows)
            some = examples.take(order[np.searchsorted(places[order], seen.places)])
            horizon = np.full(len(some), rows)
            logits.append(self.network.logits(_rows(some, horizon, path.n_phases)))
            state = self.counts.states(some.phase, some.rows, some.previous)
            counted.append(self.counts.table(rows)[state, : path.n_phases])
            targets.append(_columns(seen, path.n_phases))
            phases.append(some.phase)
        truth = np.concatenate(targets)
        balance = _no_balance()
        if not len(truth):
            return np.ones(2), balance, {"semi-markov": 0.0, "mlp": np.inf}
        at, _, rest = self.network.split(np.concatenate(logits))
        happened, odds = truth[:, : path.n_phases], truth[:, 2 * path.n_phases :]
        tried = np.geomspace(0.5, 4.0, 25)
        by_softmax = [_log_loss(_softmax(at / heat), happened) for heat in tried]
        by_sigmoid = [_sigmoid_loss(rest / heat, odds) for heat in tried]
        best = np.array([tried[np.argmin(by_softmax)], tried[np.argmin(by_sigmoid)]])
        foreseen = {"semi-markov": np.concatenate(counted), "mlp": _softmax(at / best[0])}
        ends = np.cumsum([len(part) for part in phases])[:-1]
        for number, kind in enumerate(get_args(ForecastKind)):
            for horizon_at, (foretold, came) in enumerate(
                zip(np.split(foreseen[kind], ends), np.split(happened, ends), strict=True)
            ):
                balance[number, horizon_at] = _best_balance(
                    foretold, phases[horizon_at], came.argmax(axis=1), path.shares
                )
        losses = {kind: _log_loss(foretold, happened) for kind, foretold in foreseen.items()}
        return best, balance, losses


def macro_f1(happened: Ints, named: Ints) -> float:
    """The mean F1 over the phases that happened."""
    n_phases = int(max(happened.max(), named.max())) + 1
    right = np.bincount(happened[happened == named], minlength=n_phases)
    there = np.bincount(happened, minlength=n_phases)
    scores = 2 * right / np.maximum(there + np.bincount(named, minlength=n_phases), 1)
    return float(scores[there > 0].mean())


def _named(probabilities: Floats, current: Ints, shares: Floats, rare: float, stay: float) -> Ints:
    weight = probabilities / shares**rare
    weight[np.arange(len(current)), current] *= stay
    return np.asarray(weight.argmax(axis=1))


def _no_balance() -> Floats:
    kinds = len(get_args(ForecastKind))
    return np.stack([np.zeros((kinds, len(HORIZONS))), np.ones((kinds, len(HORIZONS)))], axis=2)


def _best_balance(
    probabilities: Floats, current: Ints, happened: Ints, shares: Floats
) -> tuple[float, float]:
    """By macro F1; the last factor in favour of the current phase makes it stay for sure."""
    if not len(happened):
        return 0.0, 1.0
    tried = [(rare, stay) for stay in _STAY for rare in _RARE]
    return max(
        tried,
        key=lambda pair: macro_f1(happened, _named(probabilities, current, shares, *pair)),
    )


def _heads(n_phases: int) -> tuple[Head, ...]:
    return (("softmax", n_phases), ("softmax", n_phases), ("sigmoid", n_phases + 1))


def _inputs(width: int, n_phases: int) -> int:
    return width + 2 * n_phases + 1 + len(AGE_BINS) + len(HORIZONS)


def _rows(where: Situations, horizon: Ints, n_phases: int) -> npt.NDArray[np.float32]:
    """The perceptron's inputs; the horizon as a point between two of the trained ones."""
    steps = np.interp(np.log(horizon), np.log(HORIZONS), np.arange(len(HORIZONS)))
    near = np.maximum(0, 1 - np.abs(steps[:, None] - np.arange(len(HORIZONS))))
    shape = where.windows.shape
    parts = [
        where.windows.reshape(len(where), shape[1] * shape[2]),
        np.eye(n_phases)[where.phase],
        np.eye(n_phases + 1)[where.previous + 1],
        np.eye(len(AGE_BINS))[age_bin(where.rows)],
        near,
    ]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _columns(seen: Outcomes, n_phases: int) -> Floats:
    parts = [np.eye(n_phases)[seen.at], seen.share, seen.visit, seen.change[:, None]]
    return np.concatenate(parts, axis=1)


def _batches(
    examples: Situations, places: Ints, path: Path, random: np.random.Generator
) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]]:
    """Mini-batches for some epochs; in each, every example has one horizon."""
    order = np.argsort(places)
    for _ in range(_EPOCHS):
        drawn = random.integers(len(HORIZONS), size=len(places))
        inputs, targets = [], []
        for number, rows in enumerate(HORIZONS):
            mine = order[drawn[order] == number]
            seen = path.outcomes(places[mine], rows)
            some = examples.take(mine[np.searchsorted(places[mine], seen.places)])
            inputs.append(_rows(some, np.full(len(some), rows), path.n_phases))
            targets.append(_columns(seen, path.n_phases).astype(np.float32))
        rows_in, wanted = np.concatenate(inputs), np.concatenate(targets)
        shuffled = random.permutation(len(rows_in))
        for first in range(0, len(shuffled), _BATCH):
            batch = shuffled[first : first + _BATCH]
            yield rows_in[batch], wanted[batch]


def _set_aside(pods: Ints, random: np.random.Generator) -> npt.NDArray[np.bool_]:
    """A fifth of the pods; with few pods, every fifth stretch of the examples."""
    names = np.unique(pods)
    if len(names) >= 5:
        return np.isin(pods, random.permutation(names)[: len(names) // 5])
    stretch = np.arange(len(pods)) * 25 // max(1, len(pods))
    return np.asarray(stretch % 5 == 4)


def _without(path: Path, places: Ints) -> Path:
    phases = path.phases.copy()
    phases[places] = -1
    return Path(phases, path.n_phases)


def _some(places: Ints, most: int, random: np.random.Generator) -> Ints:
    return places if len(places) <= most else random.choice(places, most, replace=False)


def _leaning(state: Ints, outcomes: Floats, prior: Floats) -> Floats:
    """The mean outcome by state, as if the prior had been seen some more times."""
    sums = np.stack(
        [np.bincount(state, column, minlength=len(prior)) for column in outcomes.T], axis=1
    )
    seen = np.bincount(state, minlength=len(prior))[:, None]
    return np.asarray((sums + _STRENGTH * prior) / (seen + _STRENGTH))


def _softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def _log_loss(probabilities: Floats, truth: Floats) -> float:
    return float(-(truth * np.log(np.maximum(probabilities, 1e-12))).sum(axis=1).mean())


def _sigmoid_loss(logits: Floats, truth: Floats) -> float:
    return float((np.logaddexp(0, logits) - truth * logits).mean())
