"""The chance that a job fails, learned from the jobs that ended on this cluster.

At submission it goes by the request and by how the owner's jobs had ended; once a run has lived
for a minute, by that minute, too. Version 0 needs no learning: the rate of failure of like jobs of
the owner, drawn towards the cluster's. A model replaces it when it was better on the latest ends,
which it had not seen, and stays until a better one comes. Nothing is decided by a chance: it is
told to people.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt

from presage.control.advisors import StateReader, Telemetry
from presage.control.advisors.learning import Ended, EndedRuns
from presage.core.ports import Entry, Knowledge
from presage.foresee.champions import Standing, Version
from presage.learn import Floats
from presage.model.codec import decode, encode
from presage.model.errors import BundleError, MissingExtra, UserError
from presage.model.event import Fact
from presage.model.job import JobSpec
from presage.model.workload import same_work
from presage.observe.health.failures import FailureModel
from presage.observe.health.history import (
    PastRun,
    RunRequest,
    at_submission,
    history_names,
    in_words,
)
from presage.telemetry.rows import Row

__all__ = ["MOMENTS", "Failing", "FailureForecast", "first_minute"]

_log = logging.getLogger("presage.failing")

MOMENTS = ("submission", "first_minute")
"""When a job is judged."""
_NUMBERS = ("gpus", "cpus", "memory_mib", "workers", "time_limit_s", "hour", "weekday")
_MINUTE = ("cpu_cores", "rss_mib", "gpu_util_pct", "gpu_memory_mib", "read_mib", "write_mib")
_MINUTE_S = 60.0
_MOST_RUNS = 2000
_LEAST_RUNS, _LEAST_OF_EACH = 40, 8
_LEAST_SAID = 10
"""Below so many ends nothing is said."""
_NEW_SHARE, _LEAST_NEW = 0.1, 20
_JUDGES = 0.25
_BETTER = 0.98
_ITERATIONS = 60
_KEPT_VERSIONS = 3
_USUAL_WIDTH = 1.28
"""Of an 80 % interval, in standard errors."""
_UNTIL, _RUNS = "health/failures/until", "health/failures/runs"


@dataclass(frozen=True, slots=True)
class _KnownRun:
    """A job that ended."""

    past: PastRun
    minute: Mapping[str, float]
    """Of its first minute; empty where it did not live so long, or was not measured."""


@dataclass(frozen=True, slots=True)
class FailureForecast:
    """How likely a job fails."""

    chance: float
    low: float
    high: float
    moment: str
    version: int
    reasons: tuple[str, ...]

    @property
    def text(self) -> str:
        """In a line."""
        when = " by its first minute" if self.moment == MOMENTS[1] else ""
        because = f": {'; '.join(self.reasons)}" if self.reasons else ""
        span = f"{self.low:.0%} to {self.high:.0%}"
        return f"{self.chance:.0%}{when} ({span}){because}"


class Failing:
    """The advisor. Everything public may be called from any thread."""

    name = "failing"
    every_s = 10.0

    def __init__(self, ends: EndedRuns, knowledge: Knowledge, telemetry: Telemetry) -> None:
        self._ends, self._knowledge, self._telemetry = ends, knowledge, telemetry
        self._lock = Lock()
        self._forget()

    def _forget(self) -> None:
        self._epoch: int | None = None
        self._runs: list[_KnownRun] = []
        self._standings: dict[str, Standing] = {}
        self._models: dict[str, FailureModel | None] = {}

    def not_leading(self) -> None:
        """Another server learns now."""
        with self._lock:
            self._forget()

    # -- learning ---------------------------------------------------------------------------------

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> list[Fact]:
        """Learn from the jobs that ended since the last time."""
        number = int(self._knowledge.get(_UNTIL) or 0)
        while True:
            ended, latest = self._ends.after(number)
            if latest == number:
                break
            known = [_ended_run(one, telemetry) for one in ended if one.gone]
            kept = [Entry(_RUNS, json.dumps(encode(run)).encode(), _MOST_RUNS) for run in known]
            self._knowledge.write(Entry(_UNTIL, str(latest).encode()), *kept)
            with self._lock:
                self._epoch = None if known else self._epoch
            number = latest
        for moment in MOMENTS:
            self.challenge(moment, now)
        return []

    def challenge(self, moment: str, now: float) -> Version | None:
        """Fit a model where enough jobs have ended since the last, and let it answer if it is
        better on the latest; None when there is nothing to learn."""
        runs, standing = self._known(moment)
        usable = _usable(runs, moment)
        before = standing.versions[-1].runs if standing.versions else 0
        new = len(usable) - before if before < _MOST_RUNS else _LEAST_NEW
        failures = sum(run.past.failed for run in usable)
        if len(usable) < _LEAST_RUNS or new < max(_LEAST_NEW, _NEW_SHARE * before):
            return None
        if min(failures, len(usable) - failures) < _LEAST_OF_EACH:
            return None
        rows, names = _rows(runs, usable, moment)
        failed = np.array([run.past.failed for run in usable], dtype=np.int64)
        split = int(len(usable) * (1 - _JUDGES))
        try:
            candidate = FailureModel(_ITERATIONS).fit(rows[:split], failed[:split], names)
            error = _log_loss(candidate.predict(rows[split:]), failed[split:])
            champion = self._model(moment, standing)
            said = _rates(rows, names) if champion is None else champion.predict(rows)
            held = _log_loss(said[split:], failed[split:])
            accepted = error <= _BETTER * held
            if accepted:
                candidate = FailureModel(_ITERATIONS).fit(rows, failed, names)
        except (UserError, MissingExtra) as why:
            _log.info("no model of failures at %s: %s", moment, why)
            return None
        version = Version(
            max((one.number for one in standing.versions), default=0) + 1,
            now,
            len(usable),
            error,
            held,
            accepted,
            "" if accepted else "not better on the latest runs",
        )
        self._keep(moment, standing, version, candidate)
        return version

    def _keep(
        self, moment: str, standing: Standing, version: Version, model: FailureModel
    ) -> None:
        versions = (*standing.versions, version)
        entries = []
        if version.accepted and not standing.pinned:
            standing = replace(standing, champion=version.number)
            with tempfile.TemporaryDirectory(prefix="presage-failing-") as home:
                file = Path(home) / "model.npz"
                model.save(file, date="", data=f"{version.runs} jobs that ended here")
                entries.append(Entry(_name(moment), file.read_bytes(), _KEPT_VERSIONS))
        standing = replace(standing, versions=versions[-50:])
        index = json.dumps(encode(standing)).encode()
        self._knowledge.write(*entries, Entry(f"{_name(moment)}/index", index))
        _log.info("failures at %s: version %d, %s", moment, version.number, version.note or "new")
        with self._lock:
            self._epoch = None

    # -- asking -----------------------------------------------------------------------------------

    def standing(self, moment: str) -> Standing:
        """Who answers, and all versions."""
        return self._known(moment)[1]

    def forecast(
        self,
        spec: JobSpec,
        submitted_at: float,
        started_at: float | None = None,
        now: float | None = None,
    ) -> FailureForecast | None:
        """The chance of a job that is not over; None while too few have ended."""
        minute: Mapping[str, float] = {}
        if started_at is not None and now is not None and now - started_at > _MINUTE_S:
            minute = first_minute(self._telemetry.of(spec.id), started_at)
        for moment in (MOMENTS[1], MOMENTS[0]) if minute else (MOMENTS[0],):
            runs, standing = self._known(moment)
            model = self._model(moment, standing)
            if model is None and moment == MOMENTS[1]:
                continue  # what it had at submission says as much
            before = [run for run in runs if run.past.ended_s < submitted_at]
            judged = sum(not run.past.cancelled for run in before)
            if judged < _LEAST_SAID:
                return None
            request = _request(spec, submitted_at)
            asked = _KnownRun(PastRun(request, submitted_at, np.inf, False), minute)
            rows, names = _rows(runs, [asked], moment)
            if model is None:
                return _by_rate(rows[0], names)
            foreseen = model.foresee(rows[0])
            reasons = tuple(
                f"{in_words(one.feature, one.value)} ({one.adds:+.0%})"
                for one in foreseen.reasons[:3]
                if abs(one.adds) >= 0.005
            )
            said = foreseen.estimate
            return FailureForecast(
                said.p50, said.p10, said.p90, moment, standing.champion, reasons
            )
        return None

    # -- what is kept -----------------------------------------------------------------------------

    def _known(self, moment: str) -> tuple[list[_KnownRun], Standing]:
        with self._lock:
            epoch = self._knowledge.epoch
            if self._epoch != epoch:
                lines = self._knowledge.tail(_RUNS, _MOST_RUNS)
                self._runs = [decode(_KnownRun, json.loads(line)) for line in lines]
                self._standings, self._models = {}, {}
                self._epoch = epoch
            if moment not in self._standings:
                body = self._knowledge.get(f"{_name(moment)}/index")
                kept = Standing() if body is None else decode(Standing, json.loads(body))
                self._standings[moment] = kept
            return self._runs, self._standings[moment]

    def _model(self, moment: str, standing: Standing) -> FailureModel | None:
        """The champion; None is version 0."""
        if not standing.champion:
            return None
        with self._lock:
            if moment not in self._models:
                self._models[moment] = self._read(moment)
            return self._models[moment]

    def _read(self, moment: str) -> FailureModel | None:
        body = self._knowledge.get(_name(moment))
        if body is None:
            return None
        with tempfile.TemporaryDirectory(prefix="presage-failing-") as home:
            file = Path(home) / "model.npz"
            file.write_bytes(body)
            try:
                return FailureModel.load(file)
            except BundleError as wrong:
                _log.warning("the model of failures at %s cannot be read: %s", moment, wrong)
                return None


def _name(moment: str) -> str:
    return f"health/failures/{moment}"


# -- jobs as numbers ------------------------------------------------------------------------------


def _request(spec: JobSpec, submitted_at: float) -> RunRequest:
    def total(field: str) -> float:
        return float(sum(role.min * getattr(role.resources, field) for role in spec.roles))

    numbers = {
        "gpus": total("gpu_milli") / 1000,
        "cpus": total("cpu_milli") / 1000,
        "memory_mib": total("memory_mib"),
        "workers": float(sum(role.min for role in spec.roles)),
        "time_limit_s": spec.time_limit_s or 0.0,
        "hour": submitted_at // 3600 % 24,
        "weekday": submitted_at // 86400 % 7,
    }
    return RunRequest(spec.owner, submitted_at, same_work(spec), numbers)


def _ended_run(ended: Ended, telemetry: Telemetry) -> _KnownRun:
    submitted = ended.submitted_at or ended.at
    started = ended.started_at or submitted
    past = PastRun(
        _request(ended.spec, submitted),
        started,
        ended.at,
        failed=ended.status == "FAILED",
        cancelled=ended.status == "CANCELLED",
    )
    minute: Mapping[str, float] = {}
    if ended.started_at is not None and ended.at - started > _MINUTE_S:
        minute = first_minute(telemetry.of(ended.spec.id), started)
    return _KnownRun(past, minute)


def first_minute(rows: Iterable[Row], started_at: float) -> dict[str, float]:
    """What a run used in its first minute; empty where it was not measured. Of several workers
    the mean."""
    measured: dict[str, list[float]] = {name: [] for name in _MINUTE}
    counted: dict[str, Row] = {}
    for row in rows:
        if row.at < started_at:
            continue
        if row.at > started_at + _MINUTE_S:
            break
        counted[row.worker] = row
        for name in ("cpu_cores", "rss_mib", "gpu_util_pct", "gpu_memory_mib"):
            if (value := getattr(row, name)) is not None:
                measured[name].append(value)
    for row in counted.values():
        for name, moved in (("read_mib", row.read_bytes), ("write_mib", row.write_bytes)):
            if moved is not None:
                measured[name].append(moved / (1 << 20))
    return {name: float(np.mean(values)) for name, values in measured.items() if values}


def _usable(runs: Sequence[_KnownRun], moment: str) -> list[_KnownRun]:
    """Those that are known to have failed or not, and had come so far, in order."""
    of = [run for run in runs if not run.past.cancelled]
    if moment == MOMENTS[1]:
        of = [run for run in of if run.minute]
    return sorted(of, key=lambda run: run.past.request.submitted_s)


def _rows(
    runs: Sequence[_KnownRun], asked: Sequence[_KnownRun], moment: str
) -> tuple[Floats, tuple[str, ...]]:
    requests = [run.past.request for run in asked]
    rows = at_submission(requests, [run.past for run in runs], _NUMBERS)
    names = history_names(_NUMBERS)
    if moment == MOMENTS[1]:
        minutes = [[run.minute.get(name, np.nan) for name in _MINUTE] for run in asked]
        rows = np.column_stack([rows, np.array(minutes)])
        names = (*names, *(f"{name} of its first minute" for name in _MINUTE))
    return rows, names


def _rates(rows: Floats, names: Sequence[str]) -> Floats:
    """Version 0: how often like jobs of the owner failed."""
    return np.asarray(rows[:, names.index("owner_same_rate")])


def _by_rate(row: Floats, names: Sequence[str]) -> FailureForecast:
    chance = float(_rates(row[None], names)[0])
    ends = max(0.0, float(row[names.index("owner_same_ends")]))
    spread = _USUAL_WIDTH * sqrt(chance * (1 - chance) / (ends + 2.0))
    reasons = tuple(
        in_words(name, float(row[names.index(name)]))
        for name in ("owner_same_rate", "owner_rate", "same_rate")
        if row[names.index(name.replace("rate", "ends"))] > 0
    )[:2]
    low, high = max(0.0, chance - spread), min(1.0, chance + spread)
    return FailureForecast(chance, low, high, MOMENTS[0], 0, reasons)


def _log_loss(chance: Floats, failed: npt.NDArray[np.int64]) -> float:
    said = np.clip(chance, 0.01, 0.99)
    return float(np.mean([-log(p if bad else 1 - p) for p, bad in zip(said, failed, strict=True)]))
