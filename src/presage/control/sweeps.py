"""Arrays: the jobs of a sweep accepted as one, told as one, and submitted again.

All members of an array are in one turn of the deciding loop: on disk together or not at all. Who
may ask for what was settled before.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from presage.control.advisors.pruning import need_optuna
from presage.control.board import METRIC
from presage.control.requests import Requests, shown_estimates
from presage.manifest import Manifest, Submission, says_auto, submission_of, to_spec, with_changes
from presage.model import event as ev
from presage.model.errors import Conflict, ManifestError
from presage.model.estimate import Estimates
from presage.model.job import JobSpec
from presage.store.records import ArrayRow, AuditEntry, JobRow, User
from presage.store.sql import SqlStore

__all__ = ["Sweeps", "members"]

FROM = "resubmit-of"
"""The label of what was submitted again: what it was made of."""
_PAGE = 1000
_TOLD = {
    "stop": (ev.CancelRequested, ("QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "HALTED")),
    "halt": (ev.HaltRequested, ("QUEUED", "DOWNLOADING", "PROCESSING", "STORING")),
    "resume": (ev.ResumeRequested, ("HALTED",)),
}


def members(store: SqlStore, array_id: str, statuses: Sequence[str] = ()) -> list[JobRow]:
    """The jobs of an array, without manifests, in their order."""
    rows: list[JobRow] = []
    after = None
    while True:
        page = store.jobs.list(array=array_id, statuses=statuses, limit=_PAGE, after=after)
        rows += page
        if len(page) < _PAGE:
            return rows[::-1]
        after = page[-1].seq


class Sweeps:
    """Requests about arrays; for one asyncio loop."""

    def __init__(self, requests: Requests, store: SqlStore) -> None:
        self._requests, self._store = requests, store
        self._submitting: dict[str, asyncio.Task[ArrayRow]] = {}

    async def submit(
        self, asked: Submission, user: User, folder: str | None, key: str | None
    ) -> ArrayRow:
        """Accept all jobs of a sweep. The same idempotency key gives the same array."""
        array_id = self._requests.new_id(asked.first.name, user, key)
        if key is None:
            return await self._accept(array_id, asked, user, folder)
        task = self._submitting.get(array_id)
        if task is None:
            task = asyncio.ensure_future(self._accept_once(array_id, asked, user, folder))
            self._submitting[array_id] = task
            task.add_done_callback(lambda _: self._submitting.pop(array_id, None))
        return await asyncio.shield(task)

    async def tell(self, array: ArrayRow, what: str, user: User) -> int:
        """Stop, halt or resume every member that it can be done to; how many that were."""
        kind, statuses = _TOLD[what]
        rows = await asyncio.to_thread(members, self._store, array.id, statuses)
        if not rows:
            raise Conflict(f"array {array.id} has no job to {what}: see presage ps {array.id}")
        facts = [kind(row.id) for row in rows]
        audit = AuditEntry(time.time(), user.name, what, array.id, {"jobs": len(rows)})
        await self._requests.decide(facts, audit=audit)
        return len(rows)

    async def resubmit(
        self,
        row: JobRow | ArrayRow,
        changes: Sequence[str],
        user: User,
        *,
        failed: bool = False,
        key: str | None = None,
    ) -> JobRow | ArrayRow:
        """Submit a job or an array again, with changes; of an array, all of it or what failed."""
        asked = await asyncio.to_thread(self._again, row, changes, failed)
        if asked.sweep is not None:
            return await self.submit(asked, user, row.folder, key)
        return await self._requests.submit(asked.first, user, row.folder, key)

    def _again(self, row: JobRow | ArrayRow, changes: Sequence[str], failed: bool) -> Submission:
        """What was submitted, with changes. A member is made from its array's manifest, so that
        `params.lr=0.2` has its effect wherever `${lr}` stands."""
        data: dict[str, Any] = dict(row.manifest or {})
        if isinstance(row, ArrayRow):
            points = [
                job.params for job in members(self._store, row.id, _FAILED if failed else ())
            ]
            if not points:
                raise Conflict(f"no job of array {row.id} failed")
            if failed:
                sweep = {k: data["sweep"][k] for k in ("at_once", "prune") if k in data["sweep"]}
                data = {**data, "sweep": {**sweep, "points": points}}
        elif failed:
            raise ManifestError("--failed is for an array; this is one job")
        elif row.array is not None:
            array = self._store.arrays.get(row.array)
            template = dict(array.manifest) if array is not None else {}
            alone = {key: value for key, value in template.items() if key != "sweep"}
            settings = {**(template.get("params") or {}), **(row.params or {})}
            changed = with_changes({**alone, "params": settings}, changes)
            settings = changed.pop("params", {})
            data = {**changed, "sweep": {"points": [settings]}} if settings else changed
            changes = ()
        data.pop("after", None)  # it waited for that already
        labels = {**(data.get("labels") or {}), FROM: row.id}
        asked = submission_of(with_changes({**data, "labels": labels}, changes), "resubmission")
        if not isinstance(row, ArrayRow) and asked.sweep is not None and len(asked.points) == 1:
            return Submission(asked.first, asked.first.to_json())
        return asked

    async def _accept_once(
        self, array_id: str, asked: Submission, user: User, folder: str | None
    ) -> ArrayRow:
        known = await asyncio.to_thread(self._store.arrays.get, array_id)
        return known or await self._accept(array_id, asked, user, folder)

    async def _accept(
        self, array_id: str, asked: Submission, user: User, folder: str | None
    ) -> ArrayRow:
        sweep, objective = asked.sweep, asked.objective
        assert sweep is not None
        if sweep.prune is not None:
            await asyncio.to_thread(need_optuna, "sweep.prune")
        self._requests.check(asked.first, user, folder)
        jobs = await asyncio.to_thread(lambda: list(asked.jobs()))
        for job in jobs:  # a parameter may stand anywhere: in a priority, in the name of a secret
            self._requests.check(job, user)
        now = time.time()
        array = ArrayRow(
            id=array_id,
            name=asked.first.name,
            owner=user.name,
            team=user.team,
            queue=asked.first.queue,
            submitted_at=now,
            size=len(jobs),
            at_once=sweep.at_once or 0,
            metric=objective.metric if objective else "",
            mode=objective.mode if objective else "min",
            manifest=dict(asked.data),
            folder=folder,
        )
        made = await self._members(array, jobs, user)
        audit = AuditEntry(now, user.name, "submit", array_id, {"jobs": len(jobs)})
        facts, rows = [one.fact for one in made], [one.row for one in made]
        await self._requests.decide(facts, rows, audit, array)
        return array

    async def _members(
        self, array: ArrayRow, jobs: Sequence[Manifest], user: User
    ) -> list[_NewMember]:
        made = []
        foreseen: dict[Any, tuple[Manifest, Estimates | None]] = {}
        after = jobs[0].after and await self._requests.resolved(jobs[0].after, user)
        for number, manifest in enumerate(jobs, 1):
            job_id = f"{array.id}-{number}"
            if after:
                manifest = manifest.model_copy(update={"after": after})
            manifest = self._requests.with_shares(manifest)
            spec = to_spec(manifest, job_id, user.name)
            estimates = None
            told = manifest.model is not None or manifest.link_share is not None
            if told or says_auto(manifest):
                # Alike but for their commands: what is foreseen of one is foreseen of all.
                model = manifest.model and manifest.model.described()
                alike = (model, spec.roles, manifest.share, manifest.link_share)
                if alike not in foreseen:
                    foreseen[alike] = await self._requests.foresee(manifest, spec, array.folder)
                like, estimates = foreseen[alike]
                manifest = manifest.model_copy(
                    update={"resources": like.resources, "roles": like.roles}
                )
                spec = to_spec(manifest, job_id, user.name)
            made.append(_member(array, number, manifest, spec, estimates))
            if number % 50 == 0:
                await asyncio.sleep(0)  # others are answered in between
        return made


_FAILED = ("FAILED",)


@dataclass(frozen=True, slots=True)
class _NewMember:
    fact: ev.JobSubmitted
    row: JobRow


def _member(
    array: ArrayRow, number: int, manifest: Manifest, spec: JobSpec, estimates: Estimates | None
) -> _NewMember:
    labels = dict(spec.labels)
    if array.metric:
        labels[METRIC] = array.metric
    if manifest.webhooks:
        labels["presage/webhooks"] = "yes"
    spec = replace(cast(Any, spec), labels=labels, array=array.id, at_once=array.at_once)
    if array.team:
        spec = replace(cast(Any, spec), team=array.team)
    code, text = "ok", ""
    if array.at_once and number > array.at_once:
        code, text = "at_once", f"at most {array.at_once} of its array go at once"
    row = JobRow(
        id=spec.id,
        name=manifest.name,
        owner=array.owner,
        team=array.team,
        queue=manifest.queue,
        submitted_at=array.submitted_at,
        manifest=manifest.to_json(),
        folder=array.folder,
        estimates=shown_estimates(estimates, spec),
        array=array.id,
        params=dict(manifest.params),
        reason_code=code,
        reason_text=text,
    )
    return _NewMember(ev.JobSubmitted(spec, estimates), row)
