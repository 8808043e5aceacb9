"""Early stopping: members of an array that do worse than others at the same step are cancelled.

Optuna's pruners judge (successive halving, Hyperband, the median); this reads what members report,
tells it in the order it came, and asks for an end of those that lose. Every report that was told
is written down first (`Knowledge`), so that a server that starts anew judges as the one before.
Optuna is an extra, and imported when the first array asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from presage.control.advisors import StateReader, Telemetry
from presage.core.ports import Entry, Knowledge
from presage.core.state import State
from presage.manifest.sweep import Prune, Sweep
from presage.model import event as ev
from presage.model.errors import MissingExtra
from presage.model.job import Reason, ReasonCode
from presage.store.records import ArrayRow, JobRow

if TYPE_CHECKING:
    import optuna

__all__ = ["PruneStudy", "Pruning", "need_optuna", "reports_name"]

_LOOK_S = 1.0
_KEPT = 200_000
"""Reports of one array that are remembered."""
_RUNS = ("PROCESSING", "STORING")
_ENDS = ("COMPLETED", "FAILED", "CANCELLED")
_LOST = "LOST"
"""Of a member that was asked to end because it does worse."""


def need_optuna(what: str) -> Any:
    """The library; raises MissingExtra where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra("sweep", what) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def reports_name(array_id: str) -> str:
    """Under which name the reports of an array are kept."""
    return f"sweeps/{array_id}/reports"


class PruneStudy:
    """What Optuna knows of one array: a trial for each member that reported. It is made of the
    reports in their order, and of nothing else."""

    def __init__(self, array: ArrayRow, prune: Prune) -> None:
        self.metric, self.prune = array.metric, prune
        library = need_optuna("sweep.prune")
        self._states = library.trial.TrialState
        self._study: optuna.Study = library.create_study(
            study_name=array.id,
            direction="maximize" if array.mode == "max" else "minimize",
            pruner=_pruner(library, prune),
            sampler=library.samplers.RandomSampler(seed=0),
        )
        self._trials: dict[str, optuna.Trial] = {}
        self.steps: dict[str, int] = {}
        """The latest step of each member."""
        self.over: set[str] = set()
        """Members that nothing more is told of."""

    def report(self, job: str, step: int, value: float) -> bool:
        """Take in what a member reported; whether it loses."""
        trial = self._trials.get(job)
        if trial is None:
            trial = self._trials[job] = self._study.ask()
        self.steps[job] = step
        trial.report(value, step)
        return job not in self.over and step >= self.prune.min_steps and trial.should_prune()

    def end(self, job: str, how: str) -> None:
        """A member is over: COMPLETED with what it last reported, or FAILED, CANCELLED, LOST."""
        trial = self._trials.get(job)
        if trial is None or job in self.over:
            return
        self.over.add(job)
        values = self._study.trials[trial.number].intermediate_values
        if how == "COMPLETED":
            self._study.tell(trial, values[max(values)])
        else:
            states = self._states
            self._study.tell(trial, state=states.FAIL if how == "FAILED" else states.PRUNED)


def _pruner(library: Any, prune: Prune) -> Any:
    pruners = library.pruners
    if prune.by == "median":
        return pruners.MedianPruner(
            n_startup_trials=prune.startup, n_warmup_steps=prune.min_steps - 1
        )
    if prune.by == "hyperband":
        return pruners.HyperbandPruner(
            min_resource=prune.min_steps, reduction_factor=prune.reduction
        )
    return pruners.SuccessiveHalvingPruner(
        min_resource=prune.min_steps, reduction_factor=prune.reduction
    )


@dataclass(slots=True)
class _Followed:
    """An array whose members may be stopped early."""

    study: PruneStudy
    ended: set[str] = field(default_factory=set)


class Pruning:
    """An advisor. `array` finds an array, `members` its jobs in their order."""

    name = "pruning"
    every_s = _LOOK_S

    def __init__(
        self,
        array: Callable[[str], ArrayRow | None],
        members: Callable[[str], Sequence[JobRow]],
        knowledge: Knowledge,
    ) -> None:
        self._array, self._members, self._knowledge = array, members, knowledge
        self._followed: dict[str, _Followed | None] = {}
        """By array; None for one that is to be left alone."""

    def not_leading(self) -> None:
        """Another server judges, from the same reports."""
        self._followed.clear()

    def look(self, now: float, ask: StateReader, telemetry: Telemetry) -> Iterator[ev.Fact]:
        """Take in what members reported since the last time, and have the losers end."""
        alive = ask(_arrays)
        for gone in self._followed.keys() - alive:
            del self._followed[gone]
        for array_id in sorted(alive):
            if array_id not in self._followed:
                self._followed[array_id] = self._begin(array_id)
            followed = self._followed[array_id]
            if followed is not None:
                yield from self._follow(array_id, followed)

    def _begin(self, array_id: str) -> _Followed | None:
        """The study of an array as its reports so far make it."""
        array = self._array(array_id)
        said = (array.manifest.get("sweep") or {}).get("prune") if array is not None else None
        if array is None or not said or not array.metric:
            return None
        prune = Sweep.model_validate(array.manifest["sweep"]).prune
        assert prune is not None
        followed = _Followed(PruneStudy(array, prune))
        for line in self._knowledge.tail(reports_name(array_id), _KEPT):
            job, step, value = json.loads(line)
            if isinstance(value, str):
                followed.study.end(job, value)
                if value != _LOST:
                    followed.ended.add(job)
            else:
                followed.study.report(job, step, value)
        return followed

    def _follow(self, array_id: str, followed: _Followed) -> Iterator[ev.Fact]:
        study = followed.study
        for row in self._members(array_id):
            news = _news(row, study, followed)
            if not news:
                continue
            name = reports_name(array_id)
            self._knowledge.write(*(Entry(name, _line(one), _KEPT) for one in news))
            for job, step, value in news:
                if isinstance(value, str):
                    study.end(job, value)
                    followed.ended.add(job)
                elif study.report(job, step, value) and row.status in _RUNS:
                    self._knowledge.write(Entry(name, _line((job, step, _LOST)), _KEPT))
                    study.end(job, _LOST)
                    yield ev.CancelRequested(job, _loses(study, step, value))


_Report = tuple[str, int, float | str]


def _news(row: JobRow, study: PruneStudy, followed: _Followed) -> list[_Report]:
    """What became known of a member: a report of a later step, its end."""
    news: list[_Report] = []
    latest = _reported(row.progress, study.metric)
    if latest is not None and latest[0] > study.steps.get(row.id, -1) and row.id not in study.over:
        news.append((row.id, *latest))
    if row.status in _ENDS and row.id not in followed.ended and (news or row.id in study.steps):
        news.append((row.id, 0, row.status))
    return news


def _reported(progress: Mapping[str, Any] | None, metric: str) -> tuple[int, float] | None:
    """The step, or else the epoch, and the metric."""
    said = progress or {}
    step, value = said.get("step", said.get("epoch")), said.get(metric)
    if not isinstance(step, int | float) or not isinstance(value, int | float):
        return None
    return int(step), float(value)


def _line(report: _Report) -> bytes:
    return json.dumps(report).encode()


def _loses(study: PruneStudy, step: int, value: float) -> Reason:
    prune = study.prune
    how = f"not among the best 1 in {prune.reduction}"
    if prune.by == "median":
        how = "worse than the median"
    elif prune.reduction == 2:
        how = "in the worse half"
    text = f"stopped early: {study.metric} {value:.4g} at step {step}, {how}"
    return Reason(ReasonCode.STOPPED_EARLY, text)


def _arrays(state: State) -> set[str]:
    return set(state.gates.arrays)
