"""What people ask for, handed to the deciding loop: submissions, and facts such as stop or scale.
When a request returns, it is on disk. Who may ask for what was settled before."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from presage.control.advisors.needs import NeedsEstimator
from presage.control.dependencies import resolved_after
from presage.control.kernel import Live
from presage.control.records.retention import touch_folder
from presage.layout import Layout
from presage.manifest import Manifest, resolved, says_auto, to_spec
from presage.manifest.schema import After
from presage.model import event as ev
from presage.model.codec import encode
from presage.model.errors import NotLeading, UserError
from presage.model.estimate import Estimates
from presage.model.job import JobSpec
from presage.store.records import ArrayRow, AuditEntry, JobRow, User
from presage.store.sql import SqlStore

__all__ = ["Requests", "shown_estimates"]

_ANSWER_S = 15.0
"""Timeout of a request that waits until it is on disk."""


class Requests:
    """The requests to one deciding loop; for one asyncio loop."""

    def __init__(
        self,
        live: Live,
        store: SqlStore,
        estimator: NeedsEstimator,
        layout: Layout,
        queues: Collection[str],
        check: Callable[[Manifest, User], None] = lambda manifest, user: None,
        may_see: Callable[[User, JobRow | ArrayRow], bool] = lambda user, row: True,
        shares: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    ) -> None:
        self._may_see = may_see
        self.with_shares = shares
        """A manifest with what its queue says of shares of GPUs; refuses what nobody here can
        enforce or guarantee."""
        self._live, self._store, self._estimator = live, store, estimator
        self._layout, self._queues, self._check = layout, queues, check
        self.turnstile = asyncio.Semaphore(1)
        """Submissions pass one by one (backpressure), so that a crowd of them lets others through
        between."""
        self._submitting: dict[str, asyncio.Task[JobRow]] = {}
        self._chance = Random()
        """For the names of jobs; they are no secret, and asking the system each time costs."""

    def check(self, manifest: Manifest, user: User, folder: str | None = None) -> None:
        """Refuse a queue or a folder that is not there, and what a user may not ask for."""
        known, queue = self._queues, manifest.queue
        if known and queue not in known and queue != "default":
            raise UserError(f"there is no queue '{queue}'; there are {', '.join(known)}")
        self._check(manifest, user)
        if folder is None:
            return
        if manifest.git is not None:
            raise UserError("a job has a work folder or a git source, not both; leave one out")
        if not self._layout.folder(folder).is_file():
            raise UserError(f"folder {folder} was not uploaded: PUT /api/v1/folders/{folder}")
        touch_folder(self._layout.folder(folder))

    def new_id(self, name: str, user: User, key: str | None) -> str:
        """The id of a new job or array; the same for the same idempotency key."""
        if key is None:
            return f"{name}-{self._chance.getrandbits(48):012x}"
        same = hashlib.sha256(f"{user.name}\0{key}".encode()).hexdigest()
        return f"{name}-{same[:16]}"

    async def resolved(self, after: After, user: User) -> After:
        """What a job is to wait for, by ids."""
        sees = partial(self._may_see, user)
        return await asyncio.to_thread(resolved_after, after, self._store, sees)

    async def submit(
        self, manifest: Manifest, user: User, folder: str | None, key: str | None
    ) -> JobRow:
        """Accept a job. The same idempotency key gives the same job."""
        job_id = self.new_id(manifest.name, user, key)
        if key is None:
            return await self._accept(job_id, manifest, user, folder)
        task = self._submitting.get(job_id)
        if task is None:
            task = asyncio.ensure_future(self._accept_once(job_id, manifest, user, folder))
            self._submitting[job_id] = task
            task.add_done_callback(lambda _: self._submitting.pop(job_id, None))
        return await asyncio.shield(task)

    async def foresee(
        self, manifest: Manifest, spec: JobSpec, folder: str | None
    ) -> tuple[Manifest, Estimates | None]:
        """What is foreseen of a job, and its manifest with numbers instead of auto."""
        model, estimator = manifest.model, self._estimator
        if model is None and not says_auto(manifest):
            return manifest, estimator.of(spec, None, folder)
        estimates = await asyncio.to_thread(estimator.of, spec, model, folder)
        if says_auto(manifest):
            needs = await asyncio.to_thread(estimator.needs, spec, model, folder)
            manifest = resolved(manifest, needs)
        return manifest, estimates

    async def request(
        self, fact: ev.Fact, user: User, what: str, job: str = "", **detail: Any
    ) -> None:
        """Have the loop take in a fact, with a line in the audit log."""
        audit = AuditEntry(time.time(), user.name, what, job, detail)
        await self.decide([fact], audit=audit)

    async def _accept_once(
        self, job_id: str, manifest: Manifest, user: User, folder: str | None
    ) -> JobRow:
        known = await asyncio.to_thread(self._store.jobs.get, job_id)
        return known or await self._accept(job_id, manifest, user, folder)

    async def _accept(
        self, job_id: str, manifest: Manifest, user: User, folder: str | None
    ) -> JobRow:
        self.check(manifest, user, folder)
        if manifest.after is not None:
            after = await self.resolved(manifest.after, user)
            manifest = manifest.model_copy(update={"after": after})
        asked = manifest = self.with_shares(manifest)
        spec = to_spec(asked, job_id, user.name)
        manifest, estimates = await self.foresee(asked, spec, folder)
        if manifest is not asked:
            spec = to_spec(manifest, job_id, user.name)
        if user.team:
            spec = replace(spec, team=user.team)
        if manifest.webhooks:
            spec = replace(spec, labels={**spec.labels, "presage/webhooks": "yes"})
        now = time.time()
        waits = ", ".join(one.job for one in spec.after)
        row = JobRow(
            id=job_id,
            name=manifest.name,
            owner=user.name,
            team=user.team,
            queue=manifest.queue,
            submitted_at=now,
            manifest=manifest.to_json(),
            folder=folder,
            estimates=shown_estimates(estimates, spec),
            params=dict(manifest.params) or None,
            reason_code="dependency" if waits else "ok",
            reason_text=f"waits for {waits}" if waits else "",
        )
        audit = AuditEntry(now, user.name, "submit", job_id, {"name": manifest.name})
        await self.decide([ev.JobSubmitted(spec, estimates)], [row], audit)
        return row

    async def decide(
        self,
        facts: Sequence[ev.Fact],
        rows: Sequence[JobRow] = (),
        audit: AuditEntry | None = None,
        array: ArrayRow | None = None,
    ) -> None:
        """Hand something to the deciding loop, and wait until it is on disk, all of it."""
        loop = asyncio.get_running_loop()
        ticket: asyncio.Future[None] = loop.create_future()
        self._live.submit_all(ticket, facts, rows, audit, array)
        late = loop.call_later(_ANSWER_S, _give_up, ticket)
        try:
            await ticket
        finally:
            late.cancel()


def shown_estimates(estimates: Estimates | None, spec: JobSpec) -> dict[str, Any] | None:
    """What users see of the estimates: of a job without GPUs no share of a GPU."""
    if estimates is None:
        return None
    asked = (role.resources for role in spec.roles)
    if not any(each.gpu_milli or each.gpu_memory_mib for each in asked):
        estimates = replace(estimates, utilization=None)
    shown: dict[str, Any] = encode(estimates)
    return shown


def _give_up(ticket: asyncio.Future[None]) -> None:
    if not ticket.done():
        text = "no answer in time; ask whether it was done before trying again"
        ticket.set_exception(NotLeading(text))
