"""How long jobs run: from their own progress, from runs that ended, from estimates.

A job that reports progress tells by itself how long it still takes. Else it is compared with its
owner's runs of the same work at its size, then with what was foreseen of it, then with runs of its
owner's jobs of that size in its queue, of its queue, and of all. Each level is believed the more,
the more it knows; the rest goes to the next level, and in the end to a wide guess. Younger runs
weigh more. How much runs of the same work tell is learned (empirical Bayes): each new one is set
beside those before it, and where repeats are alike, one or two of them outweigh all that is more
general, and the next is foreseen as they are scattered.

Draws are conditional: a job that has run for an hour is compared only with runs that lasted longer
(a level that says "this job should be over" loses its say). Beyond the longest run known
there is a power-law tail, and a time limit caps everything.

Values in, values out: no clock, no I/O. One thread at a time: `sample` keeps what it worked out.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from functools import lru_cache
from math import log

import numpy as np
import numpy.typing as npt

from presage.model.estimate import Estimate
from presage.model.job import Job, JobSpec
from presage.model.workload import same_work

__all__ = ["DAY_S", "RuntimeHistory"]

Floats = npt.NDArray[np.float64]
Members = npt.NDArray[np.intp]

DAY_S = 86_400.0
_BELIEF = 8.0
"""Runs after which a level is believed as much as all that is more general than it."""
_SURE_REPEATS = 4.0
"""Repeats that tell as much about how alike repeats are as the assumption that they are not."""
_LEAST_REPEATS = 8
"""Repeats from which on the next one is foreseen by how they are scattered."""
_MOST_REPEATS = 512
_TAIL = 1.5
"""The exponent of the tail beyond the longest run known: finite mean, infinite variance."""
_DRAWS = 200
"""Of which an estimate is made."""
_LEAST_S = 1.0
"""What a running job is always thought to need."""
_HALF_TOLD = 0.02
"""Progress that is believed as much as everything else together."""
_PROGRESS_SPREAD = 0.2
"""How far, in logarithms, the time left goes beyond elapsed × (1 - f) / f in one of ten cases when
all is done; 1/√f of that at progress f. Chosen, not learned: no public trace has progress."""
_ESTIMATE_WORTH = _BELIEF
"""Runs that tell as much as an estimate."""
_LEAST_SPREAD = 0.05
"""The least uncertainty of an estimate, in logarithms."""
_SOURCE = "history of"
"""How sources of estimates from here begin: they say nothing that is not known here."""


class RuntimeHistory:
    """Run times of jobs that ended, as a sampler for those that did not.

    Memory is bounded: each level keeps so many keys, each key its latest runs.
    """

    def __init__(self, half_life_s: float = 14 * DAY_S) -> None:
        self.half_life_s = half_life_s
        """Age at which a run weighs half."""
        self._levels = tuple(_Level(keys, runs) for keys, runs in _SIZES)
        self._repeats = _Repeats()
        self._guess = _guess()

    def __len__(self) -> int:
        """Runs that it knows."""
        return len(self._levels[-1].runs.get((), ()))

    def add(self, spec: JobSpec, ran_s: float, ended_at: float) -> None:
        """A job ended by itself after `ran_s` seconds of running, over all its attempts.

        Do not add jobs that somebody stopped: they tell how long people wait, not how long jobs
        run.
        """
        if not ran_s >= 0:
            return
        ran_s = max(ran_s, _LEAST_S)
        keys = _keys(spec)
        if keys[0] is not None:
            self._repeats.add(ran_s, self._levels[0].runs.get(keys[0]))
        for level, key in zip(self._levels, keys, strict=True):
            if key is not None:
                level.add(key, ran_s, ended_at)

    def sample(
        self, jobs: Sequence[Job], now: float, samples: int, rng: np.random.Generator
    ) -> Floats:
        """Seconds that each job still runs, jobs × samples, given how long it has run."""
        size = len(jobs), samples
        return self._draw(jobs, now, (rng.random(size), rng.random(size)))

    def _draw(self, jobs: Sequence[Job], now: float, lots: tuple[Floats, Floats]) -> Floats:
        """The same for given lots, jobs × samples: one says which layer, the other where in it."""
        of_layer, inside = lots
        ran = np.array([job.ran(now) for job in jobs], np.float64)
        layers = self._layers(jobs, ran)
        total: Floats = np.zeros(of_layer.shape)
        say = np.array([layer.say for layer in layers])  # how much each layer is believed, by job
        share = np.cumsum(say, axis=0) / say.sum(axis=0)
        chosen = (of_layer[None] >= share[:-1, :, None]).sum(axis=0)
        for k, layer in enumerate(layers):
            mine = chosen == k
            for runs, members in layer.parts:
                rows, columns = np.nonzero(mine[members])
                if rows.size:
                    at = members[rows]
                    below = layer.below[at]
                    lot = below + (1 - below) * inside[at, columns]
                    total[at, columns] = runs.quantile(lot, rows)
        limits = [job.spec.time_limit_s for job in jobs]
        limit = np.array([np.inf if most is None else most for most in limits], np.float64)
        left: Floats = np.maximum(np.minimum(total, limit[:, None]) - ran[:, None], _LEAST_S)
        return left

    def estimate(self, spec: JobSpec, ran_s: float, now: float, seed: int = 0) -> Estimate:
        """Seconds that one job runs in all, given that it has run for `ran_s`."""
        job = Job(spec, 0, now, now, ran_s=ran_s)
        drawn = ran_s + self._draw([job], now, _lots(seed))[0]
        p10, p50, p90 = _deciles(drawn)
        return Estimate(p10, p50, p90, "s", f"{_SOURCE} {len(self)} runs")

    def _layers(self, jobs: Sequence[Job], ran: Floats) -> list[_LevelDraw]:
        """What progress, each level, and an estimate say of each job, and last the guess."""
        doubt = np.ones(len(jobs))
        keys = [_keys(job.spec) for job in jobs]
        layers = [_LevelDraw(len(jobs)) for _ in range(len(self._levels) + 3)]
        progress, same, estimate, *general, guess = layers
        progress.hear(*_progress_of(jobs), ran, doubt)
        for number, layer in enumerate((same, *general)):
            level = self._levels[number]
            members_of: dict[Hashable, list[int]] = {}
            for job, names in enumerate(keys):
                if names[number] in level.runs:
                    members_of.setdefault(names[number], []).append(job)
            for key, members in members_of.items():
                runs = level.runs[key]
                runs.settle(self.half_life_s, self._repeats if layer is same else None)
                worth = runs.worth / (self._repeats.unlike() if layer is same else 1.0)
                layer.hear(runs, np.array(members), worth, ran, doubt)
            if layer is same:
                estimate.hear(*_estimates_of(jobs), ran, doubt)
        guess.hear(self._guess, np.arange(len(jobs)), np.inf, ran, doubt)
        return layers


class _LevelDraw:
    """One level's part in a draw."""

    def __init__(self, jobs: int) -> None:
        self.say: Floats = np.zeros(jobs)
        """How much it is believed, by job."""
        self.below: Floats = np.ones(jobs)
        """Share of its runs that ended before the job's present age."""
        self.parts: list[tuple[_RunTimes | _LogLogistic, Members]] = []
        """Run times, and the jobs that they speak for."""

    def hear(
        self,
        runs: _RunTimes | _LogLogistic,
        jobs: Members,
        worth: float | Floats,
        ran: Floats,
        doubt: Floats,
    ) -> None:
        """Let run times that are worth so many runs speak for some jobs, and lessen the doubt that
        is left to the levels behind."""
        if not jobs.size:
            return
        left = 1 / (1 + np.divide(worth, _BELIEF))
        self.below[jobs] = runs.cdf(ran[jobs])
        self.say[jobs] = doubt[jobs] * (1 - left) * (1 - self.below[jobs])
        doubt[jobs] *= left
        self.parts.append((runs, jobs))


class _Repeats:
    """How far the next run of the same work was from those before it, over all work."""

    def __init__(self) -> None:
        self._off: deque[float] = deque(maxlen=_MOST_REPEATS)
        """Logarithms of a run ÷ the median of those before it."""
        self._all: deque[float] = deque(maxlen=_MOST_REPEATS)
        """Logarithms of runs, whatever their work."""
        self.epoch = 0
        """Changes when there is much more to tell: with 8, 16, 32 … repeats."""

    def add(self, ran_s: float, before: _RunTimes | None) -> None:
        """A run, and those of the same work before it."""
        self._all.append(log(ran_s))
        if before is not None:
            self._off.append(log(ran_s / before.middle()))
            self.epoch = (len(self._off) // _LEAST_REPEATS).bit_length()

    def unlike(self) -> float:
        """What variance of a repeat is left when the runs before it are known: from 1, as much as
        between any two runs, down to 0."""
        if not self._off:
            return 1.0
        off, middle = np.array(self._off), float(np.median(self._all))
        usual = float(np.median(np.abs(np.array(self._all) - middle)))
        ratio = min(1.0, float(np.median(np.abs(off))) / max(usual, 1e-9))
        repeats = len(off)
        return float(((ratio * repeats + _SURE_REPEATS) / (repeats + _SURE_REPEATS)) ** 2)

    def scatter(self) -> Floats:
        """Factors between the runs before and the next, in ascending order."""
        factors: Floats = np.exp(np.sort(np.array(self._off)))
        return factors


class _Level:
    """Runs by key; of too many keys, the one that had no run for the longest is forgotten."""

    def __init__(self, most_keys: int, most_runs: int) -> None:
        self.runs: OrderedDict[Hashable, _RunTimes] = OrderedDict()
        self._most_keys, self._most_runs = most_keys, most_runs

    def add(self, key: Hashable, ran_s: float, ended_at: float) -> None:
        runs = self.runs.get(key)
        if runs is None:
            runs = self.runs[key] = _RunTimes(self._most_runs)
            if len(self.runs) > self._most_keys:
                self.runs.popitem(last=False)
        else:
            self.runs.move_to_end(key)
        runs.add(ran_s, ended_at)


class _RunTimes:
    """The latest runs of one key as a distribution: linear between them, a power law beyond."""

    def __init__(self, most: int) -> None:
        self.worth = 0.0
        """How many equally weighted runs would tell as much."""
        self._most = most
        self._ran: Floats = np.empty(min(most, 8))
        self._ended: Floats = np.empty(min(most, 8))
        self._count = 0
        """Runs ever added; the oldest make room."""
        self._settled = (0, 0)
        self._values: Floats = np.empty(0)
        self._below: Floats = np.empty(0)

    def __len__(self) -> int:
        return min(self._count, self._most)

    def add(self, ran_s: float, ended_at: float) -> None:
        if self._count == len(self._ran) < self._most:
            size = min(2 * len(self._ran), self._most)
            self._ran = np.resize(self._ran, size)
            self._ended = np.resize(self._ended, size)
        at = self._count % self._most
        self._ran[at], self._ended[at] = ran_s, ended_at
        self._count += 1

    def middle(self) -> float:
        """The median run."""
        return float(np.median(self._ran[: len(self)]))

    def settle(self, half_life_s: float, repeats: _Repeats | None) -> None:
        """Make the distribution. Only how much older one run is than another matters, so it stays
        as it is until the next run, or until much more is known of repeats."""
        epoch = repeats.epoch if repeats else 0
        if self._settled == (self._count, epoch):
            return
        self._settled, n = (self._count, epoch), len(self)
        order = np.argsort(self._ran[:n], kind="stable")
        ended = self._ended[:n][order]
        weight = 0.5 ** ((ended.max() - ended) / half_life_s)
        total = weight.sum()
        self.worth = float(total**2 / np.sum(weight**2))
        if repeats is not None and epoch and n < _LEAST_REPEATS:
            factors = repeats.scatter()
            self.fill(self.middle() * factors, np.full(len(factors), 1 / len(factors)))
        else:
            self.fill(self._ran[:n][order], weight / total)

    def fill(self, values: Floats, shares: Floats) -> None:
        """The distribution of these values, in ascending order."""
        self._values = np.concatenate(([0.0], values))
        self._below = np.concatenate(([0.0], np.cumsum(shares) - shares / 2))

    def cdf(self, ran: Floats) -> Floats:
        """Share of runs that end before an age."""
        last, longest = self._below[-1], self._values[-1]
        tail = 1 - (1 - last) * (longest / np.maximum(ran, longest)) ** _TAIL
        inside = np.interp(ran, self._values, self._below)
        below: Floats = np.where(ran > longest, tail, inside)
        return below

    def quantile(self, lot: Floats, rows: Members) -> Floats:
        """The other way round; the same for all jobs that it speaks for."""
        last, longest = self._below[-1], self._values[-1]
        tail = longest * ((1 - last) / np.maximum(1 - lot, 1e-12)) ** (1 / _TAIL)
        inside = np.interp(lot, self._below, self._values)
        times: Floats = np.where(lot > last, tail, inside)
        return times


class _LogLogistic:
    """A distribution for each of some jobs: at least `least_s`, and what comes on top is skewed
    log-logistic, with logarithms of p50 ÷ p10 and p90 ÷ p50 as given."""

    def __init__(self, least_s: Floats, p50_s: Floats, low: Floats, high: Floats) -> None:
        self._least_s, self._p50_s, self._low, self._high = least_s, p50_s, low, high

    def cdf(self, ran: Floats) -> Floats:
        """Share of runs that end before an age, one age for each job."""
        ratio = np.log(np.maximum(ran - self._least_s, 1e-9) / self._p50_s)
        place = ratio / np.where(ratio < 0, self._low, self._high)
        below: Floats = 1 / (1 + 9.0 ** -np.clip(place, -100, 100))
        return below

    def quantile(self, lot: Floats, rows: Members) -> Floats:
        """The other way round; `rows` says which job each lot is for."""
        place = np.log(np.maximum(lot, 1e-12) / np.maximum(1 - lot, 1e-12)) / log(9.0)
        spread = place * np.where(place < 0, self._low[rows], self._high[rows])
        times: Floats = self._least_s[rows] + self._p50_s[rows] * np.exp(np.minimum(spread, 100))
        return times


_NOBODY: Members = np.empty(0, np.intp)
_SILENCE = _LogLogistic(*[np.empty(0)] * 4)
"""What nobody said anything of."""


def _progress_of(jobs: Sequence[Job]) -> tuple[_LogLogistic, Members, Floats]:
    """What the progress of jobs says, of which, and how many runs that is worth."""
    reporting = [k for k, job in enumerate(jobs) if job.progress > 0 and job.progress_s > 0]
    if not reporting:
        return _SILENCE, _NOBODY, np.empty(0)
    done = np.array([min(jobs[k].progress, 1.0) for k in reporting], np.float64)
    elapsed = np.array([jobs[k].progress_s for k in reporting], np.float64)
    left = np.maximum(elapsed * (1 - done) / done, _LEAST_S)
    width = _PROGRESS_SPREAD / np.sqrt(done)
    worth = _BELIEF * done / _HALF_TOLD
    return _LogLogistic(elapsed, left, width, width), np.array(reporting, np.intp), worth


def _estimates_of(jobs: Sequence[Job]) -> tuple[_LogLogistic, Members, float]:
    """The same for what was foreseen of jobs."""
    said = {k: job.estimates.runtime_s for k, job in enumerate(jobs) if job.estimates is not None}
    told = {k: one for k, one in said.items() if one is not None and _is_news(one)}
    if not told:
        return _SILENCE, _NOBODY, _ESTIMATE_WORTH
    rows = [(one.p10, one.p50, one.p90) for one in told.values()]
    low, middle, high = np.array(rows, np.float64).reshape(-1, 3).T
    widths = (np.maximum(np.log(ratio), _LEAST_SPREAD) for ratio in (middle / low, high / middle))
    spread = _LogLogistic(np.zeros(middle.size), middle, *widths)
    return spread, np.array(list(told), np.intp), _ESTIMATE_WORTH


def _is_news(estimate: Estimate) -> bool:
    """Whether it can be used, and says more than the history that it may come from."""
    usable = 0 < estimate.p10 <= estimate.p50 <= estimate.p90 < np.inf
    return usable and not estimate.source.startswith(_SOURCE)


@lru_cache(maxsize=16)
def _lots(seed: int) -> tuple[Floats, Floats]:
    """Those of an estimate, which draws the same ones every time."""
    rng = np.random.default_rng(seed)
    return rng.random((1, _DRAWS)), rng.random((1, _DRAWS))


def _deciles(drawn: Floats) -> tuple[float, float, float]:
    """p10, p50 and p90, linear between draws: what `np.quantile` says, in a tenth of the time."""
    drawn = np.sort(drawn)
    deciles = []
    for share in (0.1, 0.5, 0.9):
        at = share * (drawn.size - 1)
        lower, upper = float(drawn[int(at)]), float(drawn[min(int(at) + 1, drawn.size - 1)])
        part, step = at - int(at), upper - lower
        deciles.append(lower + step * part if part < 0.5 else upper - step * (1 - part))
    return deciles[0], deciles[1], deciles[2]


_SIZES = ((10_000, 64), (10_000, 256), (1_000, 2048), (1, 8192))
"""Keys and runs that each level keeps: the same work; owner, queue and size; queue; all."""


def _keys(spec: JobSpec) -> tuple[Hashable, ...]:
    size = spec.min_gpu_milli
    named = spec.entrypoint or spec.model
    work = (spec.owner, same_work(spec), size) if named else None
    return work, (spec.owner, spec.queue, size), spec.queue, ()


def _guess() -> _RunTimes:
    """For a cluster that has seen nothing yet: from minutes to days, an hour in the middle."""
    runs = _RunTimes(1)
    grid = (np.arange(64) + 0.5) / 64
    middle, spread = log(3600.0), 1.5
    logistic = np.log(grid / (1 - grid)) * 3**0.5 / np.pi  # nearly normal, and needs no library
    runs.fill(np.exp(middle + spread * logistic), np.full(64, 1 / 64))
    return runs
