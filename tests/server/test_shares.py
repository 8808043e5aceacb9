"""Shares of GPUs on a real server, with a device that stands in for one: what a queue gives, what
telemetry, pages and Prometheus are told, and limits that change while a job runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from presage.executors.node.shares.terms import call, read_terms
from presage.layout import Layout
from tests.server.kit import Server, Zygote, eventually, running
from tests.standin import Machine, StandIn, build

CONFIG = """
queues:
  notebooks: {gpu: {request: 0.3, limit: 0.6, memory: 512Mi}}
  gentle: {gpu: {limit: 0.5, hard: false, weight: 3}}
"""


@pytest.fixture(scope="module")
def standin(
    tmp_path_factory: pytest.TempPathFactory, program: Callable[..., str]
) -> tuple[StandIn, dict[str, str]]:
    program("gcc")
    home = tmp_path_factory.mktemp("gpu")
    built, machine = build(home), Machine(home / "machine")
    found = machine.environment(built)
    return built, {
        name: found[name] for name in ("STANDIN_GPU", "STANDIN_LIBRARY", "LD_LIBRARY_PATH")
    }


@pytest.fixture(scope="module")
def server(
    zygote: Zygote,
    tmp_path_factory: pytest.TempPathFactory,
    standin: tuple[StandIn, dict[str, str]],
) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("shares")
    (home / "presage.yaml").write_text(CONFIG)
    env = {"PRESAGE_SHARE_LIBRARY": str(standin[0].interposer)}
    options = ("--config", str(home / "presage.yaml"))
    with running(Server(zygote, home / "data", *options, nodes="1x1", env=env)) as made:
        yield made
        left = call(Layout(home / "data").shares, {"ask": "status"})
    if left is not None:  # it was kept, for jobs that ran when the server ended
        with suppress(ProcessLookupError):
            os.kill(left["pid"], signal.SIGTERM)


def _ask(server: Server, gpu: dict[str, Any], **manifest: Any) -> Any:
    body = {"name": "a", "command": "true", "resources": {"gpu": gpu}, **manifest}
    return server.http.post("/api/v1/jobs", json=body)


def test_a_share_is_measured_shown_and_changed_while_it_is_used(
    server: Server, standin: tuple[StandIn, dict[str, str]]
) -> None:
    built, env = standin
    job = server.submit(
        f"{built.tenant} 2000 600", queue="notebooks", env=env, resources={"gpu": {}}
    )

    def share() -> Any:
        told = server.http.get("/api/v1/shares").json()["shares"]
        return told[0] if told and told[0]["got"] else None

    told = eventually(share)
    assert (told["job"], told["worker"]) == (job, "worker-0")
    assert (told["request"], told["limit"], told["memory_limit_mib"]) == (0.3, 0.6, 512)
    assert 0 < told["got"] < 0.75
    assert told["waited"] > 0
    metrics = server.http.get("/metrics").text
    labels = f'{{job_id="{job}",worker="worker-0"}}'
    assert f"presage_worker_gpu_request{labels} 0.3" in metrics
    assert f"presage_worker_gpu_memory_limit_bytes{labels} {512 << 20}" in metrics
    for name in ("gpu_limit", "gpu_got", "gpu_waited", "gpu_memory_bytes"):
        assert f"presage_worker_{name}{labels}" in metrics
    top = server.presage("top", "--once", "--json").json["shares"]
    assert [(one["job"], one["request"]) for one in top] == [(job, 0.3)]
    assert "60%" in server.presage("top", "--once").out
    (series,) = server.http.get(f"/api/v1/jobs/{job}/telemetry").json()["series"]
    assert max(series["gpu_got"]) > 0

    for options, text in (
        (("--limit", "0.2"), "requests 0.3 of a GPU"),
        (("--memory", "8Gi"), "asked for 512 MiB"),
        (("2", "--yes"), "fixed number of workers"),
        ((), "either a number of workers, or --limit"),
    ):
        refused = server.presage("scale", job, *options)
        assert refused.code != 0
        assert text in refused.err
    done = server.presage("scale", job, "--limit", "0.4", "--memory", "256Mi")
    assert done.code == 0, done.err
    home = Layout(server.data).shares

    def terms() -> Any:
        found = read_terms(home, f"{job}.1.worker-0")
        return found if found is not None and found.limit == 0.4 else None

    assert eventually(terms).memory == 256 << 20
    eventually(lambda: (share() or {}).get("limit") == 0.4)
    server.tell(job, "stop")
    eventually(lambda: read_terms(home, f"{job}.1.worker-0") is None)
    again = server.presage("scale", job, "--limit", "0.5")
    assert again.code != 0


def test_a_queue_says_whether_limits_are_hard(
    server: Server, standin: tuple[StandIn, dict[str, str]]
) -> None:
    built, env = standin
    job = server.submit(
        f"{built.tenant} 2000 600", queue="gentle", env=env, resources={"gpu": {"request": 0.2}}
    )
    terms = eventually(lambda: read_terms(Layout(server.data).shares, f"{job}.1.worker-0"))
    assert terms is not None
    assert (terms.request, terms.limit, terms.hard, terms.weight) == (0.2, 0.5, False, 3.0)
    server.tell(job, "stop")


@pytest.mark.parametrize(
    ("gpu", "queue", "text"),
    [
        ({}, "default", "gpu: request is missing"),
        ({"limit": 0.5}, "gentle", "queue gentle has no default"),
        ({"request": 0.3, "guarantee": "isolation"}, "notebooks", "isolation cannot be given"),
        ({"request": 0.3, "guarantee": ["magic"]}, "notebooks", "guarantee"),
    ],
)
def test_what_cannot_be_given_is_refused_in_one_line(
    server: Server, gpu: dict[str, Any], queue: str, text: str
) -> None:
    answer = _ask(server, gpu, queue=queue)
    assert answer.status_code in (400, 422)
    assert text in answer.text
    assert "\n" not in answer.json()["error"]["text"]


def test_what_is_given_may_be_demanded(server: Server) -> None:
    assert _ask(server, {"guarantee": ["limit", "memory"]}, queue="notebooks").status_code < 300
