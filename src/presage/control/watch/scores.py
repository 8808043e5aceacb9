"""How well starts were foreseen: each forecast is kept when it is made and scored when the job
starts, beside what the scheduler there said at the same moment.

The first forecast of a job counts, made when it was first seen waiting. A scheduler's own answer
often comes later: it is compared with what was foreseen here at that later moment. Everything is
written down (`Knowledge`), so a watcher that starts again goes on with it.

Pure but for what it keeps in the store; a forecast is never changed after it was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from math import inf
from statistics import median
from typing import Any

from presage.core.ports import Entry, Knowledge
from presage.model.watched import SeenCluster
from presage.sim.ahead import Start, StartForecast
from presage.sim.calibrate import Calibration, ForecastLog

__all__ = ["Forecast", "Scored", "Scores", "report"]

_OPEN, _OUTCOMES = "watch/open", "watch/outcomes"
_MOST = 20_000
"""Outcomes that are kept."""
_RESOLUTION_S = 1.0
"""Clusters tell times to the second."""
_TOLD = "p10_s", "p50_s", "p90_s"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What was foreseen of a job when it was first seen: waits from `made_at` on."""

    made_at: float
    raw: tuple[float, float, float]
    """As it came out of the runs ahead."""
    told: tuple[float, float, float]
    """As it was told."""
    compared_at: float | None = None
    """When the scheduler there first said when the job starts."""
    theirs_at: float | None = None
    """What it said."""
    ours_at: float | None = None
    """What was foreseen here at that moment."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A forecast, and when the job started."""

    job: str
    forecast: Forecast
    started_at: float

    @property
    def waited_s(self) -> float:
        """Seconds from the forecast to the start."""
        return self.started_at - self.forecast.made_at

    @property
    def inside(self) -> bool:
        """Whether the start was in the interval that was told."""
        low, _, high = self.forecast.told
        return low - _RESOLUTION_S <= self.waited_s <= high + _RESOLUTION_S


class Scores:
    """Forecasts that are open, and what they teach about intervals."""

    def __init__(self, knowledge: Knowledge, prior: Calibration) -> None:
        """`prior` stands while too few forecasts are scored."""
        self._knowledge = knowledge
        self._log = ForecastLog(prior=prior)
        self._open: dict[str, Forecast] = {}
        self._written: dict[str, Forecast] = {}
        self._outcomes: list[Entry] = []
        for scored in read_scores(knowledge):
            self._learn(scored)
        for job, told in json.loads(knowledge.get(_OPEN) or b"{}").items():
            self._open[job] = _forecast(told)
            self._log.made(job, self._open[job].made_at, *self._open[job].raw)

    def calibration(self, now: float) -> Calibration:
        """What the outcomes so far teach."""
        return self._log.calibration(now)

    def foreseen(
        self, forecast: StartForecast, told: Mapping[str, Start], sight: SeenCluster
    ) -> None:
        """Keep the first forecast of each job, and the scheduler's own beside ours."""
        now, horizon_s = forecast.now, forecast.horizon_s
        for seen in sight.jobs:
            raw, said = forecast.starts.get(seen.id), told.get(seen.id)
            if raw is None or said is None or raw.p50_s is None or seen.runs:
                continue
            known = self._open.get(seen.id)
            if known is None:
                known = Forecast(now, _numbers(raw, horizon_s), _numbers(said, horizon_s))
                self._log.made(seen.id, now, *known.raw)
            if known.theirs_at is None and seen.expected_at is not None:
                ours = now + _numbers(said, horizon_s)[1]
                known = replace(known, compared_at=now, theirs_at=seen.expected_at, ours_at=ours)
            self._open[seen.id] = known

    def started(self, job: str, at: float) -> None:
        """A job started for the first time."""
        forecast = self._open.pop(job, None)
        if forecast is None:
            return
        scored = Scored(job, forecast, at)
        self._log.started(job, at)
        self._outcomes.append(Entry(_OUTCOMES, json.dumps(asdict(scored)).encode(), _MOST))

    def gone(self, job: str) -> None:
        """A job ended without a start."""
        self._open.pop(job, None)
        self._log.gone(job)

    def write(self) -> None:
        """Write down what is new."""
        entries = self._outcomes
        if self._open != self._written:
            told = {job: asdict(forecast) for job, forecast in self._open.items()}
            entries = [*entries, Entry(_OPEN, json.dumps(told).encode())]
        self._knowledge.write(*entries)
        self._written, self._outcomes = dict(self._open), []

    def _learn(self, scored: Scored) -> None:
        if scored.waited_s > 0:
            self._log.remember((scored.forecast.made_at, *scored.forecast.raw, scored.waited_s))


def read_scores(knowledge: Knowledge) -> list[Scored]:
    """All that was scored, oldest first."""
    scores = []
    for line in knowledge.tail(_OUTCOMES, _MOST):
        body = json.loads(line)
        scores.append(Scored(body["job"], _forecast(body["forecast"]), body["started_at"]))
    return scores


def report(scored: Iterable[Scored], since: float = -inf) -> dict[str, Any]:
    """How well it went, of the jobs that started since then: numbers, None where there is
    nothing to count."""
    those = [one for one in scored if one.started_at >= since]
    waited = [one for one in those if one.waited_s > _RESOLUTION_S]
    beside = [one for one in those if one.forecast.theirs_at is not None]
    ours, theirs = [], []
    for one in beside:
        assert one.forecast.ours_at is not None
        assert one.forecast.theirs_at is not None
        ours.append(abs(one.forecast.ours_at - one.started_at))
        theirs.append(abs(one.forecast.theirs_at - one.started_at))
    return {
        "foreseen": len(those),
        "waited": len(waited),
        "coverage": _share([one.inside for one in those]),
        "coverage_waited": _share([one.inside for one in waited]),
        "median_error_s": _median([abs(o.forecast.told[1] - o.waited_s) for o in those]),
        "median_error_waited_s": _median([abs(o.forecast.told[1] - o.waited_s) for o in waited]),
        "median_wait_s": _median([one.waited_s for one in waited]),
        "median_width_s": _median([o.forecast.told[2] - o.forecast.told[0] for o in waited]),
        "compared": len(beside),
        "compared_error_s": _median(ours),
        "their_error_s": _median(theirs),
        "closer": _share([a < b for a, b in zip(ours, theirs, strict=True) if a != b]),
    }


def _numbers(start: Start, horizon_s: float) -> tuple[float, float, float]:
    low, middle, high = (getattr(start, name) for name in _TOLD)
    middle = horizon_s if middle is None else middle
    return low or 0.0, middle, horizon_s if high is None else high


def _forecast(body: dict[str, Any]) -> Forecast:
    return Forecast(**{**body, "raw": tuple(body["raw"]), "told": tuple(body["told"])})


def _share(those: list[bool]) -> float | None:
    return sum(those) / len(those) if those else None


def _median(values: list[float]) -> float | None:
    return median(values) if values else None
