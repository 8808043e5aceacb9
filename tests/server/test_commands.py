"""Every command of the command line, as processes against a running server."""

from __future__ import annotations

import json
import re
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


def test_tables_in_a_pipe_and_on_a_terminal(server: Server) -> None:
    holds = server.submit("sleep 600", resources={"gpus": 4}, workers=2, name="holds-everything")
    server.wait(holds, "PROCESSING")
    waits = server.submit("true", resources={"gpus": 1}, name="waits-for-a-gpu-" + "x" * 40)
    table = server.presage("ps").out.splitlines()
    assert table[0].split() == [
        "ID",
        "STATUS",
        "OWNER",
        "QUEUE",
        "WORKERS",
        "AGE",
        "STARTS",
        "WHY",
    ]
    row = next(line for line in table if line.startswith(waits)).split(maxsplit=7)
    assert row[:5] == [waits, "QUEUED", "local", "default", "-"]
    assert row[7].startswith("needs 1 GPU on one node; ")
    assert "needs 1 GPU" in server.presage("ps", "--json").json["jobs"][0]["reason"]["text"]
    for argv in (["ps"], ["nodes"], ["queues"], ["top", "--once"], ["status", waits]):
        piped = server.presage(*argv).out
        assert not set("\t\x1b│─█…") & set(piped), piped
        env = {"FORCE_COLOR": "1", "COLUMNS": "80", "TERM": "xterm"}
        drawn = server.presage(*argv, env=env).out
        plain = re.sub(r"\x1b\[[0-9;]*m", "", drawn)
        assert plain != drawn or argv[0] == "status"
        assert max(map(len, plain.splitlines())) <= 80, plain
        assert waits in plain or argv[0] in ("nodes", "queues")
    nodes = server.presage("nodes").out.splitlines()
    assert nodes[0].split() == [
        "NODE",
        "STATE",
        "FREE-GPUS",
        "TYPE",
        "FREE-CPUS",
        "FREE-MEMORY",
        "JOBS",
    ]
    assert nodes[1].split()[2] == "0/4"


def test_what_can_never_run_is_refused(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "presage.yaml"
    path.write_text("name: vast\ncommand: 'true'\nresources: {gpus: 64}\n")
    refused = server.presage("submit", str(path))
    tried = server.presage("submit", str(path), "--dry-run")
    assert (refused.code, refused.out, refused.err) == (2, "", tried.err)
    assert refused.err.startswith("error: vast could never start here: larger than the cluster")


def test_logs_of_several_workers(server: Server) -> None:
    gate = server.data / "gate"
    job = server.submit(
        f"echo first of $PRESAGE_RANK; until [ -e {gate} ]; do sleep 0.02; done; printf last",
        workers=2,
    )
    server.wait(job, "PROCESSING")
    gate.touch()
    followed = server.presage("logs", "-f", job).out.splitlines()
    assert sorted(followed) == [
        "worker-0 | first of 0",
        "worker-0 | last",
        "worker-1 | first of 1",
        "worker-1 | last",
    ]
    assert server.presage("logs", job, "--worker", "1").out == "first of 1\nlast"
    tail = server.presage("logs", job, "--tail", "1", "--timestamps").out.splitlines()
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    assert [bool(re.fullmatch(rf"{stamp} worker-\d \| last", line)) for line in tail] == [True] * 2
    missing = server.presage("logs", job, "--worker", "7")
    assert (missing.code, missing.err) == (
        2,
        f"error: job {job} has no worker 7; it has worker-0, worker-1\n",
    )
    assert "it had 1 attempt" in server.presage("logs", job, "--attempt", "3").err


def test_following_waits_for_a_job_that_is_queued(server: Server) -> None:
    blocker = server.submit("sleep 600", resources={"gpus": 4}, workers=2)
    server.wait(blocker, "PROCESSING")
    job = server.submit("echo at last", resources={"gpus": 1})
    early = server.presage("logs", job)
    assert (early.code, early.out) == (0, "")
    assert "has not started yet: needs 1 GPU" in early.err
    following = server.begin("logs", "-f", job)
    eventually(lambda: "is QUEUED: needs 1 GPU" in following.said())
    server.tell(blocker, "stop")
    done = following.done()
    assert (done.code, done.out) == (0, "at last\n")
    assert "waiting for it to start" in done.err


def test_following_survives_a_restart(serve: Callable[..., Server]) -> None:
    server = serve().start()
    gates = [server.data / f"gate{n}" for n in range(2)]
    wait = "; ".join(
        f"until [ -e {gate} ]; do sleep 0.02; done; echo line {n + 1}; printf begun"
        for n, gate in enumerate(gates)
    )
    job = server.submit(f"echo line 0; {wait}")
    following = server.begin("logs", "-f", job)
    eventually(lambda: following.out.read_text() == "line 0\n")
    gates[0].touch()
    eventually(lambda: following.out.read_text() == "line 0\nline 1\nbegun")
    server.kill()
    gates[1].touch()
    server.start()
    done = following.done()
    assert (done.code, done.out) == (0, "line 0\nline 1\nbegunline 2\nbegun")
    assert server.presage("logs", job).out == done.out


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
    refused = server.presage("halt", job)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "declares no checkpoint and took none" in refused.err
    assert "give --yes" in refused.err
    assert server.job(job)["status"] == "PROCESSING"
    assert server.presage("halt", job, "--yes", "--json").json["id"] == job
    server.wait(job, "HALTED")
    waited = server.presage("wait", job)
    assert (waited.code, "HALTED" in waited.out) == (4, True)
    assert f"presage resume {job}" in waited.err
    assert server.presage("resume", job).code == 0
    server.wait(job, "PROCESSING")
    assert server.presage("stop", job).code == 2
    assert server.presage("stop", job, "--yes", "--json").code == 0
    assert server.wait(job)["status"] == "CANCELLED"
    again = server.presage("stop", job)
    assert (again.code, again.err.count("\n")) == (2, 1)


def test_a_checkpoint_of_this_run_makes_a_stop_harmless(server: Server) -> None:
    job = server.submit(
        "until [ -e go ]; do sleep 0.05; ls $PRESAGE_CHECKPOINT_DIR/go && touch go; done;"
        "echo 1 > $PRESAGE_CHECKPOINT_DIR/one.pt; sleep 600",
        checkpoint={"every": "1s"},
    )
    server.wait(job, "PROCESSING")
    risk = server.job(job)["at_risk"]
    assert (risk["declared"], risk["ask"], risk["checkpoint_at"]) == (True, True, None)
    assert "took no checkpoint since it started" in risk["text"]
    node = server.job(job)["nodes"][0]
    drained = server.presage("drain", node)
    assert (drained.code, drained.err.count("\n")) == (2, 1)
    assert job in drained.err
    home = server.data / "jobs" / job / "checkpoints"
    (home / "go").touch()
    eventually(lambda: (home / "one.pt").exists())
    risk = server.job(job)["at_risk"]
    assert risk["ask"] is False
    assert risk["lose_s"] < risk["checkpoint_at"]
    assert "its last checkpoint was" in server.presage("status", job).out
    assert server.presage("stop", job).code == 0
    assert "at_risk" not in server.wait(job)


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
        (["logs", "none", "--worker", "../x"], "there is no job none"),
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
        (["--lease", "0.1"], "server.lease_s: input should be greater than or equal to 0.5"),
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
    gate = server.data / "gate"
    job = server.submit(f"until [ -e {gate} ]; do sleep 0.02; done; echo survived")
    server.wait(job, "PROCESSING")
    server.stop()
    gate.touch()
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
