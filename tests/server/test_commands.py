"""Every command of the command line, as processes against a running server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.kit import Server, Zygote, eventually


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A job of a moment."""
    path = tmp_path / "presage.yaml"
    path.write_text("name: hello\ncommand: echo hello from $PRESAGE_JOB_ID\n")
    return path


@pytest.fixture(autouse=True)
def calm(server: Server) -> Iterator[None]:
    """Nothing goes on running between the tests."""
    yield
    server.stop_everything()


def test_from_submit_to_logs(server: Server, manifest: Path) -> None:
    submitted = server.presage("submit", str(manifest), "--json")
    assert submitted.code == 0, submitted.err
    assert submitted.json.keys() == {"id", "status", "eta_s"}
    job = submitted.json["id"]
    waited = server.presage("wait", job, "--timeout", "30", "--json")
    assert (waited.code, waited.json["status"]) == (0, "COMPLETED")
    assert server.presage("logs", job).out == f"hello from {job}\n"
    assert server.presage("logs", "-f", job, "--worker", "worker-0").out == f"hello from {job}\n"
    status = server.presage("status", job, "--json").json
    assert [item["status"] for item in status["history"]][-1] == "COMPLETED"
    assert {"at", "status", "reason"} == set(status["history"][0])
    listed = server.presage("ps", "--json").json["jobs"]
    assert job in [item["id"] for item in listed]
    assert "COMPLETED" in server.presage("status", job).out
    assert job not in server.presage("ps").out
    assert job in server.presage("ps", "--all").out
    assert server.presage("explain", job, "--json").json["status"] == "COMPLETED"


def test_wait_tells_failure_by_its_exit_code(server: Server) -> None:
    failed = server.submit("exit 7")
    done = server.presage("wait", failed)
    assert done.code == 1
    assert "exit code 7" in done.out
    running = server.submit("sleep 600")
    assert server.presage("wait", running, "--timeout", "0.2").code == 1


def test_stop_halt_and_resume(server: Server) -> None:
    job = server.submit("trap 'exit 143' TERM; sleep 600 & wait")
    server.wait(job, "PROCESSING")
    assert server.presage("halt", job, "--json").json["id"] == job
    server.wait(job, "HALTED")
    assert server.presage("resume", job).code == 0
    server.wait(job, "PROCESSING")
    assert server.presage("stop", job, "--json").code == 0
    assert server.wait(job)["status"] == "CANCELLED"
    again = server.presage("stop", job)
    assert (again.code, again.err.count("\n")) == (2, 1)


def test_nodes_queues_drain_and_users(server: Server) -> None:
    nodes = server.presage("nodes", "--json").json["nodes"]
    assert [node["gpus"] for node in nodes] == [4, 4]
    name = nodes[0]["name"]
    assert server.presage("drain", name, "--json").json["state"] == "draining"
    assert "draining" in server.presage("nodes").out
    assert server.presage("undrain", name).out == f"{name} up\n"
    assert server.presage("queues", "--json").json["queues"][0]["name"] == "default"
    assert "default" in server.presage("queues").out
    assert server.presage("users", "--json").json == {"users": []}


def test_users_come_and_go(serve: Callable[..., Server]) -> None:
    server = serve(env={"PRESAGE_TOKEN": "t" * 32}, token="t" * 32).start()
    added = server.presage("users", "add", "ada", "--role", "user", "--team", "red", "--json")
    assert added.code == 0, added.err
    token = added.json["token"]
    assert server.presage("ps", "--json", token=token).json == {"jobs": [], "arrays": []}
    denied = server.presage("users", token=token)
    assert (denied.code, "role admin" in denied.err) == (2, True)
    assert "ada" in server.presage("users").out
    assert server.presage("users", "remove", "ada", "--json").code == 0
    assert server.presage("ps", token=token).code == 2


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["status", "none"], "there is no job none"),
        (["stop", "none"], "there is no job none"),
        (["logs", "none"], "there is no job none"),
        (["logs", "none", "--worker", "../x"], "a worker is"),
        (["drain", "none"], "there is no node none"),
        (["submit", "missing.yaml"], "missing.yaml"),
        (["ps", "--status", "RUNNING"], "is not known"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(server: Server, argv: list[str], says: str) -> None:
    done = server.presage(*argv)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert done.err.count("\n") == 1


def test_no_server_is_said_in_one_line(zygote: Zygote) -> None:
    done = zygote.run("ps", "--no-wait", env={"PRESAGE_URL": "http://127.0.0.1:9"})
    assert done.code == 3
    assert "presage serve" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--executor", "magic"], "magic"),
        (["--policy", "none"], "none"),
        (["--nodes", "2y4"], "2y4"),
        (["--db", "mysql://x"], "sqlite:///PATH"),
        (["--data", "/proc/nothing"], "/proc/nothing"),
        (["--host", "no.such.host.invalid"], "no.such.host.invalid"),
    ],
)
def test_serve_refuses_what_it_cannot_do(
    zygote: Zygote, tmp_path: Path, argv: list[str], says: str
) -> None:
    done = zygote.run("serve", "--port", "0", "--data", str(tmp_path / "d"), *argv)
    assert done.code == 2
    assert says in done.err
    assert done.err.count("\n") == 1


def test_sigterm_ends_the_server_and_jobs_go_on(serve: Callable[..., Server]) -> None:
    server = serve().start()
    job = server.submit("sleep 1; echo survived")
    server.wait(job, "PROCESSING")
    server.stop()
    server.start()
    found = server.wait(job)
    assert (found["status"], found["attempt"]) == ("COMPLETED", 1)
    assert server.logs(job) == "survived\n"


@pytest.mark.slow
def test_the_installed_program(server: Server, manifest: Path) -> None:
    """Once without the shortcut of the other tests."""
    done = subprocess.run(
        [Path(sys.executable).with_name("presage"), "submit", str(manifest), "--json"],
        env={"PRESAGE_URL": server.url, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    job = json.loads(done.stdout)["id"]
    eventually(lambda: server.job(job)["status"] == "COMPLETED")
