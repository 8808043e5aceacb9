"""A typed client of the HTTP API: what the command line uses, and scripts can.

    from presage.client import Client

    with Client() as presage:                       # PRESAGE_URL, PRESAGE_TOKEN
        job = presage.submit(Path("train/presage.yaml"))
        presage.wait(job["id"])

A server that is starting or changing over is asked again for a while; a request that could have
been done twice carries a key that makes it once.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from presage.model.errors import PresageError

__all__ = ["DEFAULT_URL", "ApiError", "Client", "Unreachable", "pack_folder"]

DEFAULT_URL = "http://127.0.0.1:8265"

_PATIENCE_S = 20.0
_REPLAY_S = 660.0
"""A journal is replayed for ten minutes at most."""
_SKIPPED = {".git", ".hg", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".ruff_cache"}
_MOST_BYTES = 256 << 20


class ApiError(PresageError):
    """The server said no; `code` and the text are its own."""

    exit_code = 2

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status, self.code = status, code


class Unreachable(PresageError):
    """No server answers."""

    code = "unreachable"
    exit_code = 3


class Client:
    """One server, by its address."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, patience_s: float = _PATIENCE_S
    ) -> None:
        self.url = (url or os.environ.get("PRESAGE_URL") or DEFAULT_URL).rstrip("/")
        token = token or os.environ.get("PRESAGE_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._patience_s = patience_s
        try:
            self._http = httpx.Client(base_url=self.url, headers=headers, timeout=30.0)
        except (httpx.InvalidURL, ValueError) as error:
            raise Unreachable(f"PRESAGE_URL {self.url} is no address: {error}") from None

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

    def submit(self, manifest: Path, *, folder: bool = True) -> dict[str, Any]:
        """Submit a manifest file, and with it a copy of the folder it is in."""
        text = manifest.read_bytes()
        query = {"folder": self.upload(manifest.parent)} if folder else {}
        return self.submit_text(text, **query)

    def submit_text(
        self, manifest: bytes | str, content_type: str = "application/yaml", **query: str
    ) -> dict[str, Any]:
        """Submit a manifest that is YAML, or JSON."""
        headers = {"Content-Type": content_type, "Idempotency-Key": uuid.uuid4().hex}
        return self._call("POST", "/jobs", content=manifest, params=query, headers=headers)

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

    def jobs(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Jobs, newest first, page by page."""
        most = filters.pop("limit", None)
        shown, after = 0, None
        while True:
            size = 1000 if most is None else min(1000, most - shown)
            wanted = {key: value for key, value in filters.items() if value}
            page = {"limit": size, **({"after": after} if after is not None else {})}
            body = self._call("GET", "/jobs", params={**wanted, **page})
            yield from body["jobs"]
            shown += len(body["jobs"])
            after = body["next"]
            if after is None or (most is not None and shown >= most):
                return

    def dry_run(self, manifest: bytes | str) -> dict[str, Any]:
        """What would become of a YAML manifest if it was submitted; nothing is kept."""
        headers = {"Content-Type": "application/yaml"}
        return self._call("POST", "/jobs/dry-run", content=manifest, headers=headers)

    def job(self, job_id: str, *, wait_eta_s: float = 0.0) -> dict[str, Any]:
        """Everything about one job; with `wait_eta_s`, it may take so long until a job that was
        just submitted has been foreseen."""
        query = {"wait_eta_s": wait_eta_s} if wait_eta_s else {}
        return self._call("GET", f"/jobs/{_path(job_id)}", params=query)

    def explain(self, job_id: str) -> dict[str, Any]:
        """Why a job is where it is."""
        return self._call("GET", f"/jobs/{_path(job_id)}/explain")

    def tell(self, job_id: str, what: str) -> dict[str, Any]:
        """`stop`, `halt` or `resume` a job."""
        return self._call("POST", f"/jobs/{_path(job_id)}/{what}")

    def scale(self, job_id: str, workers: int) -> dict[str, Any]:
        """Give an elastic job so many workers."""
        return self._call("POST", f"/jobs/{_path(job_id)}/scale", json={"workers": workers})

    def wait(self, job_id: str, timeout: float | None = None) -> dict[str, Any]:
        """Block until a job is over, or so many seconds passed; returns its status."""
        until = None if timeout is None else time.monotonic() + timeout
        pause = 0.1
        while True:
            body = self.job(job_id)
            if body["ended_at"] is not None or (until is not None and time.monotonic() >= until):
                return body
            left = pause if until is None else min(pause, max(0.0, until - time.monotonic()))
            time.sleep(left)
            pause = min(1.0, pause * 1.3)

    def logs(
        self, job_id: str, worker: str = "0", *, follow: bool = False, attempt: int | None = None
    ) -> Iterator[bytes]:
        """The output of a worker, in pieces."""
        query: dict[str, Any] = {"worker": worker, "follow": follow}
        if attempt is not None:
            query["attempt"] = attempt
        path = f"/api/v1/jobs/{_path(job_id)}/logs"
        timeout = httpx.Timeout(30.0, read=None)
        try:
            with self._http.stream("GET", path, params=query, timeout=timeout) as answer:
                if not answer.is_success:
                    answer.read()
                    raise _error(answer)
                yield from answer.iter_bytes()
        except httpx.TransportError as error:
            raise self._gone(error) from None

    def events(self, job_id: str | None = None) -> Iterator[dict[str, Any]]:
        """Status changes as they happen."""
        query = {"job": job_id} if job_id else {}
        timeout = httpx.Timeout(30.0, read=None)
        with self._http.stream("GET", "/api/v1/events", params=query, timeout=timeout) as answer:
            if not answer.is_success:
                answer.read()
                raise _error(answer)
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line.removeprefix("data: "))

    # -- the cluster ----------------------------------------------------------------------------

    def nodes(self) -> dict[str, Any]:
        """The nodes."""
        return self._call("GET", "/nodes")

    def drain(self, node: str, *, back: bool = False) -> dict[str, Any]:
        """Give a node no new work; or, with `back`, let it take work again."""
        return self._call("POST", f"/nodes/{_path(node)}/{'undrain' if back else 'drain'}")

    def waiting(self, jobs: Sequence[str]) -> dict[str, Any]:
        """What jobs wait for, a hundred at a time."""
        return self._call("GET", "/waiting", params={"job": list(jobs)})

    def what_if(
        self, policies: Sequence[str], since_s: float | None = None, config: str | None = None
    ) -> dict[str, Any]:
        """What other policies would have done with the jobs of the journal."""
        body = {"policies": list(policies), "since_s": since_s, "config": config}
        return self._call("POST", "/what-if", json=body, timeout=_REPLAY_S)

    def journal_trace(self, since_s: float | None = None) -> dict[str, Any]:
        """The journal as a trace, and its nodes."""
        return self._call("POST", "/what-if/trace", json={"since_s": since_s}, timeout=_REPLAY_S)

    def queues(self) -> dict[str, Any]:
        """The queues."""
        return self._call("GET", "/queues")

    def users(self) -> dict[str, Any]:
        """The users."""
        return self._call("GET", "/users")

    def add_user(self, name: str, role: str, team: str = "") -> dict[str, Any]:
        """Let somebody in; the answer has the token."""
        return self._call("POST", "/users", json={"name": name, "role": role, "team": team})

    def remove_user(self, name: str) -> dict[str, Any]:
        """Take somebody's access away."""
        return self._call("DELETE", f"/users/{_path(name)}")

    # -- how ------------------------------------------------------------------------------------

    def _call(self, method: str, path: str, **rest: Any) -> dict[str, Any]:
        until = time.monotonic() + self._patience_s
        pause = 0.1
        while True:
            again = time.monotonic() < until
            try:
                answer = self._http.request(method, f"/api/v1{path}", **rest)
            except httpx.ConnectError as error:
                raise self._gone(error) from None
            except httpx.TransportError as error:
                safe = method in ("GET", "HEAD", "PUT") or "Idempotency-Key" in rest.get(
                    "headers", {}
                )
                if not (safe and again):
                    raise self._gone(error) from None
                answer = None
            if answer is not None and not (answer.status_code == 503 and again):
                break
            time.sleep(pause)
            pause = min(1.0, pause * 1.5)
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


class PackError(PresageError):
    """A folder cannot be sent."""

    code = "bad_folder"
    exit_code = 2


def _files(folder: Path) -> Iterator[Path]:
    for home, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name not in _SKIPPED)
        for name in names + files:
            yield Path(home) / name


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
