"""A typed client of the HTTP API: what the command line uses, and scripts can.

    import presage

    with presage.Client() as server:                # PRESAGE_URL, PRESAGE_TOKEN
        job = server.submit("train/presage.yaml")
        print(job.wait().status)

Answers are the values of `presage.model.answers`. A server that is starting or changing over is
asked again for a while (retry with backoff; PRESAGE_WAIT_S, 10 seconds unless set); a request that
could have been done twice carries an idempotency key that makes it once.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import os
import tarfile
import time
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import httpx

from presage._retry import PatientClient
from presage.model.answers import (
    Accepted,
    DryRun,
    Explanation,
    ExportedTrace,
    JobStatus,
    JobSummary,
    NewUser,
    NodeStatus,
    QueueStatus,
    ScaleAccepted,
    Status,
    StatusChange,
    Submitted,
    UserInfo,
    WaitingJob,
    WhatIf,
)
from presage.model.errors import ApiError, PackError, Unreachable, UserError
from presage.model.job import Reason

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = [
    "DEFAULT_URL",
    "Client",
    "JobHandle",
    "pack_folder",
    "submit",
    "to_json",
]

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8265"

_PATIENCE_S = 10.0
"""How long a server that does not answer is waited for, unless PRESAGE_WAIT_S says otherwise."""
_REPLAY_S = 660.0
"""A journal is replayed for ten minutes at most."""
_SKIPPED = {".git", ".hg", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".ruff_cache"}
_MOST_BYTES = 256 << 20


def submit(manifest: str | PathLike[str], *, folder: bool = True) -> JobHandle:
    """Submit a manifest, and with it a copy of the folder it is in, to the server of PRESAGE_URL
    with PRESAGE_TOKEN, as `presage submit` does."""
    return Client().submit(manifest, folder=folder)


class JobHandle:
    """A job of a server: what was last heard of it, and what can be asked for.

    `status`, `reason` and `info` are as of the last answer; `refresh` asks again.
    """

    __slots__ = ("_client", "_heard")

    def __init__(self, client: Client, heard: Accepted | JobSummary) -> None:
        self._client, self._heard = client, heard

    @property
    def id(self) -> str:
        """Its name on the server."""
        return self._heard.id

    @property
    def status(self) -> Status:
        """Where it is."""
        return self._heard.status

    @property
    def reason(self) -> Reason:
        """Why it is there."""
        return self.summary.reason

    @property
    def summary(self) -> JobSummary:
        """What a list of jobs says about it; asked for if nothing did yet."""
        return self._heard if isinstance(self._heard, JobSummary) else self.info

    @property
    def info(self) -> JobStatus:
        """Everything about it; asked for if only a list was seen."""
        if not isinstance(self._heard, JobStatus):
            self.refresh()
        assert isinstance(self._heard, JobStatus)
        return self._heard

    def refresh(self, *, wait_eta_s: float = 0.0) -> Self:
        """Ask the server; with `wait_eta_s`, it may take so long until a job that was just
        submitted has been foreseen."""
        query = {"wait_eta_s": wait_eta_s} if wait_eta_s else {}
        self._heard = self._client.get(JobStatus, f"/jobs/{_path(self.id)}", query)
        return self

    def wait(self, timeout: float | None = None) -> Self:
        """Block until it is over, or so many seconds passed."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.1
        while self.refresh().info.ended_at is None:
            left = pause if until is None else min(pause, until - time.monotonic())
            if left <= 0:
                break
            time.sleep(left)
            pause = min(1.0, pause * 1.3)
        return self

    def logs(
        self, follow: bool = False, *, worker: str = "0", attempt: int | None = None
    ) -> Iterator[str]:
        """The lines that a worker wrote; with `follow`, until the job is over."""
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        for chunk in self._client.logs(self.id, worker, follow=follow, attempt=attempt):
            *lines, rest = (rest + decoder.decode(chunk)).split("\n")
            yield from lines
        if rest:
            yield rest

    def stop(self) -> Self:
        """End it, after a checkpoint where it can take one."""
        return self._tell("stop")

    def halt(self) -> Self:
        """Stop it with a checkpoint; `resume` has it go on."""
        return self._tell("halt")

    def resume(self) -> Self:
        """Have it go on from its checkpoint."""
        return self._tell("resume")

    def scale(self, workers: int) -> Self:
        """Give it so many workers, within the range of its manifest, as there is room."""
        self._heard = self._client.scale(self.id, workers)
        return self

    def explain(self) -> Explanation:
        """Why it is where it is, when it starts, and what would help."""
        return self._client.explain(self.id)

    def _tell(self, what: str) -> Self:
        self._heard = self._client.tell(self.id, what)
        return self

    def __repr__(self) -> str:
        return f"JobHandle({self.id!r}, {self.status})"

    def _repr_html_(self) -> str:
        from presage.page import html_table

        seen = self.summary
        where = ", ".join(seen.nodes)
        cells = [seen.status, seen.reason.text, seen.queue, seen.workers or "", where]
        heads = ["job", "status", "because", "queue", "workers", "nodes"]
        return html_table("", heads, [(seen.id, cells)])


class Client:
    """One server, by its address."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, patience_s: float | None = None
    ) -> None:
        self.url = (url or os.environ.get("PRESAGE_URL") or DEFAULT_URL).rstrip("/")
        token = token or os.environ.get("PRESAGE_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if patience_s is None:
            patience_s = _patience()
        try:
            self._http = PatientClient(
                patience_s,
                base_url=self.url,
                headers=headers,
                timeout=30.0,
                verify=not self.url.startswith("http:"),  # to read certificates takes a moment
            )
        except (httpx.InvalidURL, ValueError) as error:
            raise Unreachable(f"PRESAGE_URL {self.url} is no address: {error}") from None
        weakref.finalize(self, self._http.close)  # for those who do not use `with`

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    # -- jobs -----------------------------------------------------------------------------------

    def submit(self, manifest: str | PathLike[str], *, folder: bool = True) -> JobHandle:
        """Submit a manifest file, and with it a copy of the folder it is in."""
        from presage.manifest import read_manifest

        path = Path(manifest)
        read_manifest(path)  # a mistake raises with its line, before anything is sent
        name = self.upload(path.absolute().parent) if folder else None
        return self.submit_text(path.read_bytes(), folder=name)

    def submit_text(
        self,
        manifest: bytes | str,
        content_type: str = "application/yaml",
        *,
        folder: str | None = None,
    ) -> JobHandle:
        """Submit a manifest that is YAML, or JSON; `folder` is what `upload` returned."""
        headers = {"Content-Type": content_type, "Idempotency-Key": uuid.uuid4().hex}
        query = {"folder": folder} if folder else {}
        body = self._call("POST", "/jobs", content=manifest, params=query, headers=headers)
        return JobHandle(self, _value(Submitted, body))

    def upload(self, folder: Path) -> str:
        """Send a work folder unless the server has it; returns its name there."""
        packed = pack_folder(folder)
        name = hashlib.sha256(packed).hexdigest()
        try:
            self._call("HEAD", f"/folders/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._call("PUT", f"/folders/{name}", content=packed)
        return name

    def jobs(
        self,
        *,
        status: Sequence[str] = (),
        queue: str | None = None,
        owner: str | None = None,
        limit: int | None = None,
    ) -> Iterator[JobHandle]:
        """Jobs, newest first, page by page."""
        asked = {"status": list(status), "queue": queue, "owner": owner}
        wanted = {key: value for key, value in asked.items() if value}
        shown, after = 0, None
        while True:
            size = 1000 if limit is None else min(1000, limit - shown)
            page = {"limit": size, **({"after": after} if after is not None else {})}
            body = self._call("GET", "/jobs", params={**wanted, **page})
            yield from (JobHandle(self, each) for each in _values(JobSummary, body["jobs"]))
            shown += len(body["jobs"])
            after = body["next"]
            if after is None or (limit is not None and shown >= limit):
                return

    def job(self, job_id: str) -> JobHandle:
        """A job by its name."""
        return JobHandle(self, self.get(JobStatus, f"/jobs/{_path(job_id)}"))

    def dry_run(self, manifest: bytes | str) -> DryRun:
        """What would become of a YAML manifest if it was submitted; nothing is kept."""
        headers = {"Content-Type": "application/yaml"}
        body = self._call("POST", "/jobs/dry-run", content=manifest, headers=headers)
        return _value(DryRun, body)

    def explain(self, job_id: str) -> Explanation:
        """Why a job is where it is."""
        return self.get(Explanation, f"/jobs/{_path(job_id)}/explain")

    def tell(self, job_id: str, what: str) -> Accepted:
        """`stop`, `halt` or `resume` a job."""
        return _value(Accepted, self._call("POST", f"/jobs/{_path(job_id)}/{what}"))

    def scale(self, job_id: str, workers: int) -> ScaleAccepted:
        """Give an elastic job so many workers."""
        body = self._call("POST", f"/jobs/{_path(job_id)}/scale", json={"workers": workers})
        return _value(ScaleAccepted, body)

    def logs(
        self, job_id: str, worker: str = "0", *, follow: bool = False, attempt: int | None = None
    ) -> Iterator[bytes]:
        """The output of a worker, in pieces, as it was written."""
        query: dict[str, Any] = {"worker": worker, "follow": follow}
        if attempt is not None:
            query["attempt"] = attempt
        with self._stream(f"/jobs/{_path(job_id)}/logs", query) as answer:
            yield from answer.iter_bytes()

    def events(self, job_id: str | None = None) -> Iterator[StatusChange]:
        """Status changes as they happen."""
        with self._stream("/events", {"job": job_id} if job_id else {}) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield _value(StatusChange, json.loads(line.removeprefix("data: ")))

    # -- the cluster ----------------------------------------------------------------------------

    def nodes(self) -> list[NodeStatus]:
        """The nodes."""
        return _values(NodeStatus, self._call("GET", "/nodes")["nodes"])

    def drain(self, node: str, *, back: bool = False) -> NodeStatus:
        """Give a node no new work; or, with `back`, let it take work again."""
        what = "undrain" if back else "drain"
        return _value(NodeStatus, self._call("POST", f"/nodes/{_path(node)}/{what}"))

    def waiting(self, jobs: Sequence[str]) -> list[WaitingJob]:
        """What jobs wait for, a hundred at a time."""
        body = self._call("GET", "/waiting", params={"job": list(jobs)})
        return _values(WaitingJob, body["waiting"])

    def what_if(
        self, policies: Sequence[str], since_s: float | None = None, config: str | None = None
    ) -> WhatIf:
        """What other policies would have done with the jobs of the journal."""
        asked = {"policies": list(policies), "since_s": since_s, "config": config}
        return _value(WhatIf, self._call("POST", "/what-if", json=asked, timeout=_REPLAY_S))

    def journal_trace(self, since_s: float | None = None) -> ExportedTrace:
        """The journal as a trace, and its nodes."""
        asked = {"since_s": since_s}
        body = self._call("POST", "/what-if/trace", json=asked, timeout=_REPLAY_S)
        return _value(ExportedTrace, body)

    def queues(self) -> list[QueueStatus]:
        """The queues."""
        return _values(QueueStatus, self._call("GET", "/queues")["queues"])

    def users(self) -> list[UserInfo]:
        """The users."""
        return _values(UserInfo, self._call("GET", "/users")["users"])

    def add_user(self, name: str, role: str, team: str = "") -> NewUser:
        """Let somebody in; the answer has the token."""
        asked = {"name": name, "role": role, "team": team}
        return _value(NewUser, self._call("POST", "/users", json=asked))

    def remove_user(self, name: str) -> UserInfo:
        """Take somebody's access away."""
        return _value(UserInfo, self._call("DELETE", f"/users/{_path(name)}"))

    # -- how ------------------------------------------------------------------------------------

    def get(self, kind: type[T], path: str, query: Mapping[str, Any] | None = None) -> T:
        """What `GET /api/v1{path}` answers, as a value."""
        return _value(kind, self._call("GET", path, params=query or {}))

    @contextmanager
    def _stream(self, path: str, query: Mapping[str, Any]) -> Iterator[httpx.Response]:
        timeout = httpx.Timeout(30.0, read=None)
        try:
            with self._http.stream(
                "GET", f"/api/v1{path}", params=query, timeout=timeout
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error(answer)
                yield answer
        except httpx.TransportError as error:
            raise self._gone(error) from None

    def _call(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, f"/api/v1{path}", **rest)
        except httpx.TransportError as error:
            raise self._gone(error) from None
        if not answer.is_success:
            raise _error(answer)
        body: dict[str, Any] = answer.json() if answer.content else {}
        return body

    def _gone(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"no server answers at {self.url} ({_says(error)}); start one with `presage serve`, "
            "or set PRESAGE_URL"
        )


def pack_folder(folder: Path) -> bytes:
    """A folder as a gzipped tar: the same bytes for the same content."""
    try:
        return _pack(folder)
    except OSError as error:
        name = error.filename or folder
        raise PackError(
            f"folder {folder} cannot be sent: {name}: {error.strerror}; keep what changes while "
            "it is sent, and what cannot be read, somewhere else"
        ) from None


def _pack(folder: Path) -> bytes:
    raw, total = io.BytesIO(), 0
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(_files(folder)):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(folder)))
            if info is None or not (info.isreg() or info.issym() or info.isdir()):
                continue
            info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mtime = 0
            total += info.size
            if total > _MOST_BYTES:
                raise PackError(
                    f"folder {folder} has more than {_MOST_BYTES >> 20} MiB; move data out of it "
                    "and name it under `data`"
                )
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)


def _files(folder: Path) -> Iterator[Path]:
    for home, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in names + files:
            yield Path(home) / name


def _patience() -> float:
    text = os.environ.get("PRESAGE_WAIT_S") or str(_PATIENCE_S)
    try:
        return float(text)
    except ValueError:
        raise UserError(f"PRESAGE_WAIT_S is a number of seconds, not {text!r}") from None


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def _adapter(kind: type) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        from pydantic import TypeAdapter

        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def _value(kind: type[T], body: object) -> T:
    """An answer as a value; fields that a newer server adds are left out."""
    from pydantic import ValidationError

    try:
        value: T = _adapter(kind).validate_python(body)
        return value
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ApiError(
            200, "bad_answer", f"the server's answer makes no sense here: {where}: {first['msg']}"
        ) from None


def _values(kind: type[T], bodies: Sequence[object]) -> list[T]:
    return [_value(kind, body) for body in bodies]


def to_json(answer: object) -> Any:
    """A value as the server sent it, for `--json`."""
    return _adapter(type(answer)).dump_python(answer, mode="json", exclude_defaults=True)


def _path(part: str) -> str:
    return quote(part, safe="")


def _error(answer: httpx.Response) -> ApiError:
    try:
        body: Mapping[str, Any] = answer.json()["error"]
        return ApiError(answer.status_code, str(body["code"]), str(body["text"]))
    except (ValueError, KeyError, TypeError):
        return ApiError(answer.status_code, "error", f"the server answered {answer.status_code}")


def _says(error: Exception) -> str:
    return str(error) or type(error).__name__
