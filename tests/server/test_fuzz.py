"""Requests nobody thought of: every operation of the OpenAPI document, against a live server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case

from tests.server.kit import Server, Zygote

EXAMPLES = 100 if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else 4
STREAMS = {"/api/v1/events", "/api/v1/health/events", "/api/v1/jobs/{job_id}/logs"}
"""Answers that may not end by themselves."""


schemathesis.serializer.alias("application/gzip", "application/octet-stream")


@pytest.fixture(scope="module")
def fuzzed(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a job of each kind and nothing else to do. Its jobs cannot run: whatever the
    fuzzer submits is no business of this machine."""
    server = Server(zygote, tmp_path_factory.mktemp("fuzzed") / "data", nodes="1x1")
    server.start()
    server.wait(server.submit("true", name="done"))
    nodes = server.http.get("/api/v1/nodes").json()["nodes"]
    server.http.post(f"/api/v1/nodes/{nodes[0]['name']}/drain")
    server.submit("true", name="waits", resources={"gpus": 1})
    yield server
    server.close()


def _operations(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method in methods
        # The first user would lock the fuzzer out; roles have tests of their own.
        if (method, path) != ("post", "/api/v1/users")
    ]


def test_no_request_breaks_the_server(fuzzed: Server) -> None:
    document = fuzzed.http.get("/openapi.json").json()
    known = [job["id"] for job in fuzzed.http.get("/api/v1/jobs").json()["jobs"]]
    schema = schemathesis.openapi.from_dict(document)
    tried = 0
    for method, path in _operations(document):
        tried += _fuzz(fuzzed, schema[path][method], path, known)
    assert tried >= EXAMPLES * 15
    assert fuzzed.leads()


def _fuzz(server: Server, operation: Any, path: str, known: list[str]) -> int:
    tried = 0

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "soak",
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(case=operation.as_strategy(), job=st.none() | st.sampled_from(known))
    def run(case: Case[Any], job: str | None) -> None:
        nonlocal tried
        tried += 1
        if job is not None and "job_id" in (case.path_parameters or {}):
            case.path_parameters["job_id"] = job
        status, text = _send(server, case, path)
        assert status < 500 or (status == 503 and "not_leading" in text), f"{case}: {text}"
        if 400 <= status < 500 and case.method != "HEAD":
            assert '"error"' in text, f"{case}: {text}"

    run()
    return tried


def _send(server: Server, case: Case[Any], path: str) -> tuple[int, str]:
    request = case.as_transport_kwargs(base_url=server.url)
    arguments: dict[str, Any] = {
        key: value for key, value in request.items() if key in ("params", "json", "data")
    }
    body = arguments.pop("data", None)
    if isinstance(body, bytes | str):
        arguments["content"] = body
    given_headers = dict(request.get("headers") or {})
    headers = {k: v for k, v in given_headers.items() if k.lower() != "host"}
    try:
        built = server.http.build_request(
            request["method"], request["url"], headers=headers, **arguments
        )
    except (httpx.InvalidURL, UnicodeEncodeError, TypeError, ValueError):
        return 0, ""  # no client can send this
    try:
        answer = server.http.send(built, stream=True)
    except httpx.LocalProtocolError:
        return 0, ""  # nor this
    try:
        if path in STREAMS and answer.status_code == 200:
            return 200, ""
        answer.read()
        return answer.status_code, answer.text
    finally:
        answer.close()


_words = st.text(max_size=8) | st.sampled_from(
    ["1", "2..4", "5..1", "1Gi", "-1", "1e999", "60s", "at epoch 3: 4", "\0", "../x", "a" * 300]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=6,
)
_KEYS = [
    *("name", "image", "environment", "command", "launcher", "workers", "resources", "roles"),
    *("queue", "priority", "placement", "preemptible", "share", "data", "results", "secrets"),
    *("env", "checkpoint", "retry", "time_limit", "grace", "elastic", "model", "labels"),
    *("webhooks", "nonsense"),
]


def test_no_manifest_breaks_the_server(fuzzed: Server) -> None:
    @settings(
        max_examples=EXAMPLES * 40,
        deadline=None,
        derandomize=os.environ.get("HYPOTHESIS_PROFILE") != "soak",
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(
        body=st.dictionaries(st.sampled_from(_KEYS), _values, max_size=5),
        base=st.booleans(),
        yaml=st.booleans(),
    )
    def run(body: dict[str, Any], base: bool, yaml: bool) -> None:
        whole = {"name": "fuzz", "command": "true", **body} if base else body
        kind = "application/yaml" if yaml else "application/json"
        text = json.dumps(whole).encode()
        answer = fuzzed.http.post("/api/v1/jobs", content=text, headers={"Content-Type": kind})
        assert answer.status_code in (201, 400, 422), answer.text
        if answer.status_code != 201:
            assert answer.json()["error"]["text"]

    run()
    assert fuzzed.leads()


@pytest.mark.parametrize("kind", ["application/yaml", "application/json"])
def test_no_bytes_break_the_server(fuzzed: Server, kind: str) -> None:
    @settings(max_examples=EXAMPLES * 20, deadline=None, derandomize=True, database=None)
    @given(body=st.binary(max_size=200))
    def run(body: bytes) -> None:
        answer = fuzzed.http.post("/api/v1/jobs", content=body, headers={"Content-Type": kind})
        assert answer.status_code in (400, 422), answer.text

    run()


def test_the_journal_of_a_fuzzed_server_can_be_read_again(fuzzed: Server) -> None:
    """Whatever came in, a restart finds its way."""
    before = len(fuzzed.alive())
    fuzzed.kill()
    fuzzed.start()
    assert len(fuzzed.alive()) == before
