"""`presage.Client` and `presage.submit`, against a running server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import httpx
import pytest

import presage
from presage._retry import PatientClient
from presage.client import to_json
from presage.model import answers, server_answers
from presage.model.answers import JobStatus, Status
from presage.model.errors import ApiError
from presage.model.job import ReasonCode
from presage.model.server_answers import NodeStatus
from tests.server.kit import PATIENCE_S, Server, eventually

LONG = "trap 'exit 143' TERM; echo started; sleep 600 & wait"


@pytest.fixture(autouse=True)
def _here(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRESAGE_URL", server.url)


def manifest(folder: Path, command: str, **more: Any) -> Path:
    """A file with a job in it."""
    path = folder / "presage.yaml"
    path.write_text(json.dumps({"name": "typed", "command": command, **more}))
    return path


def test_from_submit_to_the_end(server: Server, tmp_path: Path) -> None:
    path = manifest(tmp_path, "echo one; printf 'tw\\303\\266'")
    j = presage.Client(server.url).submit(str(path))
    assert (j.id.startswith("typed-"), j.status) == (True, Status.QUEUED)
    assert j.wait(PATIENCE_S).status == "COMPLETED"
    assert j.status is Status.COMPLETED
    assert list(j.logs()) == ["one", "twö"]
    assert j.reason.code in (ReasonCode.OK, ReasonCode.EXITED)
    assert [each.status for each in j.info.history][-1] is Status.COMPLETED
    assert j.info.exit_code == 0
    assert repr(j) == f"JobHandle('{j.id}', COMPLETED)"
    assert f'<th scope="row">{j.id}</th>' in j._repr_html_()
    assert j.explain().status is Status.COMPLETED
    with pytest.raises((AttributeError, FrozenInstanceError)):
        j.info.status = Status.FAILED  # type: ignore[misc]


def test_submit_takes_the_server_of_the_environment(tmp_path: Path) -> None:
    job = presage.submit(manifest(tmp_path, "exit 3"))
    assert job.wait(PATIENCE_S).status == "FAILED"
    assert "exit code 3" in job.reason.text


def test_a_job_is_halted_resumed_and_stopped(server: Server, tmp_path: Path) -> None:
    job = presage.submit(manifest(tmp_path, LONG))
    eventually(lambda: job.refresh().status == "PROCESSING")
    lines = job.logs(follow=True)
    assert next(lines) == "started"
    assert job.wait(0).status == "PROCESSING"
    job.halt()
    eventually(lambda: job.refresh().status == "HALTED")
    job.resume()
    eventually(lambda: job.refresh().status == "PROCESSING")
    assert job.stop().wait(PATIENCE_S).status == "CANCELLED"
    with pytest.raises(ApiError, match="CANCELLED") as told:
        job.stop()
    assert (told.value.status, "\n" in str(told.value)) == (409, False)


def test_a_job_is_scaled(server: Server, tmp_path: Path) -> None:
    fixed = presage.submit(manifest(tmp_path, LONG))
    with pytest.raises(presage.PresageError, match="fixed number of workers"):
        fixed.scale(2)
    elastic = presage.submit(manifest(tmp_path, LONG, workers="1..3"))
    assert elastic.scale(2).id == elastic.id
    server.stop_everything()


def test_the_cluster_is_typed(server: Server, tmp_path: Path) -> None:
    with presage.Client() as client:
        nodes, (queue, *_) = client.nodes(), client.queues()
        assert [node.gpus for node in nodes] == [4, 4]
        assert isinstance(nodes[0], NodeStatus)
        assert queue.name == "default"
        assert client.drain(nodes[0].name).state == "draining"
        assert client.drain(nodes[0].name, back=True).state == "up"
        would = client.dry_run(manifest(tmp_path, "true").read_text())
        assert (would.name, would.starts_now) == ("typed", True)
        with pytest.raises(ApiError, match="larger than the cluster") as never:
            client.submit(manifest(tmp_path, "true", resources={"gpus": 4}, workers=3))
        assert never.value.code == ReasonCode.NEVER_FITS
        stuck = client.submit(manifest(tmp_path, "exit 3"))
        assert stuck.wait(PATIENCE_S).status == "FAILED"
        first, *rest = client.jobs(limit=2)
        assert (first.id, len(rest)) == (stuck.id, 1)
        assert first.reason.code == ReasonCode.ERROR
        assert client.users() == []
        (change, *_) = client.events(stuck.id)
        assert (change.job, change.status) == (stuck.id, "QUEUED")


def test_answers_are_what_the_server_said(server: Server) -> None:
    """None is left out, none made up; what a newer server adds is passed over."""
    job = server.submit("true")
    server.wait(job)
    for path, kind in (
        (f"/jobs/{job}", JobStatus),
        (f"/jobs/{job}/explain", answers.Explanation),
    ):
        said = server.http.get(f"/api/v1{path}").json()
        with presage.Client() as client:
            assert to_json(client.get(kind, path)) == said
    newer = {**said, "colour": "red"}
    client = presage.Client("http://127.0.0.1:1")
    client._http = PatientClient(
        0.0,
        base_url="http://127.0.0.1:1",
        transport=httpx.MockTransport(lambda request: httpx.Response(200, json=newer)),
    )
    assert to_json(client.explain(job)) == said
    newer["status"] = "DANCING"
    with pytest.raises(ApiError, match="makes no sense here: status") as told:
        client.explain(job)
    assert "\n" not in str(told.value)


def test_every_answer_is_frozen() -> None:
    kinds = [
        getattr(module, name)
        for module in (answers, server_answers)
        for name in module.__all__
        if name != "Status"
    ]
    assert len(kinds) > 15
    assert all(vars(kind)["__dataclass_params__"].frozen for kind in kinds)


@pytest.mark.slow
def test_the_example_submits_and_follows_its_training(server: Server, root: Path) -> None:
    script = root / "examples" / "train" / "submit.py"
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first.startswith("spirals-")
    assert "\nCOMPLETED" in done.stdout
    assert last == "8 GPUs are free, 0 jobs wait"
