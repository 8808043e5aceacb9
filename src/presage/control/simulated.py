"""Advisors beside a simulated cluster: the same ones as beside a real one, on telemetry that was
recorded, so that right-sizing and learning are measured without a cluster.

It stands between the simulator and the advisors: recorded use becomes telemetry every few seconds
of simulated time, what they advise becomes facts, and books are kept of what was asked, given,
wanted and foreseen. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import expm1, log
from pathlib import Path
from typing import TypeVar

import numpy as np

from presage.control.advisors import Advisor
from presage.control.advisors.learning import Ended, Learner
from presage.control.advisors.needs import NeedsEstimator
from presage.control.advisors.sizing import Sample, Sizing
from presage.core.state import State
from presage.core.workers import ask_of
from presage.foresee.champions import Champions
from presage.model.cluster import Node
from presage.model.errors import PresageError, UserError
from presage.model.estimate import Estimate, Estimates
from presage.model.event import Fact
from presage.model.job import JobSpec
from presage.model.workload import same_needs
from presage.observe.phases import PhaseModel
from presage.provision.live import SizingRules, series_of
from presage.sim.history import RuntimeHistory
from presage.sim.result import Accuracy, AdviceScore
from presage.sim.world import Task, Use, World
from presage.store.memory import MemoryKnowledge
from presage.telemetry.rows import Row

__all__ = ["ADVISORS", "Advised", "check_advisors"]

ADVISORS = ("sizing", "learning")
T = TypeVar("T")
_PARTS = 4
"""Errors of estimates are told by quarters of the jobs, so that learning shows."""
_MOST_RUNS = 6
_LEAST_SAMPLES = 60


@dataclass(slots=True)
class _Books:
    """Seconds × amount over all measured workers, and samples that were met."""

    asked: float = 0.0
    given: float = 0.0
    wanted: float = 0.0
    samples: int = 0
    met: int = 0

    def add(self, seconds: float, asked: float, given: float, wanted: float) -> None:
        if asked:
            self.asked += seconds * asked
            self.given += seconds * given
            self.wanted += seconds * wanted
            self.samples += 1
            self.met += wanted <= given


def check_advisors(names: Sequence[str]) -> None:
    """Refuse a name that is no advisor's."""
    unknown = [name for name in names if name not in ADVISORS]
    if unknown:
        raise UserError(
            f"there is no advisor '{', '.join(unknown)}'; there are {', '.join(ADVISORS)}"
        )


class Advised:
    """The advisors of one simulated run; it has what `sim.run.Advice` asks for."""

    def __init__(
        self, names: Sequence[str], nodes: Sequence[Node], *, every_s: float = 5.0
    ) -> None:
        """`every_s` is the time between two samples of telemetry."""
        check_advisors(names)
        self._every_s, self._due = every_s, 0.0
        self._telemetry, self._ends, self._history = (
            _SimulatedTelemetry(),
            _SimulatedEnds(),
            RuntimeHistory(),
        )
        champions = Champions(MemoryKnowledge())
        self._estimator = NeedsEstimator(champions, lambda: nodes, Path, self._usual)
        self._now = 0.0
        self._sizing: Sizing | None = None
        self._advisors: list[Advisor] = []
        self._learns = "learning" in names
        if self._learns:
            self._advisors.append(Learner(self._ends, champions, self._estimator))
        if "sizing" in names:
            rules = SizingRules(horizon_s=max(SizingRules().horizon_s, 2 * every_s))
            self._sizing = Sizing(_SimulatedPhases(every_s), same_needs, rules=rules)
            self._advisors.append(self._sizing)
        self._books = {"cpu": _Books(), "memory": _Books()}
        self._out_of_memory = 0
        self._foreseen: list[tuple[str, Estimate | None, float]] = []

    # -- for the simulator ------------------------------------------------------------------------

    def due_at(self) -> float:
        """When the next samples are taken."""
        return self._due

    def look(self, now: float, state: State, world: World) -> list[Fact]:
        """Measure, and ask every advisor."""
        if now < self._due:
            return []
        self._due, self._now = now + self._every_s, now
        for use in world.measure(now):
            self._measured(now, use, state)

        def ask(question: Callable[[State], T]) -> T:
            return question(state)

        return [fact for one in self._advisors for fact in one.look(now, ask, self._telemetry)]

    def foresee(self, spec: JobSpec, now: float) -> Estimates | None:
        """What the runs so far tell of a job."""
        self._now = now
        return self._estimator.of(spec) if self._learns else None

    def ended(self, task: Task, now: float) -> None:
        """Learn from a job that is done, and see how well it was foreseen."""
        said = task.estimates
        self._history.add(task.spec, task.duration_s, now)
        self._ends.runs.append(Ended(task.spec, now, completed=True, estimates=said))
        self._foreseen.append(("run time", said.runtime_s if said else None, task.duration_s))
        if task.use is not None:
            memory = said.memory_mib if said else None
            self._foreseen.append(("memory", memory, task.use.peak_mib))

    def score(self) -> AdviceScore:
        """How good the advice was, over the whole run."""
        books = {name: one for name, one in self._books.items() if one.samples}
        return AdviceScore(
            resizes=self._sizing.resizes if self._sizing else 0,
            out_of_memory=self._out_of_memory,
            saved_pct={name: 100 * (1 - one.given / one.asked) for name, one in books.items()},
            met_pct={name: 100 * one.met / one.samples for name, one in books.items()},
            foreseen={
                quantity: _by_parts([row for row in self._foreseen if row[0] == quantity])
                for quantity in dict.fromkeys(row[0] for row in self._foreseen)
            }
            if self._learns
            else {},
        )

    # -- inside -----------------------------------------------------------------------------------

    def _measured(self, now: float, use: Use, state: State) -> None:
        job = state.jobs[use.task.spec.id]
        ask, given = ask_of(job, 0), use.given
        cpu = given.cpu_milli or ask.cpu_milli
        memory = given.memory_mib or ask.memory_mib
        workers = len(use.task.workers)
        seconds = self._every_s * max(1, workers)
        self._books["cpu"].add(seconds, ask.cpu_milli, cpu, 1000 * use.cores)
        self._books["memory"].add(seconds, ask.memory_mib, memory, use.memory_mib)
        if not workers:  # it just ran out of memory
            self._out_of_memory += 1
        cores = min(use.cores, cpu / 1000) if cpu else use.cores
        role = job.spec.roles[0].name
        self._telemetry.add(job.id, job.attempt, now, cores, use.memory_mib, role, workers)

    def _usual(self, spec: JobSpec) -> Estimate | None:
        return self._history.estimate(spec, 0.0, self._now) if len(self._history) else None


class _SimulatedTelemetry:
    """What simulated runs used, by job and attempt."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, int], list[Row]] = {}
        self._cpu_s: dict[tuple[str, int], float] = {}

    def add(
        self, job: str, attempt: int, at: float, cores: float, mib: float, role: str, workers: int
    ) -> None:
        rows = self._rows.setdefault((job, attempt), [])
        since = rows[-1].at if rows else at
        cpu_s = self._cpu_s.get((job, attempt), 0.0) + cores * (at - since)
        self._cpu_s[job, attempt] = cpu_s
        rows += (Row(at, f"{role}-{k}", cpu_s, cores, mib) for k in range(workers))

    def new(self, job: str, attempt: int, mark: int = 0) -> tuple[Sequence[Row], int]:
        """Rows after a mark, which is their number before it."""
        rows = self._rows.get((job, attempt), [])
        return rows[mark:], len(rows)

    def of(self, job: str) -> Iterator[Row]:
        """The rows of a job."""
        for name, attempt in sorted(key for key in self._rows if key[0] == job):
            yield from self._rows[name, attempt]

    def latest(self, job: str, attempt: int, workers: int, since: float) -> Sequence[Row]:
        """The latest row of each worker."""
        return [row for row in self._rows.get((job, attempt), [])[-workers:] if row.at >= since]


@dataclass(slots=True)
class _SimulatedEnds:
    """Runs that ended, in the order of their ends."""

    runs: list[Ended] = field(default_factory=list)

    def after(self, number: int) -> tuple[Sequence[Ended], int]:
        """Those after a number."""
        return self.runs[number:], len(self.runs)


class _SimulatedPhases:
    """Phases of workloads, fitted where the caller stands: simulated time does not pass."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._runs: dict[str, list[tuple[str, Sequence[Sample]]]] = {}
        self._seen: dict[str, int] = {}
        self._models: dict[str, PhaseModel | None] = {}

    def model(self, workload: str) -> PhaseModel | None:
        """The phases of a workload, as far as its runs so far tell."""
        return self._models.get(workload)

    def learn(self, workload: str, job: str, samples: Sequence[Sample]) -> None:
        """Fit anew on the latest runs; less and less often, as there is less and less to learn."""
        runs = self._runs.setdefault(workload, [])
        runs.append((job, samples))
        del runs[:-_MOST_RUNS]
        seen = self._seen[workload] = self._seen.get(workload, 0) + 1
        if seen & (seen - 1) or sum(len(one) for _, one in runs) < _LEAST_SAMPLES:
            return  # after 1, 2, 4, 8 … runs
        try:
            self._models[workload] = PhaseModel.fit(
                [series_of(name, rows) for name, rows in runs], every=self._every_s
            )
        except PresageError:  # too little to find phases in
            self._models.setdefault(workload, None)


def _by_parts(rows: Sequence[tuple[str, Estimate | None, float]]) -> list[Accuracy]:
    """How well each quarter of the jobs was foreseen."""
    parts = []
    for part in np.array_split(np.arange(len(rows)), _PARTS):
        errors, inside = [], []
        for place in part:
            _, said, actual = rows[place]
            if said is not None and said.p50 > 0 and actual > 0:
                errors.append(abs(log(actual / said.p50)))
                inside.append(said.p10 <= actual <= said.p90)
        median = 100 * expm1(float(np.median(errors))) if errors else None
        share = 100 * float(np.mean(inside)) if inside else None
        parts.append(Accuracy(len(errors), median, share))
    return parts
