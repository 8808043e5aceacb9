"""What is known of a watched cluster, for whoever asks: read from its store alone, so that the
watcher may run elsewhere, or not at all any more. Every answer says how old it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

from presage.control.advisors.starts import eta_view
from presage.control.watch.busy import Busy
from presage.control.watch.outlook import PRIORS, Outlook, ahead_of
from presage.control.watch.scores import Scores, read_scores, report
from presage.control.watch.watcher import check_directory, latest, watched_since
from presage.edge import parse_yaml
from presage.manifest import LIMITS
from presage.model.cluster import WHOLE_GPU
from presage.model.errors import ConfigError, NotFound, WatchError
from presage.model.watched import NodeState, SeenCluster, SeenJob
from presage.model.words import duration
from presage.policy import registry
from presage.policy.config import ConfigFile
from presage.sim.past import RunLearner
from presage.sim.whatif import export_trace, figures, what_if
from presage.store.records import JobRow
from presage.store.sql import SqlStore

__all__ = ["HeldGpus", "WatchedCluster", "held_gpus"]

_AHEAD_SHOWN = 20
_IDLE = 0.05
"""A GPU that is less busy than this does nothing."""


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """GPUs that one run holds."""

    job: str
    owner: str
    gpus: int
    since: float
    nodes: tuple[str, ...]
    busy: float | None
    """How busy they are on average, if somebody measures it."""

    @property
    def idle(self) -> bool:
        """Whether they are held and do nothing."""
        return self.busy is not None and self.busy < _IDLE


def held_gpus(sight: SeenCluster, measured: Busy | None = None) -> list[HeldGpus]:
    """Which GPUs are held by whom; those that do nothing first, then the most."""
    held = []
    for seen in sight.jobs:
        if not seen.running:
            continue
        run = seen.runs[-1]
        gpus = sum(worker.resources.gpu_milli for worker in run.workers) // WHOLE_GPU
        if not gpus:
            continue
        busy = None if measured is None else measured.of(seen.id, run)
        nodes = tuple(dict.fromkeys(worker.node for worker in run.workers))
        held.append(HeldGpus(seen.id, seen.owner, gpus, run.started_at, nodes, busy))
    return sorted(held, key=lambda one: (not one.idle, -one.gpus, one.since))


class WatchedCluster:
    """Answers from one store."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        about = check_directory(store)
        self.kind, self.name = str(about["kind"]), str(about["name"])

    def overview(self, now: float, measured: Busy | None = None) -> dict[str, Any]:
        """The cluster at a glance."""
        sight, starts = latest(self._store)
        waiting = [seen for seen in sight.jobs if not seen.running]
        gpus = sum(len(one.node.devices) for one in sight.nodes)
        held = held_gpus(sight, measured)
        idle = [one for one in held if one.idle]
        states = Counter(str(one.state) for one in sight.nodes)
        queues: dict[str, Counter[str]] = {}
        for seen in sight.jobs:
            count = queues.setdefault(seen.queue, Counter())
            count["running" if seen.running else "waiting"] += 1
        return {
            "kind": self.kind,
            "cluster": self.name,
            "seen_at": sight.now,
            "age_s": round(max(0.0, now - sight.now), 1),
            "notes": list(sight.notes),
            "nodes": {str(state): states[str(state)] for state in NodeState},
            "gpus": {
                "total": gpus,
                "held": sum(one.gpus for one in held),
                "idle": sum(one.gpus for one in idle) if measured is not None else None,
            },
            "queues": {name: dict(count) for name, count in sorted(queues.items())},
            "held": [
                {
                    **{"job": one.job, "owner": one.owner, "gpus": one.gpus},
                    **{"since": one.since, "nodes": list(one.nodes), "busy": one.busy},
                    "idle": one.idle if one.busy is not None else None,
                }
                for one in held
            ],
            "waiting": [
                {
                    **{"job": seen.id, "name": seen.name, "owner": seen.owner},
                    **{"queue": seen.queue, "submitted_at": seen.submitted_at},
                    "why": seen.held or seen.why,
                    "eta_s": None
                    if (start := starts.get(seen.id)) is None
                    else eta_view(start, sight.now, now),
                    "theirs_s": None
                    if seen.expected_at is None
                    else round(max(0.0, seen.expected_at - now), 1),
                }
                for seen in waiting
            ],
            "report": report(read_scores(self._store.knowledge)),
        }

    def report(self, since: float) -> dict[str, Any]:
        """How well starts were foreseen."""
        return report(read_scores(self._store.knowledge), since)

    def running(self, asked: str | None = None) -> list[SeenJob]:
        """The jobs that run; the one of that name, if there is one."""
        sight, _ = latest(self._store)
        if asked is None:
            return [seen for seen in sight.jobs if seen.running]
        seen = _find(sight, asked)
        if seen is None or not seen.running:
            raise NotFound(f"no job {asked[:80]} runs in {self.name}")
        return [seen]

    def explain(self, asked: str, now: float) -> dict[str, Any]:
        """Why a job is where it is; of one that waits, who is ahead, when it starts, and what
        would help."""
        sight, starts = latest(self._store)
        seen = _find(sight, asked)
        if seen is None:
            return self._over(asked, sight, now)
        body: dict[str, Any] = {
            **{"id": seen.id, "name": seen.name, "owner": seen.owner, "queue": seen.queue},
            "age_s": round(max(0.0, now - sight.now), 1),
        }
        if seen.running:
            run = seen.runs[-1]
            where = ", ".join(dict.fromkeys(worker.node for worker in run.workers))
            text = f"it runs on {where} since {duration(now - run.started_at)}"
            return body | {"status": "PROCESSING", "reason": text}
        start = starts.get(seen.id)
        outlook = self._outlook(sight)
        first, options = outlook.helps(sight, seen.id)
        told = start or first
        ahead = ahead_of(sight, seen.id)
        return body | {
            "status": "QUEUED",
            "reason": seen.held or seen.why or "it waits for room",
            "takes_part": not seen.held,
            "not_before": seen.not_before,
            "after": [{"id": one.job, "on": str(one.on)} for one in seen.after],
            "ahead": len(ahead),
            "ahead_jobs": ahead[:_AHEAD_SHOWN],
            "eta_s": None if told is None else eta_view(told, sight.now, now),
            "nodes": [] if told is None else list(told.nodes),
            "theirs_s": None if seen.expected_at is None else seen.expected_at - now,
            "helps": [
                {"change": one.change, "eta_s": eta_view(one.start, sight.now, now)}
                for one in options
            ],
        }

    def what_if(
        self, names: Sequence[str], since: float | None, config: str | None
    ) -> dict[str, Any]:
        """What other policies would have done with the jobs of the journal; they know the true run
        times."""
        file = ConfigFile()
        if config is not None:
            file = parse_yaml(config, ConfigFile, ConfigError, "config", LIMITS)
        known = registry.pipelines(file)
        makers = {
            name: partial(registry.build, registry.policy_config(name, known)) for name in names
        }
        export = export_trace(
            self._store.read_steps(), since=-inf if since is None else since, name=self.name
        )
        results = what_if(export, makers)
        notes = [*export.notes, "policies that need run times know the true ones"]
        notes += [f"{name}: {note}" for name, result in results.items() for note in result.notes]
        return {
            "since": export.since,
            "until": export.since + export.recorded.makespan_s,
            "recorded": figures(export.recorded, export.trace),
            "policies": {name: figures(result, export.trace) for name, result in results.items()},
            "notes": notes,
        }

    def _outlook(self, sight: SeenCluster) -> Outlook:
        learner = RunLearner()
        learner.read(iter(self._store.read(learner.since(self._store.position()))))
        knowledge = self._store.knowledge
        calibration = Scores(knowledge, PRIORS[self.kind]).calibration(sight.now)
        return Outlook(self.kind, learner, calibration, watched_since(knowledge, sight.now))

    def _over(self, asked: str, sight: SeenCluster, now: float) -> dict[str, Any]:
        row = self._store.jobs.get(asked)
        if row is None:  # a pod, without the end of its id
            row = next(iter(self._store.jobs.beginning(f"{asked}@", limit=1)), None)
        if row is None:
            raise NotFound(
                f"{self.name} has no job {asked[:80]}: neither now nor since it is watched"
            )
        return {
            **{"id": row.id, "name": row.name, "owner": row.owner, "queue": row.queue},
            **{"status": row.status, "reason": row.reason_text or _ended(row, now)},
            "age_s": round(max(0.0, now - sight.now), 1),
        }


def _ended(row: JobRow, now: float) -> str:
    return "" if row.ended_at is None else f"it ended {duration(now - row.ended_at)} ago"


def _find(sight: SeenCluster, asked: str) -> SeenJob | None:
    """A job by its id, the part of it before `@`, a pod without its namespace, or its name."""
    for kind in range(4):
        matches = [seen for seen in sight.jobs if _names(seen)[kind] == asked]
        if len(matches) > 1:
            names = ", ".join(seen.id for seen in matches[:5])
            raise WatchError(f"{asked[:80]} stands for several jobs: {names}; give an id")
        if matches:
            return matches[0]
    return None


def _names(seen: SeenJob) -> tuple[str, str, str, str]:
    short = seen.id.partition("@")[0]
    return seen.id, short, short.rpartition("/")[2], seen.name
