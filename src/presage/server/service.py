"""The parts of a running server, in one value that routes are given."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from presage.core.engine import Engine
from presage.foresee.champions import Champions
from presage.manifest import Manifest, resolved, says_auto, to_spec
from presage.model import event as ev
from presage.model.cluster import Node
from presage.model.codec import encode
from presage.model.errors import UserError
from presage.model.estimate import Estimates
from presage.model.job import JobSpec
from presage.policy import registry
from presage.server.auth import Accounts, Denied, may_change, may_see
from presage.server.board import ENDED
from presage.server.estimates import Estimator, predictor
from presage.server.executors import make_executor
from presage.server.foresight import Foresight
from presage.server.learning import Learner
from presage.server.live import Answers, Live, NotLeading
from presage.server.problems import Conflict, NotFound
from presage.server.recent import Known, Recent
from presage.server.seat import Seat
from presage.server.settings import Settings
from presage.server.sizing import Sizing
from presage.store import open_store
from presage.store.records import AuditEntry, JobChange, JobRow, User

__all__ = ["Service"]

_AT_ONCE = 2
"""Requests that are answered in one go."""
_ANSWER_S = 15.0
"""How long a request waits for the disk before it is told to ask again."""


class Service:
    """A server's parts. Everything here may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        settings.prepare()
        self.settings = settings
        self.store = open_store(settings.database)
        self.accounts = Accounts(self.store.users)
        if settings.first_token and self.accounts.open():
            self.accounts.add("admin", "admin", "", settings.first_token)
        self._waiting: list[asyncio.Future[None]] = []
        self.turnstile = asyncio.Semaphore(1)
        """Submissions pass one by one, so that a crowd of them lets others through between."""
        self.recent = Recent()
        self._submitting: dict[str, asyncio.Task[JobRow]] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        predict = predictor(settings.nodes, settings.policy.colocate)
        self.live = Live(
            self.store,
            lambda: make_executor(self),
            lambda: registry.build(settings.policy),
            predict,
            rules=settings.policy.model_dump_json(),
            seat=Seat(settings.data),
            url=settings.url,
            lease_s=settings.lease_s,
            answer=self._answer,
            committed=self._written,
        )
        self.foresight = Foresight(
            self.live,
            self.store,
            lambda: registry.build(settings.policy),
            predict,
            settings.data / "forecasts.jsonl",
        )
        champions = Champions(settings.data / "models")
        self.estimator = Estimator(
            champions, lambda: settings.nodes, self.folder, self.foresight.usual_runtime
        )
        self.learner = Learner(self.live, self.store, champions, self.estimator, settings.data)
        self.sizing = Sizing(self.live, self.store, settings.data) if settings.rightsize else None
        self.what_if = asyncio.Lock()
        """One replay of the journal at a time."""
        self._chance = Random()
        """For the names of jobs; they are no secret, and asking the system each time costs."""

    def close(self) -> None:
        """Stop deciding and let go of the database; jobs go on."""
        for part in self.beside:
            part.stop()
        self.live.stop()
        self.store.close()

    @property
    def beside(self) -> Sequence[Foresight | Learner | Sizing]:
        """What works beside the deciding loop, each on a thread of its own."""
        parts = (self.foresight, self.learner, self.sizing)
        return [part for part in parts if part is not None]

    # -- news -----------------------------------------------------------------------------------

    def _answer(self, answers: Answers) -> None:
        """Pass on answers of the deciding loop, all of them in one go; called by that loop."""
        self._soon(_deliver, self.loop, answers)

    def _written(self, lease: int, rows: Sequence[JobRow], changes: Sequence[JobChange]) -> None:
        """Something is on disk: remember it, and wake whoever waits for news; called by the
        deciding loop."""
        changed = [change.job for change in changes]
        self.recent.wrote(lease, rows, self.store.submitted, changed)
        if self._waiting:
            self._soon(self._wake)

    def _soon(self, do: Callable[..., None], *arguments: Any) -> None:
        if self.loop is not None:
            with suppress(RuntimeError):  # it is closed: the server ends, and nobody waits
                self.loop.call_soon_threadsafe(do, *arguments)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def news(self, timeout: float) -> None:
        """Wait until something was committed, or for so long."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await asyncio.wait([future], timeout=timeout)
        future.cancel()
        if future in self._waiting:
            self._waiting.remove(future)

    # -- requests -------------------------------------------------------------------------------

    async def submit(
        self, manifest: Manifest, user: User, folder: str | None, key: str | None
    ) -> JobRow:
        """Accept a job: when this returns, it is on disk. The same key gives the same job."""
        if key is None:
            job_id = f"{manifest.name}-{self._chance.getrandbits(48):012x}"
            return await self._accept(job_id, manifest, user, folder)
        same = hashlib.sha256(f"{user.name}\0{key}".encode()).hexdigest()
        job_id = f"{manifest.name}-{same[:16]}"
        task = self._submitting.get(job_id)
        if task is None:
            task = asyncio.ensure_future(self._accept_once(job_id, manifest, user, folder))
            self._submitting[job_id] = task
            task.add_done_callback(lambda _: self._submitting.pop(job_id, None))
        return await asyncio.shield(task)

    async def _accept_once(
        self, job_id: str, manifest: Manifest, user: User, folder: str | None
    ) -> JobRow:
        known = await asyncio.to_thread(self.store.jobs.get, job_id)
        return known or await self._accept(job_id, manifest, user, folder)

    async def _accept(
        self, job_id: str, manifest: Manifest, user: User, folder: str | None
    ) -> JobRow:
        self.check_queue(manifest.queue)
        if folder is not None and not self.folder(folder).is_file():
            raise UserError(f"folder {folder} was not uploaded: PUT /api/v1/folders/{folder}")
        asked = manifest
        spec = to_spec(asked, job_id, user.name)
        manifest, estimates = await self.foresee(asked, spec, folder)
        if manifest is not asked:
            spec = to_spec(manifest, job_id, user.name)
        if manifest.webhooks:
            spec = replace(spec, labels={**spec.labels, "presage/webhooks": "yes"})
        now = time.time()
        row = JobRow(
            id=job_id,
            name=manifest.name,
            owner=user.name,
            team=user.team,
            queue=manifest.queue,
            submitted_at=now,
            manifest=manifest.to_json(),
            folder=folder,
            estimates=encode(estimates) if estimates is not None else None,
        )
        audit = AuditEntry(now, user.name, "submit", job_id, {"name": manifest.name})
        await self._decide(ev.JobSubmitted(spec, estimates), row, audit)
        return row

    async def foresee(
        self, manifest: Manifest, spec: JobSpec, folder: str | None
    ) -> tuple[Manifest, Estimates | None]:
        """What is foreseen of a job, and its manifest with numbers instead of auto."""
        if manifest.model is None and not says_auto(manifest):
            return manifest, self.estimator.of(manifest, spec, folder)
        estimates = await asyncio.to_thread(self.estimator.of, manifest, spec, folder)
        if says_auto(manifest):
            needs = await asyncio.to_thread(self.estimator.needs, manifest, spec, folder)
            manifest = resolved(manifest, needs)
        return manifest, estimates

    async def request(
        self, fact: ev.Fact, user: User, what: str, job: str = "", **detail: Any
    ) -> None:
        """Have the loop take in a fact, with a line in the audit log."""
        await self._decide(fact, None, AuditEntry(time.time(), user.name, what, job, detail))

    async def _decide(self, fact: ev.Fact, row: JobRow | None, audit: AuditEntry) -> None:
        """Hand something to the deciding loop, and wait until it is on disk."""
        loop = asyncio.get_running_loop()
        ticket: asyncio.Future[None] = loop.create_future()
        self.live.submit(ticket, fact, row, audit)
        late = loop.call_later(_ANSWER_S, _give_up, ticket)
        try:
            await ticket
        finally:
            late.cancel()

    async def ask(self, question: Any) -> Any:
        """Read something from the state."""
        return await asyncio.to_thread(self.live.ask, question)

    def seen(self, job_id: str, user: User) -> JobRow:
        """A job that a user may know of."""
        row = self.store.jobs.get(job_id)
        if row is None or not may_see(user, row):
            raise NotFound(f"there is no job {job_id[:80]}")
        return row

    async def look(self, job_id: str, user: User) -> Known:
        """A job that a user may know of, without its manifest, and every status it had."""

        def read() -> Known | None:
            row = self.store.jobs.get(job_id)
            if row is None:
                return None
            return Known(replace(row, manifest=None), self.store.jobs.transitions(job_id))

        lease = self.live.lease
        known = self.recent.job(lease, job_id)
        if known is None:
            known = await asyncio.to_thread(self.recent.read, lease, job_id, read)
        if known is None or not may_see(user, known.row):
            raise NotFound(f"there is no job {job_id[:80]}")
        return known

    def changeable(self, job_id: str, user: User) -> JobRow:
        """A job that a user may change and that is not over."""
        row = self.seen(job_id, user)
        if not may_change(user, row):
            raise Denied(f"job {row.id} is {row.owner}'s; {user.name} may look at it only")
        if row.status in ENDED:
            raise Conflict(f"job {row.id} is over: {row.status}")
        return row

    # -- files ----------------------------------------------------------------------------------

    def folder(self, digest: str) -> Path:
        """Where an uploaded work folder is kept."""
        return self.settings.data / "folders" / f"{digest}.tar.gz"

    def log_file(self, row: JobRow, attempt: int, worker: str) -> Path:
        """Where a worker's output is kept."""
        return self.settings.data / "jobs" / row.id / "logs" / str(attempt) / f"{worker}.log"

    def secrets(self, row: JobRow) -> list[bytes]:
        """What the secrets of a job hold, longest first: it must not be shown to anybody."""
        names = set(((row.manifest or {}).get("secrets") or {}).values())
        found = []
        for name in names:
            with suppress(OSError):
                found.append((self.settings.data / "secrets" / name).read_bytes().rstrip(b"\n"))
        return sorted(filter(None, found), key=len, reverse=True)

    def write_job_file(self, job_id: str) -> None:
        """What the executor needs of a job, whole or not at all."""
        row = self.store.jobs.get(job_id)
        if row is None:
            return
        home = self.settings.data / "jobs" / job_id
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec = self.live.spec(job_id)
        body = {
            # Not as it was submitted: one that ran out of memory no longer shares its devices.
            "manifest": {**(row.manifest or {}), "share": spec.shareable},
            "folder": row.folder,
            "owner": row.owner,
            "memory_mib": {role.name: role.resources.memory_mib for role in spec.roles},
        }
        draft = home / f".job.json.{os.getpid()}"
        draft.write_text(json.dumps(body), encoding="utf-8")
        draft.replace(home / "job.json")

    # -- helpers --------------------------------------------------------------------------------

    def check_queue(self, queue: str) -> None:
        """Refuse a queue that is not there."""
        known = self.settings.queues
        if known and queue not in known and queue != "default":
            raise UserError(f"there is no queue '{queue}'; there are {', '.join(known)}")


def _deliver(loop: asyncio.AbstractEventLoop, answers: list[tuple[Any, Exception | None]]) -> None:
    """Answer requests, on the thread that they wait on: a few at a time, so that a crowd of them
    lets others through between."""
    if len(answers) > _AT_ONCE:
        loop.call_soon(_deliver, loop, answers[_AT_ONCE:])
    for ticket, error in answers[:_AT_ONCE]:
        if ticket.done():
            continue
        if error is None:
            ticket.set_result(None)
        else:
            ticket.set_exception(error)


def _give_up(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        ticket.set_exception(_no_answer())


def _no_answer() -> NotLeading:
    return NotLeading("no answer in time; ask whether it was done before trying again")


def nodes_of(engine: Engine) -> list[tuple[Node, str, dict[str, Any]]]:
    """Every node, its state, and what is free and who is on it."""
    state = engine.state
    capacity = state.capacity
    on: dict[str, dict[str, None]] = {}
    for job in state.active.values():
        for worker in job.allocation + (job.resizing or ()):
            on.setdefault(worker.node, {})[job.id] = None
    found = []
    for name, i in capacity.index.items():
        node = capacity.nodes[i]
        where = "down" if name in state.down else "draining" if name in state.draining else "up"
        free = {
            "gpu_milli": sum(max(0, milli) for milli in capacity.free_gpu[i]),
            "cpu_milli": capacity.free_cpu[i],
            "memory_mib": capacity.free_memory[i],
            "jobs": list(on.get(name, ())),
        }
        found.append((node, where, free))
    return found
