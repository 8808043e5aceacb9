"""Runs teach: every run that was alone on its device is kept, models are fitted anew after enough
of them, and a new one answers only when it is better on the latest runs.

It is shown which runs ended, and what they used by their telemetry; nothing of it is on the
deciding path. It also watches how far estimates were off, and says when they drift from what they
promised.

Elastic jobs teach while they run: how fast each is at the sizes it has, by its own reports of
progress. That is told to the deciding loop as a fact (`SpeedMeasured`), since it decides by it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile
from math import expm1
from typing import Protocol

import numpy as np

from presage.control.advisors import StateReader, Telemetry
from presage.control.advisors.needs import (
    CORE,
    CPU,
    HOST,
    RUNTIME,
    Alone,
    NeedsEstimator,
    workload,
)
from presage.core.state import State
from presage.core.workers import ask_of
from presage.foresee.champions import QUANTITIES, Champions, EstimateDrift
from presage.foresee.own import OwnRun
from presage.foresee.scaling import Stretches
from presage.manifest import ModelReference
from presage.model.errors import PresageError
from presage.model.estimate import Estimate, Estimates
from presage.model.event import SpeedMeasured
from presage.model.job import JobSpec, JobState
from presage.telemetry.rows import Row

__all__ = ["Ended", "EndedRuns", "Learner", "MeasuredSize", "sharing", "sized"]

log = logging.getLogger("presage.learning")

_ESTIMATED = {
    "memory": ("memory_mib", 1.0),
    "step_time": ("step_s", 1e3),
    "utilization": ("utilization", 1.0),
    RUNTIME: ("runtime_s", 1.0),
}
"""Quantity -> its name in `Estimates`, and its unit in the other's."""
_MOST_RUN_TIMES = 1000
"""That a version is fitted on, the latest."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over, as far as it teaches."""

    spec: JobSpec
    at: float
    completed: bool
    """Whether its job is done; else it was stopped, failed or ran out of memory."""
    out_of_memory: bool = False
    gone: bool = True
    """Whether the job ended with it."""
    model: ModelReference | None = None
    folder: str | None = None
    estimates: Estimates | None = None
    """What was foreseen of it when it was submitted."""
    step_s: float | None = None
    """Seconds a step took, by its own reports."""
    submitted_at: float | None = None
    started_at: float | None = None
    status: str = ""
    """How its job ended, as users see it; empty while it has not."""
    ran_s: float | None = None
    """Seconds that it ran at one go; None for one that was started again."""


class EndedRuns(Protocol):
    """Where runs that ended are read from, in their order."""

    def after(self, number: int) -> tuple[Sequence[Ended], int]:
        """Those after a number, and the number to ask with next time; the same number when there
        are no more."""
        ...


class Learner:
    """Learns from runs. Everything public may be called from any thread."""

    name = "learning"
    every_s = 2.0

    def __init__(
        self, ends: EndedRuns, champions: Champions, estimator: NeedsEstimator, *, every: int = 10
    ) -> None:
        self._ends, self._champions, self._estimator = ends, champions, estimator
        self._every = every
        self._new = dict.fromkeys(QUANTITIES, 0)
        """Runs that were kept since a version was fitted."""
        self._epoch: int | None = None
        """Of what it remembers."""
        self._shared: set[str] = set()
        """Jobs that were seen beside another on one of their devices."""
        self._drift: tuple[int, dict[str, EstimateDrift]] | None = None
        self._stretches = Stretches()

    def drift(self) -> dict[str, EstimateDrift]:
        """How far estimates were off, by quantity; only those that were judged."""
        epoch, known = self._champions.epoch, self._drift
        if known is None or known[0] != epoch:
            drifts: dict[str, EstimateDrift] = {}
            for quantity in QUANTITIES:
                with suppress(PresageError):  # `presage models` says what is wrong
                    one = self._champions.drift(quantity)
                    drifts |= {quantity: one} if one is not None else {}
            known = self._drift = epoch, drifts
        return known[1]

    def alerts(self) -> dict[str, str]:
        """What somebody should look at, a sentence for each quantity that drifted."""
        return {
            quantity: f"Estimates of {quantity.replace('_', ' ')} are off by "
            f"{expm1(one.error):.0%} on average on the latest {one.judged} runs: see "
            "`presage models`."
            for quantity, one in self.drift().items()
            if one.drifted
        }

    # -- a look -----------------------------------------------------------------------------------

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> list[SpeedMeasured]:
        """See who shares a device, how fast elastic jobs are, and learn from what ended."""
        beside, steady = ask(lambda state: (sharing(state), sized(state)))
        self._shared |= beside
        facts = self.time_sizes(steady)
        before = self.alerts()
        if self.catch_up(now, telemetry):
            after = self.alerts()
            for quantity in after.keys() - before.keys():
                log.warning("alert: %s", after[quantity])
        return facts

    def time_sizes(self, running: Sequence[MeasuredSize]) -> list[SpeedMeasured]:
        """What the reports of elastic jobs tell of their speed."""
        told = []
        for run in running:
            point = self._stretches.see(run.job, run.mark, run.done, run.ran_s)
            if point is not None and run.job not in self._shared:
                told.append(SpeedMeasured(run.job, run.mark[0], point))
        self._stretches.keep({run.job for run in running})
        return told

    def catch_up(self, now: float, telemetry: Telemetry) -> int:
        """Learn from runs that ended since the last time; how many taught something."""
        if self._epoch != self._champions.epoch:  # another server may have learned until now
            self._epoch = self._champions.epoch
            self._new = {quantity: self._champions.unlearned(quantity) for quantity in QUANTITIES}
            self._estimator.refresh()  # here, so that who submits need not wait for it
        number, learned = self._champions.learned_until(), 0
        while True:
            ended, latest = self._ends.after(number)
            if latest == number:
                break
            with self._champions.lesson(latest):
                for run in ended:
                    if run.completed:
                        learned += self._learn(run, telemetry)
                    if run.out_of_memory:
                        self._ran_out(run)
                    if run.gone:
                        self._shared.discard(run.spec.id)
            number = latest
        self._challenge(now)
        return learned

    def _learn(self, run: Ended, telemetry: Telemetry) -> bool:
        """Keep what a run tells; whether it told anything."""
        spec = run.spec
        alone = self._estimator.alone(spec, run.model, run.folder)
        name = workload(spec, run.model)
        used = _used(telemetry.of(spec.id))
        told = {"step_time": 1e3 * run.step_s if run.step_s else None}
        if alone.device in (CPU, CORE):
            told |= {"memory": used.memory_mib, "utilization": used.cores}
        else:
            told |= {"memory": used.gpu_memory_mib, "utilization": used.gpus}
        said = {
            "memory": alone.memory_mib.p50 if alone.memory_mib else None,
            "step_time": 1e3 * alone.step_s.p50 if alone.step_s else None,
            "utilization": alone.utilization.p50 if alone.utilization else None,
        }
        for quantity, actual in told.items():
            if actual is None:
                continue
            self._judge(quantity, run, actual)
            if spec.id not in self._shared and not used.shared:
                sizes = dict(alone.sizes)
                self._keep(
                    quantity, OwnRun(name, alone.device, run.at, actual, said[quantity], sizes)
                )
        if used.memory_mib is not None and alone.device not in (CPU, CORE):
            self._keep("memory", OwnRun(name, HOST, run.at, used.memory_mib))
        self._learn_runtime(run, name, alone)
        return any(actual is not None for actual in told.values())

    def _learn_runtime(self, run: Ended, name: str, alone: Alone) -> None:
        """How far a run time was off that was foreseen without own runs. What runs at several
        sizes tells of none."""
        if run.ran_s is None or run.ran_s <= 0 or run.estimates is None or run.spec.elastic:
            return
        said = self._estimator.runtime_alone(run.spec, run.model, alone, run.estimates)
        if said is not None:
            self._judge(RUNTIME, run, run.ran_s)
            sizes = dict(alone.sizes)
            self._keep(RUNTIME, OwnRun(name, alone.device, run.at, run.ran_s, said, sizes))

    def _keep(self, quantity: str, run: OwnRun) -> None:
        self._champions.add(quantity, run)
        if quantity == "memory":
            self._estimator.remember(run)
        self._new[quantity] += 1

    def _ran_out(self, run: Ended) -> None:
        """Note on the workload that what the job asked for was not enough."""
        asked = max(
            role.resources.memory_mib or role.resources.gpu_memory_mib for role in run.spec.roles
        )
        if asked:
            self._champions.ran_out(workload(run.spec, run.model), float(asked))

    def _judge(self, quantity: str, run: Ended, actual: float) -> None:
        """Compare with what was foreseen when the job was submitted."""
        key, scale = _ESTIMATED[quantity]
        said: Estimate | None = getattr(run.estimates, key, None)
        if said is not None:
            scaled = Estimate(scale * said.p10, scale * said.p50, scale * said.p90, "", "")
            self._champions.judge(quantity, scaled, actual)
            self._drift = None

    def _challenge(self, now: float) -> None:
        for quantity, new in self._new.items():
            if new < self._every or new < self._patience(quantity):
                continue
            self._new[quantity] = 0
            runs = self._champions.runs(quantity)
            if quantity == RUNTIME:
                runs = runs[-_MOST_RUN_TIMES:]
            version = self._champions.challenge(quantity, runs, now)
            if version is None:
                continue
            log.info(
                "%s: version %d fitted on %d runs, %s",
                quantity,
                version.number,
                version.runs,
                "answers from now on" if version.accepted and not version.note else version.note,
            )
            self._estimator.refresh()
            self._drift = None

    def _patience(self, quantity: str) -> int:
        """Every job has a run time, and fitting takes longer the more there are: it is done again
        when there are a quarter more."""
        versions = self._champions.standing(quantity).versions if quantity == RUNTIME else ()
        return versions[-1].runs // 4 if versions else 0


@dataclass(frozen=True, slots=True)
class MeasuredSize:
    """An elastic job that runs and has reported at its present size."""

    job: str
    mark: tuple[int, float, int, int]
    """The attempt, since when it has its size, and that size: workers and nodes."""
    done: float
    ran_s: float
    """Seconds it had run when it reported that."""


def sized(state: State) -> list[MeasuredSize]:
    """Elastic jobs that run and keep their size."""
    jobs = []
    for job in state.active.values():
        steady = job.state is JobState.RUNNING and job.resizing is None
        if steady and job.spec.elastic and job.progress_s > job.ran_s:
            nodes = len({worker.node for worker in job.allocation})
            mark = (job.attempt, job.mark, len(job.allocation), nodes)
            jobs.append(MeasuredSize(job.id, mark, job.progress, job.progress_s))
    return jobs


def sharing(state: State) -> set[str]:
    """Jobs that are on a device with another job; those that ask for no GPU share their node's
    cores when more are asked for than there are."""
    on: dict[tuple[str, int], list[str]] = {}
    cores: dict[str, list[tuple[str, int]]] = {}
    for job in state.active.values():
        for worker in job.allocation:
            ask = ask_of(job, worker.role)
            for device in worker.devices:
                on.setdefault((worker.node, device), []).append(job.id)
            if not worker.devices:
                cores.setdefault(worker.node, []).append((job.id, ask.cpu_milli or 1000))
    shared = {job for jobs in on.values() if len(set(jobs)) > 1 for job in jobs}
    for node, jobs in cores.items():
        there = state.capacity.nodes[state.capacity.index[node]].cpu_milli
        if sum(milli for _, milli in jobs) > there:
            shared |= {job for job, _ in jobs}
    return shared


@dataclass(frozen=True, slots=True)
class _Used:
    """What a run used by its telemetry; None for what is not there. Of several workers, what the
    one with most did."""

    memory_mib: float | None = None
    """The largest of the host's."""
    cores: float | None = None
    """The part of a core, on average."""
    gpu_memory_mib: float | None = None
    """The largest on a device."""
    gpus: float | None = None
    """How busy its devices were on average, 0 to 1, from when it was first on one."""
    shared: bool = False
    """Whether a process of somebody else was on a device."""


def _used(rows: Iterable[Row]) -> _Used:
    by_worker: dict[str, list[Row]] = {}
    for row in rows:
        by_worker.setdefault(row.worker, []).append(row)
    memory, cores, gpu_memory, gpus, shared = [], [], [], [], False
    for mine in by_worker.values():
        memory.append(max(row.rss_mib or 0.0 for row in mine))
        counted = [(row.at, row.cpu_s) for row in mine if row.cpu_s is not None]
        if counted and counted[-1][0] > counted[0][0]:
            (since, before), (until, after) = counted[0], counted[-1]
            cores.append((after - before) / (until - since))
        on_gpu = list(dropwhile(lambda row: not row.gpu_memory_mib, mine))
        held = [row.gpu_memory_mib for row in on_gpu if row.gpu_memory_mib is not None]
        busy = [row.gpu_util_pct for row in on_gpu if row.gpu_util_pct is not None]
        if held and busy:
            gpu_memory.append(max(held))
            gpus.append(float(np.mean(busy)) / 100)
            shared |= any(row.gpu_shared for row in on_gpu)
    return _Used(_most(memory), _most(cores, 1.0), _most(gpu_memory), _most(gpus, 1.0), shared)


def _most(amounts: Sequence[float], ceiling: float = float("inf")) -> float | None:
    """The largest, up to a ceiling; None if there is nothing."""
    most = max(amounts, default=0.0)
    return min(most, ceiling) if most > 0 else None
