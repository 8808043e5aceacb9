"""The deciding loop in real time: one thread that alone changes the state, under a lease.

A turn takes every request that waits and every fact of the executor, decides, writes all of it in
one commit, answers the requests, and only then acts. Whatever goes wrong in between, the loop
forgets what it knows and starts again from the journal. Other threads hand over requests
(`submit`), and read the state while the loop waits or writes (`ask`); they never change it. What
they read may be a turn ahead of the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from socket import socket
from typing import Any, Protocol, TypeAlias, TypeVar

from presage.control.board import changes_of
from presage.control.deciding import Deciders
from presage.control.dependencies import settle_dependencies
from presage.control.foreign import found_rows
from presage.control.seat import Seat
from presage.core.engine import Engine
from presage.core.loop import act, recover, step, unconfirmed
from presage.core.ports import CanAttach, CanNote, Executor, lacks
from presage.core.state import State
from presage.model import event as ev
from presage.model.cluster import Node
from presage.model.errors import (
    Conflict,
    NeverFits,
    NotLeading,
    PresageError,
    StaleLease,
    StoreUnavailable,
)
from presage.model.job import Job, JobSpec
from presage.store.records import ArrayRow, AuditEntry, JobChange, JobRow, Notification
from presage.store.sql import SqlStore

__all__ = ["Answers", "Live", "LiveExecutor"]

log = logging.getLogger("presage.live")

T = TypeVar("T")

_MOST_REQUESTS = 500
"""Requests of one turn, so that a flood of them does not hold up what runs."""
_PATIENCE_S = 3.0
"""How long a turn tries to write before its requests are told no."""
_READ_S = 15.0
"""How long a question waits for its turn."""


class LiveExecutor(Executor, Protocol):
    """An executor that can wake the loop and be put away."""

    def wait(self, timeout_s: float) -> bool:
        """Block until there may be something to poll, `wake` is called, or the time has
        passed."""
        ...

    def wake(self) -> None:
        """End a `wait`; may be called from any thread."""
        ...

    def close(self) -> None:
        """Leave everything running and let go."""
        ...


class Ticket(Protocol):
    """Whose request it is; the loop only looks whether anybody still waits."""

    def done(self) -> bool:
        """Whether nobody waits for the answer any more."""
        ...


Answers: TypeAlias = list[tuple[Ticket, Exception | None]]
"""Of each request: None once it is on disk, or why it is not."""


Committed: TypeAlias = Callable[[int, Sequence[JobRow], Sequence[JobChange]], None]
"""Is told of every commit: the lease, new jobs, and what became different."""
Witness: TypeAlias = Callable[[int, float, Sequence[ev.Event], int, State], None]
"""Is told what every commit added to the journal: the position before it, the time, the events,
how many they are, and the state they led to."""


@dataclass(slots=True)
class _Pending:
    facts: Sequence[ev.Fact]
    """All of them or none."""
    rows: Sequence[JobRow]
    audit: AuditEntry | None
    ticket: Ticket
    array: ArrayRow | None = None


class Live:
    """A cluster's scheduler in real time. `executor` makes a new one, as `deciders` make new
    policies: a loop that starts again must not meet what an earlier one left in them. The rules
    by which it is decided are journaled where they are new: decisions follow from them."""

    def __init__(
        self,
        store: SqlStore,
        executor: Callable[[], LiveExecutor],
        deciders: Deciders,
        *,
        seat: Seat,
        url: str,
        lease_s: float = 5.0,
        snapshot_every: int = 5000,
        answer: Callable[[Answers], None],
        committed: Committed = lambda *_: None,
        witness: Witness = lambda *_: None,
        clock: Callable[[], float] = time.time,
        alert_webhooks: Sequence[str] = (),
    ) -> None:
        self.alert_webhooks = tuple(alert_webhooks)
        """Addresses that are told of every alert."""
        self.store = store
        self.seat, self.url = seat, url
        self.leading = threading.Event()
        self.turns: deque[float] = deque(maxlen=1000)
        """Seconds that the latest turns took."""
        self.decided = 0
        self._make_executor, self._deciders = executor, deciders
        self._lease_s, self._snapshot_every = lease_s, snapshot_every
        self._answer, self._committed, self._clock = answer, committed, clock
        self._witness = witness
        self._requests: deque[_Pending] = deque()
        self._lock = threading.Lock()
        self._deciding = threading.Lock()
        """Held by the loop while the state changes, and by others while they read it."""
        self._executor: LiveExecutor | None = None
        self._engine: Engine | None = None
        self._stopping = threading.Event()
        self._lease = 0
        self._renewed = 0.0
        self._webhooks: dict[str, tuple[str, ...]] = {}
        self._returning: dict[str, Node] = {}
        self._thread = threading.Thread(target=self._work, name="presage-live", daemon=True)

    # -- for other threads ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to decide as soon as the lease is free."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present turn; runs are left running."""
        self._stopping.set()
        self._ring()
        if self._thread.is_alive():
            self._thread.join(timeout=30)

    def submit(
        self, ticket: Ticket, fact: ev.Fact, row: JobRow | None, audit: AuditEntry | None
    ) -> None:
        """Hand over a request; it is answered when it is on disk."""
        self.submit_all(ticket, (fact,), () if row is None else (row,), audit)

    def submit_all(
        self,
        ticket: Ticket,
        facts: Sequence[ev.Fact],
        rows: Sequence[JobRow] = (),
        audit: AuditEntry | None = None,
        array: ArrayRow | None = None,
    ) -> None:
        """Hand over a request of several facts: on disk together, or none of them."""
        request = _Pending(facts, rows, audit, ticket, array)
        with self._lock:
            if not self.leading.is_set():
                raise NotLeading("this server does not decide at the moment; try again")
            first = not self._requests
            self._requests.append(request)
        if first:  # else the loop was rung for the one before, and takes all of them
            self._ring()

    def ask(self, question: Callable[[Engine], Any]) -> Any:
        """Read something from the state, on this thread; it must not change anything. Waits for
        the present turn to be decided, not for it to be on disk."""
        if not self._deciding.acquire(timeout=_READ_S):
            raise NotLeading("the scheduler did not answer in time; try again")
        try:
            if self._engine is None or not self.leading.is_set():
                raise NotLeading("this server does not decide at the moment; try again")
            return question(self._engine)
        finally:
            self._deciding.release()

    def read(self, question: Callable[[State], T]) -> T:
        """The same for a question to the state alone."""
        answer: T = self.ask(lambda engine: question(engine.state))
        return answer

    @property
    def lease(self) -> int | None:
        """The number under which this server decides; None while it does not."""
        return self._lease if self.leading.is_set() else None

    def waiting(self) -> int:
        """Requests that no turn has taken yet."""
        return len(self._requests)

    def _ring(self) -> None:
        executor = self._executor
        if executor is not None:
            with suppress(OSError, ValueError):  # it was closed this moment
                executor.wake()

    def attach(self, job: str, attempt: int, worker: str) -> socket:
        """A connection to whoever guards a worker that runs; for other threads."""
        executor = self._executor
        if executor is None or not self.leading.is_set():
            raise NotLeading("this server does not decide at the moment; try again")
        if not isinstance(executor, CanAttach):
            raise Conflict("jobs here cannot be attached to: the executor has no way in")
        try:
            return executor.attach(job, attempt, worker)
        except OSError:
            raise Conflict(f"{worker} of job {job} cannot be reached; is it running?") from None

    def spec(self, job_id: str) -> JobSpec:
        """A job as it stands now, its memory raised since it was submitted; for the executor, on
        the thread that decides."""
        assert self._engine is not None
        return self._engine.state.jobs[job_id].spec

    def note(self, job: str, text: str) -> None:
        """Let the owner of a waiting job know something where the executor shows it."""
        executor = self._executor
        if isinstance(executor, CanNote):
            executor.note(job, text)

    def jobs(self) -> Mapping[str, Job]:
        """All jobs that are not over; for the executor, on the thread that decides."""
        return self._engine.state.jobs if self._engine is not None else {}

    # -- the loop -------------------------------------------------------------------------------

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                number = self.store.lease.acquire(self.seat.take(), self.url, self._lease_s)
                if number is None:
                    self._stopping.wait(self._lease_s / 5)
                    continue
                self._lease, self._renewed = number, time.monotonic()
                self._lead()
            except (StaleLease, StoreUnavailable) as error:
                log.warning("no longer deciding: %s", error)
                self._stopping.wait(0.5)
            except Exception:
                log.exception("the deciding loop failed; it starts again from the journal")
                self._stopping.wait(1.0)
            finally:
                self._refuse(NotLeading("the server stopped deciding before this was on disk"))
        if self._lease:
            with suppress(PresageError):
                self.store.lease.release(self._lease)
        self.seat.leave()

    def _lead(self) -> None:
        """Decide until the lease is lost or the server stops."""
        engine, position = self._recover()
        self._executor = executor = self._make_executor()
        self._deciding.acquire()
        self._engine = engine
        try:
            journal = _Journal(self, engine, position)
            self._first_turn(engine, executor, journal)
            with self._lock:
                self.leading.set()
            log.info("deciding as %s, lease %d", self.seat.name, self._lease)
            while not self._stopping.is_set():
                self._wait(executor, engine.state)
                self._turn(engine, executor, journal)
                if journal.since_snapshot >= max(self._snapshot_every, 2 * len(engine.state.jobs)):
                    journal.snapshot()
            journal.snapshot()
        finally:
            with self._lock:
                self.leading.clear()
                self._executor = None
            self._engine = None
            self._deciding.release()
            executor.close()

    @contextmanager
    def readable(self) -> Iterator[None]:
        """While this lasts, the loop leaves the state alone and others may read it."""
        self._deciding.release()
        try:
            yield
        finally:
            self._deciding.acquire()

    def _recover(self) -> tuple[Engine, int]:
        """The state that the journal leads to."""
        state, position = recover(self.store)
        self._webhooks = {}
        for job in state.jobs.values():
            if "presage/webhooks" in job.spec.labels:
                row = self.store.jobs.get(job.id)
                self._remember_webhooks(row)
        decider = self._deciders.begin(state.rules)
        return Engine(decider.make(), decider.predict, state), position

    def _first_turn(self, engine: Engine, executor: LiveExecutor, journal: _Journal) -> None:
        """Make the nodes what the executor says, decide, and send again what is unconfirmed."""
        state = engine.state
        rules = self._deciders.now.rules(lacks(executor))
        again = [d for d in unconfirmed(state) if type(d).__name__ not in rules.lacks]
        there = {node.name: node for node in executor.nodes()}
        known = {state.capacity.nodes[i].name: i for i in state.capacity.index.values()}
        facts: list[ev.Fact] = [] if state.rules == rules else [rules]
        facts += [ev.NodeDown(name) for name in known if name not in there]
        for name, node in there.items():
            i = known.get(name)
            if i is None or (state.capacity.nodes[i] == node and name in state.down):
                facts.append(ev.NodeUp(node))
            elif state.capacity.nodes[i].devices == node.devices and name not in state.down:
                if state.capacity.nodes[i] != node:
                    facts.append(ev.NodeChanged(node))
            elif state.capacity.nodes[i] != node:
                self._returning[name] = node
                facts.append(ev.NodeDown(name))
        act(executor, again)
        step(engine, executor, journal, self._now(state), facts, lease=self._lease)

    def _returned(self, state: State) -> list[ev.Fact]:
        """Nodes that came back with other hardware: up, now that nothing runs there any more."""
        idle = [
            name
            for name in self._returning
            if name not in state.capacity.index or state.capacity.idle(state.capacity.index[name])
        ]
        return [ev.NodeUp(self._returning.pop(name)) for name in idle]

    def _wait(self, executor: LiveExecutor, state: State) -> None:
        """Until a request, news of a run, the time a policy asked for, or the next renewal."""
        if self._requests:
            return
        timeout = self._lease_s / 4
        if state.wake_at is not None:
            timeout = min(timeout, max(0.0, state.wake_at - self._clock()))
        with self.readable():
            executor.wait(timeout)

    def _turn(self, engine: Engine, executor: LiveExecutor, journal: _Journal) -> None:
        began = time.perf_counter()
        self._keep_lease()
        with self._lock:
            taken = [
                self._requests.popleft() for _ in range(min(len(self._requests), _MOST_REQUESTS))
            ]
        batch = self._worth_doing(taken, engine)
        self._change_rules(batch, engine)
        journal.batch = batch
        try:
            now = self._now(engine.state)
            facts = [fact for request in batch for fact in request.facts]
            if self._returning:
                facts += self._returned(engine.state)
            decisions = step(engine, executor, journal, now, facts, lease=self._lease)
        except BaseException as error:
            self._answer([(request.ticket, _refusal(error)) for request in journal.batch])
            journal.batch = ()
            raise
        self.decided += len(decisions)
        self.turns.append(time.perf_counter() - began)

    def _worth_doing(self, taken: Iterable[_Pending], engine: Engine) -> list[_Pending]:
        """Requests that somebody still waits for; a job that is there already is not submitted
        once more, one that comes twice in a turn is refused the second time, and one that could
        never run is refused."""
        state = engine.state
        batch: list[_Pending] = []
        answers: Answers = []
        submitted: set[str] = set()
        for request in taken:
            if request.ticket.done():
                continue
            first = request.facts[0]
            if isinstance(first, ev.JobSubmitted):  # then all are
                job_id = first.spec.id
                if job_id in submitted:
                    error = NotLeading(f"job {job_id} is just being submitted; ask again")
                    answers.append((request.ticket, error))
                    continue
                if job_id in state.jobs:
                    answers.append((request.ticket, None))
                    continue
                never = _never_fits(engine, request)
                if never is not None:
                    answers.append((request.ticket, never))
                    continue
                submitted.add(job_id)
                refused = settle_dependencies(request.facts, state, self.store)
                if isinstance(refused, PresageError):
                    answers.append((request.ticket, refused))
                    continue
                request.facts = refused
            batch.append(request)
        if answers:
            self._answer(answers)
        return batch

    def _change_rules(self, batch: Iterable[_Pending], engine: Engine) -> None:
        """Decide by another policy from this turn on, if a request of it says so."""
        for request in batch:
            if isinstance(rules := request.facts[0], ev.RulesChanged):
                before = engine.state.rules
                there = before.lacks if before is not None else ()
                request.facts = (replace(rules, lacks=there),)
                decider = self._deciders.follow(rules)
                engine.decide_by(decider.make(), decider.predict)

    def _keep_lease(self) -> None:
        if time.monotonic() - self._renewed < self._lease_s / 3:
            return
        if not self.store.lease.renew(self._lease, self._lease_s):
            raise StaleLease(f"lease {self._lease} ran out")
        self._renewed = time.monotonic()

    def _now(self, state: State) -> float:
        """The time, which never goes back, whatever the clock does."""
        return max(self._clock(), state.now)

    def _refuse(self, error: PresageError) -> None:
        with self._lock:
            self.leading.clear()
            requests = list(self._requests)
            self._requests.clear()
        if requests:
            self._answer([(request.ticket, error) for request in requests])

    # -- webhooks -------------------------------------------------------------------------------

    def _remember_webhooks(self, row: JobRow | None) -> None:
        urls = (row.manifest or {}).get("webhooks") if row is not None else None
        if row is not None and urls:
            self._webhooks[row.id] = tuple(urls)

    def messages(self, changes: Sequence[JobChange]) -> list[Notification]:
        """What webhooks are to be told of these changes."""
        notifications = []
        for change in changes:
            if change.status is None or change.job not in self._webhooks:
                continue
            body = {
                "job": change.job,
                "status": change.status,
                "at": change.at,
                "reason": {"code": change.reason_code or "ok", "text": change.reason_text or ""},
            }
            notifications += [
                Notification(change.job, url, body) for url in self._webhooks[change.job]
            ]
            if change.ended_at is not None:
                del self._webhooks[change.job]
        return notifications

    def alert_messages(self, now: float, facts: Iterable[ev.Fact]) -> list[Notification]:
        """What webhooks are to be told of alerts: those of the job, and those of the server."""
        notifications = []
        for fact in facts:
            if not isinstance(fact, ev.AlertRaised | ev.AlertCleared):
                continue
            body = {"at": now, **ev.event_to_json(fact)}
            body["event"] = "alert" if isinstance(fact, ev.AlertRaised) else "alert_over"
            del body["type"]
            for url in dict.fromkeys((*self._webhooks.get(fact.job, ()), *self.alert_webhooks)):
                notifications.append(Notification(fact.job, url, body))
        return notifications


class _Journal:
    """The store as a step sees it: an append carries the rows that users see."""

    def __init__(self, live: Live, engine: Engine, position: int) -> None:
        self.batch: Sequence[_Pending] = ()
        self.since_snapshot = 0
        self._live, self._engine = live, engine
        self._position = position

    def append(
        self,
        now: float,
        facts: Sequence[ev.Fact],
        decisions: Sequence[ev.Decision],
        *,
        lease: int = 0,
    ) -> None:
        """Write a turn; when this returns, it is on disk and its requests are answered."""
        live, batch = self._live, self.batch
        rows = [row for request in batch for row in request.rows]
        rows += found_rows(now, facts, {row.id for row in rows})
        arrays = [request.array for request in batch if request.array is not None]
        audit = [request.audit for request in batch if request.audit is not None]
        for row in rows:
            live._remember_webhooks(row)
        changes = changes_of(now, self._engine.state, facts, decisions)
        first = [JobChange(job=row.id, at=row.submitted_at, status=row.status) for row in rows]
        messages = live.messages([*first, *changes]) + live.alert_messages(now, facts)
        until = time.monotonic() + _PATIENCE_S
        while True:
            try:
                with live.readable():
                    live.store.append(
                        now,
                        facts,
                        decisions,
                        lease=lease,
                        jobs=rows,
                        changes=changes,
                        outbox=messages,
                        audit=audit,
                        arrays=arrays,
                    )
                break
            except StoreUnavailable:
                if time.monotonic() > until or live._stopping.is_set():
                    raise
                time.sleep(0.1)
        events = len(facts) + len(decisions)
        if events:
            happened = (*facts, *decisions)
            live._witness(self._position, now, happened, events, self._engine.state)
        self._position += events
        self.since_snapshot += events
        live._committed(lease, rows, changes)
        if batch:
            live._answer([(request.ticket, None) for request in batch])
            self.batch = ()

    def read(self, since: int = 0) -> Iterable[tuple[float, ev.Event]]:
        """The journal."""
        return self._live.store.read(since)

    def snapshot(self) -> None:
        """Keep the present state, so that a start need not fold what led to it."""
        if not self.since_snapshot:
            return
        state = self._engine.state
        body = state.snapshot()
        with self._live.readable():
            self._live.store.save_snapshot(
                self._position, state.now, body, lease=self._live._lease
            )
        self.since_snapshot = 0


def _never_fits(engine: Engine, request: _Pending) -> NeverFits | None:
    """Why one of the jobs of a submission could never run; those that ask for the same are looked
    at once."""
    seen = set()
    for number, fact in enumerate(request.facts):
        if not isinstance(fact, ev.JobSubmitted):
            continue
        asked = (fact.spec.roles, fact.spec.queue, fact.spec.placement)
        if asked in seen:
            continue
        seen.add(asked)
        never = engine.refusal(fact)
        if never is not None:
            name = request.rows[number].name if request.rows else "it"
            point = f" (point {number + 1} of its sweep)" if len(request.facts) > 1 else ""
            return NeverFits(f"{name}{point}", never.text)
    return None


def _refusal(error: BaseException) -> Exception:
    if isinstance(error, StaleLease):
        return NotLeading("another server decides now; nothing was accepted")
    if isinstance(error, PresageError):
        return error
    return NotLeading("the server met a problem and starts again; nothing was accepted")
