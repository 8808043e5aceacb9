"""Every route: what it answers, what it refuses, and that OpenAPI says so."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.kit import Server, eventually


def test_it_lives_and_decides(server: Server) -> None:
    health = server.http.get("/healthz")
    assert health.json() == {"status": "ok", "leading": True, "leader": server.url}
    assert server.http.get("/readyz").json() == health.json()


def test_metrics_are_what_prometheus_reads(server: Server) -> None:
    server.wait(server.submit("true"))
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {family.name: family for family in text_string_to_metric_families(answer.text)}
    jobs = {sample.labels["status"]: sample.value for sample in found["presage_jobs"].samples}
    assert jobs["COMPLETED"] >= 1
    assert len(jobs) == 8
    assert found["presage_gpus"].samples[0].value == 8
    assert found["presage_leading"].samples[0].value == 1
    assert found["presage_decisions"].type == "counter"
    for family in found.values():
        assert family.documentation
        assert family.type in ("gauge", "counter")


def test_a_page_of_jobs_leads_to_the_next(server: Server) -> None:
    made = [server.submit("true", name=f"page-{i}") for i in range(5)]
    for job in made:
        server.wait(job)
    first = server.http.get("/api/v1/jobs", params={"limit": 2}).json()
    assert [job["id"] for job in first["jobs"]] == [made[4], made[3]]
    second = server.http.get("/api/v1/jobs", params={"limit": 2, "after": first["next"]}).json()
    assert [job["id"] for job in second["jobs"]] == [made[2], made[1]]
    with server.client() as client:
        assert [job.id for job in client.jobs(limit=5)] == made[::-1]
        assert len(list(client.jobs())) >= 5


def test_jobs_are_filtered(server: Server) -> None:
    failed = server.wait(server.submit("exit 1", name="fails"))["id"]

    def listed(**query: Any) -> list[str]:
        return [job["id"] for job in server.http.get("/api/v1/jobs", params=query).json()["jobs"]]

    assert failed in listed(status="FAILED")
    assert failed in listed(status=["failed", "COMPLETED"])
    assert failed not in listed(status="COMPLETED")
    assert failed in listed(owner="local", queue="default")
    assert listed(owner="nobody") == listed(queue="none") == []


def test_the_manifest_comes_back(server: Server) -> None:
    job = server.submit("true", name="back", resources={"memory": "1Gi"}, env={"A": "1"})
    body = server.http.get(f"/api/v1/jobs/{job}/manifest").json()
    assert (body["name"], body["resources"], body["env"]) == (
        "back",
        {"memory": "1024Mi"},
        {"A": "1"},
    )


def test_the_audit_log_says_who_did_what(server: Server) -> None:
    job = server.submit("sleep 600", name="audited")
    server.tell(job, "stop")
    found = server.http.get("/api/v1/audit", params={"job": job}).json()["entries"]
    assert [(item["who"], item["what"], item["job"]) for item in found] == [
        ("local", "stop", job),
        ("local", "submit", job),
    ]


BAD_REQUESTS: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("GET", "/api/v1/jobs/none", {}, 404, "not_found"),
    ("GET", "/api/v1/jobs/none/logs", {}, 404, "not_found"),
    ("GET", "/api/v1/jobs/none/explain", {}, 404, "not_found"),
    ("GET", "/api/v1/jobs/none/manifest", {}, 404, "not_found"),
    ("POST", "/api/v1/jobs/none/stop", {}, 404, "not_found"),
    ("POST", "/api/v1/nodes/none/drain", {}, 404, "not_found"),
    ("DELETE", "/api/v1/users/none", {}, 404, "not_found"),
    ("GET", "/api/v1/nothing", {}, 404, "not_found"),
    ("PATCH", "/api/v1/jobs", {}, 405, "no_such_method"),
    ("GET", "/api/v1/jobs?limit=0", {}, 422, "bad_request"),
    ("GET", "/api/v1/jobs?status=RUNNING", {}, 400, "user_error"),
    ("GET", "/api/v1/events?since=-1", {}, 422, "bad_request"),
    ("GET", "/api/v1/events", {"headers": {"Last-Event-ID": "x"}}, 400, "user_error"),
    ("POST", "/api/v1/jobs", {"json": {}}, 422, "bad_manifest"),
    ("POST", "/api/v1/jobs", {"json": []}, 422, "bad_manifest"),
    ("POST", "/api/v1/jobs", {"content": b"name: [", "headers": {}}, 422, "bad_manifest"),
    ("POST", "/api/v1/jobs", {"json": {"name": "a"}}, 422, "bad_manifest"),
    ("POST", "/api/v1/jobs", {"json": {"name": "A B", "command": "x"}}, 422, "bad_manifest"),
    ("POST", "/api/v1/jobs", {"content": b"", "headers": {}}, 422, "bad_manifest"),
    ("POST", "/api/v1/jobs", {"content": b"\xff\xfe", "headers": {}}, 422, "bad_manifest"),
    (
        "POST",
        f"/api/v1/jobs?folder={'0' * 64}",
        {"json": {"name": "a", "command": "x"}},
        400,
        "user_error",
    ),
    ("POST", "/api/v1/jobs?folder=../../etc", {"json": {"name": "a"}}, 422, "bad_request"),
    ("PUT", f"/api/v1/folders/{'0' * 64}", {"content": b"other"}, 400, "user_error"),
    ("PUT", "/api/v1/folders/short", {"content": b"x"}, 422, "bad_request"),
    ("POST", "/api/v1/users", {"json": {"name": "a", "role": "king"}}, 422, "bad_request"),
    ("POST", "/api/v1/users", {"content": b"{", "headers": {}}, 422, "bad_request"),
    ("POST", "/api/v1/users", {"json": {"name": "a"}}, 400, "user_error"),
]


@pytest.mark.parametrize(("method", "path", "rest", "status", "code"), BAD_REQUESTS)
def test_bad_input_gets_a_clear_answer(
    server: Server, method: str, path: str, rest: dict[str, Any], status: int, code: str
) -> None:
    answer = server.http.request(method, path, **rest)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["code"] == code
    assert error["text"]
    assert "\n" not in error["text"]


def test_a_misspelt_key_is_named_with_its_neighbour(server: Server) -> None:
    text = "name: a\ncomand: x\n"
    answer = server.http.post("/api/v1/jobs", content=text)
    assert "line 2" in answer.json()["error"]["text"]
    assert "'command'" in answer.json()["error"]["text"]


def test_what_is_over_cannot_be_changed(server: Server) -> None:
    job = server.wait(server.submit("true"))["id"]
    for what in ("stop", "halt", "resume"):
        answer = server.tell(job, what)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "conflict")
    running = server.submit("sleep 600")
    assert server.tell(running, "resume").status_code == 409
    server.tell(running, "stop")
    server.wait(running)


def test_many_at_once_with_one_key_make_one_job(server: Server) -> None:
    def submit(_: int) -> httpx.Response:
        return server.http.post(
            "/api/v1/jobs",
            json={"name": "flood", "command": "true"},
            headers={"Idempotency-Key": "flood"},
        )

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(submit, range(24)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_a_folder_is_kept_once(server: Server) -> None:
    body = b"not really a tar"
    name = hashlib.sha256(body).hexdigest()
    assert server.http.head(f"/api/v1/folders/{name}").status_code == 404
    answer = server.http.put(f"/api/v1/folders/{name}", content=body)
    assert (answer.status_code, answer.json()) == (201, {"sha256": name, "bytes": len(body)})
    assert server.http.head(f"/api/v1/folders/{name}").status_code == 204
    job = server.http.post(
        f"/api/v1/jobs?folder={name}", json={"name": "broken", "command": "true"}
    )
    found = server.wait(job.json()["id"])
    assert found["status"] == "FAILED"
    assert "unpacked" in found["reason"]["text"]


# -- events ---------------------------------------------------------------------------------------


def _events(answer: httpx.Response) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    for line in answer.iter_lines():
        if line.startswith("id: "):
            number = int(line[4:])
        elif line.startswith("data: "):
            yield number, json.loads(line[6:])


def test_the_events_of_a_job_end_with_it(server: Server) -> None:
    job = server.submit("sleep 0.1")
    with server.http.stream("GET", "/api/v1/events", params={"job": job}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        found = list(_events(answer))
    assert [body["status"] for _, body in found] == [
        *("QUEUED", "DOWNLOADING", "PROCESSING", "COMPLETED")
    ]
    numbers = [number for number, _ in found]
    assert numbers == sorted(set(numbers))
    assert [(item["status"], item["at"]) for item in server.job(job)["history"]] == [
        (body["status"], body["at"]) for _, body in found
    ]


def test_a_listener_that_comes_back_misses_nothing(server: Server) -> None:
    job = server.submit("true")
    server.wait(job)
    with server.http.stream("GET", "/api/v1/events", params={"job": job}) as answer:
        whole = list(_events(answer))
    headers = {"Last-Event-ID": str(whole[1][0])}
    with server.http.stream(
        "GET", "/api/v1/events", params={"job": job}, headers=headers
    ) as answer:
        assert list(_events(answer)) == whole[2:]


def test_all_jobs_events_come_as_they_happen(server: Server) -> None:
    with server.http.stream("GET", "/api/v1/events") as answer:
        lines = _events(answer)
        job = server.submit("true")
        seen = []
        for _, body in lines:
            if body["job"] != job:
                continue  # of a test before, whose job was still ending
            seen.append(body["status"])
            if body["status"] == "COMPLETED":
                break
    assert seen[0] == "QUEUED"
    assert seen[-1] == "COMPLETED"


# -- webhooks -------------------------------------------------------------------------------------


class Hook:
    """An address that can be told to refuse."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.refuse = False
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if not hook.refuse:
                    hook.got.append(body)
                self.send_response(500 if hook.refuse else 204)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def statuses(self, job: str) -> list[str]:
        """What it was told of a job, in the order of its deliveries."""
        mine = {body["delivery"]: body["status"] for body in self.got if body["job"] == job}
        return [mine[number] for number in sorted(mine)]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    yield made
    made.close()


WHOLE = ["QUEUED", "DOWNLOADING", "PROCESSING", "COMPLETED"]


def test_a_webhook_hears_every_status(server: Server, hook: Hook) -> None:
    job = server.submit("true", webhooks=[hook.url])
    eventually(lambda: hook.statuses(job) == WHOLE)
    assert all(body["reason"].keys() == {"code", "text"} for body in hook.got)


def test_a_webhook_that_was_down_hears_of_it_later(
    serve: Callable[..., Server], hook: Hook
) -> None:
    server = serve().start()
    hook.refuse = True
    job = server.submit("true", webhooks=[hook.url])
    server.wait(job)
    server.kill()
    hook.refuse = False
    server.start()
    eventually(lambda: hook.statuses(job) == WHOLE)


# -- OpenAPI --------------------------------------------------------------------------------------


def test_openapi_documents_every_answer(server: Server) -> None:
    schema = server.http.get("/openapi.json").json()
    assert len(schema["paths"]) >= 21
    known = set(schema["components"]["schemas"])
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            where = f"{method} {path}"
            assert about["summary"], where
            assert about.get("description"), f"{where} has no description"
            answers = about["responses"]
            good = [code for code in answers if code.startswith("2")]
            assert len(good) == 1, where
            assert {"400", "401", "403", "404", "409", "413", "422", "503"} <= answers.keys()
            for code, answer in answers.items():
                assert answer["description"], f"{where} {code}"
                if code != "204":
                    content = next(iter(answer["content"].values()))
                    assert "schema" in content or code == "200", f"{where} {code}"
            if path.startswith("/api/v1/sign-in"):
                assert "security" not in about, where  # who signs in has no token yet
            elif path.startswith("/api/"):
                assert about["security"] == [{"HTTPBearer": []}], where
            for name in re.findall(r"#/components/schemas/(\w+)", json.dumps(about)):
                assert name in known, f"{where} refers to {name}"


def test_every_answer_is_of_the_shape_that_openapi_promises(server: Server) -> None:
    """Spot checks; the fuzzer does all of them."""
    schema = server.http.get("/openapi.json").json()
    promised = schema["components"]["schemas"]["JobStatus"]["required"]
    job = server.wait(server.submit("true"))
    assert sorted(job) == sorted(promised)
    problem = schema["components"]["schemas"]["Problem"]
    assert problem["required"] == ["error"]


def test_the_document_names_every_route(server: Server, root: Path) -> None:
    text = (root / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    routes = [
        f"`{method.upper()} {path}`"
        for path, methods in server.http.get("/openapi.json").json()["paths"].items()
        for method in methods
    ]
    assert not [route for route in routes if route not in text]
