"""Servers and commands as real processes, and how to wait for what they do."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from presage.client import Client
from presage.executors.node.processes import all_pids, environment
from tests.forking import Forked, Forker
from tests.waiting import PATIENCE_S, eventually

__all__ = ["PATIENCE_S", "Command", "Done", "Server", "Zygote", "eventually", "free_port", "gone"]

ENDED = ("COMPLETED", "FAILED", "CANCELLED")


def free_port() -> int:
    """A port that nobody listens at, and that is nobody's end of a connection: below the range of
    those, and another one each time."""
    for port in _ports:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


_ports = iter(random.SystemRandom().sample(range(15_000, 32_000), 1000))


@dataclass(frozen=True)
class Done:
    """A command that ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


@dataclass(frozen=True)
class Command:
    """A `presage` command that was started."""

    forked: Forked
    argv: tuple[str, ...]
    out: Path
    err: Path

    def said(self) -> str:
        """What it wrote on stderr so far."""
        return self.err.read_text()

    def done(self) -> Done:
        """How it ended, once it has."""
        try:
            code = self.forked.wait(PATIENCE_S)
        except TimeoutError:
            words = " ".join(self.argv)
            raise AssertionError(f"presage {words} hangs: {self.out.read_text()}") from None
        return Done(code, self.out.read_text(), self.err.read_text())


class Zygote:
    """Starts `presage` commands without the seconds that imports take (see `forking.py`)."""

    def __init__(self, home: Path, env: Mapping[str, str] | None = None) -> None:
        self._home, self._env = home, dict(env or {})
        self._numbers = count()
        self._forker = Forker(env)

    def start(self, *argv: str, env: Mapping[str, str] = {}, cwd: Path | None = None) -> Command:
        """Start a command."""
        out = self._home / f"{next(self._numbers)}.out"
        err = out.with_suffix(".err")
        with Path(os.devnull).open() as nothing, out.open("a") as said, err.open("a") as wrong:
            forked = self._forker.start(
                argv,
                {**_clean_environment(), **self._env, **env},
                cwd or self._home,
                (nothing.fileno(), said.fileno(), wrong.fileno()),
            )
        return Command(forked, argv, out, err)

    def run(
        self,
        *argv: str,
        env: Mapping[str, str] = {},
        cwd: Path | None = None,
    ) -> Done:
        """Run a command to its end."""
        return self.start(*argv, env=env, cwd=cwd).done()

    def programs(self) -> Path:
        """A directory for PATH with a `presage` that starts as quickly."""
        folder = self._home / "bin"
        folder.mkdir()
        self._forker.program(folder, "presage")
        return folder

    def close(self) -> None:
        """End it."""
        self._forker.close()


def _clean_environment() -> dict[str, str]:
    """Without what would point a command at another server."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PRESAGE_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def gone(pid: int) -> bool:
    """Wait until a process ended; whether it did."""
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([file], [], [], PATIENCE_S)[0])
    finally:
        os.close(file)


class Server:
    """`presage serve` on a data directory; can be killed and started again."""

    def __init__(
        self,
        zygote: Zygote,
        data: Path,
        *options: str,
        nodes: str | None = "2x4",
        env: Mapping[str, str] = {},
        token: str | None = None,
        scheme: str = "http",
    ) -> None:
        self.data = data
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.token = token
        self.pid = 0
        self._zygote, self._env = zygote, dict(env)
        self._options = ("--nodes", nodes, *options) if nodes else options
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.http = httpx.Client(
            base_url=self.url, headers=headers, timeout=PATIENCE_S, verify=False
        )
        self.stranger = httpx.Client(base_url=self.url, timeout=PATIENCE_S, verify=False)
        """Asks without a token. Shared, since each client of httpx takes 50 ms to make."""
        self._command: Command | None = None

    # -- its life -------------------------------------------------------------------------------

    def start(self, *, ready: bool = True) -> Server:
        """Start it, and wait until somebody decides."""
        argv = ("serve", "--port", str(self.port), "--data", str(self.data), *self._options)
        self._command = self._zygote.start(*argv, env=self._env)
        self.pid = self._command.forked.pid
        if ready:
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Until it decides, or knows who does."""
        try:
            eventually(self.is_ready)
        except AssertionError:
            raise AssertionError(f"no server: {self.log()}") from None

    def is_ready(self) -> bool:
        """Whether it says so."""
        with suppress(httpx.TransportError):
            return self.http.get("/readyz").status_code == 200
        return False

    def leads(self) -> bool:
        """Whether it decides."""
        with suppress(httpx.TransportError):
            return bool(self.http.get("/healthz").json()["leading"])
        return False

    def kill(self) -> None:
        """SIGKILL, and wait until it is dead."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as a service manager does."""
        self._end(signal.SIGTERM)

    def log(self) -> str:
        """What it wrote."""
        if self._command is None:
            return ""
        return self._command.out.read_text() + self._command.err.read_text()

    def close(self) -> None:
        """End it and everything that it runs."""
        self.kill()
        self.http.close()
        self.stranger.close()
        mark = f"PRESAGE_RUN={self.data}/".encode()
        for pid in all_pids():
            if mark in environment(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if not gone(self.pid):
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"the server ignores {number.name}: {self.log()}")
            self.pid = 0
        if self._command is not None:
            self._command.forked.link.close()

    # -- what one asks of it --------------------------------------------------------------------

    def client(self, token: str | None = None) -> Client:
        """The client that scripts and the command line use."""
        return Client(self.url, token or self.token)

    def presage(
        self,
        *argv: str,
        token: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] = {},
    ) -> Done:
        """Run a command against it."""
        return self.begin(*argv, token=token, cwd=cwd, env=env).done()

    def begin(
        self,
        *argv: str,
        token: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] = {},
    ) -> Command:
        """Start a command against it."""
        whole = {"PRESAGE_URL": self.url, **env}
        if token or self.token:
            whole["PRESAGE_TOKEN"] = token or self.token or ""
        return self._zygote.start(*argv, env=whole, cwd=cwd)

    def begin_with(
        self, *argv: str, files: tuple[int, int, int], cwd: Path | None = None, **env: str
    ) -> Forked:
        """Start a command with these streams."""
        known = {"PRESAGE_URL": self.url, "PATH": os.environ["PATH"]}
        if self.token:
            known["PRESAGE_TOKEN"] = self.token
        return self._zygote._forker.start(argv, {**known, **env}, cwd or self.data, files)

    def submit(self, command: str | Sequence[str] = "true", **manifest: Any) -> str:
        """Submit a job; its id."""
        body = {"name": "job", "command": command, **manifest}
        answer = self.http.post("/api/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["id"]
        return found

    def job(self, job_id: str) -> dict[str, Any]:
        """Everything about a job."""
        answer = self.http.get(f"/api/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json()
        return body

    def tell(self, job_id: str, what: str) -> httpx.Response:
        """`stop`, `halt` or `resume`."""
        return self.http.post(f"/api/v1/jobs/{job_id}/{what}")

    def wait(self, job_id: str, *statuses: str) -> dict[str, Any]:
        """Until a job has one of these statuses; without any, until it is over."""
        wanted = statuses or ENDED
        latest: dict[str, Any] = {}

        def reached() -> bool:
            latest.clear()
            latest.update(self.job(job_id))
            return latest["status"] in wanted

        try:
            eventually(reached)
        except AssertionError:
            raise AssertionError(f"not {wanted}: {latest}\n{self.log()}") from None
        return latest

    def stop_everything(self) -> None:
        """End every job that is not over."""
        left = [job["id"] for job in self.alive()]
        for job_id in left:
            self.tell(job_id, "stop")
        for job_id in left:
            self.wait(job_id)

    def alive(self) -> list[dict[str, Any]]:
        """Jobs that are not over."""
        wanted = ["QUEUED", "DOWNLOADING", "PROCESSING", "STORING", "HALTED"]
        answer = self.http.get("/api/v1/jobs", params={"status": wanted, "limit": 1000})
        found: list[dict[str, Any]] = answer.json()["jobs"]
        return found

    def processes(self, job_id: str) -> list[int]:
        """The processes of a job's workers."""
        mark = f"PRESAGE_JOB_ID={job_id}".encode()
        return [pid for pid in all_pids() if mark in environment(pid).split(b"\0")]

    def logs(self, job_id: str, **query: Any) -> str:
        """What a worker wrote."""
        answer = self.http.get(f"/api/v1/jobs/{job_id}/logs", params=query)
        assert answer.status_code == 200, answer.text
        return answer.text

    def metric(self, name: str) -> float:
        """One figure of /metrics."""
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no {name}")


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """A server for as long as the block."""
    try:
        yield server.start()
    finally:
        server.close()
