"""Commands wait for a server that restarts, say so once, and submit no job twice."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.server.kit import PATIENCE_S, Command, Server, Zygote, eventually

PATIENT = {"PRESAGE_WAIT_S": str(PATIENCE_S)}
"""Far longer than a start takes on any machine; users have 10 seconds."""


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A job in a folder of its own."""
    path = tmp_path / "work" / "presage.yaml"
    path.parent.mkdir()
    path.write_text("name: hello\ncommand: 'true'\n")
    return path


def begin(zygote: Zygote, url: str, *argv: str) -> Command:
    """Start a command that runs beside the test."""
    return zygote.start(*argv, env={**PATIENT, "PRESAGE_URL": url})


def jobs(server: Server) -> list[str]:
    """The ids of all jobs."""
    return [job["id"] for job in server.http.get("/api/v1/jobs").json()["jobs"]]


def test_submit_waits_for_a_server_that_was_killed(
    serve: Callable[..., Server], zygote: Zygote, manifest: Path
) -> None:
    server = serve().start()
    server.kill()
    submit = begin(zygote, server.url, "submit", str(manifest))
    waiting = f"waiting for the server at {server.url} …\n"
    eventually(lambda: waiting in submit.said())
    server.start()
    done = submit.done()
    assert done.code == 0, done.err
    assert submit.said().count("waiting") == 1
    assert [job["id"] for job in server.http.get("/api/v1/jobs").json()["jobs"]] == [
        done.out.strip()
    ]


def test_a_submission_whose_answer_was_lost_is_one_job(
    serve: Callable[..., Server], zygote: Zygote, manifest: Path
) -> None:
    """The server has the job on disk and is killed before its answer arrives."""
    server = serve().start()
    accepted = threading.Event()
    with _loses_answer_of(b"POST /api/v1/jobs?", server.port, accepted) as url:
        submit = begin(zygote, url, "submit", str(manifest))
        assert accepted.wait(PATIENCE_S)
        server.kill()
        server.start()
        done = submit.done()
    assert done.code == 0, done.err
    assert [job["id"] for job in server.http.get("/api/v1/jobs").json()["jobs"]] == [
        done.out.strip()
    ]


@contextmanager
def _loses_answer_of(start: bytes, port: int, lost: threading.Event) -> Iterator[str]:
    """A proxy that swallows the first answer to such a request, and drops the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(client: socket.socket) -> None:
        asked = False
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", port)) as server:
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    data = ready.recv(1 << 20)
                    asked = asked or (ready is client and data.startswith(start))
                    if not data or (ready is server and asked and not lost.is_set()):
                        if data.startswith(b"HTTP/1.1 201"):
                            lost.set()
                        return
                    (server if ready is client else client).sendall(data)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=carry, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE_S)


def test_submit_waits_for_a_server_that_does_not_decide_yet(
    serve: Callable[..., Server], zygote: Zygote, manifest: Path, tmp_path: Path
) -> None:
    """A standby answers, but another server has the lease, and is gone."""
    options = ("--db", f"sqlite:///{tmp_path / 'shared.db'}", "--lease", "3")
    first = serve(*options, data=tmp_path / "first").start()
    second = serve(*options, data=tmp_path / "second").start()
    assert not second.leads()
    first.kill()
    done = begin(zygote, second.url, "submit", str(manifest)).done()
    assert done.code == 0, done.err
    assert [job["id"] for job in second.http.get("/api/v1/jobs").json()["jobs"]] == [
        done.out.strip()
    ]


@pytest.mark.parametrize("argv", [["submit"], ["ps", "--json"], ["users", "add", "ann"]])
def test_no_wait_fails_at_once(
    serve: Callable[..., Server], zygote: Zygote, manifest: Path, argv: list[str]
) -> None:
    server = serve()  # not started
    command = begin(
        zygote, server.url, *argv, *([str(manifest)] if argv == ["submit"] else []), "--no-wait"
    )
    done = command.done()
    assert (done.code, done.out) == (3, "")
    assert command.said().startswith(f"error: no server answers at {server.url} ")
    assert len(command.said().splitlines()) == 1
