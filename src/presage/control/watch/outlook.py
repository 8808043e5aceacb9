"""When jobs of a watched cluster will start: what was seen, run ahead as its scheduler would.

The scheduler there is approximated by a pipeline of ours: Slurm goes by its own priorities and
fills holes around the first job that does not fit, by time limits; kube-scheduler takes pod by
pod, by priority and age, and whoever fits: it keeps nothing free for those who wait, so there pods
that are yet to come are drawn too (`sim.past`). How long jobs really run is drawn
from the runs that ended there. Which nodes a job may use (partitions, features, selectors) is
kept.

What it leaves out: limits of accounts, preemption, reservations, limits of arrays, and of Slurm
jobs that are yet to be submitted. How far that is from the truth is measured
(`control.watch.scores`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from presage.control.advisors.starts import Declared
from presage.control.watch.follow import Follower, spec_of
from presage.core.ports import Policy
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import ANYWHERE, WHOLE_GPU, gpu_count
from presage.model.job import JobSpec
from presage.model.watched import SeenCluster, SeenJob
from presage.model.words import duration
from presage.policy import registry
from presage.policy.config import PolicyConfig
from presage.sim.ahead import Arrivals, Start, StartForecast, TimeBox, run_ahead
from presage.sim.calibrate import Calibration
from presage.sim.helps import Option, what_would_help
from presage.sim.history import RuntimeHistory
from presage.sim.past import RunLearner

__all__ = ["PRIORS", "SCHEDULERS", "Outlook", "ahead_of", "present"]

SCHEDULERS = {
    "slurm": PolicyConfig(order="fifo", backfill=True, backfill_depth=1000),
    "kubernetes": PolicyConfig(order="priority", mode="greedy", placement="spread"),
}
"""What comes nearest to a scheduler; jobs come in the order that it gave them."""
PRIORS = {"slurm": Calibration.prior(), "kubernetes": Calibration.prior(wider=2.0)}
"""How far off forecasts are taken to be until enough were scored. The prior is of a scheduler
in which nobody goes past the first; how often pods do is not known at a start."""
_SAMPLES = 24
_MOST_CPU_S = 2.0
_GRAIN = 0.02


def present(sight: SeenCluster) -> State:
    """What was seen as a state that can be run ahead. Jobs that do not take part now are not in
    it; those that wait are in the order of their scheduler."""
    state = State()
    now = sight.now
    running = tuple(job for job in sight.jobs if job.running)
    for _ in Follower(state).follow(replace(sight, jobs=running)):
        pass
    for seen in sight.jobs:
        if _takes_part(seen, now):
            after = tuple(one for one in seen.after if one.job in state.jobs)
            if len(after) == len(seen.after):
                spec = replace(spec_of(seen), after=after)
                state.apply_all(max(now, state.now), (ev.JobSubmitted(spec),))
    return state


def _takes_part(seen: SeenJob, now: float) -> bool:
    waits = not seen.running and seen.ended_at is None
    return waits and not seen.held and (seen.not_before is None or seen.not_before <= now)


@dataclass(frozen=True, slots=True)
class Outlook:
    """Foresees one cluster. `kind` is its scheduler; it is watched since `since`."""

    kind: str
    learner: RunLearner
    calibration: Calibration
    since: float

    def starts(self, sight: SeenCluster, *, samples: int = _SAMPLES) -> StartForecast:
        """When the jobs that wait will start, as it comes out of the runs ahead."""
        return run_ahead(
            present(sight),
            self._policy,
            self.history,
            now=sight.now,
            predict=Declared(),
            samples=samples,
            time_box=TimeBox(time.thread_time, _MOST_CPU_S),
            grain=_GRAIN,
            arrivals=self._arrivals,
        )

    def told(self, forecast: StartForecast) -> dict[str, Start]:
        """The same with intervals that keep their promise."""
        return {
            job: self._told(start, forecast.horizon_s) for job, start in forecast.starts.items()
        }

    def _told(self, start: Start, horizon_s: float) -> Start:
        told = start.calibrated(self.calibration, horizon_s)
        if self.kind != "kubernetes" or start.p50_s != 0.0 or start.p90_s is None:
            return told
        # It fits at this moment and yet it waits: kube-scheduler tries it again after a while,
        # and others come meanwhile.
        _, _, high = self.calibration.interval(0.0, 0.0, start.p90_s)
        return replace(told, p90_s=max(high, start.p90_s))

    def helps(self, sight: SeenCluster, job_id: str) -> tuple[Start | None, list[Option]]:
        """When one job will start, and what would let it start earlier."""
        state = present(sight)
        if job_id not in state.pending:
            return None, []
        spec = state.pending[job_id].spec
        return what_would_help(
            state,
            self._policy,
            self.history,
            job_id,
            now=sight.now,
            predict=Declared(),
            calibration=self.calibration,
            time_box=lambda: TimeBox(time.thread_time, _MOST_CPU_S),
            grain=_GRAIN,
            variants=list(self._variants(sight, spec)),
            arrivals=self._arrivals,
        )

    def _variants(self, sight: SeenCluster, spec: JobSpec) -> Iterator[tuple[str, JobSpec]]:
        """What an owner could ask for instead."""
        role = spec.roles[0]
        if role.min > 1:
            half = role.min // 2
            what = f"with {half} instead of {role.min} workers"
            yield what, replace(spec, roles=(replace(role, min=half, max=half),))
        gpus = role.resources.gpu_milli
        if gpus > WHOLE_GPU:
            half = gpus // WHOLE_GPU // 2 * WHOLE_GPU
            ask = replace(role.resources, gpu_milli=half)
            what = f"with {gpu_count(half)} instead of {gpu_count(gpus)} GPUs for each worker"
            yield what, replace(spec, roles=(replace(role, resources=ask),))
        limit = spec.time_limit_s
        usual = self.history.estimate(spec, 0.0, sight.now).p90 if len(self.history) else None
        if limit is not None and usual is not None and usual * 1.2 < limit / 2:
            shorter = float(max(60, round(usual * 1.2 / 60) * 60))
            what = f"with a time limit of {duration(shorter)} instead of {duration(limit)}"
            yield what, replace(spec, time_limit_s=shorter)
        if role.gpu_types or role.where != ANYWHERE:
            anywhere = replace(role, gpu_types=(), where=ANYWHERE)
            yield "if it might run on any node", replace(spec, roles=(anywhere,))

    @property
    def history(self) -> RuntimeHistory:
        """How long jobs ran there."""
        return self.learner.history

    @property
    def _arrivals(self) -> Arrivals | None:
        if self.kind != "kubernetes":
            return None
        return lambda now, rng: self.learner.arrivals.draw(now, self.since, rng)

    @property
    def _policy(self) -> Callable[[], Policy]:
        config = SCHEDULERS[self.kind]
        return lambda: registry.build(config)


def ahead_of(sight: SeenCluster, job_id: str) -> list[str]:
    """The jobs that take part and come before one, the first of them first."""
    names: list[str] = []
    for seen in sight.jobs:
        if seen.id == job_id:
            return names
        if _takes_part(seen, sight.now):
            names.append(seen.id)
    return []
