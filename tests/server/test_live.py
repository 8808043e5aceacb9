"""Interactive work through a real server: exec, shell, run, forward, and who may not."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from presage.client import Attached, open_socket
from presage.executors.node import frames
from presage.model.errors import ApiError
from tests.server.kit import PATIENCE_S, Server, Zygote, eventually, free_port, gone

ADMIN = "admin-token-of-these-tests"
ONE: dict[str, Any] = {"resources": {"gpus": 1}}
ECHO = """\
import os, socket
door = socket.create_server(("127.0.0.1", int(os.environ["PORT"])))
print("listening", flush=True)
while True:
    link, _ = door.accept()
    while data := link.recv(65536):
        link.sendall(data)
    link.close()
"""


class Live(Server):
    """A server with users, and commands that have a standard input."""

    def __init__(self, zygote: Zygote, data: Path, *options: str) -> None:
        super().__init__(zygote, data, *options, token=ADMIN, env={"PRESAGE_TOKEN": ADMIN})
        self.tokens: dict[str, str] = {}

    def user(self, name: str) -> str:
        """The token of a user, who is made when first asked for."""
        if name not in self.tokens:
            answer = self.http.post("/api/v1/users", json={"name": name, "role": "user"})
            self.tokens[name] = answer.json()["token"]
        return self.tokens[name]

    def audit(self, job: str) -> list[dict[str, Any]]:
        """Who did what with a job, oldest first."""
        entries = self.http.get("/api/v1/audit", params={"job": job}).json()["entries"]
        found: list[dict[str, Any]] = entries[::-1]
        return found


@pytest.fixture(scope="module")
def server(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that the tests share; one that ends it starts it again."""
    config = tmp_path_factory.mktemp("config") / "queues.yaml"
    config.write_text("queues: {default: {}, short: {idle_stop: 2s}}\n")
    made = Live(zygote, tmp_path_factory.mktemp("live") / "data", "--config", str(config))
    made.start()
    yield made
    made.close()


@pytest.fixture(scope="module")
def job(server: Live) -> str:
    """A job that runs for as long as the tests; it echoes at its port."""
    port = free_port()
    made = server.submit(
        ["python", "-c", ECHO], env={"PORT": str(port)}, ports=[port], grace=1, **ONE
    )
    eventually(lambda: "listening" in server.logs(made))
    server.wait(made, "PROCESSING")
    return made


@pytest.fixture
def ends() -> Iterator[Callable[[], tuple[int, int]]]:
    """Makes pipes, and closes them."""
    made: list[int] = []

    def make() -> tuple[int, int]:
        made.extend(pair := os.pipe())
        return pair

    yield make
    for fd in made:
        with suppress(OSError):
            os.close(fd)


def heard(fd: int, most: int) -> bytes:
    """Something that was written there."""
    assert select.select([fd], [], [], PATIENCE_S)[0], "nothing comes"
    return os.read(fd, most)


def port_of(server: Live, job: str) -> int:
    """The port of a job."""
    port: int = server.http.get(f"/api/v1/jobs/{job}/manifest").json()["ports"][0]
    return port


# -- exec and shell -----------------------------------------------------------------------------


def test_exec_has_streams_apart_the_commands_exit_code_and_a_line_in_the_audit_log(
    server: Live, job: str
) -> None:
    done = server.presage("exec", job, "--", "sh", "-c", "echo $PORT; echo err >&2; exit 7")
    assert (done.code, done.out, done.err) == (7, f"{port_of(server, job)}\n", "err\n")
    last = server.audit(job)[-1]
    assert (last["who"], last["what"]) == ("admin", "exec")
    assert last["detail"]["argv"] == ["sh", "-c", "echo $PORT; echo err >&2; exit 7"]


def test_exec_reads_from_a_pipe_and_is_binary_safe(server: Live, job: str, tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    (tmp_path / "in").write_bytes(data)
    with (tmp_path / "in").open("rb") as given, (tmp_path / "out").open("wb") as out:
        files = (given.fileno(), out.fileno(), out.fileno())
        assert server.begin_with("exec", job, "--", "cat", files=files).wait(PATIENCE_S) == 0
    assert (tmp_path / "out").read_bytes() == data


def test_ctrl_c_reaches_the_command_and_kill_of_the_client_ends_it(
    server: Live, job: str, ends: Callable[[], tuple[int, int]]
) -> None:
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        (given, _), (read, out) = ends(), ends()
        script = "echo $$; exec sleep 600"
        command = server.begin_with("exec", job, "--", "sh", "-c", script, files=(given, out, 2))
        pid = int(heard(read, 100))
        os.kill(command.pid, number)
        assert command.wait(PATIENCE_S) == code
        assert gone(pid)


def test_a_shell_has_a_terminal_that_is_resized(server: Live, job: str) -> None:
    outer, inner = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
    command = server.begin_with("shell", job, files=(inner, inner, inner), TERM="vt100")
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += heard(outer, 4096)

    os.write(outer, b"stty -echo; echo rea''dy\n")
    until(b"ready")
    os.write(outer, b"stty size; echo $TERM $PRESAGE_JOB_ID\n")
    until(f"33 77\r\nvt100 {job}".encode())
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 99, 0, 0))
    os.kill(command.pid, signal.SIGWINCH)
    os.write(outer, b"while [ \"$(stty size)\" != '44 99' ]; do sleep 0.1; done; echo lar''ger\n")
    until(b"larger")
    os.write(outer, b"exit 3\n")
    assert command.wait(PATIENCE_S) == 3
    assert termios.tcgetattr(inner)[3] & termios.ICANON  # as it was
    os.close(outer)
    os.close(inner)


def test_what_cannot_be_attached_is_one_line(server: Live, job: str) -> None:
    over = server.submit("true")
    server.wait(over)
    waiting = server.submit(resources={"gpus": 4}, workers=2)
    for argv, code, says in [
        (("exec", job, "--", "nonsense"), 127, "there is no program 'nonsense'"),
        (("exec", job, "--worker", "7", "--", "true"), 2, "has no worker '7'; it has worker-0"),
        (("exec", over, "--", "true"), 2, f"job {over} does not run: it is COMPLETED"),
        (("exec", waiting, "--", "true"), 2, f"job {waiting} does not run: it is QUEUED: "),
        (("exec", "nobody", "--", "true"), 2, "there is no job nobody"),
        (("shell", job), 2, "a shell needs a terminal on stdin and stdout"),
        (("exec", job, "--tty", "--", "true"), 2, "--tty needs a terminal"),
        (("forward", job, "1"), 2, "port 1 is not among the ports of the job's manifest: it has"),
        (("forward", job, "x"), 2, "write a port such as 6006"),
    ]:
        done = server.presage(*argv)
        assert (done.code, len(done.err.splitlines())) == (code, 1), done
        assert says in done.err
    server.tell(waiting, "stop")


def test_another_user_is_refused_everything(server: Live, job: str) -> None:
    token = server.user("eve")
    port = port_of(server, job)
    for argv in (
        ("exec", job, "--", "true"),
        ("forward", job, str(port)),
        ("forward", job, str(port), "--url"),
    ):
        done = server.presage(*argv, token=token)
        assert (done.code, done.err) == (2, f"error: there is no job {job}\n")
    client = server.client(token)
    for path in ("exec", "console", f"ports/{port}"):
        with (
            pytest.raises(ApiError, match="there is no job"),
            open_socket(client, f"/jobs/{job}/{path}"),
        ):
            pass
    client.close()
    answer = server.stranger.post(
        f"/api/v1/jobs/{job}/heartbeat", headers={"Authorization": f"Bearer {token}"}
    )
    assert answer.status_code == 404


def test_websockets_need_a_token_and_are_not_for_pages_of_others(server: Live, job: str) -> None:
    url = f"ws{server.url.removeprefix('http')}/api/v1/jobs/{job}/exec"
    good = {"Authorization": f"Bearer {ADMIN}"}
    for headers, origin, status in (
        ({}, None, 401),
        ({"Authorization": "Bearer wrong"}, None, 401),
        (good, "https://evil.example", 403),
        (good, f"http://127.0.0.1:{server.port + 1}", 403),  # a page of a job, at the proxy
    ):
        with pytest.raises(InvalidStatus) as refused:
            connect(url, additional_headers=headers, origin=Origin(origin) if origin else None)
        assert refused.value.response.status_code == status


def test_orders_that_are_none_are_refused(server: Live, job: str) -> None:
    client = server.client()
    orders: list[dict[str, Any]] = [{}, {"argv": []}, {"argv": ["true"], "user": "root"}]
    for order in (*orders, {"argv": "true"}):
        with open_socket(client, f"/jobs/{job}/exec") as link, pytest.raises(ApiError):
            Attached(link, order)
    with open_socket(client, f"/jobs/{job}/exec") as link:
        Attached(link, {"argv": ["sleep", "600"]})
        link.send(frames.ORDER + b"{}")
        with pytest.raises(ConnectionClosed):
            link.recv()
    client.close()


# -- forward ------------------------------------------------------------------------------------


def test_a_port_is_forwarded_to_a_local_one(
    server: Live, job: str, ends: Callable[[], tuple[int, int]]
) -> None:
    (given, _), (read, out) = ends(), ends()
    port = port_of(server, job)
    argv = ("forward", job, f"{port}:0")
    command = server.begin_with(*argv, files=(given, out, out))
    said = heard(read, 1000).decode()
    local = int(said.partition(":")[2].split()[0])
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", local)) as link:
            link.settimeout(PATIENCE_S)
            link.sendall(b"over the tunnel" * 1000)
            link.shutdown(socket.SHUT_WR)
            echoed = b""
            while data := link.recv(65536):
                echoed += data
            assert echoed == b"over the tunnel" * 1000
    taken = server.presage("forward", job, f"{port}:{local}")
    assert taken.code == 2
    assert f"local port {local} cannot be used (address already in use)" in taken.err
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait(PATIENCE_S) == -15
    assert [e["what"] for e in server.audit(job)].count("forward") >= 3


# -- a browser ----------------------------------------------------------------------------------


def test_a_notebook_runs_a_cell_through_the_proxy_and_nobody_else_gets_in(server: Live) -> None:
    done = server.presage("notebook", "--json", "--no-folder")
    assert done.code == 0, done
    job, port, url = done.json["id"], done.json["port"], done.json["url"]
    base = url.partition("?")[0]
    with httpx.Client(timeout=PATIENCE_S, verify=False) as browser:
        assert browser.get(base).status_code == 401
        assert browser.get(f"{base}?presage_ticket=wrong").status_code == 401
        first = browser.get(url)
        assert (first.status_code, first.headers["location"]) == (303, httpx.URL(base).path)
        cookie = first.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert f"Path=/jobs/{job}/" in cookie
        # With the cookie Jupyter takes us for its owner, by a token that we never see.
        made = browser.post(f"{base}api/kernels", json={"name": "python3"})
        assert made.status_code == 201, made.text
        kernel = made.json()["id"]
        assert "token=..." in server.logs(job)
        assert browser.get(base.replace(str(port), "22")).status_code == 401
        assert browser.get(f"{base}%2e%2e/%2e%2e/x").status_code == 422
        assert browser.get(base.replace("/jobs/", "/other/")).status_code == 404
        other = browser.get(base, headers={"Origin": "https://evil.example"})
        assert other.status_code == 403
        value = browser.cookies.get("presage_port", path=f"/jobs/{job}/absolute/{port}/")
        token = browser.get(f"{base}api/me").request.headers.get("authorization")
        assert token is None
    assert "42 None" in _cell(base, kernel, f"presage_port={value}")
    # The API does not know the cookie, and the proxy does not know tokens of the API.
    headers = {"Cookie": f"presage_port={value}"}
    assert server.stranger.get("/api/v1/me", headers=headers).status_code == 401
    answer = server.stranger.get(base, headers={"Authorization": f"Bearer {ADMIN}"})
    assert answer.status_code == 401
    assert "open port" in [entry["what"] for entry in server.audit(job)]
    server.tell(job, "stop")
    server.wait(job)
    assert server.stranger.get(base, headers=headers).status_code == 409


def _cell(base: str, kernel: str, cookie: str) -> str:
    """What a cell prints, executed over the WebSocket as a browser's page would."""
    url = f"ws{base.removeprefix('http')}api/kernels/{kernel}/channels"
    origin = Origin(base.partition("/jobs/")[0])
    head = {"msg_id": "1", "username": "", "session": "s", "msg_type": "execute_request"}
    code = "import os; print(6 * 7, os.environ.get('PRESAGE_TOKEN'))"
    body = {
        "header": {**head, "version": "5.3"},
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False},
        "channel": "shell",
    }
    with pytest.raises(InvalidStatus):
        connect(url, additional_headers={"Cookie": cookie}, origin=Origin("https://evil.example"))
    with connect(url, additional_headers={"Cookie": cookie}, origin=origin) as link:
        link.send(json.dumps(body))
        while True:
            said = json.loads(link.recv(PATIENCE_S))
            if said["msg_type"] == "stream":
                return str(said["content"]["text"])


# -- run ----------------------------------------------------------------------------------------


def test_run_is_the_command_itself(server: Live, tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import sys\nprint(sys.stdin.read()[::-1])\nsys.exit(5)\n")
    (tmp_path / "in").write_text("abc")
    out, err = tmp_path / "out", tmp_path / "err"
    with (tmp_path / "in").open() as given, out.open("w") as said, err.open("w") as wrong:
        command = server.begin_with(
            *("run", "--name", "hi", "--gpus", "1", "--", "python", "hello.py"),
            files=(given.fileno(), said.fileno(), wrong.fileno()),
            cwd=tmp_path,
        )
        assert command.wait(PATIENCE_S) == 5
    assert out.read_text() == "cba\n"
    job = err.read_text().split()[0]
    assert job.startswith("hi-")
    done = server.wait(job)
    assert (done["status"], done["exit_code"]) == ("FAILED", 5)


def test_run_says_why_it_waits_and_sigterm_cancels(
    server: Live, job: str, ends: Callable[[], tuple[int, int]]
) -> None:
    (given, _), (read, err) = ends(), ends()
    holding = server.submit("sleep 600", resources={"gpus": 4}, grace=0.1)
    server.wait(holding, "PROCESSING")
    command = server.begin_with(
        "run", "--gpus", "4", "--no-folder", "--", "true", files=(given, 1, err)
    )
    seen = b""
    while b"is QUEUED: " not in seen:
        seen += heard(read, 1000)
    waiting = seen.split()[0].decode()
    os.kill(command.pid, signal.SIGTERM)
    assert command.wait(PATIENCE_S) == 143
    assert server.wait(waiting)["status"] == "CANCELLED"
    server.tell(holding, "stop")
    server.wait(holding)


def test_a_run_survives_a_server_that_restarts_and_ends_with_its_client(
    server: Live, ends: Callable[[], tuple[int, int]]
) -> None:
    (given, typed), (read, out), (read_err, err) = ends(), ends(), ends()
    command = server.begin_with(
        *("run", "--grace", "60s", "--no-folder", "--", "cat"), files=(given, out, err)
    )
    job = heard(read_err, 1000).split()[0].decode()
    os.write(typed, b"before\n")
    assert heard(read, 100) == b"before\n"
    server.kill()
    os.write(typed, b"between\n")
    server.start()
    assert heard(read, 100) == b"between\n"
    os.write(typed, b"after\n")
    assert heard(read, 100) == b"after\n"
    os.close(typed)
    assert command.wait(PATIENCE_S) == 0
    assert server.wait(job)["attempt"] == 1


def test_a_run_whose_client_is_killed_is_cancelled(
    server: Live, ends: Callable[[], tuple[int, int]]
) -> None:
    (given, _), (read, out), (read_err, err) = ends(), ends(), ends()
    argv = ("run", "--grace", "1s", "--no-folder", "--", "sh", "-c", "echo on; exec sleep 600")
    command = server.begin_with(*argv, files=(given, out, err))
    job = heard(read_err, 1000).split()[0].decode()
    assert heard(read, 100) == b"on\n"
    os.kill(command.pid, signal.SIGKILL)
    assert command.wait(PATIENCE_S) == -9
    done = server.wait(job)
    assert done["status"] == "CANCELLED"
    assert done["reason"] == {
        "code": "client_gone",
        "text": "its client was not heard of for 1 s",
    }


def test_an_idle_job_is_stopped_when_its_queue_says_so(server: Live) -> None:
    job = server.submit("sleep 600", queue="short", ports=[free_port()], grace=0.1)
    done = server.wait(job)
    assert (done["status"], done["reason"]["code"]) == ("CANCELLED", "idle")
    assert f"job {job} is stopped: idle for" in server.log()
