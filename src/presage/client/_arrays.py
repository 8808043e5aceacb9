"""What can be asked of a server about arrays, and about submitting again; a part of `Client`."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from presage.client._answers import value_of, values_of
from presage.client._http import Connection, path_of
from presage.model.answers import (
    ArrayBest,
    ArrayExplanation,
    ArraySummary,
    ArrayTold,
    JobSummary,
    Submitted,
)
from presage.model.errors import ApiError, UserError

if TYPE_CHECKING:
    from presage.manifest import Submission

__all__ = ["ArrayCalls", "ArrayHandle"]


class ArrayHandle:
    """An array of a server: what was last heard of it, and what can be asked for."""

    __slots__ = ("_client", "_heard", "id")

    def __init__(self, client: ArrayCalls, array_id: str) -> None:
        self._client, self.id = client, array_id
        self._heard: ArraySummary | None = None

    @property
    def info(self) -> ArraySummary:
        """What was last heard of it; asked for if nothing was yet."""
        return self._heard or self.refresh().info

    def refresh(self) -> Self:
        """Ask the server."""
        self._heard = self._client.get(ArraySummary, f"/arrays/{path_of(self.id)}")
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Block until all of its jobs are over, or so many seconds passed."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.1
        while self.refresh().info.ended_at is None:
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                break
            time.sleep(left)
            pause = min(2.0, pause * 1.3)
        return self

    def jobs(self, *, status: Sequence[str] = ()) -> list[JobSummary]:
        """Its jobs, in their order."""
        return self._client.members(self.id, status)

    def best(self, limit: int = 10) -> ArrayBest:
        """Its best jobs, by the metric of its objective."""
        return self._client.best(self.id, limit)

    def stop(self) -> ArrayTold:
        """End every job that is not over."""
        return self._client.tell_array(self.id, "stop")

    def halt(self) -> ArrayTold:
        """Stop every job with a checkpoint."""
        return self._client.tell_array(self.id, "halt")

    def resume(self) -> ArrayTold:
        """Have every halted job go on."""
        return self._client.tell_array(self.id, "resume")

    def __repr__(self) -> str:
        return f"ArrayHandle({self.id!r})"


class ArrayCalls(Connection):
    """Arrays, and what is submitted from a file. `upload` is the client's."""

    upload: Callable[..., str]

    def submit_array(
        self,
        manifest: str | PathLike[str],
        *,
        changes: Sequence[str] = (),
        folder: bool = True,
    ) -> ArrayHandle:
        """Submit a manifest file with a sweep, and with it one copy of the folder it is in."""
        from presage.manifest import read_submission

        asked = read_submission(Path(manifest), changes)
        if asked.sweep is None:
            raise UserError(f"{manifest} has no sweep; Client.submit takes one job")
        return ArrayHandle(self, self.submit_read(asked, Path(manifest), folder=folder).id)

    def submit_read(
        self, asked: Submission, path: Path, *, folder: bool = True, include: Sequence[str] = ()
    ) -> Submitted:
        """Submit what was read from a file, one job or many, with the folder of the file unless
        it names a git source."""
        sent = folder and asked.first.git is None
        name = self.upload(path.absolute().parent, include) if sent else None
        headers = {"Content-Type": "application/yaml", "Idempotency-Key": uuid.uuid4().hex}
        text: bytes | str = path.read_bytes() if asked.as_written else json.dumps(asked.data)
        if not asked.as_written:
            headers["Content-Type"] = "application/json"
        query = {"folder": name} if name else {}
        body = self.call("POST", "/jobs", content=text, params=query, headers=headers)
        return value_of(Submitted, body)

    def array(self, array_id: str) -> ArrayHandle:
        """An array by its id."""
        return ArrayHandle(self, array_id).refresh()

    def is_array(self, array_id: str) -> bool:
        """Whether there is an array of this id."""
        try:
            self.call("GET", f"/arrays/{path_of(array_id)}")
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def arrays(
        self, *, owner: str | None = None, queue: str | None = None, limit: int | None = None
    ) -> Iterator[ArraySummary]:
        """Arrays, newest first, page by page."""
        asked = {"owner": owner, "queue": queue}
        wanted: dict[str, Any] = {key: value for key, value in asked.items() if value}
        shown, after = 0, None
        while True:
            size = 1000 if limit is None else min(1000, limit - shown)
            page = {"limit": size, **({"after": after} if after is not None else {})}
            body = self.call("GET", "/arrays", params={**wanted, **page})
            yield from values_of(ArraySummary, body["arrays"])
            shown += len(body["arrays"])
            after = body["next"]
            if after is None or (limit is not None and shown >= limit):
                return

    def members(self, array_id: str, status: Sequence[str] = ()) -> list[JobSummary]:
        """The jobs of an array, in their order."""
        jobs: list[JobSummary] = []
        query: dict[str, Any] = {"array": array_id, "limit": 1000}
        if status:
            query["status"] = list(status)
        while True:
            body = self.call("GET", "/jobs", params=query)
            jobs += values_of(JobSummary, body["jobs"])
            if body["next"] is None:
                return jobs[::-1]
            query["after"] = body["next"]

    def best(self, array_id: str, limit: int = 10) -> ArrayBest:
        """The best jobs of an array."""
        return self.get(ArrayBest, f"/arrays/{path_of(array_id)}/best", {"limit": limit})

    def explain_array(self, array_id: str) -> ArrayExplanation:
        """Why the jobs of an array are where they are."""
        return self.get(ArrayExplanation, f"/arrays/{path_of(array_id)}/explain")

    def tell_array(self, array_id: str, what: str) -> ArrayTold:
        """`stop`, `halt` or `resume` all jobs of an array."""
        return value_of(ArrayTold, self.call("POST", f"/arrays/{path_of(array_id)}/{what}"))

    def resubmit(
        self, job_id: str, changes: Sequence[str] = (), *, failed: bool = False
    ) -> Submitted:
        """Submit a job or an array again, with changes such as `resources.gpus=2`."""
        kind = "arrays" if self.is_array(job_id) else "jobs"
        asked = {"set": list(changes), "failed": failed}
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        path = f"/{kind}/{path_of(job_id)}/resubmit"
        return value_of(Submitted, self.call("POST", path, json=asked, headers=headers))
