"""A job's way through a running server, from the manifest to the end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.kit import ENDED, Server, eventually

COUNTER = """
import os, time
from presage import job

count, steps = 0, int(os.environ.get("STEPS", "30"))
def save(directory):
    (directory / "count").write_text(str(count))
def load(directory):
    global count
    count = int((directory / "count").read_text())
job.checkpoint(save, load)
if job.restore():
    print("continuing at", count, flush=True)
while count < steps:
    if count < 10 or job.allocation().attempt > 1:
        count += 1
        print("step", count, flush=True)
    job.step(epoch=count, step=count, steps=steps, metrics={"loss": 1 / count})
    time.sleep(0.01)
"""
"""Counts with checkpoints; a first attempt gets no further than 10, however long it runs."""


def statuses(job: dict[str, Any]) -> list[str]:
    """The statuses of a job, oldest first."""
    return [item["status"] for item in job["history"]]


@pytest.fixture(autouse=True)
def calm(server: Server) -> Iterator[None]:
    """What a test that failed left running must not keep the others waiting."""
    yield
    server.stop_everything()


def test_a_job_runs_to_its_end(server: Server) -> None:
    job_id = server.submit(
        "echo $PRESAGE_RANK of $PRESAGE_WORKERS, gpu $CUDA_VISIBLE_DEVICES",
        workers=2,
        resources={"gpus": 2},
    )
    job = server.wait(job_id)
    assert job["status"] == "COMPLETED"
    assert statuses(job) == ["QUEUED", "DOWNLOADING", "PROCESSING", "COMPLETED"]
    times = [item["at"] for item in job["history"]]
    assert times == sorted(times)
    assert job["submitted_at"] == times[0]
    assert (job["started_at"], job["ended_at"]) == (times[2], times[3])
    assert (job["exit_code"], job["attempt"], job["stage"]) == (0, 1, "")
    assert server.logs(job_id) == "0 of 2, gpu 0,1\n"
    assert server.logs(job_id, worker="worker-1") == "1 of 2, gpu 2,3\n"


def test_the_status_has_the_promised_shape(server: Server) -> None:
    job = server.wait(server.submit("exit 3", name="shape"))
    assert list(job) == [
        *("id", "name", "owner", "queue", "status", "stage", "reason", "attempt", "workers"),
        *("nodes", "submitted_at", "started_at", "ended_at", "exit_code", "progress", "eta_s"),
        *("estimates", "history"),
    ]
    assert (job["status"], job["exit_code"]) == ("FAILED", 3)
    assert job["reason"]["code"] == "error"
    assert "exit code 3" in job["reason"]["text"]
    assert job["history"][-1]["reason"] == job["reason"]


def test_yaml_is_taken_too(server: Server) -> None:
    answer = server.http.post(
        "/api/v1/jobs",
        content="name: yaml\ncommand: [sh, -c, 'echo from yaml']\nworkers: 1..2\n",
        headers={"Content-Type": "application/yaml"},
    )
    assert answer.status_code == 201
    assert answer.json()["status"] == "QUEUED"
    server.wait(answer.json()["id"])
    assert server.logs(answer.json()["id"]) == "from yaml\n"


def test_a_job_that_does_not_fit_waits_and_says_why(server: Server) -> None:
    blocker = server.submit("sleep 600", workers=2, resources={"gpus": 4})
    server.wait(blocker, "PROCESSING")
    first = server.submit("true", resources={"gpus": 1})
    second = server.submit("true", resources={"gpus": 1})
    job = server.job(second)
    assert (job["status"], job["reason"]["code"]) == ("QUEUED", "no_room")
    explained = server.http.get(f"/api/v1/jobs/{second}/explain").json()
    assert explained["ahead"] == 1
    assert explained["reason"]["text"]
    queue = server.http.get("/api/v1/queues").json()["queues"][0]
    assert (queue["name"], queue["used_gpus"]) == ("default", 8.0)
    assert (queue["pending"], queue["running"]) == (2, 1)
    assert server.tell(blocker, "stop").status_code == 202
    assert server.wait(blocker)["status"] == "CANCELLED"
    assert [server.wait(job)["status"] for job in (first, second)] == ["COMPLETED"] * 2


def test_a_job_that_can_never_fit_is_refused_as_a_dry_run_is(server: Server) -> None:
    """It is not accepted first and FAILED then."""
    body = {"name": "vast", "command": "true", "resources": {"gpus": 64}}
    refused = server.http.post("/api/v1/jobs", json=body)
    tried = server.http.post("/api/v1/jobs/dry-run", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "never_fits")
    assert refused.json() == tried.json()
    assert "needs 64 GPUs" in refused.json()["error"]["text"]
    assert server.http.get("/api/v1/jobs/vast").status_code == 404


def test_logs_are_streamed_live_and_kept(server: Server) -> None:
    gate = server.data / "gate"
    script = f"echo before; while [ ! -e {gate} ]; do sleep 0.02; done; echo after"
    job_id = server.submit(script)
    with server.http.stream("GET", f"/api/v1/jobs/{job_id}/logs?follow=1") as answer:
        pieces = answer.iter_text()
        assert next(pieces) == "before\n"
        # The worker may write before the server has heard that it runs.
        assert server.wait(job_id, "PROCESSING", *ENDED)["status"] == "PROCESSING"
        gate.touch()
        assert "".join(pieces) == "after\n"
    server.wait(job_id)
    assert server.logs(job_id) == "before\nafter\n"
    assert server.logs(job_id, offset=7) == "after\n"
    assert server.logs(job_id, worker="7") == ""


def test_halt_takes_a_checkpoint_and_resume_goes_on_from_it(server: Server) -> None:
    job_id = server.submit(
        [sys.executable, "-c", COUNTER], checkpoint={"dir": "ckpt", "every": "1h"}
    )
    eventually(lambda: "step 3\n" in server.logs(job_id))
    assert server.tell(job_id, "halt").status_code == 202
    halted = server.wait(job_id, "HALTED")
    assert halted["reason"]["code"] == "requested"
    reached = server.logs(job_id, attempt=1).count("step")
    assert server.tell(job_id, "resume").json()["status"] in ("QUEUED", "DOWNLOADING")
    job = server.wait(job_id)
    assert (job["status"], job["attempt"]) == ("COMPLETED", 2)
    assert f"continuing at {reached}\n" in server.logs(job_id, attempt=2)
    assert server.logs(job_id, attempt=2).count("step") == 30 - reached
    assert "HALTED" in statuses(job)
    assert job["progress"]["done"] == 1.0


def test_a_killed_worker_continues_from_its_checkpoint(server: Server) -> None:
    job_id = server.submit(
        [sys.executable, "-c", COUNTER],
        checkpoint={"dir": "ckpt", "every": "0.1s"},
        retry={"failures": 1},
    )
    complete = "[!.]*/count"  # not the one that is being saved
    eventually(lambda: list((server.data / "jobs" / job_id).rglob(complete)))
    (worker,) = server.processes(job_id)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: "continuing" in server.logs(job_id, attempt=2))
    job = server.wait(job_id)
    assert (job["status"], job["attempt"]) == ("COMPLETED", 2)
    assert any("SIGKILL" in item["reason"]["text"] for item in job["history"])


def test_out_of_memory_is_tried_again_with_more(server: Server) -> None:
    script = (
        "import os, time; b = bytearray(150 << 20)\n"
        "if os.environ['PRESAGE_ATTEMPT'] == '1': time.sleep(600)\n"
    )
    job = server.wait(
        server.submit(
            [sys.executable, "-c", script],
            resources={"memory": "80Mi"},
            retry={"oom": {"times": 3, "factor": 4, "ceiling": "400Mi"}},
        )
    )
    assert (job["status"], job["attempt"]) == ("COMPLETED", 2), job
    assert "out_of_memory" in [item["reason"]["code"] for item in job["history"]]


def test_out_of_memory_ends_at_the_ceiling(server: Server) -> None:
    script = "b = bytearray(300 << 20); import time; time.sleep(600)"
    job = server.wait(
        server.submit(
            [sys.executable, "-c", script],
            resources={"memory": "60Mi"},
            retry={"oom": {"times": 5, "factor": 2, "ceiling": "100Mi"}},
        )
    )
    assert (job["status"], job["reason"]["code"]) == ("FAILED", "out_of_memory")
    assert job["attempt"] == 2


def test_a_time_limit_ends_a_job(server: Server) -> None:
    job = server.wait(server.submit("sleep 600", time_limit="300ms", retry={"failures": 3}))
    assert (job["status"], job["reason"]["code"]) == ("FAILED", "time_limit")
    assert job["attempt"] == 1


def test_a_failure_is_tried_again_as_often_as_asked(server: Server) -> None:
    job = server.wait(server.submit("exit 9", retry={"failures": 2}))
    assert (job["status"], job["attempt"], job["exit_code"]) == ("FAILED", 3, 9)


def test_two_roles_run_together(server: Server) -> None:
    gate = server.data / "roles"
    until = f"while [ ! -e {gate} ]; do sleep 0.02; done"
    job_id = server.submit(
        "true",
        name="roles",
        roles={
            "worker": {"workers": 2, "command": f"echo worker $PRESAGE_RANK; {until}"},
            "ps": {"workers": 1, "command": f"echo ps $PRESAGE_ROLE; touch {gate}; sleep 600"},
        },
    )
    assert server.wait(job_id)["status"] == "COMPLETED"
    assert server.logs(job_id, worker="ps-0") == "ps ps\n"
    assert server.logs(job_id, worker="worker-1") == "worker 1\n"
    assert server.logs(job_id, worker="2") == "ps ps\n"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs the extra torch")
def test_torchrun_gives_workers_a_rendezvous(server: Server) -> None:
    script = (
        "import torch.distributed as d; d.init_process_group('gloo'); import torch; "
        "t = torch.ones(1) * d.get_rank(); d.all_reduce(t); print('sum', int(t), flush=True); "
        "d.destroy_process_group()"
    )
    job_id = server.submit([sys.executable, "-c", script], launcher="torchrun", workers=2)
    job = server.wait(job_id)
    assert job["status"] == "COMPLETED", server.logs(job_id)
    assert "sum 1\n" in server.logs(job_id, worker="1")


def test_a_folder_comes_along(server: Server, tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "data.txt").write_text("from the folder")
    (tmp_path / "presage.yaml").write_text(
        "name: folder\ncommand: cat part/data.txt; echo new > part/new; cp -r part "
        "$PRESAGE_RESULT_DIR/\n"
    )
    with server.client() as client:
        first = client.submit(tmp_path / "presage.yaml")
        again = client.submit(tmp_path / "presage.yaml")
    assert server.wait(first.id)["status"] == "COMPLETED"
    assert server.logs(first.id) == "from the folder"
    assert (server.data / "jobs" / first.id / "results" / "part" / "new").read_text() == "new\n"
    assert not (tmp_path / "part" / "new").exists()
    assert server.wait(again.id)["status"] == "COMPLETED"
    assert len(list((server.data / "folders").iterdir())) == 1


def test_the_same_key_gives_the_same_job(server: Server) -> None:
    def submit(key: str) -> httpx.Response:
        return server.http.post(
            "/api/v1/jobs",
            json={"name": "once", "command": "true"},
            headers={"Idempotency-Key": key},
        )

    first, again, other = submit("k1"), submit("k1"), submit("k2")
    assert first.json()["id"] == again.json()["id"] != other.json()["id"]
    server.wait(first.json()["id"])
    assert submit("k1").json() == {
        "id": first.json()["id"],
        "status": "COMPLETED",
        "eta_s": None,
    }


def test_a_job_that_waits_can_be_halted_and_stopped(server: Server) -> None:
    blocker = server.submit("sleep 600", workers=8, resources={"gpus": 1})
    waiting = server.submit("true", resources={"gpus": 1})
    assert server.tell(waiting, "halt").json()["status"] == "HALTED"
    server.tell(blocker, "stop")
    server.wait(blocker)
    assert server.job(waiting)["status"] == "HALTED"
    assert server.tell(waiting, "stop").json()["status"] == "CANCELLED"
    assert statuses(server.job(waiting)) == ["QUEUED", "HALTED", "CANCELLED"]


def test_nothing_is_left_behind(server: Server) -> None:
    job_id = server.submit("sleep 600 & sleep 600 & echo started")
    server.wait(job_id)
    eventually(lambda: not (server.data / "runs" / job_id).exists())
    assert not server.processes(job_id)


def test_drain_moves_work_and_undrain_brings_the_node_back(server: Server) -> None:
    command = [sys.executable, "-c", COUNTER]
    job_id = server.submit(
        command,
        resources={"gpus": 1},
        checkpoint={"every": "1h"},
        env={"STEPS": "1000000"},
    )
    (node,) = server.wait(job_id, "PROCESSING")["nodes"]
    eventually(lambda: "step 3\n" in server.logs(job_id))
    answer = server.http.post(f"/api/v1/nodes/{node}/drain")
    assert (answer.status_code, answer.json()["state"]) == (202, "draining")
    eventually(lambda: server.job(job_id)["attempt"] == 2)
    assert server.wait(job_id, "PROCESSING")["nodes"] != [node]
    assert "drained" in [item["reason"]["code"] for item in server.job(job_id)["history"]]
    eventually(lambda: "continuing" in server.logs(job_id))
    states = {item["name"]: item for item in server.http.get("/api/v1/nodes").json()["nodes"]}
    assert (states[node]["state"], states[node]["free_gpus"]) == ("draining", 4.0)
    assert server.http.post(f"/api/v1/nodes/{node}/undrain").json()["state"] == "up"
    server.tell(job_id, "stop")
    server.wait(job_id)
    free = [item["free_gpus"] for item in server.http.get("/api/v1/nodes").json()["nodes"]]
    assert free == [4.0, 4.0]
