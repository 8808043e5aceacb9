"""How long jobs run, learned from those that ended.

A job is compared with runs of its own signature, then of its owner's jobs of that size in its
queue, then of its queue, then with all. Each level is believed the more, the more runs it has;
the rest goes to the next level, and in the end to a wide guess. Younger runs weigh more.

Draws are conditional: a job that has run for an hour is compared only with runs that lasted longer
(a level that says "this job should be over" loses its say). Beyond the longest run known a
power-law tail goes on, and a time limit caps everything.

Values in, values out: no clock, no I/O. One thread at a time: `sample` keeps what it worked out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np
import numpy.typing as npt

from presage.model.estimate import Estimate
from presage.model.job import JobSpec

__all__ = ["DAY_S", "History"]

Floats = npt.NDArray[np.float64]

DAY_S = 86_400.0
_BELIEF = 8.0
"""Runs after which a level is believed as much as all that is more general than it."""
_TAIL = 1.5
"""The exponent of the tail beyond the longest run known: finite mean, infinite variance."""
_LEAST_S = 1.0
"""What a running job is always thought to need."""


class History:
    """Run times of jobs that ended, as a sampler for those that did not.

    Memory is bounded: each level keeps so many keys, each key its latest runs.
    """

    def __init__(self, half_life_s: float = 14 * DAY_S) -> None:
        self.half_life_s = half_life_s
        """Age at which a run weighs half."""
        self._levels = tuple(_Level(keys, runs) for keys, runs in _SIZES)
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
        for level, key in zip(self._levels, _keys(spec), strict=True):
            if key is not None:
                level.add(key, max(ran_s, _LEAST_S), ended_at)

    def sample(
        self,
        specs: Sequence[JobSpec],
        ran_s: npt.ArrayLike,
        now: float,
        samples: int,
        rng: np.random.Generator,
    ) -> Floats:
        """Seconds that each job still runs, jobs × samples, given that it has run for `ran_s`."""
        ran = np.asarray(ran_s, np.float64)
        layers = self._layers(specs, ran, now)
        total: Floats = np.zeros((len(specs), samples))
        say = np.array([layer.say for layer in layers])  # how much each layer is believed, by job
        share = np.cumsum(say, axis=0) / say.sum(axis=0)
        lots = rng.random((len(specs), samples))
        chosen = (lots[None] >= share[:-1, :, None]).sum(axis=0)
        lots = rng.random((len(specs), samples))
        for k, layer in enumerate(layers):
            mine = chosen == k
            for runs, jobs in layer.parts:
                rows, columns = np.nonzero(mine[jobs])
                if rows.size:
                    at = jobs[rows]
                    below = layer.below[at]
                    lot = below + (1 - below) * lots[at, columns]
                    total[at, columns] = runs.quantile(lot)
        limit = [np.inf if spec.time_limit_s is None else spec.time_limit_s for spec in specs]
        capped = np.minimum(total, np.array(limit).reshape(-1, 1))
        left: Floats = np.maximum(capped - ran[:, None], _LEAST_S)
        return left

    def estimate(self, spec: JobSpec, ran_s: float, now: float, seed: int = 0) -> Estimate:
        """Seconds that one job runs in all, given that it has run for `ran_s`."""
        rng = np.random.default_rng(seed)
        drawn = ran_s + self.sample([spec], [ran_s], now, 200, rng)[0]
        p10, p50, p90 = (float(q) for q in np.quantile(drawn, (0.1, 0.5, 0.9)))
        return Estimate(p10, p50, p90, "s", f"history of {len(self)} runs")

    def _layers(self, specs: Sequence[JobSpec], ran: Floats, now: float) -> list[_Layer]:
        """What each level says of each job, and last the guess."""
        doubt = np.ones(len(specs))
        layers = []
        keys = [_keys(spec) for spec in specs]
        for number, level in enumerate(self._levels):
            layer = _Layer(np.zeros(len(specs)), np.ones(len(specs)), [])
            found: dict[Hashable, list[int]] = {}
            for job, names in enumerate(keys):
                if names[number] in level.runs:
                    found.setdefault(names[number], []).append(job)
            for key, members in found.items():
                runs, jobs = level.runs[key], np.array(members)
                runs.settle(now, self.half_life_s)
                belief = runs.worth / (runs.worth + _BELIEF)
                layer.below[jobs] = runs.cdf(ran[jobs])
                layer.say[jobs] = doubt[jobs] * belief * (1 - layer.below[jobs])
                doubt[jobs] *= 1 - belief
                layer.parts.append((runs, jobs))
            layers.append(layer)
        below = self._guess.cdf(ran)
        everybody = np.arange(len(specs))
        layers.append(_Layer(doubt * (1 - below), below, [(self._guess, everybody)]))
        return layers


@dataclass(slots=True)
class _Layer:
    """One level's part in a draw."""

    say: Floats
    below: Floats
    """Share of its runs that ended before the job's present age."""
    parts: list[tuple[_Runs, npt.NDArray[Any]]]
    """Runs, and the jobs that they speak for."""


class _Level:
    """Runs by key; of too many keys, the one that had no run for the longest is forgotten."""

    def __init__(self, most_keys: int, most_runs: int) -> None:
        self.runs: OrderedDict[Hashable, _Runs] = OrderedDict()
        self._most_keys, self._most_runs = most_keys, most_runs

    def add(self, key: Hashable, ran_s: float, ended_at: float) -> None:
        runs = self.runs.get(key)
        if runs is None:
            runs = self.runs[key] = _Runs(self._most_runs)
            if len(self.runs) > self._most_keys:
                self.runs.popitem(last=False)
        else:
            self.runs.move_to_end(key)
        runs.add(ran_s, ended_at)


class _Runs:
    """The latest runs of one key as a distribution: linear between them, a power law beyond."""

    def __init__(self, most: int) -> None:
        self.worth = 0.0
        """How many equally weighted runs would tell as much."""
        self._most = most
        self._ran: Floats = np.empty(min(most, 8))
        self._ended: Floats = np.empty(min(most, 8))
        self._count = 0
        """Runs ever added; the oldest make room."""
        self._settled: tuple[int, float] | None = None
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

    def settle(self, now: float, half_life_s: float) -> None:
        """Make the distribution as of now; the same moment twice costs nothing."""
        if self._settled == (self._count, now):
            return
        self._settled = (self._count, now)
        n = len(self)
        order = np.argsort(self._ran[:n], kind="stable")
        age = np.maximum(now - self._ended[:n][order], 0.0)
        weight = 0.5 ** (age / half_life_s)
        total = weight.sum()
        if not total > 0:  # all of them are ancient: then they are equally so
            weight, total = np.ones(n), float(n)
        self.worth = float(total**2 / np.sum(weight**2))
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

    def quantile(self, lot: Floats) -> Floats:
        """The other way round."""
        last, longest = self._below[-1], self._values[-1]
        tail = longest * ((1 - last) / np.maximum(1 - lot, 1e-12)) ** (1 / _TAIL)
        inside = np.interp(lot, self._below, self._values)
        found: Floats = np.where(lot > last, tail, inside)
        return found


_SIZES = ((10_000, 64), (10_000, 256), (1_000, 2048), (1, 8192))
"""Keys and runs that each level keeps: signature; owner, queue and size; queue; all."""


def _keys(spec: JobSpec) -> tuple[Hashable, ...]:
    size = spec.min_gpu_milli
    named = spec.entrypoint or spec.model
    signature = (spec.owner, spec.entrypoint, spec.model, size) if named else None
    return signature, (spec.owner, spec.queue, size), spec.queue, ()


def _guess() -> _Runs:
    """For a cluster that has seen nothing yet: from minutes to days, an hour in the middle."""
    runs = _Runs(1)
    grid = (np.arange(64) + 0.5) / 64
    middle, spread = log(3600.0), 1.5
    logistic = np.log(grid / (1 - grid)) * 3**0.5 / np.pi  # nearly normal, and needs no library
    runs.fill(np.exp(middle + spread * logistic), np.full(64, 1 / 64))
    return runs
