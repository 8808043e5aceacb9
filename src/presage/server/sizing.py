"""Live right-sizing: telemetry of running jobs steps the phase model of their workload, and their
limits on CPU and memory follow what the phases need.

A thread of its own reads what guardians write, and tells the deciding loop (`PhaseChanged`,
`LimitsAdvised`); the loop decides, journals, and has the executor act. A workload's phases are
learned from its runs of before, in a process of its own; until then, limits follow recent use.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from presage.core.engine import Engine
from presage.core.workers import ask_of
from presage.manifest import Manifest, to_spec
from presage.model import event as ev
from presage.model.cluster import Resources
from presage.model.errors import PresageError
from presage.model.job import JobState, Reason, ReasonCode
from presage.observe.phases import PhaseModel
from presage.provision.live import Sizer, SizingRules
from presage.server.beside import Beside
from presage.server.estimates import workload
from presage.server.learning import samples_of
from presage.server.live import Live
from presage.store.sql import SqlStore

__all__ = ["Sizing"]

_LOOK_S = 1.0
_LEAST_SAMPLES = 60
"""A workload's phases are learned from runs with this many samples in all."""
_MOST_RUNS = 6
"""Runs that a workload's phases are learned from, the latest."""
_FIT_S = 120.0


@dataclass(slots=True)
class _Followed:
    """A run that is being sized."""

    attempt: int
    workload: str
    sizer: Sizer
    file: Path
    offset: int = 0
    given: dict[str, Resources] = field(default_factory=dict)
    """Worker -> the limits it should have."""
    phase: int = -1


class _Unheard:
    """The ticket of a request whose answer nobody waits for."""

    def done(self) -> bool:
        return False

    def set_result(self, result: None) -> None: ...

    def set_exception(self, error: Exception) -> None: ...


class Sizing(Beside):
    """Right-sizes the runs of one server. Everything public may be called from any thread."""

    def __init__(
        self,
        live: Live,
        store: SqlStore,
        data: Path,
        *,
        rules: SizingRules | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(live, "sizing", _LOOK_S)
        self._store, self._data, self._clock = store, data, clock
        self._rules = rules or SizingRules()
        self._runs: dict[str, _Followed] = {}
        self._models: dict[str, PhaseModel | None] = {}
        self._refused: set[str] = set()
        """Jobs that are not to be sized."""
        self.resizes = 0
        """Limits that were advised since the start."""

    def not_leading(self) -> None:
        """Runs keep the limits they have."""
        self._runs.clear()

    def look(self) -> None:
        """Take in what runs have written since the last time."""
        running: dict[str, _Running] = self._live.ask(_running)
        for job in [
            job for job, run in self._runs.items() if run.attempt != _attempt(running, job)
        ]:
            self._end(job)
        self._refused &= running.keys()
        for job, state in running.items():
            if job not in self._runs and job not in self._refused:
                self._begin(job, state)
            if job in self._runs:
                self._follow(job, self._runs[job], state)

    def _begin(self, job: str, state: _Running) -> None:
        row = self._store.jobs.get(job)
        manifest = Manifest.from_json(row.manifest) if row is not None else None
        if row is None or manifest is None or not manifest.rightsize:
            self._refused.add(job)
            return
        name = workload(to_spec(manifest, job, row.owner), manifest.model)
        if name not in self._models:
            self._models[name] = self._read_model(name)
        file = self._data / "jobs" / job / "telemetry" / f"{state.attempt}.jsonl"
        sizer = Sizer(self._models[name], self._rules)
        self._runs[job] = _Followed(state.attempt, name, sizer, file)
        # The run is looked at closely from now on.
        self._advise(job, state.attempt, state.limits or state.ask, "right-sizing begins")

    def _follow(self, job: str, run: _Followed, state: _Running) -> None:
        advised, phase = "", run.phase
        for sample in self._new_samples(run):
            worker = str(sample["worker"])
            if worker not in run.sizer:
                run.sizer.begin(worker, state.ask, state.limits)
            advice = run.sizer.see(
                worker, float(sample["at"]), float(sample["cpu_cores"]), float(sample["rss_mib"])
            )
            phase = run.sizer.phase(worker)
            if advice is not None:
                run.given[worker] = advice.limits
                advised = advice.why
        if phase != run.phase and phase >= 0:
            run.phase = phase
            self._tell(ev.PhaseChanged(job, run.attempt, phase))
        if advised:
            most = Resources(
                cpu_milli=max(limits.cpu_milli for limits in run.given.values()),
                memory_mib=max(limits.memory_mib for limits in run.given.values()),
            )
            self._advise(job, run.attempt, most, advised)

    def _advise(self, job: str, attempt: int, limits: Resources, why: str) -> None:
        self._tell(ev.LimitsAdvised(job, attempt, limits, Reason(ReasonCode.OK, why)))
        self.resizes += 1
        line = {
            "at": self._clock(),
            "cpu_milli": limits.cpu_milli,
            "memory_mib": limits.memory_mib,
            "why": why,
        }
        file = self._data / "jobs" / job / "limits" / f"{attempt}.jsonl"
        with suppress(OSError):  # for drawing; the journal has it, too
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")

    def _tell(self, fact: ev.Fact) -> None:
        self._live.submit(_Unheard(), fact, None, None)

    def _new_samples(self, run: _Followed) -> list[dict[str, Any]]:
        """Whole lines that were written since the last look."""
        try:
            with run.file.open("rb") as file:
                file.seek(run.offset)
                text = file.read(1 << 20)
        except OSError:
            return []
        whole = text.rfind(b"\n") + 1
        run.offset += whole
        found = []
        for line in text[:whole].splitlines():
            with suppress(ValueError):
                sample = json.loads(line)
                if {"at", "worker", "cpu_cores", "rss_mib"} <= sample.keys():
                    found.append(sample)
        return found

    # -- phases of workloads ----------------------------------------------------------------------

    def _end(self, job: str) -> None:
        """A run is over: its telemetry is kept with its workload, and the phases are learned
        anew."""
        run = self._runs.pop(job)
        samples = [
            (s["at"], s["cpu_cores"], s["rss_mib"])
            for s in samples_of(run.file.parent)
            if {"at", "cpu_cores", "rss_mib"} <= s.keys()
        ]
        if not samples:
            return
        folder = self._data / "phases" / run.workload
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = [f"{job},{at},{cores},{mib}" for at, cores, mib in dict.fromkeys(samples)]
        draft = folder / f".{job}.part"
        draft.write_text("\n".join(lines) + "\n", encoding="utf-8")
        draft.replace(folder / f"{job}.csv")
        threading.Thread(
            target=self._fit, args=(run.workload, folder), name="presage-phases", daemon=True
        ).start()

    def _fit(self, name: str, folder: Path) -> None:
        runs = sorted(folder.glob("[!.]*.csv"), key=lambda file: file.stat().st_mtime)
        for old in runs[:-_MOST_RUNS]:
            old.unlink(missing_ok=True)
        body = "".join(run.read_text(encoding="utf-8") for run in runs[-_MOST_RUNS:])
        if body.count("\n") < _LEAST_SAMPLES:
            return
        table = folder / ".all.csv"
        table.write_text("pod,time,cpu_cores,rss_mib\n" + body, encoding="utf-8")
        bundle = folder / "phases.npz"
        command = [sys.executable, "-m", "presage", "phases", "fit", str(table)]
        command += ["--out", str(bundle), "--every", "1s"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=_FIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            self._log.warning("phases of workload %s were not learned: %s", name, error)
            return
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            self._log.info("phases of workload %s were not learned: %s", name, said[-200:])
        else:
            self._models[name] = self._read_model(name)

    def _read_model(self, name: str) -> PhaseModel | None:
        bundle = self._data / "phases" / name / "phases.npz"
        if not bundle.is_file():
            return None
        try:
            return PhaseModel.load(bundle)
        except PresageError as error:
            self._log.warning("%s", error)
            return None


@dataclass(frozen=True, slots=True)
class _Running:
    """A run that could be sized."""

    attempt: int
    ask: Resources
    limits: Resources | None


def _running(engine: Engine) -> dict[str, _Running]:
    """Runs that asked for CPU or memory, which can be less."""
    found = {}
    for job in engine.state.active.values():
        ask = ask_of(job, 0)
        if job.state is JobState.RUNNING and (ask.cpu_milli or ask.memory_mib):
            asked = Resources(cpu_milli=ask.cpu_milli, memory_mib=ask.memory_mib)
            found[job.id] = _Running(job.attempt, asked, job.limits)
    return found


def _attempt(running: dict[str, _Running], job: str) -> int | None:
    return running[job].attempt if job in running else None
