"""What would another policy have done? A journal's facts, decided again.

Two questions, two answers. `replay` gives the recorded facts to a fresh engine and compares what
it decides with what was decided: the audit of a journal. `what_if` turns the journal into a trace
of jobs with the run times they turned out to have (`export_trace`) and simulates it under other
policies, since facts that another policy would have caused were never recorded.

A run time is the time a job held its workers, over all its runs, at the speed they had
(`sim.work`): the trace has what it would have taken alone on devices of speed 1, so that a world
in which it runs where it ran has the recorded times again. Of those times:

- stopped or lost and started again: all its runs together, for it goes on from a checkpoint; only
  the last run when it takes none;
- failed, cancelled, or over its time limit: as long as it ran; it counts as a job of that length;
- still running when the journal ends: as long as it ran so far;
- never ran (rejected, cancelled or still waiting before its first run): left out and counted;
- resized: the time it would have taken with the number of workers it had on average;
- alive at `since`: submitted at that moment, with what it still ran after it.

Halts, drains, and who asked for a resize, are not in a trace; nodes that went away are
(`Extras`), and `what_if` gives the jobs the specs and estimates they were submitted with.
What really happened to the same jobs is beside it (`Export.recorded`), in the same figures.
Reads steps and returns values; it never writes a journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any, TypeAlias

import numpy as np
import polars as pl

from presage.core.engine import Engine
from presage.core.ports import Policy, Predictor
from presage.core.state import State
from presage.model.cluster import WHOLE_GPU, Node
from presage.model.errors import JournalError
from presage.model.estimate import Estimates
from presage.model.event import (
    Decision,
    Fact,
    JobChanged,
    JobSubmitted,
    Launch,
    NodeDown,
    NodeUp,
    RulesChanged,
)
from presage.model.job import Job, JobSpec, JobState
from presage.sim.clusters import total_gpus
from presage.sim.result import JOB_COLUMNS, SERIES_COLUMNS, SimResult
from presage.sim.run import simulate
from presage.sim.traces import COLUMNS, Trace
from presage.sim.work import WorkMeter
from presage.sim.world import Outage, WorldRules

__all__ = [
    "Difference",
    "Export",
    "Extras",
    "Replay",
    "Step",
    "export_trace",
    "fairness",
    "figures",
    "replay",
    "what_if",
]

Step: TypeAlias = tuple[float, Sequence[Fact], Sequence[Decision]]
"""When, the facts, and the decisions that followed from them together."""

Figures: TypeAlias = dict[str, float | int | None]


# -- the same policy ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step that was decided otherwise."""

    step: int
    now: float
    recorded: tuple[Decision, ...]
    replayed: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """How a journal compares with its replay."""

    steps: int
    """Steps that were decided again, up to the first difference."""
    decisions: int
    """Decisions that came out the same."""
    difference: Difference | None


def replay(
    steps: Iterable[Step],
    policy: Policy,
    predict: Predictor,
    state: State | None = None,
    rules: Callable[[RulesChanged], tuple[Policy, Predictor]] | None = None,
) -> Replay:
    """Decide a journal again from its facts; `state` is where it begins, if not at nothing. Where
    the journal says that other rules hold from there on, `rules` makes them.

    It ends at the first difference: what comes after it would answer other decisions.
    """
    engine = Engine(policy, predict, state)
    count = same = 0
    for now, facts, decisions in steps:
        for fact in facts:
            if rules is not None and type(fact) is RulesChanged:
                engine = Engine(*rules(fact), engine.state)
        made = engine.handle(now, list(facts))
        count += 1
        if made != list(decisions):
            difference = Difference(count - 1, now, tuple(decisions), tuple(made))
            return Replay(count, same, difference)
        same += len(made)
    return Replay(count, same, None)


# -- another policy -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Extras:
    """What there is to simulate beside a table of jobs: plain values, which can be sent as JSON.
    Everything that they do not say is as in a simulated world by default."""

    nodes: tuple[Node, ...]
    """Every node that was ever there."""
    outages: tuple[Outage, ...]
    """When one was not."""
    specs: tuple[JobSpec, ...]
    """What the jobs asked for: a trace has no column for some of it."""
    estimates: tuple[Estimates | None, ...]
    """What was foreseen of them, row by row."""
    lacks: tuple[str, ...] = ()
    """Decisions that the executor could not carry out at the end."""

    def run(
        self,
        trace: Trace,
        policy: Policy,
        name: str,
        foresee: Callable[[Predictor], Predictor] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> SimResult:
        """The jobs of this trace under a policy."""
        return simulate(
            trace,
            self.nodes,
            policy,
            name=name,
            rules=WorldRules(outages=self.outages),
            specs={spec.id: spec for spec in self.specs},
            estimates=self.estimates or None,
            lacks=self.lacks,
            foresee=foresee,
            progress=progress,
        )


@dataclass(frozen=True, slots=True)
class Export:
    """A journal as something to simulate."""

    trace: Trace
    extras: Extras
    since: float
    """The journal's time of the trace's 0."""
    recorded: SimResult
    """What really happened to these jobs. A job that had not ended ends where the journal does,
    and time that one was halted does not count."""
    notes: tuple[str, ...]
    """What was left out or assumed, one sentence each."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node that was ever there."""
        return self.extras.nodes


def what_if(
    export: Export,
    policies: Mapping[str, Callable[[], Policy]],
    *,
    foresee: Callable[[str, Predictor], Predictor] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, SimResult]:
    """The jobs of a journal under each of these policies; `figures` sums each result up.

    Policies know the true run times, unless `foresee` makes what each of them goes by, given its
    name and the predictor that knows them.
    """
    return {
        name: export.extras.run(
            export.trace,
            make(),
            name,
            None if foresee is None else partial(foresee, name),
            progress,
        )
        for name, make in policies.items()
    }


def figures(result: SimResult, trace: Trace) -> Figures:
    """The figures of the JSON report, and `fairness`."""
    return {**result.summary, "fairness": fairness(result, trace)}


def fairness(result: SimResult, trace: Trace) -> float | None:
    """Jain's index over owners (over queues where nobody has a name) of their mean slowdown.

    1: every owner's jobs are held up alike; 1/n: one of n bears it all. The slowdown of a job is
    its completion time ÷ its run time, runs below 10 s counted as 10 s. One that ran faster than
    it was measured, on faster GPUs, has the run time that it had. None if nothing finished.
    """
    by = "owner" if trace.jobs["owner"].n_unique() > 1 else "queue"
    jobs = result.jobs.select("job_id", "jct_s", "wait_s", "status").join(
        trace.jobs.select("job_id", by, "duration_s"), on="job_id"
    )
    ran = pl.min_horizontal("duration_s", pl.col("jct_s") - pl.col("wait_s")).clip(10.0)
    slowdown = (pl.col("jct_s") / ran).clip(1.0).alias("slowdown")
    done = jobs.filter(pl.col("status") == "finished").select(by, slowdown)
    means = done.group_by(by).mean()["slowdown"].to_numpy()
    if not means.size:
        return None
    return float(means.sum() ** 2 / (means.size * np.sum(means**2)))


def export_trace(steps: Iterable[Step], *, since: float = -inf, name: str = "journal") -> Export:
    """The jobs of a journal with the run times they turned out to have."""
    reader = _JournalReader(since)
    for now, facts, decisions in steps:
        reader.read(now, facts, decisions)
    return reader.export(name)


@dataclass(slots=True)
class _JobHistory:
    """One job, as far as the journal has been read."""

    spec: JobSpec
    submitted_at: float
    estimates: Estimates | None = None
    held_s: float = 0.0
    """Time it held workers: in all, or in its last run if it takes no checkpoints."""
    worker_s: float = 0.0
    marked_at: float = 0.0
    queued_s: float = 0.0
    all_held_s: float = 0.0
    """Time it held workers, over all its runs."""
    gpu_s: float = 0.0
    runs: int = 0
    started_at: float | None = None
    ended_at: float | None = None

    def end(self, last: float) -> float:
        """When it ended; where the journal does, if it had not."""
        return last if self.ended_at is None else self.ended_at


@dataclass(slots=True)
class _Absence:
    node: str
    at: float
    until: float = inf


@dataclass(slots=True)
class _JournalReader:
    """Folds a journal and adds up what every job held."""

    since: float
    state: State = field(default_factory=State)
    stories: dict[str, _JobHistory] = field(default_factory=dict)
    """In the order of submission."""
    nodes: dict[str, Node] = field(default_factory=dict)
    joined: dict[str, float] = field(default_factory=dict)
    absences: list[_Absence] = field(default_factory=list)
    began: bool = False
    work: WorkMeter = field(init=False)

    def __post_init__(self) -> None:
        self.work = WorkMeter(WorldRules().speed, self.nodes)

    def read(self, now: float, facts: Sequence[Fact], decisions: Sequence[Decision]) -> None:
        if not self.began and now >= self.since:
            self._begin(now)
        now = _snapped(now)
        jobs = self.state.jobs
        for event in (*facts, *decisions):
            job = jobs.get(getattr(event, "job", ""))
            if job is not None:
                self._mark(now, job)
            starts = isinstance(event, Launch) and job is not None and job.state is _PENDING
            self._node(now, event)
            self.state.apply_all(now, (event,))
            if starts and job is not None:
                self._start(now, job)
            if job is not None:
                self.work.look(now, job)
            if isinstance(event, JobChanged) and event.spec.id in self.state.pending:
                self.stories[event.spec.id].spec = event.spec
            if isinstance(event, JobSubmitted) and event.spec.id in jobs:
                story = _JobHistory(event.spec, now, event.estimates, marked_at=now)
                self.stories.setdefault(event.spec.id, story)
            for ended in self.state.ended:
                self.stories[ended.id].ended_at = now

    def _begin(self, now: float) -> None:
        """What went before is over: only those who are still there count, from here on."""
        self.began = True
        self.since = since = _snapped(now if self.since == -inf else self.since)
        for job_id in self.state.jobs:
            self.work.forget(since, job_id)
        self.stories = {
            job.id: _JobHistory(
                job.spec,
                since,
                job.estimates,
                marked_at=since,
                runs=1 if job.allocation else 0,
                started_at=since if job.allocation else None,
            )
            for job in self.state.jobs.values()
        }
        self.absences = [absence for absence in self.absences if absence.until > since]
        self.joined = dict.fromkeys(self.joined, since)

    def _mark(self, now: float, job: Job) -> None:
        """Add up what a job held since it was last looked at."""
        story = self.stories[job.id]
        elapsed = now - story.marked_at
        story.marked_at = now
        if job.allocation:
            story.held_s += elapsed
            story.all_held_s += elapsed
            story.worker_s += elapsed * len(job.allocation)
            story.gpu_s += elapsed * job.held_milli / WHOLE_GPU
        elif job.state is _PENDING:
            story.queued_s += elapsed

    def _start(self, now: float, job: Job) -> None:
        """A new run; what an earlier one did is lost without a checkpoint."""
        story = self.stories[job.id]
        story.marked_at = now
        story.runs += 1
        story.started_at = now if story.started_at is None else story.started_at
        if not job.spec.checkpointable:
            story.held_s = story.worker_s = 0.0
            self.work.forget(now, job.id)

    def _node(self, now: float, event: Any) -> None:
        if isinstance(event, NodeUp):
            node = event.node
            self.nodes[node.name] = node
            self.joined.setdefault(node.name, now)
            for absence in self.absences:
                if absence.node == node.name and absence.until == inf:
                    absence.until = now
        elif isinstance(event, NodeDown) and event.node in self.nodes.keys() - self.state.down:
            self.absences.append(_Absence(event.node, now))

    def export(self, name: str) -> Export:
        """Everything that was read as a trace, its cluster and its notes."""
        for job in self.state.jobs.values():
            self._mark(self.state.now, job)
        told = [(job_id, story) for job_id, story in self.stories.items() if story.held_s > 0]
        if not told or not self.began:
            raise JournalError(f"{name}: no job ran in that time; nothing can be compared")
        told.sort(key=lambda one: one[1].submitted_at)
        first = told[0][1].submitted_at
        rows = [self._row(job_id, story, first) for job_id, story in told]
        jobs = pl.DataFrame(rows, schema=COLUMNS, orient="row")
        notes = self._notes(told)
        trace = Trace(name, "native", jobs, notes=notes)
        nodes = tuple(self.nodes.values())
        extras = Extras(
            nodes,
            outages=tuple(self._outages(first)),
            specs=tuple(story.spec for _, story in told),
            estimates=tuple(story.estimates for _, story in told),
            lacks=self.state.rules.lacks if self.state.rules is not None else (),
        )
        recorded = _recorded(told, first, self.state.now, total_gpus(nodes))
        return Export(trace, extras, first, recorded, notes)

    def _row(self, job_id: str, story: _JobHistory, first: float) -> tuple[Any, ...]:
        workers, helpers = _size(story)
        work_s = self.work.work_s(self.state.now, job_id, workers + helpers)
        return _row(job_id, story, work_s, first)

    def _notes(self, told: Sequence[tuple[str, _JobHistory]]) -> tuple[str, ...]:
        never = len(self.stories) - len(told)
        running = sum(story.ended_at is None for _, story in told)
        mixed = sum(_gpu_roles(story.spec) > 1 for _, story in told)
        counted = [
            (never, "that never ran: left out"),
            (running, "that had not ended: taken to end where the journal does"),
            (mixed, "with several roles that use GPUs: taken to be all like the first role"),
        ]
        return tuple(
            f"{count} job{'s' if count != 1 else ''} {what}" for count, what in counted if count
        )

    def _outages(self, first: float) -> Iterable[Outage]:
        """Absences as the simulator takes them; it has every node from 0 on."""
        for name, at in self.joined.items():
            if at > first:
                yield Outage(name, _SOON_S, at - first - _SOON_S)
        for absence in self.absences:
            begin = max(absence.at - first, _SOON_S)
            length = (_FOR_GOOD_S if absence.until == inf else absence.until - first) - begin
            if length > 0:
                yield Outage(absence.node, begin, length)


def _snapped(now: float) -> float:
    """A time to the microsecond, as a fraction of a power of two: sums and differences of such
    times are exact, so what happened together happens together again."""
    return round(now * _GRID) / _GRID


_GRID = 1 << 20
_PENDING = JobState.PENDING
_SOON_S = 1e-3
"""A simulated node has to be there before it can go away."""
_FOR_GOOD_S = 1e9


def _recorded(
    told: Sequence[tuple[str, _JobHistory]], first: float, last: float, gpus: int
) -> SimResult:
    """What happened to these jobs, as a simulation would tell it."""
    rows = []
    for job_id, story in told:
        row: dict[str, Any] = {
            "job_id": job_id,
            "submit_s": story.submitted_at - first,
            "start_s": (first if story.started_at is None else story.started_at) - first,
            "end_s": story.end(last) - first,
            "wait_s": story.queued_s,
            "jct_s": story.queued_s + story.all_held_s,
            "nodes": [],
            "gpus": story.spec.min_gpu_milli / WHOLE_GPU,
            "preemptions": story.runs - 1,
            "status": "finished",
        }
        rows.append(tuple(row.get(column) for column in JOB_COLUMNS))
    jobs = pl.DataFrame(rows, schema=JOB_COLUMNS, orient="row")
    return SimResult(
        policy="recorded",
        jobs=jobs,
        series=pl.DataFrame(schema=SERIES_COLUMNS),
        gpus=gpus,
        preemptions=sum(story.runs - 1 for _, story in told),
        makespan_s=max(story.end(last) for _, story in told) - first,
        gpu_seconds=sum(story.gpu_s for _, story in told),
        held_gpu_seconds=0.0,
        cpu_s=0.0,
    )


def _gpu_roles(spec: JobSpec) -> int:
    return sum(role.resources.gpu_milli > 0 for role in spec.roles)


def _size(story: _JobHistory) -> tuple[int, int]:
    """The workers it had on average, those that use GPUs and the others."""
    role, others = story.spec.roles[0], story.spec.roles[1:]
    helpers = sum(other.min for other in others if not other.resources.gpu_milli)
    extra = sum(other.min for other in others if other.resources.gpu_milli)
    mean = story.worker_s / story.held_s - helpers
    return max(role.min + extra, min(role.max + extra, round(mean))), helpers


def _row(job_id: str, story: _JobHistory, work_s: float, first: float) -> tuple[Any, ...]:
    """A job in the columns of a trace, in their order."""
    spec = story.spec
    role, others = spec.roles[0], spec.roles[1:]
    servers = [other for other in others if not other.resources.gpu_milli]
    workers, helpers = _size(story)
    extra = sum(other.min for other in others if other.resources.gpu_milli)
    ask = role.resources
    elastic = role.min < role.max
    foreseen = story.estimates.runtime_s if story.estimates is not None else None
    row: dict[str, Any] = {
        "job_id": job_id,
        "submit_s": story.submitted_at - first,
        "duration_s": work_s,
        "estimate_s": foreseen.p50 if foreseen is not None else None,
        "workers": workers,
        "gpu_milli": ask.gpu_milli,
        "cpu_milli": ask.cpu_milli,
        "memory_mib": ask.memory_mib,
        "gpu_memory_mib": ask.gpu_memory_mib,
        "min_workers": role.min + extra if elastic else None,
        "max_workers": role.max + extra if elastic else None,
        "gpu_types": "|".join(role.gpu_types),
        "queue": spec.queue,
        "owner": spec.owner,
        "priority": spec.priority,
        "ps_workers": helpers,
        "ps_cpu_milli": max((other.resources.cpu_milli for other in servers), default=0),
        "ps_memory_mib": max((other.resources.memory_mib for other in servers), default=0),
    }
    return tuple(row.get(column) for column in COLUMNS)
