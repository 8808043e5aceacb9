"""Trouble on a real server: seen, told everywhere, acted on where that is switched on. The whole
of it, with every kind, is `benchmarks/health_live.py`."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import health_live
from presage.client import Client
from tests.server.kit import Server, Zygote, eventually

_TRAIN = f"exec {sys.executable} {health_live.TRAINING} {{mode}} 100000 0.1 {{mark}}"
_CONFIG = """
health: {{every_s: 0.5, webhooks: ["{url}"]}}
queues: {{default: {{}}, acting: {{remedies: [restart]}}}}
"""


class _Heard(BaseHTTPRequestHandler):
    """Keeps what a webhook is told."""

    said: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.said.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def webhook() -> Iterator[str]:
    listener = HTTPServer(("127.0.0.1", 0), _Heard)
    thread = threading.Thread(target=listener.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.server_port}/alerts"
    listener.shutdown()
    thread.join()
    listener.server_close()


@pytest.fixture(scope="module")
def watched(
    zygote: Zygote, webhook: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("health")
    config = home / "server.yaml"
    config.write_text(_CONFIG.format(url=webhook))
    server = Server(zygote, home / "data", "--config", str(config), nodes="2x1")
    yield server.start()
    server.close()


def begin(server: Server, mode: str, mark: Path, **manifest: Any) -> str:
    """A training that has made some steps."""
    command = _TRAIN.format(mode=mode, mark=mark)
    job = server.submit(command, name=mode, grace="1s", **manifest)
    eventually(lambda: ((server.job(job)["progress"] or {}).get("step") or 0) >= 5)
    return job


def alerts(server: Server, job: str) -> list[dict[str, Any]]:
    found = server.http.get("/api/v1/health/alerts").json()
    return [one for one in found["open"] if one["job"] == job]


def test_a_loss_that_is_nan_is_told_everywhere(watched: Server, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    well = begin(watched, "steady", mark)
    job = begin(watched, "nan", mark)
    mark.touch()
    eventually(lambda: alerts(watched, job))
    (alert,) = alerts(watched, job)
    assert (alert["kind"], alert["subject"]) == ("not_finite", f"job {job}")
    assert alert["evidence"][0]["series"] == "loss"
    with Client(watched.url) as client:
        assert [one.id for one in client.diagnose(job).alerts] == [alert["id"]]
        assert client.diagnose(well).alerts == ()
        assert "not_finite: loss is NaN" in client.explain(job).alerts[0]
    said = watched.presage("diagnose", job)
    assert said.out.startswith(f"not finite (> 99 %): job {job}\n")
    assert "nothing stands out" in watched.presage("diagnose", well).out
    figures = watched.http.get("/metrics").text
    assert 'presage_alerts{kind="not_finite"} 1' in figures
    assert f'subject="job {job}"' in figures
    told = eventually(lambda: [one for one in _Heard.said if one["job"] == job])[0]
    assert (told["event"], told["alert"]) == ("alert", alert["id"])
    with watched.http.stream("GET", "/api/v1/health/events", params={"job": job}) as news:
        lines = iter(news.iter_lines())
        assert next(line for line in lines if line.startswith("event:")) == "event: alert"
        assert json.loads(next(lines).removeprefix("data: "))["id"] == alert["id"]
    for one in (job, well):
        watched.tell(one, "stop")
        watched.wait(one)
    over = eventually(
        lambda: [
            one
            for one in watched.http.get("/api/v1/health/alerts").json()["over"]
            if one["id"] == alert["id"]
        ]
    )
    assert over[0]["cleared"] == "the run is over"


def test_a_stopped_worker_is_named_and_started_again_where_that_is_switched_on(
    watched: Server, tmp_path: Path
) -> None:
    job = begin(watched, "steady", tmp_path / "mark", queue="acting")
    for pid in watched.processes(job):
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: watched.job(job)["attempt"] == 2)
    history = watched.job(job)["history"]
    assert any("was stopped by a signal" in item["reason"]["text"] for item in history)
    over = watched.http.get("/api/v1/health/alerts").json()
    (alert,) = [one for one in [*over["open"], *over["over"]] if one["job"] == job]
    assert alert["subject"] == f"worker {job}/worker-0"
    assert alert["done"] == ["started again from its checkpoint"]
    eventually(lambda: (watched.job(job)["progress"] or {}).get("step"))
    watched.tell(job, "stop")
    watched.wait(job)


def test_nothing_is_done_where_nothing_is_switched_on(watched: Server, tmp_path: Path) -> None:
    job = begin(watched, "steady", tmp_path / "mark")
    for pid in watched.processes(job):
        os.kill(pid, signal.SIGSTOP)
    eventually(lambda: alerts(watched, job))
    assert watched.job(job)["attempt"] == 1
    assert alerts(watched, job)[0]["done"] == []
    watched.tell(job, "stop")
    watched.wait(job)


def test_how_likely_a_job_fails_is_told(watched: Server, tmp_path: Path) -> None:
    fails = [watched.submit("exit 3", name="short") for _ in range(10)]
    for job in fails:
        watched.wait(job)
    job = begin(watched, "steady", tmp_path / "mark")
    with Client(watched.url) as client:
        said = eventually(lambda: client.explain(job).failure)
        found = client.diagnose(job).failure
        assert client.diagnose(fails[0]).failure is None  # it is over
        assert client.diagnose("cluster").failure is None
    assert found is not None
    assert 0 <= found.low < found.chance < found.high <= 1
    assert (found.moment, found.version) == ("submission", 0)
    assert "of its owner's runs failed" in said
    assert "may fail: " in watched.presage("explain", job).out
    assert "may fail: " in watched.presage("diagnose", job).out
    watched.tell(job, "stop")
    watched.wait(job)


def test_whoever_is_not_there_is_said_so(watched: Server) -> None:
    done = watched.presage("diagnose", "nobody")
    assert done.code != 0
    assert done.err.startswith("error: there is no job nobody")
    wrong = watched.presage("diagnose", "cluster", "--memory", "1Gi")
    assert "belongs to files" in wrong.err


@pytest.mark.soak
@pytest.mark.parametrize("kind", health_live.KINDS)
def test_every_kind(kind: str, tmp_path: Path, program: Callable[..., str]) -> None:
    program("gcc", "cc")
    (case,) = health_live.inject(1, [kind], 4, tmp_path)["cases"]
    assert case["right_kind"]
    assert case["right_subject"]
