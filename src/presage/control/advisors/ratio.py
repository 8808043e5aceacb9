"""The ratio of servers to workers while a job runs: an advisor that watches jobs with both roles,
finds what holds them up, and asks for another number of one of them within its range.

A job takes part if its owner labelled it `tune: roles`. Its speed is the progress that it reports
itself; the bottleneck is told from how busy its workers are: what a step takes is computing, and
waiting for servers that grows with the workers that each of them serves. Both are fitted on the
sizes that the job has had, so every size that is tried makes the next guess better. It asks for a
change only while the time saved is worth twice what a change costs, and then stops. It never
resizes itself: the policy does, at a checkpoint and as there is room.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import inf

import numpy as np

from presage.control.advisors import StateReader, Telemetry
from presage.core.state import State
from presage.model import event as ev
from presage.model.job import Job, JobState, Role, workers_and_servers
from presage.telemetry.rows import Row

__all__ = ["LABEL", "RatioAdvisor", "RatioRules", "Split", "best_size", "fitted"]

LABEL = "tune"
_WANTED = "roles"
_MOST_SIZES = 1000
"""Sizes that are compared; ranges that allow more are not tuned."""

Size = tuple[int, int]
"""Workers and servers."""


@dataclass(frozen=True, slots=True)
class RatioRules:
    """How much is measured before something is asked for, and when it is worth it."""

    measure_s: float = 10.0
    """How long a size is measured, at least."""
    reports: int = 4
    """Reports of progress that are needed, at least: steps may take longer than a second."""
    skip: int = 2
    """First reports at a size that do not count: a training warms up."""
    cost_s: float = 10.0
    """Time that a change costs, as long as none was seen."""
    pays: float = 2.0
    """A change must save so many times what it costs."""
    least_gain: float = 0.05
    """Smaller gains are within the noise."""
    patience_s: float = 90.0
    """How long a size that was asked for may take to come; after that there is no room."""


@dataclass(frozen=True, slots=True)
class Split:
    """What a step takes: computing, and waiting for servers while each serves one worker."""

    computing: float
    serving: float

    def speed(self, size: Size) -> float:
        """Work done in a unit of time at a size."""
        workers, servers = size
        return workers / (self.computing + self.serving * _load(size)) if servers else 0.0


def _load(size: Size) -> float:
    return max(1.0, size[0] / size[1])


def fitted(speeds: Mapping[Size, float], busy: float) -> Split:
    """The split that the measured sizes tell. With one load alone, `busy` divides a step: the
    share of it in which workers compute."""
    steps = {size: size[0] / speed for size, speed in speeds.items()}
    loads = np.array([_load(size) for size in steps])
    took = np.array(list(steps.values()))
    if np.ptp(loads) > 1e-9:
        serving, computing = np.polyfit(loads, took, 1, w=1 / took)
        if serving >= 0 and computing >= 0:
            return Split(float(computing), float(serving))
        if serving < 0:
            return Split(float(np.exp(np.log(took).mean())), 0.0)
        return Split(0.0, float(np.exp(np.log(took / loads).mean())))
    share = min(max(busy, 0.0), 1.0)
    whole = float(took.mean())
    return Split(share * whole, (1 - share) * whole / float(loads[0]))


def best_size(sizes: Sequence[Size], speeds: Mapping[Size, float], split: Split) -> Size:
    """The fastest size: as measured, or else as foreseen; of those that are as good within a
    hundredth, the one with the fewest tasks."""
    said = {size: speeds.get(size, split.speed(size)) for size in sizes}
    top = max(said.values())
    return min((size for size in sizes if said[size] >= 0.99 * top), key=lambda s: (sum(s), s))


@dataclass(slots=True)
class _Tuned:
    """A job that is tuned, as far as it was watched."""

    attempt: int
    size: Size = (0, 0)
    """The one that is measured now."""
    told: list[tuple[float, float]] = field(default_factory=list)
    """Reports at this size: seconds that the job had run, progress."""
    busy: list[float] = field(default_factory=list)
    speeds: dict[Size, float] = field(default_factory=dict)
    """Progress in a second, by size."""
    asked: Size | None = None
    since: float = 0.0
    """When that was asked for."""
    before: tuple[float, float] | None = None
    """The last report before the size that was asked for came."""
    cost_s: float = 0.0
    """The dearest change so far."""
    refused: set[Size] = field(default_factory=set)
    """There was no room for them."""
    settled: list[Size] | None = None
    """The sizes that there was room for when nothing more was worth it."""
    mark: int = 0
    """Of its telemetry, up to which it was read."""
    waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By worker, when its latest row was and how long it had waited for a core by then."""


@dataclass(frozen=True, slots=True)
class _TunedView:
    """A job as the state has it at a moment."""

    attempt: int
    roles: tuple[Role, ...]
    places: tuple[int, int]
    """Of workers and servers among the roles."""
    size: Size
    steady: bool
    """Whether it runs, and no resize is under way."""
    progress: float
    at: float
    """Seconds that it had run when it reported that."""
    ran: float
    free: Mapping[str, int]
    """CPU, memory and GPUs that nobody holds."""


class RatioAdvisor:
    """The advisor."""

    name = "ratio"
    every_s = 1.0

    def __init__(self, rules: RatioRules | None = None) -> None:
        self._rules = rules or RatioRules()
        self._jobs: dict[str, _Tuned] = {}
        self._log = logging.getLogger(f"presage.{self.name}")

    def not_leading(self) -> None:
        """Another server watches."""
        self._jobs.clear()

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterator[ev.Fact]:
        """Measure the sizes that jobs have, and ask for better ones."""
        seen = ask(lambda state: _jobs_with_servers(state, now))
        self._jobs = {job: one for job, one in self._jobs.items() if job in seen}
        for job, what in seen.items():
            one = self._jobs.get(job)
            if one is None:
                one = self._jobs[job] = _Tuned(what.attempt)
            yield from self._follow(now, job, one, what, telemetry)

    def _follow(
        self, now: float, job: str, one: _Tuned, what: _TunedView, telemetry: Telemetry
    ) -> Iterator[ev.Fact]:
        if what.attempt != one.attempt:  # it was started anew: what was measured still holds
            one.attempt, one.mark, one.size, one.told = what.attempt, 0, (0, 0), []
        if one.asked is not None and what.size != one.asked:
            if now - one.since > self._rules.patience_s:
                yield from self._take_back(job, one, what)
            return
        if not what.steady:
            return
        if what.size != one.size:
            one.before = one.told[-1] if one.told else None
            one.size, one.told, one.busy, one.settled = what.size, [], [], None
        rows, one.mark = telemetry.new(job, what.attempt, one.mark)
        if not one.told or what.at > one.told[-1][0]:
            one.told.append((what.at, what.progress))
        busy = list(_busy(rows, what, one.waits))
        if len(self._counted(one)) > 0:
            one.busy += busy
        if self._measured(one):
            yield from self._advise(now, job, one, what)

    def _counted(self, one: _Tuned) -> list[tuple[float, float]]:
        """Reports at this size, without the first ones."""
        return [each for each in one.told if each[1] > one.told[0][1]][self._rules.skip :]

    def _measured(self, one: _Tuned) -> bool:
        """Whether this size is known by now; its speed is then kept."""
        rules, told = self._rules, self._counted(one)
        if len(told) < rules.reports or told[-1][0] - told[0][0] < rules.measure_s:
            return False
        (start, first), (end, last) = told[0], told[-1]
        speed = one.speeds[one.size] = (last - first) / (end - start)
        if one.asked == one.size:
            one.asked = None
            if one.before is not None:  # the time for which it would have worked at this speed
                at, made = one.before
                one.cost_s = max(one.cost_s, start - at - (first - made) / speed)
        return True

    def _advise(self, now: float, job: str, one: _Tuned, what: _TunedView) -> Iterator[ev.Fact]:
        sizes = [size for size in _sizes(what) if size not in one.refused]
        if sizes == one.settled:
            return
        busy = float(np.median(one.busy)) if one.busy else 0.5
        split = fitted(one.speeds, busy)
        best = best_size(sizes, one.speeds, split)
        here = one.speeds[one.size]
        gain = one.speeds.get(best, split.speed(best)) / here - 1
        left_s = (1 - what.progress) / here
        saved_s = left_s * gain / (1 + gain) if gain > -1 else -inf
        cost_s = one.cost_s or self._rules.cost_s
        held = "servers" if split.serving * _load(one.size) > split.computing else "computing"
        story = f"job {job}: {_told(one.size)}, held up by {held}"
        worth = gain >= self._rules.least_gain and saved_s >= self._rules.pays * cost_s
        if best == one.size or not worth:
            one.settled = sizes
            brings = f"the best would bring {100 * max(gain, 0.0):.0f} %"
            self._log.info("%s; kept: %s, a change costs %.1f s", story, brings, cost_s)
            return
        self._log.info("%s; %s should bring %.0f %%", story, _told(best), 100 * gain)
        one.asked, one.since = best, now
        yield from _requests(job, what, best)

    def _take_back(self, job: str, one: _Tuned, what: _TunedView) -> Iterator[ev.Fact]:
        """There is no room for what was asked for."""
        if one.asked is not None:
            one.refused.add(one.asked)
        one.asked, one.size = None, (0, 0)
        yield from _requests(job, what, what.size)


def _requests(job: str, what: _TunedView, size: Size) -> Iterator[ev.Fact]:
    """For both roles, so that nothing else grows them."""
    for place, count in zip(what.places, size, strict=True):
        yield ev.ScaleRequested(job, count, place)


def _told(size: Size) -> str:
    return f"{size[0]} workers and {size[1]} servers"


def _sizes(what: _TunedView) -> list[Size]:
    """Those within its ranges for which there is room, if nobody else takes it."""
    workers, servers = (what.roles[place] for place in what.places)
    out: list[Size] = []
    for size in product(
        range(max(workers.min, 1), workers.max + 1), range(max(servers.min, 1), servers.max + 1)
    ):
        more = {kind: 0 for kind in what.free}
        for role, count, had in zip((workers, servers), size, what.size, strict=True):
            for kind in more:
                more[kind] += (count - had) * getattr(role.resources, kind)
        if all(more[kind] <= max(what.free[kind], 0) for kind in more):
            out.append(size)
    return out


def _busy(
    rows: Sequence[Row], what: _TunedView, waits: dict[str, tuple[float, float]]
) -> Iterator[float]:
    """The share of the time in which each worker computed, or could have if it had had a core."""
    role = what.roles[what.places[0]]
    cores = max(role.resources.cpu_milli / 1000, 1e-3) if role.resources.cpu_milli else 1.0
    for row in rows:
        if not row.worker.startswith(f"{role.name}-"):
            continue
        if row.gpu_util_pct is not None:
            yield row.gpu_util_pct / 100
        elif row.cpu_cores is not None:
            at, before = waits.get(row.worker, (row.at, row.wait_s or 0.0))
            waits[row.worker] = (row.at, row.wait_s or before)
            waited = max(0.0, waits[row.worker][1] - before) / max(row.at - at, 1e-3)
            yield min((row.cpu_cores + waited) / cores, 1.0)


def _jobs_with_servers(state: State, now: float) -> dict[str, _TunedView]:
    """Jobs that want to be tuned."""
    views = {}
    for job in state.active.values():
        places = _places(job)
        if places is not None:
            views[job.id] = _as_seen(job, places, state, now)
    return views


def _places(job: Job) -> tuple[int, int] | None:
    """Which roles are its workers and its servers; None for a job that is not tuned."""
    spec = job.spec
    if spec.labels.get(LABEL) != _WANTED or not spec.elastic or not spec.checkpointable:
        return None
    places = workers_and_servers(spec.roles)
    if places is None:
        return None
    spans = [spec.roles[place].max - spec.roles[place].min + 1 for place in places]
    return places if spans[0] * spans[1] <= _MOST_SIZES else None


def _as_seen(job: Job, places: tuple[int, int], state: State, now: float) -> _TunedView:
    counts = [sum(worker.role == place for worker in job.allocation) for place in places]
    capacity = state.capacity
    return _TunedView(
        job.attempt,
        job.spec.roles,
        places,
        (counts[0], counts[1]),
        job.state is JobState.RUNNING and job.resizing is None,
        job.progress,
        job.progress_s,
        job.ran(now),
        {
            "cpu_milli": sum(capacity.free_cpu),
            "memory_mib": sum(capacity.free_memory),
            "gpu_milli": capacity.free_milli,
        },
    )
