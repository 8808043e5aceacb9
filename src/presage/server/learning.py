"""Runs teach: every run that was alone on its device is kept, models are fitted anew after enough
of them, and a new one answers only when it is better on the latest runs.

A thread of its own reads which jobs ended from the store's rows and what they used from their
telemetry; nothing of it is on the deciding path. It also watches how far estimates were off, and
says when they drift from what they promised.

Elastic jobs teach while they run: how fast each is at the sizes it has, by its own reports of
progress. That is told to the deciding loop as a fact (`SpeedMeasured`), since it decides by it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from math import expm1
from pathlib import Path
from typing import Any

import numpy as np

from presage.core.engine import Engine
from presage.core.workers import ask_of
from presage.foresee.champions import QUANTITIES, Champions, Drift
from presage.foresee.own import OwnRun
from presage.foresee.scaling import Stretches
from presage.manifest import Manifest, to_spec
from presage.model.errors import PresageError
from presage.model.estimate import Estimate
from presage.model.event import SpeedMeasured
from presage.model.job import JobState, ReasonCode
from presage.server.beside import Beside
from presage.server.estimates import CORE, CPU, HOST, Estimator, workload
from presage.server.live import Live
from presage.store.records import JobRow
from presage.store.sql import SqlStore

__all__ = ["Learner", "Sized", "samples_of", "sharing", "sized"]

_LOOK_S = 2.0
_MOST_TELEMETRY = 64 << 20
_ESTIMATED = {
    "memory": ("memory_mib", 1.0),
    "step_time": ("step_s", 1e3),
    "utilization": ("utilization", 1.0),
}
"""Quantity -> its name in `Estimates`, and its unit in the other's."""


class Learner(Beside):
    """Learns from the runs of one server. Everything public may be called from any thread."""

    def __init__(
        self,
        live: Live,
        store: SqlStore,
        champions: Champions,
        estimator: Estimator,
        data: Path,
        *,
        every: int = 10,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(live, "learning", _LOOK_S)
        self._store, self._data = store, data
        self._champions, self._estimator = champions, estimator
        self._every, self._clock = every, clock
        self._new = dict.fromkeys(QUANTITIES, 0)
        self._shared: set[str] = set()
        """Jobs that were seen beside another on one of their devices."""
        self._drift: dict[str, Drift] | None = None
        self._stretches = Stretches()

    def drift(self) -> dict[str, Drift]:
        """How far estimates were off, by quantity; only those that were judged."""
        found = self._drift
        if found is None:
            found = {}
            for quantity in QUANTITIES:
                with suppress(PresageError):  # `presage models` says what is wrong with its files
                    one = self._champions.drift(quantity)
                    found |= {quantity: one} if one is not None else {}
            self._drift = found
        return found

    def alerts(self) -> dict[str, str]:
        """What somebody should look at, a sentence for each quantity that drifted."""
        return {
            quantity: f"Estimates of {quantity.replace('_', ' ')} are off by "
            f"{expm1(one.error):.0%} on average on the latest {one.judged} runs: see "
            "`presage models`."
            for quantity, one in self.drift().items()
            if one.drifted
        }

    # -- the thread -------------------------------------------------------------------------------

    def look(self) -> None:
        """See who shares a device, how fast elastic jobs are, and learn from what ended."""
        self._watch()
        self._time_sizes()
        before = self.alerts()
        if self.catch_up():
            after = self.alerts()
            for quantity in after.keys() - before.keys():
                self._log.warning("alert: %s", after[quantity])

    def _watch(self) -> None:
        """Who shares a device now."""
        with suppress(PresageError):
            self._shared |= self._live.ask(sharing)

    def _time_sizes(self) -> None:
        """Have it decided upon how fast elastic jobs are at the sizes they have."""
        found: list[Sized] = []
        with suppress(PresageError):
            found = self._live.ask(sized)
        for fact in self.time_sizes(found):
            self._live.submit(Future[None](), fact, None, None)

    def time_sizes(self, found: Sequence[Sized]) -> list[SpeedMeasured]:
        """What the reports of elastic jobs tell of their speed."""
        told = []
        for run in found:
            point = self._stretches.see(run.job, run.mark, run.done, run.ran_s)
            if point is not None and run.job not in self._shared:
                told.append(SpeedMeasured(run.job, run.mark[0], point))
        self._stretches.keep({run.job for run in found})
        return told

    def catch_up(self) -> int:
        """Learn from jobs that ended since the last time; how many."""
        place = self._champions.folder / "learned-until"
        try:
            number = int(place.read_text())
        except (OSError, ValueError):
            number = 0
        learned = 0
        while found := self._store.jobs.transitions_since(number):
            for item in found:
                number = item.number
                if item.status == "COMPLETED":
                    row = self._store.jobs.get(item.job)
                    learned += row is not None and self._learn(row)
                if item.reason_code == ReasonCode.OUT_OF_MEMORY:
                    self._ran_out(item.job)
                if item.status in ("COMPLETED", "FAILED", "CANCELLED"):
                    self._shared.discard(item.job)
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            draft = place.with_suffix(".part")
            draft.write_text(str(number))
            draft.replace(place)
            if self._stopping.is_set():
                break
        self._challenge()
        return learned

    def _learn(self, row: JobRow) -> bool:
        """Keep what a run tells; whether it told anything."""
        manifest = Manifest.from_json(row.manifest)
        spec = to_spec(manifest, row.id, row.owner)
        alone = self._estimator.alone(manifest, spec, row.folder)
        name, now = workload(spec, manifest.model), row.ended_at or self._clock()
        used = _used(self._data / "jobs" / row.id / "telemetry")
        told = {"step_time": _step_ms(row)}
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
            self._judge(quantity, row, actual)
            if row.id not in self._shared and not used.shared:
                run = OwnRun(name, alone.device, now, actual, said[quantity], dict(alone.sizes))
                self._keep(quantity, run)
        if used.memory_mib is not None and alone.device not in (CPU, CORE):
            self._keep("memory", OwnRun(name, HOST, now, used.memory_mib))
        return any(actual is not None for actual in told.values())

    def _keep(self, quantity: str, run: OwnRun) -> None:
        self._champions.add(quantity, run)
        self._new[quantity] += 1

    def _ran_out(self, job: str) -> None:
        """Note on the workload that what the job asked for was not enough."""
        row = self._store.jobs.get(job)
        if row is None:
            return
        manifest = Manifest.from_json(row.manifest)
        spec = to_spec(manifest, row.id, row.owner)
        asked = max(
            role.resources.memory_mib or role.resources.gpu_memory_mib for role in spec.roles
        )
        if asked:
            self._champions.ran_out(workload(spec, manifest.model), float(asked))

    def _judge(self, quantity: str, row: JobRow, actual: float) -> None:
        """Compare with what was foreseen when the job was submitted."""
        key, scale = _ESTIMATED[quantity]
        said = (row.estimates or {}).get(key)
        if said:
            low, middle, high = (said[name] * scale for name in ("p10", "p50", "p90"))
            self._champions.judge(quantity, Estimate(low, middle, high, "", ""), actual)
            self._drift = None

    def _challenge(self) -> None:
        for quantity, new in self._new.items():
            if new < self._every:
                continue
            self._new[quantity] = 0
            runs = self._champions.runs(quantity)
            version = self._champions.challenge(quantity, runs, self._clock())
            if version is None:
                continue
            self._log.info(
                "%s: version %d fitted on %d runs, %s",
                quantity,
                version.number,
                version.runs,
                "answers from now on" if version.accepted and not version.note else version.note,
            )
            self._estimator.refresh()
            self._drift = None


@dataclass(frozen=True, slots=True)
class Sized:
    """An elastic job that runs and has reported at its present size."""

    job: str
    mark: tuple[int, float, int, int]
    """The attempt, since when it has its size, and that size: workers and nodes."""
    done: float
    ran_s: float
    """Seconds it had run when it reported that."""


def sized(engine: Engine) -> list[Sized]:
    """Elastic jobs that run and keep their size."""
    found = []
    for job in engine.state.active.values():
        steady = job.state is JobState.RUNNING and job.resizing is None
        if steady and job.spec.elastic and job.progress_s > job.ran_s:
            nodes = len({worker.node for worker in job.allocation})
            mark = (job.attempt, job.mark, len(job.allocation), nodes)
            found.append(Sized(job.id, mark, job.progress, job.progress_s))
    return found


def sharing(engine: Engine) -> set[str]:
    """Jobs that are on a device with another job; those that ask for no GPU share their node's
    cores when more are asked for than there are."""
    state = engine.state
    on: dict[tuple[str, int], list[str]] = {}
    cores: dict[str, list[tuple[str, int]]] = {}
    for job in state.active.values():
        for worker in job.allocation:
            ask = ask_of(job, worker.role)
            for device in worker.devices:
                on.setdefault((worker.node, device), []).append(job.id)
            if not worker.devices:
                cores.setdefault(worker.node, []).append((job.id, ask.cpu_milli or 1000))
    found = {job for jobs in on.values() if len(set(jobs)) > 1 for job in jobs}
    for node, jobs in cores.items():
        there = state.capacity.nodes[state.capacity.index[node]].cpu_milli
        if sum(milli for _, milli in jobs) > there:
            found |= {job for job, _ in jobs}
    return found


def samples_of(folder: Path) -> Iterator[dict[str, Any]]:
    """The samples of all attempts of a job, oldest attempt first; torn lines are left out."""
    files = sorted(folder.glob("*.jsonl"), key=lambda file: (len(file.name), file.name))
    for file in files:
        with suppress(OSError):
            if file.stat().st_size > _MOST_TELEMETRY:
                continue
            for line in file.read_bytes().splitlines():
                with suppress(ValueError):
                    sample = json.loads(line)
                    if isinstance(sample, dict) and "worker" in sample:
                        yield sample


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


def _used(folder: Path) -> _Used:
    by_worker: dict[str, list[dict[str, Any]]] = {}
    for sample in samples_of(folder):
        if {"rss_mib", "cpu_s", "at"} <= sample.keys():
            by_worker.setdefault(sample["worker"], []).append(sample)
    memory, cores, gpu_memory, gpus, shared = [], [], [], [], False
    for mine in by_worker.values():
        memory.append(max(sample["rss_mib"] for sample in mine))
        seconds = mine[-1]["at"] - mine[0]["at"]
        if seconds > 0:
            cores.append((mine[-1]["cpu_s"] - mine[0]["cpu_s"]) / seconds)
        on_gpu = [sample for sample in mine if "gpu_memory_mib" in sample]
        while on_gpu and not on_gpu[0]["gpu_memory_mib"]:
            del on_gpu[0]
        if on_gpu:
            gpu_memory.append(max(sample["gpu_memory_mib"] for sample in on_gpu))
            gpus.append(float(np.mean([sample["gpu_util_pct"] / 100 for sample in on_gpu])))
            shared |= any("gpu_shared" in sample for sample in on_gpu)
    return _Used(_most(memory), _most(cores, 1.0), _most(gpu_memory), _most(gpus, 1.0), shared)


def _most(amounts: Sequence[float], ceiling: float = float("inf")) -> float | None:
    """The largest, up to a ceiling; None if there is nothing."""
    most = max(amounts, default=0.0)
    return min(most, ceiling) if most > 0 else None


def _step_ms(row: JobRow) -> float | None:
    step_s = (row.progress or {}).get("step_s")
    return 1e3 * step_s if isinstance(step_s, int | float) and step_s > 0 else None
