"""Watches a cluster: looks, writes down what is different, foresees, and starts over.

One thread. What was seen goes to the journal of an ordinary store, with the rows that users read;
the latest sight and the forecasts go beside it. A watcher that is killed goes on from its journal;
while the cluster does not answer, it waits. It changes nothing there.
"""

from __future__ import annotations

import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, TypeAlias

from presage.control.board import changes_of
from presage.control.watch import ABOUT
from presage.control.watch.follow import Follower
from presage.control.watch.outlook import PRIORS, Outlook
from presage.control.watch.scores import Scores
from presage.core.loop import recover
from presage.core.ports import ClusterSource, Entry, Knowledge
from presage.core.state import State
from presage.model import event as ev
from presage.model.codec import decode, encode
from presage.model.errors import WatchError
from presage.model.job import JobSpec, JobState
from presage.model.watched import SeenCluster, SeenJob
from presage.sim.ahead import Start
from presage.sim.past import RunLearner
from presage.store.records import JobRow
from presage.store.sql import SqlStore

__all__ = ["ClusterWatcher", "Note", "WatcherNews", "check_directory", "latest", "watched_since"]

log = logging.getLogger("presage.watch")

SIGHT, STARTS, SINCE = "watch/sight", "watch/starts", "watch/since"
_LEASE_S = 30.0
_REMEMBERED = 50_000
"""Ended jobs that are remembered without asking the store."""
_SNAPSHOT_EVERY = 5_000
"""Events."""
_STALE_S = 15.0
"""A forecast is renewed after so long even when nothing changed."""


Note: TypeAlias = Callable[[str, str], None]
"""Writes a text to a job."""


@dataclass(frozen=True, slots=True)
class WatcherNews:
    """What one turn came to."""

    sight: SeenCluster
    events: int
    starts: dict[str, Start]
    """When jobs will start, as it is told."""


class ClusterWatcher:
    """Watches one cluster into one store. `past_s` is how far back it reads at the first look."""

    def __init__(
        self,
        store: SqlStore,
        source: ClusterSource,
        holder: str,
        *,
        past_s: float = 30 * 86_400.0,
        clock: Callable[[], float] = time.time,
        note: Note | None = None,
    ) -> None:
        """`note` writes to jobs when they start; without it nothing is written anywhere else."""
        check_directory(store, source)
        number = store.lease.acquire(holder, "", _LEASE_S)
        if number is None:
            raise WatchError("another process watches into this directory; end it first")
        self._store, self._source, self._clock = store, source, clock
        self._lease, self._renewed = number, time.monotonic()
        self._past_s, self._note = past_s, note
        self._noted: dict[str, str] = {}
        self._knowledge = store.knowledge.under(lambda: self._lease)
        about = json.dumps({"kind": source.kind, "name": source.name}).encode()
        if store.knowledge.get(ABOUT) != about:
            self._knowledge.write(Entry(ABOUT, about))
        state, self._position = recover(store)
        self._kept_at = self._position
        self._follower = Follower(state, self._ended_before)
        self._ended: OrderedDict[str, float] = OrderedDict()
        self.learner = RunLearner()
        for now, event in store.read(self.learner.since(self._position)):
            self.learner.heard(now, event)
        self.scores = Scores(self._knowledge, PRIORS[source.kind])
        self._since = watched_since(self._knowledge, inf)
        self._starts: dict[str, Start] = {}
        self._foreseen_at = float("-inf")

    @property
    def state(self) -> State:
        """What the journal leads to."""
        return self._follower.state

    def turn(self) -> WatcherNews:
        """Look once; raises WatchError while the cluster does not answer."""
        state = self.state
        since = state.now - 60.0 if state.now > 0 else self._clock() - self._past_s
        sight = self._source.look(since, state.jobs.keys())
        if self._since == inf:
            self._since = sight.now
            self._knowledge.write(Entry(SINCE, json.dumps(sight.now).encode()))
        events = self._write(sight)
        if events or sight.now - self._foreseen_at >= _STALE_S:
            self._foresee(sight)
        self.scores.write()
        if self._position - self._kept_at >= max(_SNAPSHOT_EVERY, 2 * len(state.jobs)):
            self._store.save_snapshot(
                self._position, state.now, state.snapshot(), lease=self._lease
            )
            self._kept_at = self._position
        return WatcherNews(sight, events, self._starts)

    def keep_lease(self) -> None:
        """Call it more often than every few seconds."""
        if time.monotonic() - self._renewed > _LEASE_S / 3:
            if not self._store.lease.renew(self._lease, _LEASE_S):
                raise WatchError("another process watches into this directory now")
            self._renewed = time.monotonic()

    def close(self) -> None:
        """Leave the directory to the next watcher."""
        self._store.lease.release(self._lease)
        self._source.close()

    def _write(self, sight: SeenCluster) -> int:
        """Append what is different to the journal."""
        seen_jobs = {seen.id: seen for seen in sight.jobs}
        state, count = self.state, 0
        for now, facts, decisions in self._follower.follow(sight):
            rows = [
                _row(now, fact.spec, seen_jobs)
                for fact in facts
                if isinstance(fact, ev.JobSubmitted)
            ]
            changes = changes_of(now, state, facts, decisions)
            self._store.append(
                now, facts, decisions, lease=self._lease, jobs=rows, changes=changes
            )
            events = (*facts, *decisions)
            self.learner.heard(now, *events)
            for job, to, _ in state.moves:
                if to is JobState.RUNNING and job.attempt == 1:
                    self.scores.started(job.id, now)
            for job in state.ended:
                self.scores.gone(job.id)
                self._ended[job.id] = now
            while len(self._ended) > _REMEMBERED:
                self._ended.popitem(last=False)
            count += len(events)
            self._position += len(events)
            self.keep_lease()
        return count

    def _foresee(self, sight: SeenCluster) -> None:
        """Run ahead what was seen, and keep it for whoever asks."""
        outlook = Outlook(
            *(self._source.kind, self.learner, self.scores.calibration(sight.now), self._since)
        )
        forecast = outlook.starts(sight)
        self._starts = outlook.told(forecast)
        self.scores.foreseen(forecast, self._starts, sight)
        self._foreseen_at = sight.now
        if self._note is not None:
            self._annotate(sight)
        alive = tuple(job for job in sight.jobs if job.ended_at is None)
        body = SeenCluster(sight.now, alive, sight.nodes, sight.notes)
        starts = {job: asdict(start) for job, start in self._starts.items()}
        self._knowledge.write(
            Entry(SIGHT, json.dumps(encode(body)).encode()),
            Entry(STARTS, json.dumps(starts).encode()),
        )

    def _annotate(self, sight: SeenCluster) -> None:
        """Tell jobs when they start, where that is new to the minute."""
        texts = {job: _text(sight.now, start) for job, start in self._starts.items()}
        for job, text in texts.items():
            if text and self._note is not None and self._noted.get(job) != text:
                try:
                    self._note(job, text)
                except WatchError as error:
                    log.warning("%s", error)
        self._noted = texts

    def _ended_before(self, job_id: str) -> float | None:
        ended = self._ended.get(job_id)
        if ended is None:
            row = self._store.jobs.get(job_id)
            ended = row.ended_at if row is not None else None
            if ended is not None:
                self._ended[job_id] = ended
        return ended


def check_directory(store: SqlStore, source: ClusterSource | None = None) -> dict[str, Any]:
    """What a store watches; raises WatchError for one that is a server's, or another cluster's."""
    about = json.loads(store.knowledge.get(ABOUT) or b"{}")
    if not about and (source is None or store.position()):
        what = "is the journal of a server" if store.position() else "watches no cluster yet"
        raise WatchError(f"this directory {what}; name another one")
    if about and source is not None and about != {"kind": source.kind, "name": source.name}:
        raise WatchError(
            f"this directory watches the {about['kind']} cluster {about['name']}, not "
            f"{source.kind} {source.name}; name another one"
        )
    return dict(about)


def watched_since(knowledge: Knowledge, default: float) -> float:
    """When a cluster was first looked at."""
    return float(json.loads(knowledge.get(SINCE) or json.dumps(default)))


def latest(store: SqlStore) -> tuple[SeenCluster, dict[str, Start]]:
    """What was last seen, and when jobs will start, as it was told then."""
    body = store.knowledge.get(SIGHT)
    if body is None:
        raise WatchError("nothing was seen yet; is `presage watch` running?")
    sight: SeenCluster = decode(SeenCluster, json.loads(body))
    starts = json.loads(store.knowledge.get(STARTS) or b"{}")
    return sight, {
        job: Start(**{**start, "nodes": tuple(start["nodes"])}) for job, start in starts.items()
    }


def _text(now: float, start: Start) -> str:
    """When a job starts, for a comment: `starts 2026-01-31T12:00Z to 14:30Z`."""
    if start.p10_s is None:
        return ""
    first, last = (
        "later" if wait is None else time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime(now + wait))
        for wait in (start.p10_s, start.p90_s)
    )
    return f"presage: starts {first} to {last}"


def _row(now: float, spec: JobSpec, jobs: dict[str, SeenJob]) -> JobRow:
    seen = jobs.get(spec.id) or jobs.get(spec.id.partition("@")[0])
    return JobRow(
        id=spec.id,
        name=spec.id if seen is None else seen.name,
        owner=spec.owner,
        submitted_at=now if seen is None else min(now, seen.submitted_at),
        manifest={},
        queue=spec.queue,
    )
